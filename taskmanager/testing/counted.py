"""Watches the store of a world: how many calls are under way, what was committed, when free rows are due."""

import inspect
from collections.abc import Callable, Container, Iterable
from typing import Any, Final, cast

from taskmanager.model.clock import LAST_US, SECOND_US
from taskmanager.model.record import Write
from taskmanager.model.states import TaskStatus
from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import CommitReport, Store
from taskmanager.testing.faulty import FaultyStore

A_MOMENT_S: Final = 1e-6
"""For what may be due already: the smallest step of the virtual clock."""


class CountedStore:
    """A store around another one that sees every call begin and end."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self._in_flight = 0
        self.statuses: dict[str, TaskStatus] = {}

    def __repr__(self) -> str:
        return f"<CountedStore {self.in_flight} in flight, of {self.inner!r}>"

    @property
    def in_flight(self) -> int:
        """Return how many calls only real time can end. A call that a test holds in a `FaultyStore` does not count."""
        held = len(self.inner.held) if isinstance(self.inner, FaultyStore) else 0
        return self._in_flight - held

    @property
    def sound(self) -> Store:
        """The store behind the faults. Calls to it do not count as calls of the manager."""
        return self.inner.inner if isinstance(self.inner, FaultyStore) else self.inner

    def as_store(self) -> Store:
        """Return this store with the type of the protocol."""
        return cast("Store", self)

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self.inner, verb)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._in_flight += 1
            try:
                value = await method(*args, **kwargs)
            finally:
                self._in_flight -= 1
            if verb == "commit":
                self._note(args[0], value)
            return value

        return call

    def _note(self, writes: Iterable[Write], report: CommitReport) -> None:
        for write in writes:
            if write.task_id not in report.lost and write.task_id not in report.rejected:
                self.statuses[write.task_id] = TaskStatus(write.status)

    def free_delays_s(self, now_us: int, task_names: Container[str]) -> list[float]:
        """Return the seconds until the first free row of each function is due, or a moment if the store cannot tell."""
        store = self.sound
        if not isinstance(store, MemoryStore):
            return [A_MOMENT_S]
        free = store.free_now()
        coming = [each.next_due_at for each in free if each.task_name in task_names and each.next_due_at < LAST_US]
        return [(each - now_us) / SECOND_US for each in coming]  # a task may wait for an event, for ever

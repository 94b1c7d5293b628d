"""A store that fails on purpose: at the n-th call, before or after it takes effect, or while it is switched off.

    store = FaultyStore(MemoryStore(), [Fault.fail(3, verb="commit", after=True)])

Calls are counted and never timed, so every run is the same. Try n = 1, 2, 3, … until a run ends with `is_spent` False:
then there was no n-th call, and every call of the store has failed once.
"""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from taskmanager.model.dataclass import dataclass
from taskmanager.model.errors import StoreUnavailable
from taskmanager.store.protocol import Store


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `nth` counts from 1: the calls of `verb`, or all calls if that is None."""

    kind: Literal["fail", "cancel", "hold"]
    nth: int
    verb: str | None = None
    after: bool = False
    times: int = 1

    @classmethod
    def fail(cls, nth: int, *, verb: str | None = None, after: bool = False, times: int = 1) -> "Fault":
        """Raise `StoreUnavailable` at the n-th call and the `times` - 1 after it. With `after`, it has taken effect."""
        return cls("fail", nth, verb, after, times)

    @classmethod
    def cancel(cls, nth: int, *, verb: str | None = None, after: bool = False) -> "Fault":
        """Cancel the caller at the n-th call. With `after`, the call has taken effect."""
        return cls("cancel", nth, verb, after)

    @classmethod
    def hold(cls, nth: int, *, verb: str | None = None, after: bool = False) -> "Fault":
        """Hold the n-th call until `FaultyStore.let_go()`. With `after`, it has taken effect by then."""
        return cls("hold", nth, verb, after)

    def matches(self, verb: str, nth_of_all: int, nth_of_verb: int) -> bool:
        """Return whether this call is meant."""
        number = nth_of_all if self.verb is None else nth_of_verb
        return self.verb in (None, verb) and self.nth <= number < self.nth + self.times


class FaultyStore:
    """A store around another one, with a plan of faults. For type checkers, `as_store()` is a `Store`.

    Several faults of one call happen in their order. `calls` has the verbs that were called so far. `is_spent` says
    whether a fault of the plan has happened. While `is_down` is set, every call but `close` fails before it takes
    effect. `held` has the verbs of held calls.
    """

    def __init__(self, inner: Store, plan: Sequence[Fault] = ()) -> None:
        self.inner = inner
        self.plan = list(plan)
        self.calls: list[str] = []
        self.is_down = False
        self.is_spent = False
        self.held: list[str] = []
        self._gate = asyncio.Event()

    def __repr__(self) -> str:
        state = "down" if self.is_down else f"{len(self.held)} held"
        return f"<FaultyStore {len(self.calls)} calls, {state}, of {self.inner!r}>"

    def as_store(self) -> Store:
        """Return this store with the type of the protocol."""
        return cast("Store", self)

    def let_go(self) -> None:
        """Let the held calls go on."""
        gate, self._gate = self._gate, asyncio.Event()
        gate.set()

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self.inner, verb)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._call(verb, method, args, kwargs)

        return call

    async def _call(self, verb: str, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls.append(verb)
        faults = self._faults(verb)
        if self.is_down and verb != "close":
            raise StoreUnavailable(f"{verb}: the store is down, as the test wants it")
        self.is_spent |= bool(faults)
        for fault in faults:
            if not fault.after:
                await self._happen(fault, verb)
        value = await method(*args, **kwargs)
        for fault in faults:
            if fault.after:
                await self._happen(fault, verb)
        return value

    def _faults(self, verb: str) -> list[Fault]:
        of_all, of_verb = len(self.calls), self.calls.count(verb)
        return [each for each in self.plan if each.matches(verb, of_all, of_verb)]

    async def _happen(self, fault: Fault, verb: str) -> None:
        if fault.kind == "fail":
            raise StoreUnavailable(f"call {len(self.calls)}, {verb}, fails as planned")
        if fault.kind == "cancel":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
            return
        self.held.append(verb)
        try:
            await self._gate.wait()
        finally:
            self.held.remove(verb)

"""Puts together what a manager runs, from what it was configured with: the parts of one start, and its store."""

import asyncio
from collections.abc import Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING

from taskmanager.duties.recovery import Recovery
from taskmanager.duties.supervisor import Supervisor
from taskmanager.engine.definition import Definition
from taskmanager.engine.engine import Engine, wire
from taskmanager.engine.instance import is_dead, new_identity
from taskmanager.engine.intake import Intake
from taskmanager.engine.lifecycle import Lifecycle
from taskmanager.model.clock import Clock
from taskmanager.model.errors import ConfigurationError, WrongProcess
from taskmanager.model.settings import Settings
from taskmanager.store.protocol import Store

if TYPE_CHECKING:
    from taskmanager.duties.reaper import Reaper
    from taskmanager.duties.schedule import Schedule
    from taskmanager.duties.schedules import Schedules
    from taskmanager.engine.records import Queues, Records
    from taskmanager.model.status import ScheduleInfo


class Running:
    """One start of a manager while it lasts: its lifecycle, and the parts that answer calls.

    Each part is made, and its module is loaded, by the first call that needs it. A start needs none of them.
    """

    def __init__(self, engine: Engine, supervisor: Supervisor) -> None:
        self.lifecycle = Lifecycle(engine, supervisor)
        self._engine, self._supervisor = engine, supervisor

    @cached_property
    def records(self) -> "Records":
        """What is known of each task."""
        from taskmanager.engine.records import Records

        return Records(self._engine, self.lifecycle.has_strays, self.lifecycle.stopped)

    @property
    def schedules(self) -> "Schedules":
        """The schedules of this instance, and what people do with them."""
        return self._supervisor.schedules

    def upcoming_schedules(self) -> "tuple[ScheduleInfo, ...]":
        """Return what this instance would fire next."""
        return self.schedules.book.upcoming() if self._supervisor.has_schedules else ()

    @cached_property
    def queues(self) -> "Queues":
        """What people do with queues."""
        from taskmanager.engine.records import Queues

        return Queues(self._engine)

    @property
    def reaper(self) -> "Reaper":
        """What people do about instances that are silent."""
        return self._supervisor.reaper


def store_of(settings: Settings) -> Store:
    """Return a store on the file, not opened yet, or a store in memory if there is no file."""
    if settings.database is None:
        from taskmanager.store.memory import MemoryStore

        return MemoryStore()
    from taskmanager.store.sqlite import SqliteStore

    is_gone = partial(is_dead, settings.database)
    return SqliteStore(settings.database, synchronous=settings.synchronous, is_dead=is_gone)


def check_process(settings: Settings, intake: Intake) -> None:
    """Raise `WrongProcess` in a child that was forked while its parent had the file open."""
    if settings.database is None:
        return
    from taskmanager.store.sqlite import open_files

    try:
        open_files.check_process(settings.database)
    except WrongProcess:
        intake.is_forked = True  # what is enqueued from now on would be held for a start that cannot come
        raise


def _check_loop() -> None:
    """Refuse trio with a clear message: Python would only say that there is no running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigurationError(
            "the manager needs an event loop of asyncio, and there is none here; with anyio choose the backend asyncio"
        ) from None


def composed(
    settings: Settings,
    definitions: Mapping[str, Definition],
    schedules: "Mapping[str, Schedule]",
    store: Store,
    clock: Clock,
    intake: Intake,
    *,
    is_alone: bool,
) -> Running:
    """Make the parts of a new start; none of them works yet. `is_alone` says that nobody else can see the store.

    Raises `ConfigurationError` outside of an event loop of asyncio.
    """
    _check_loop()
    identity = new_identity(settings.instance_name, clock.now_us())
    engine = wire(settings, definitions, store, clock, identity, intake)
    recovery = Recovery(store, clock, identity, settings.database, settings.recovery)
    return Running(engine, Supervisor(engine, recovery, schedules, is_alone=is_alone))

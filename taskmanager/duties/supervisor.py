"""Runs the duties of one instance in its host: each at its own interval; none that fails stops another.

A duty whose first round comes later, or that many applications have no work for, is loaded by that round.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from taskmanager.duties.heartbeat import Heartbeat
from taskmanager.duties.reaper import EXPIRY_INTERVAL_S, Reaper
from taskmanager.duties.recovery import Recovery
from taskmanager.duties.retention import Retention
from taskmanager.duties.visibility import LOOK_S, Visibility
from taskmanager.engine.engine import Engine
from taskmanager.engine.look.polling import make_due
from taskmanager.engine.words.outcome import log_judged
from taskmanager.engine.words.timers import next_beat
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.logger import logger
from taskmanager.model.record import TaskWrite

if TYPE_CHECKING:
    from taskmanager.duties.reports import Reports
    from taskmanager.duties.schedule import Schedule
    from taskmanager.duties.schedules import Schedules
    from taskmanager.model.report import ScheduleInfo

MAX_PERMANENT_FAILURES: Final = 3
"""A duty that the store refuses for good this often in a row is given up for this start, loudly."""
LONGEST_PAUSE_S: Final = 600.0
"""What fails unexpectedly is tried at least this often, or at its own interval where that is longer."""
_MAX_DOUBLINGS: Final = 10
LIVE_TASKS_INTERVAL_S: Final = 1.0
UPKEEP_INTERVAL_S: Final = 5.0
SHARED_S: Final = 1.0
"""Duties that are due this often wake the loop together; rarer ones keep their own time, or all instances would do
them at once.
"""


class Supervisor:
    """Runs the duties of one start. The host ends them; the heartbeat goes on until all outcomes are settled."""

    def __init__(self, engine: Engine, schedules: "Mapping[str, Schedule]") -> None:
        self._engine = engine
        self._store, self._wall_clock, self._writer = engine.store, engine.wall_clock, engine.writer
        self._inbox, self._life, self._free_rows = engine.inbox, engine.life, engine.free_rows
        self._host, self._settings, self._failing_duties = engine.host, engine.settings, engine.failing_duties
        self._visibility = Visibility(engine)
        self.heartbeat = Heartbeat(engine, self._visibility)
        config = engine.settings
        self._recovery = Recovery(
            engine.store,
            engine.clock,
            engine.identity,
            engine.presence,
            config.recovery,
            tell=self._tell_recovered,
            advanced=engine.free_rows.note_advance,
        )
        self.reaper = Reaper(engine, self._recovery, self.heartbeat)
        self._retention = Retention(engine)
        self._declared = schedules
        self._has_schedules = asyncio.Event()

    def _tell_recovered(self, write: TaskWrite) -> None:
        log_judged(write)
        self._free_rows.note_failure(write.row)
        if (listeners := self._life.listeners) is not None:
            listeners.moved(write)

    @cached_property
    def _reports(self) -> "Reports":
        from taskmanager.duties.reports import Reports

        return Reports(self._engine)

    @cached_property
    def schedules(self) -> "Schedules":
        """The schedules of this instance. Their rounds begin when somebody asks for them, in whatever thread."""
        from taskmanager.duties.schedules import Schedules

        made = Schedules(self._engine, self._declared)
        self._inbox.tell(self._has_schedules.set)
        return made

    @property
    def has_schedules(self) -> bool:
        """Whether anything was declared here, or somebody has asked for the schedules."""
        return bool(self._declared) or "schedules" in vars(self)

    def others_left(self) -> None:
        """Take over soon what an instance has declared that has stopped."""
        if self.has_schedules:
            self.schedules.read_soon()

    def upcoming_schedules(self) -> "tuple[ScheduleInfo, ...]":
        """Return what this instance would fire next."""
        return self.schedules.upcoming() if self.has_schedules else ()

    async def recover_at_start(self) -> bool:
        """Do what a start needs before it claims. Return False if `recover` is to be called beside the first tasks."""
        await self.recover(sum(self._settings.lanes().values()))
        return not self._recovery.cut

    async def recover(self, at_once: int | None = None) -> int:
        """Give back what dead instances left, and declare the schedules. `at_once` is that of `Recovery.run_once`."""
        # Before the dead are forgotten: their stamps may be all that tells of a clock that was set back since.
        # The clock is read after the stamp, which others may have written while this waited for the file.
        if await self._store.latest_stamp() > (now_us := self._wall_clock.now_us()):
            await make_due(self._store, now_us)
        moved = await self._recovery.run_once(at_once)
        if self.has_schedules or await self._store.schedules(limit=1):
            await self.schedules.open()
        return moved

    def start(self, on_loop_closed: Callable[[], bool]) -> None:
        """Begin the duties of a start. A store in memory, which nobody else sees, needs one of them only.

        `on_loop_closed` is called in the thread of the heartbeat, again and again until it returns True.
        """
        logger.look()
        self._host.start("schedules", self._run_schedules)
        if self._engine.presence is None:
            return
        config = self._settings.recovery
        if self._visibility.can_be_lost:
            self._visibility.begin()
            self._begin("visibility", LOOK_S, self._visibility.look)
        self.heartbeat.start(on_loop_closed)
        self._begin("reaper", config.check_interval_ms / 1000, self.reaper.run_once)
        self._begin("worker states", config.worker_state_snapshot_interval_ms / 1000, self._add_worker_state)
        self._begin("live tasks", LIVE_TASKS_INTERVAL_S, self._show)
        self._begin("upkeep", UPKEEP_INTERVAL_S, self._upkeep)
        logger.info("heartbeat, reaper and retention have started")

    def start_sweeps(self) -> None:
        """Begin the duties whose first round is due at once. None of them may hold up the first claim."""
        self._begin("expiry", EXPIRY_INTERVAL_S, self.reaper.expire, at_once=True)
        if self._engine.presence is not None:
            interval_s = self._settings.recovery.retention_sweep_interval_s
            self._begin("retention", interval_s, self._retention.run_once, at_once=True)

    async def made_anew(self) -> None:
        """The store is another file: write what is not in it. Raises `StoreError`."""
        await self._reports.write_anew()
        if self.has_schedules:
            await self.schedules.refresh()

    async def _run_schedules(self) -> None:
        await self._has_schedules.wait()
        await self.schedules.run()

    async def _add_worker_state(self) -> None:
        await self._reports.add_worker_state()

    async def _show(self) -> None:
        await self._reports.show()
        with suppress(StoreUnavailable):  # they wait in memory
            await self._store.add_figures()

    async def _upkeep(self) -> None:
        writer = self._writer
        # A disk may be full of the log itself, and what is moved into the file need not be appended for.
        await self._store.upkeep(is_idle=not writer.unsaved_count or writer.degraded_since is not None)

    def _begin(
        self, name: str, interval_s: float, work: Callable[[], Awaitable[Any]], *, at_once: bool = False
    ) -> None:
        """Begin a duty. It is begun again when other code has cancelled it, and then its first round is never at once:
        what a round leaves to the next one has the whole interval.
        """
        is_first = iter((at_once,))
        self._host.start(name, lambda: _repeat(name, interval_s, work, next(is_first, False), self._failing_duties))


def pause_s(interval_s: float, surprised: int) -> float:
    """How long to wait after so many unexpected failures in a row."""
    return min(interval_s * 2.0 ** min(surprised, _MAX_DOUBLINGS), max(interval_s, LONGEST_PAUSE_S))


async def _repeat(
    name: str, interval_s: float, work: Callable[[], Awaitable[Any]], at_once: bool, faults: dict[str, str]
) -> None:
    """`work` every `interval_s` seconds until cancelled, or until the store has refused it for good too often.

    An error that nobody expected may pass, so it does not end the duty: the first of a row is logged, and the pauses
    between the tries grow. While a duty fails, `faults` has the reason under its name. An outage is logged when it
    begins and when it has ended, however long it is.
    """
    refused = surprised = 0
    is_kept_out = False
    is_first = at_once
    while refused < MAX_PERMANENT_FAILURES:
        if not is_first:
            await _rest(pause_s(interval_s, surprised))
        is_first = False
        logger.look()
        try:
            await work()
        except StoreUnavailable as exc:
            if not is_kept_out:
                logger.warning("the %s could not do its round, and tries again: %s", name, exc)
            is_kept_out = True
        except StoreError as exc:
            refused += 1
            faults[name] = str(exc)
            logger.error("the %s failed: %s", name, exc)
        except Exception as exc:
            surprised += 1
            faults[name] = f"{type(exc).__name__}: {exc}"
            if surprised == 1:
                logger.critical("the %s failed unexpectedly, and tries again", name, exc_info=True)
        else:
            refused = surprised = 0
            faults.pop(name, None)
            if is_kept_out:
                logger.info("the %s does its rounds again", name)
            is_kept_out = False
    faults[name] = f"given up until the next start: {faults[name]}"
    logger.critical("the %s failed %d times and is given up until the next start", name, MAX_PERMANENT_FAILURES)


async def _rest(for_s: float) -> None:
    if 0 < for_s <= SHARED_S:
        now_s = asyncio.get_running_loop().time()
        for_s = next_beat(now_s, for_s) - now_s
    await asyncio.sleep(for_s)

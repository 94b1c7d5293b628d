"""A manager looks at itself: its own memory, which is newer than any file, and through its store at everybody else.

Memory is looked at on the loop, the store in a thread where there is time for it: `console()` is a plain call and reads
the file here and now, for some milliseconds; `live()` leaves the loop alone.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, NamedTuple

from rich.console import ConsoleRenderable, RenderableType
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from taskmanager.console.document import Document, read
from taskmanager.console.figures import plural
from taskmanager.console.observer import Observer, Own
from taskmanager.console.picture import NO_COUNTS, Picture, Problem
from taskmanager.console.screens import LiveScreen, StatusScreen
from taskmanager.engine.engine import Engine
from taskmanager.engine.live_task import LiveTask
from taskmanager.engine.report import live_document
from taskmanager.model.clock import HOUR_US, MINUTE_US
from taskmanager.model.errors import StoreError
from taskmanager.model.logger import logger
from taskmanager.model.record import AttemptRow
from taskmanager.model.states import TERMINAL, AttemptOutcome, TaskStatus
from taskmanager.model.status import ManagerStatus
from taskmanager.store.protocol import InstanceRow
from taskmanager.store.statistics import MAX_LINES, Failure, FileSize, Glance, Pace, Statistics

REFRESH_S: Final = 0.5
READ_S: Final = 1.0
"""The least time between two looks at the file."""
MAX_COUNTED: Final = 20_000
"""Tasks in memory that are counted one by one; with more, the loop would feel it, and what queues count must do."""
COST_FACTOR: Final = 50.0
"""A look at the file that took so long is made again after so many times as long."""

Running = Callable[[], Engine | None]
"""Gives the engine of the start that runs now, or None."""


def instance_view(engine: Engine | None, status: ManagerStatus) -> RenderableType:
    """The manager as it is now."""
    if engine is None:
        return Text(f"not running, {plural(status.held_count, 'task')} held for the start")
    return StatusScreen(SelfPortrait(engine).picture())


class SelfPortrait:
    """One engine in pictures; what the store said is kept for a while."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._observer = Observer(engine.settings.database, engine.clock)
        self._glance: Glance | None = None
        self._fault: str | None = None
        self._mark = NO_MARK
        self._next_look_s = 0.0

    def picture(self) -> Picture:
        """Here and now."""
        if self._is_due():
            mark = self._take_mark()
            if self.look():
                self._mark = mark
        return self._drawn(self._memory())

    async def picture_aside(self) -> Picture:
        """The same, with the file read in a thread."""
        if self._engine.settings.database is None:
            return self.picture()
        if self._is_due():
            mark = self._take_mark()
            if await asyncio.to_thread(self.look, counts_all=True):
                self._mark = mark
        return self._drawn(self._memory())

    def look(self, *, counts_all: bool = False) -> bool:
        """Read the store; whether it could be read. Who has time for it counts all rows."""
        clock = self._engine.clock
        began_s = clock.elapsed_s()
        try:
            self._glance, self._fault = self._engine.store.glance(clock.now_us(), counts_all=counts_all), None
        except StoreError as exc:
            self._fault = str(exc)
        took_s = clock.elapsed_s() - began_s
        self._next_look_s = began_s + max(READ_S, took_s * COST_FACTOR)
        return self._fault is None

    def _is_due(self) -> bool:
        return self._engine.clock.elapsed_s() >= self._next_look_s

    def _lives(self) -> dict[str, LiveTask]:
        """The tasks in memory, with those that have ended and are not written yet."""
        engine = self._engine
        return {live.task_id: live for live in {**engine.writer.unsaved_ended, **engine.live}.values()}

    def _has_many(self) -> bool:
        return len(self._engine.live) + len(self._engine.writer.unsaved_ended) > MAX_COUNTED

    def _take_mark(self) -> "_Mark":
        lives = {} if self._has_many() else self._lives()
        known = {
            task_id: (live.saving.committed and live.saving.committed.status, live.status)
            for task_id, live in lives.items()
        }
        return _Mark(self._engine.clock.now_us(), known, Counter(self._engine.settlement.tally))

    def _memory(self) -> "_Memory":
        engine = self._engine
        identity, now = engine.identity, engine.clock.now_us()
        document = read(live_document(engine), identity.instance_id)
        if self._has_many():
            waiting, running = document.memory_only_waiting, document.memory_only_running
            roughly = Counter({TaskStatus.PENDING: waiting, TaskStatus.RUNNING: running})
            return _Memory(identity.row(now), document, roughly, ())
        lives = self._lives()
        ended = [_as_failure(each, live.definition.name) for live in lives.values() for each in live.attempts_due]
        differences = _differences(lives, self._mark, engine.settlement.tally)
        return _Memory(identity.row(now), document._replace(unwritten_count=0), differences, ended)

    def _drawn(self, memory: "_Memory") -> Picture:
        now = memory.row.updated_at
        found, counts, capped = self._glance or Glance(_nothing(now), NO_COUNTS)
        together = {status: max(0, number + memory.differences[status]) for status, number in counts.items()}
        own = Own(memory.row, memory.document, together, capped)
        picture = self._observer.picture(_with_ended(found, memory.ended, now), counts, own)
        if self._fault is None:
            return picture
        problem = Problem(severity="error", text=self._fault, advice="shown is what memory knows")
        return replace(picture, problems=(problem, *picture.problems))


class _Mark(NamedTuple):
    """Memory when the store was looked at. `known`: of each task its status in the store, None without a row, and its
    status here; `ended`: how many have ended in this start, by status.
    """

    at: int
    known: Mapping[str, tuple[str | None, TaskStatus]]
    ended: Counter[str]


NO_MARK: Final = _Mark(0, {}, Counter())


def _differences(lives: Mapping[str, LiveTask], mark: _Mark, tally: Counter[str]) -> Counter[TaskStatus]:
    """What the counts of the store lack, which are as old as the mark. What others do meanwhile comes with the next."""
    differences: Counter[TaskStatus] = Counter()
    ended = tally - mark.ended
    for task_id, live in lives.items():
        stored, status = mark.known.get(task_id, (None, None))
        if status is None and live.saving.committed is not None and live.sent_at < mark.at:
            stored = TaskStatus.PENDING  # claimed since
        if stored is not None:
            differences[TaskStatus(stored)] -= 1
        differences[live.status] += 1
        if live.status.is_terminal and not (status and status.is_terminal):
            ended[live.status.value] -= 1  # it is counted here
    for stored, status in (mark.known[task_id] for task_id in mark.known.keys() - lives.keys()):
        if stored is not None:
            differences[TaskStatus(stored)] -= 1
        if status.is_terminal:
            differences[status] += 1
    for status in TERMINAL:
        differences[status] += ended[status.value]
    return differences


class _Memory(NamedTuple):
    """What is in memory. `differences`: what the counts of the store lack for it; `ended`: attempts not stored yet."""

    row: InstanceRow
    document: Document
    differences: Counter[TaskStatus]
    ended: Sequence[Failure]


def _as_failure(row: AttemptRow, task_name: str) -> Failure:
    code, message = row.error_code or "", row.error_message
    return Failure(
        row.task_id, task_name, row.attempt, row.outcome, code, message, row.finished_at, bool(row.will_retry)
    )


def _with_ended(found: Statistics, ended: Sequence[Failure], now: int) -> Statistics:
    """The statistics with attempts that no store has seen."""
    failed = [each for each in ended if each.outcome in (AttemptOutcome.FAILED, AttemptOutcome.WORKER_FAILURE)]

    def more(pace: Pace) -> Pace:
        new = sum(each.finished_at >= pace.since for each in ended)
        new_failed = sum(each.finished_at >= pace.since for each in failed)
        return Pace(pace.since, pace.ended_count + new, pace.failed_count + new_failed)

    newest = sorted([*failed, *found.failures], key=lambda each: each.finished_at, reverse=True)
    return replace(
        found, taken_at=now, minute=more(found.minute), hour=more(found.hour), failures=tuple(newest[:MAX_LINES])
    )


def _nothing(now: int) -> Statistics:
    minute, hour = Pace(now - MINUTE_US, 0, 0), Pace(now - HOUR_US, 0, 0)
    return Statistics(taken_at=now, beats={}, owned={}, minute=minute, hour=hour, size=FileSize(0, 0, 0))


class Region(Live):
    """The lines of a live view, found again after the terminal has become narrower and has wrapped them."""

    _view: RenderableType = ""
    _drawn: RenderableType = ""

    def show(self, view: RenderableType) -> None:
        """Draw this in the place of what was drawn last."""
        self._view = view
        self.update(view, refresh=True)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """What is to be printed; rich goes up by as many lines as it has drawn, and by no more."""
        width = max(1, self.console.width)
        widths = self._drawn.widths if isinstance(self._drawn, LiveScreen) else ()
        more = sum((each - 1) // width for each in widths if each > width)
        self._drawn = self._view
        up = [(ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)] * more
        found = super().process_renderables(renderables)
        return [Control(*up), *found] if more and self.console.is_interactive else found


@asynccontextmanager
async def live_view(running: Running) -> AsyncIterator[None]:
    """Show the manager while the block runs."""
    ended = asyncio.Event()
    with Region(auto_refresh=False, vertical_overflow="crop") as live:
        showing = asyncio.get_running_loop().create_task(_keep_showing(live, running, ended), name="taskmanager-live")
        try:
            yield
        finally:
            ended.set()
            await asyncio.wait([showing])
            if (fault := showing.exception()) is not None:
                logger.warning("the live view has ended early: %r", fault)


async def _keep_showing(live: Region, running: Running, ended: asyncio.Event) -> None:
    """Until the block has ended, and then once more."""
    portrait: SelfPortrait | None = None
    engine: Engine | None = None
    is_last = False
    while not is_last:
        is_last = ended.is_set()
        if running() is not engine:
            engine = running()
            portrait = None if engine is None else SelfPortrait(engine)
        view: RenderableType = Text("not running")
        if portrait is not None:
            view = LiveScreen(await portrait.picture_aside())
        await asyncio.to_thread(live.show, view)
        if not is_last:
            await _either(ended, REFRESH_S)


async def _either(event: asyncio.Event, timeout_s: float) -> None:
    """Until the event, or for so long."""
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait([waiting], timeout=timeout_s)
    waiting.cancel()

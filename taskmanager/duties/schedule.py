"""A schedule as it is declared: checked at once, and turned into what the store keeps and what every fire runs.

The task of a fire is made from a *template*, the columns of its row that do not depend on the fire. It stands in the
store too, so that a schedule can be run by hand from another process, which need not know the function.

What people do to one in the store alone is here too: to run it, and to pause it.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final, get_args

from taskmanager.codec.values import dumps, loads
from taskmanager.engine.words.definition import Definition
from taskmanager.model.clock import SECOND_US
from taskmanager.model.config import is_int, name_fault, raise_faults
from taskmanager.model.dataclass import dataclass
from taskmanager.model.errors import ArgumentError, ConfigurationError, StoreError, StoreUnavailable, UnknownTask
from taskmanager.model.ids import keyed_task_id
from taskmanager.model.record import TaskRow
from taskmanager.model.result import Seconds, seconds_of
from taskmanager.model.schedule import ScheduleDeclaration, ScheduleFire, ScheduleRow, tags_of_runs
from taskmanager.model.states import TaskStatus
from taskmanager.rules.cron import cron_of
from taskmanager.rules.schedule import CatchUp, Overlap, Plan, Timing
from taskmanager.store.protocol import Store

MIN_INTERVAL_S: Final = 0.01
"""A fire is a transaction; more than a hundred a second are a loop in the task, not a schedule."""
MAX_TRIES: Final = 20
"""How often a run by hand is tried again when the schedule fired in the same moment."""
_TEMPLATE: Final = ("task_name", "queue_name", "priority", "args", "kwargs", "max_retries", "task_options", "tags")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """What `manager.schedule` was given. Raises `ConfigurationError` with everything that is wrong."""

    cron: str | None = None
    every: Seconds | None = None
    timezone: str | None = None
    name: str | None = None
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] | None = None
    catch_up: CatchUp = "latest"
    max_catch_up_runs: int = 100
    overlap: Overlap = "skip"
    run_on_startup: bool = False
    jitter: Seconds = 0.0

    def __post_init__(self) -> None:
        found = [self._timing_fault(), self._jitter_fault(), None if self.name is None else name_fault(self.name)]
        if self.catch_up not in get_args(CatchUp):
            found.append(f"catch_up must be 'skip', 'latest' or 'all', not {self.catch_up!r}")
        if not is_int(self.max_catch_up_runs) or not 1 <= self.max_catch_up_runs <= 10_000:
            found.append(f"max_catch_up_runs must be a whole number from 1 to 10000, not {self.max_catch_up_runs!r}")
        if self.overlap not in get_args(Overlap):
            found.append(f"overlap must be 'skip', 'queue' or 'allow', not {self.overlap!r}")
        if not isinstance(self.run_on_startup, bool):
            found.append(f"run_on_startup must be True or False, not {self.run_on_startup!r}")
        if not isinstance(self.args, tuple):
            found.append(f"args must be a tuple, not {self.args!r}")
        if self.kwargs is not None and not isinstance(self.kwargs, Mapping):
            found.append(f"kwargs must be a mapping of names, not {self.kwargs!r}")
        raise_faults("schedule", [fault for fault in found if fault])

    def _timing_fault(self) -> str | None:
        if (self.cron is None) == (self.every is None):
            return "give cron= or every=, one of them"
        try:
            if self.cron is not None:
                _check(self.cron, self.timezone)
            elif self.every is not None and seconds_of(self.every, "every") < MIN_INTERVAL_S:
                return f"every must be at least {MIN_INTERVAL_S} seconds, not {self.every!r}"
        except ConfigurationError as exc:
            return str(exc)
        if self.cron is None and self.timezone is not None:
            return "timezone goes with cron=; an interval is the same in every zone"
        return None

    def _jitter_fault(self) -> str | None:
        try:
            jitter_s = seconds_of(self.jitter, "jitter")
            if jitter_s and self.every is not None and jitter_s >= seconds_of(self.every, "every"):
                return "jitter must be shorter than every"
            # Else fires would overtake each other, and those that come due together be dropped but for the newest.
            if jitter_s and not self._timing_fault() and self.cron is not None:
                if jitter_s < cron_of(self.cron, self.timezone).shortest_gap_s():
                    return None
                return f"jitter must be shorter than the time between two fires of {self.cron!r}, not {self.jitter!r}"
        except ConfigurationError as exc:
            return str(exc)
        return None

    def timing(self, name: str) -> Timing:
        """When the schedule of that name fires."""
        return Timing(
            name,
            cron=None if self.cron is None else cron_of(self.cron, self.timezone),
            every_us=None if self.every is None else round(seconds_of(self.every, "every") * SECOND_US),
            jitter_us=round(seconds_of(self.jitter, "jitter") * SECOND_US),
        )


def _check(cron: object, timezone: object) -> None:
    if not isinstance(cron, str):
        raise ConfigurationError(f"cron must be text, such as '30 2 * * *', not {cron!r}")
    if timezone is not None and not (isinstance(timezone, str) and timezone):  # "" would mean UTC
        raise ConfigurationError(f"timezone must be a name such as 'Europe/Berlin', or None for UTC, not {timezone!r}")
    cron_of(cron, timezone)


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """One schedule of one manager. `config_hash` tells definitions apart, timing and task together."""

    name: str
    task_name: str
    queue_name: str
    plan: Plan
    run_on_startup: bool
    template: str
    config_hash: str

    def __repr__(self) -> str:
        return f"<Schedule {self.name!r} of {self.task_name!r}, {self.plan.timing}>"

    def declaration(self, row: ScheduleRow | None, lost: ScheduleRow | None, now: int) -> ScheduleDeclaration:
        """What the store is told. `row` is what it says now, and saves computing the next fire. One whose row was
        `lost` with its file goes on with the fire that was planned.
        """
        definition, next_run_at = str(self.plan.timing), None
        if lost is not None and lost.config_hash == self.config_hash:
            next_run_at = lost.next_run_at
        if next_run_at is None and (row is None or row.definition != definition):
            next_run_at = self.plan.timing.after(now)
        return ScheduleDeclaration(self.name, self.config_hash, self.task_name, definition, self.template, next_run_at)

    def run_id(self, of: object) -> str:
        """The id of the run of one fire, or of the start of one instance.

        It is the same in every process: no two rows can stand for one fire.
        """
        return keyed_task_id(f"schedule:{self.name}", str(of))

    def after(self, instant_us: int, anchor_us: int | None = None) -> int:
        """The first fire later than this instant. Intervals count from `anchor_us`, an earlier fire of theirs."""
        return self.plan.timing.after(instant_us, anchor_us)

    def starts_at(self, next_run_at: int) -> int:
        """When that fire starts: at its time, or within the jitter behind it."""
        return self.plan.timing.due(next_run_at)

    def anew(self, next_run_at: int, now: int) -> int | None:
        """The fire with which an interval goes on that was planned by a clock that was ahead. None for all others."""
        return self.plan.timing.anew(next_run_at, now)

    @property
    def runs_alone(self) -> bool:
        """Whether a run of it does not begin before the one before has ended."""
        return self.plan.overlap != "allow"


def make_schedule(name: str, definition: Definition, options: ScheduleOptions) -> Schedule:
    """Raises `ConfigurationError` when the arguments do not fit the function, or cannot be stored."""
    args, kwargs, arguments = options.args, dict(options.kwargs or {}), definition.arguments
    persisted = definition.as_persisted()
    try:
        arguments.check(args, kwargs)
        stored_args, stored_kwargs = arguments.encode(args, kwargs)
    except (TypeError, ArgumentError) as exc:
        raise ConfigurationError(f"schedule {name!r}: its args and kwargs do not fit the task: {exc}") from exc
    template = dumps(
        {
            "task_name": persisted.name,
            "queue_name": persisted.queue_name,
            "priority": persisted.priority,
            "args": stored_args,
            "kwargs": stored_kwargs,
            "max_retries": persisted.retry.max_retries,
            "task_options": persisted.options_text,
            "tags": tags_of_runs(name),
        }
    )
    timing = options.timing(name)
    # Encrypted arguments are other ones each time, so where they are the hash can only tell that there are some.
    said = [
        str(timing),
        persisted.name,
        arguments.digest(args, kwargs) or "",
        options.catch_up,
        str(options.max_catch_up_runs),
        options.overlap,
        str(options.run_on_startup),
    ]
    return Schedule(
        name=name,
        task_name=persisted.name,
        queue_name=persisted.queue_name,
        plan=Plan(timing, options.catch_up, options.max_catch_up_runs, options.overlap),
        run_on_startup=options.run_on_startup,
        template=template,
        config_hash=hashlib.sha256(dumps(said).encode()).hexdigest(),
    )


def task_of(template: str, task_id: str, scheduled_for: int, now: int) -> TaskRow:
    """The free row of one run. Raises `StoreError` for a template that cannot be read."""
    try:
        columns = loads(template)
    except ArgumentError:
        columns = None
    if not isinstance(columns, dict) or not columns.keys() >= {*_TEMPLATE}:
        raise StoreError("what the schedule runs cannot be read in the file; declare it under another name")
    blank: dict[str, Any] = dict.fromkeys(TaskRow._fields)
    return TaskRow(
        **blank
        | {name: columns[name] for name in _TEMPLATE}
        | {
            "task_id": task_id,
            "status": TaskStatus.PENDING.value,
            "sent_at": now,
            "enqueued_at": now,
            "retry_count": 0,
            "start_count": 0,
            "crash_count": 0,
            "snooze_count": 0,
            "scheduled_for": scheduled_for,
            "is_workflow_task": 0,
            "created_at": now,
            "updated_at": now,
        }
    )


async def run_by_hand(store: Store, name: str, task_id: str, now: int) -> TaskRow:
    """Write one run of a schedule, paused or not, beside its fires, and return it. The same id again is the same run.

    Works from the store alone: the function need not be known here. Raises `UnknownTask`.
    """
    for _ in range(MAX_TRIES):
        row = await _row(store, name)
        task = task_of(row.template, task_id, now, now)
        fire = ScheduleFire(name, row.config_hash, row.next_run_at, row.next_run_at, task, now, is_manual=True)
        if not await store.fire_schedules([fire]):
            return task
    raise StoreUnavailable(f"schedule {name!r} changed each time it was to be run; try again")


async def set_paused(store: Store, name: str, paused: bool, now: int) -> None:
    """Pause or resume a schedule for every instance. Raises `UnknownTask`."""
    if not await store.set_schedule_paused(name, paused, now):
        await _row(store, name)


async def _row(store: Store, name: str) -> ScheduleRow:
    found = await store.schedules([name])
    if found:
        return found[0]
    known = ", ".join(repr(row.schedule_name) for row in await store.schedules(limit=5)) or "none"
    raise UnknownTask(f"there is no schedule {name!r}; there are: {known}")

"""`taskmanager doctor`: checks the database and its surroundings, and says what to do about each finding."""

import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import click

from taskmanager.cli.database import check_is_there, read
from taskmanager.cli.options import answer_json, draw, file_options
from taskmanager.console.figures import relative, short, workflow_label
from taskmanager.console.observer import look, unknown_in, unrun_in
from taskmanager.console.overview import Health, InstanceView
from taskmanager.model.clock import MINUTE_US, SECOND_US, SystemClock
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.wording import counted
from taskmanager.rules.steps import MAX_RECORDED_CHARS, MAX_RECORDS
from taskmanager.store.place import LOOP_PATIENCE_S, READ_PATIENCE_S, Checks, Finding, Place
from taskmanager.store.processes import process_name
from taskmanager.store.protocol import FreeQueue
from taskmanager.store.sql.claims import free_queues
from taskmanager.store.sql.health import Owned, near_limit, newest_stamp, owned, unreadable
from taskmanager.store.sql.session import Session
from taskmanager.store.sql.workflow_recovery import half_done
from taskmanager.store.statistics import LiveWorkflow

NEAR: Final = 0.8
"""The part of a limit from which on it is said."""
SKEW_US: Final = 5_000_000
"""A stamp that lies further in the future was written by another clock, or before this one was set back."""
SHOWN: Final = 3
MAX_HALF_DONE: Final = 1_000  # nodes of each kind that are counted
EPILOG: Final = """\b
Examples:
  taskmanager doctor
  taskmanager doctor --json --min-free 2000

Of a file it looks at permissions, the file system, free disk space, the log and who pins it, who keeps others from
writing, and every page; of a server at its version, settings, clock, connections, a pooler, rights, locks, long
transactions and dead rows. Of both: the schema, tasks of dead instances, silent instances, functions that nobody
knows, workflows that do not go on, and clocks.
Changes nothing.
Exit codes: 0 all is well, 1 there are findings.
"""


@click.command(epilog=EPILOG)
@click.option(
    "--min-free", type=click.IntRange(min=0), default=200, show_default=True, metavar="MB",
    help="Less free disk space than this is a finding.",
)  # fmt: skip
@file_options
def doctor(min_free: int, db: Place, as_json: bool) -> int:
    """Check the database and its surroundings, and say what to do."""
    check_is_there(db)
    checks = db.doctor()
    findings = list(checks.around(min_free))
    # A lock that was just seen to be held for long would only be waited for a second time.
    is_locked = any(each.name == "locks" and not each.is_well for each in findings)
    try:
        with read(db, patience_s=LOOP_PATIENCE_S if is_locked else READ_PATIENCE_S) as connection:
            findings += _inside(checks, connection, db)
    except StoreError as exc:
        if isinstance(exc, StoreUnavailable) and all(each.is_well for each in findings):
            raise  # in one line, as every command; with findings, they say why
        findings.append(
            Finding(checks.what, False, str(exc), "what is in it cannot be looked at before that is mended")
        )
    bad = sum(not each.is_well for each in findings)
    if as_json:
        told = [
            {"name": each.name, "ok": each.is_well, "found": each.found, "advice": each.advice or None}
            for each in findings
        ]
        answer_json({"db": str(db), "findings": bad, "checks": told})
    else:
        from taskmanager.console.terminal.tables import diagnosis_view

        draw(diagnosis_view(findings))
    return 1 if bad else 0


def _some(each: Sequence[str], separator: str = ", ", more: str = " and {} more") -> str:
    """`a, b, c and 4 more`."""
    return separator.join(each[:SHOWN]) + (more.format(len(each) - SHOWN) if len(each) > SHOWN else "")


# Inside the database.


def _inside(checks: Checks, connection: Session, db: Place) -> Iterator[Finding]:
    """Yield the checks of what is in the database, first those of its kind."""
    for found in checks.inside(connection):
        yield found
        if found.is_last:
            return
    clock = SystemClock()
    with connection.snapshot():
        overview = look(db, connection, clock)
        has, free, newest = owned(connection), free_queues(connection), newest_stamp(connection)
        left = half_done(connection, clock.now_us() - MINUTE_US, MAX_HALF_DONE)
    yield records(unreadable(connection))
    yield steps(near_limit(connection, int(NEAR * MAX_RECORDS), int(NEAR * MAX_RECORDED_CHARS)))
    alive = overview.with_health(Health.ALIVE, Health.FROZEN)
    yield claims([each for each in has if db.is_dead(each.owner)])
    yield from checks.of_instances(connection, [each.row for each in alive])
    yield living(alive)
    yield duties(alive)
    yield queues(free, alive)
    yield functions(free, alive)
    yield workflows(left, [each for each in overview.workflows if each.status == "PAUSED"])
    yield clocks(newest, clock.now_us(), checks.what)


def records(unreadable_ids: Sequence[str]) -> Finding:
    """Check that every unfinished task can be read. A flipped bit or another program may have damaged one."""
    if not unreadable_ids:
        return Finding("records", True, "every unfinished task can be read")
    count = counted(len(unreadable_ids), "unfinished task")
    advice = "`taskmanager show ID` says what; mend the row, or it is FAILED when its turn comes"
    return Finding("records", False, f"not all of {count} can be read: {_some(unreadable_ids)}", advice)


def steps(near_ids: Sequence[str]) -> Finding:
    """Check that no unfinished task comes near the limits of its recorded steps. At a limit it would fail."""
    if not near_ids:
        return Finding("steps", True, "every unfinished task may record more")
    advice = f"at {MAX_RECORDS:,} steps, or 64 MiB of results, it fails with STEP_LIMIT: let a step enqueue a successor"
    return Finding("steps", False, f"{counted(len(near_ids), 'task')} near the limit: {_some(near_ids)}", advice)


def claims(stale: Sequence[Owned]) -> Finding:
    """Check that no dead instance holds tasks. Nobody runs them until they are given back."""
    if not stale:
        return Finding("claims", True, "no task is held by a dead instance")
    by_status = Counter[str]()
    for each in stale:
        by_status[each.status] += each.number
    what = ", ".join(f"{number:,} {status}" for status, number in sorted(by_status.items()))
    dead = counted(len({each.owner for each in stale}), "dead instance")
    return Finding("claims", False, f"{what} held by {dead}", "start the application, or `taskmanager recover`")


def _process(view: InstanceView) -> str:
    """Return its process, with the command line only if it runs on this host: another host has other numbers."""
    row = view.row
    return process_name(row.pid) if row.hostname == socket.gethostname() else f"process {row.pid}"


def living(alive: Sequence[InstanceView]) -> Finding:
    """Check that every living instance sends heartbeats."""
    silent = [
        f"{_process(each)} on {each.row.hostname} for {short(round(each.silent_s * SECOND_US))}"
        for each in alive
        if each.health is Health.FROZEN
    ]
    if silent:
        advice = (
            "it is frozen, or cannot write; end it, and its tasks are recovered, or take them: "
            "`taskmanager recover --frozen 5` (minutes of silence)"
        )
        return Finding("instances", False, f"no sign of life of {', '.join(silent[:SHOWN])}", advice)
    return Finding("instances", True, f"{len(alive) or 'none'} alive")


def duties(alive: Iterable[InstanceView]) -> Finding:
    """Check that no instance reports a failing duty. Its log counts as one."""
    failing = []
    for each in alive:
        process, report = _process(each), each.report
        failing += [f"the {name} of {process}: {why}" for name, why in report.failing_duties.items()]
    if not failing:
        return Finding("duties", True, "heartbeat, recovery, retention and log work")
    advice = "what it says there is wrong beside the tasks; its log, if it has one, says since when"
    return Finding("duties", False, _some(failing, "; ", "; and {} more"), advice)


def queues(free: Sequence[FreeQueue], alive: Sequence[InstanceView]) -> Finding:
    """Check that some running instance runs the queue of every waiting task."""
    if not alive:
        return Finding("queues", True, "no instance runs that could run any")
    unrun = Counter(unrun_in([each.report for each in alive], free))
    if not unrun:
        return Finding("queues", True, "every waiting task has an instance that runs its queue")
    advice = "start a worker for it: taskmanager run MODULE:MANAGER, or name it in run_queues of one that runs"
    return Finding("queues", False, f"run by no running instance: {_most_waiting(unrun)}", advice)


def functions(free: Sequence[FreeQueue], alive: Sequence[InstanceView]) -> Finding:
    """Check that some running instance knows the function of every waiting task."""
    if not alive:
        return Finding("functions", True, "no instance runs that could know any")
    for each in alive:
        if each.report.task_names is None:
            return Finding("functions", True, f"process {each.row.pid} does not say which it knows")
    unknown = Counter(unknown_in([each.report for each in alive], free))
    if not unknown:
        return Finding("functions", True, "every waiting task has an instance that knows its function")
    advice = "register the function under that name, or cancel its tasks: taskmanager cancel --task NAME"
    return Finding("functions", False, f"known to no running instance: {_most_waiting(unknown)}", advice)


def workflows(half_done: Mapping[str, int], paused: Sequence[LiveWorkflow]) -> Finding:
    """Check that each workflow goes on: another program has left none half done, and none is paused."""
    found, advice = [], []
    if half_done:
        found.append(f"left half done: {', '.join(f'{what} ({number:,})' for what, number in half_done.items())}")
        advice.append("start the application, or `taskmanager recover`, which puts it right")
    if paused:
        found.append(f"paused: {_some([workflow_label(each) for each in paused])}")
        advice.append("`taskmanager workflow show ID` says why, and `taskmanager workflow resume ID` lets it go on")
    if found:
        return Finding("workflows", False, "; ".join(found), "; ".join(advice))
    return Finding("workflows", True, "every one goes on by itself")


def _most_waiting(counts: Counter[str]) -> str:
    return _some([f"{name} ({number:,} waiting)" for name, number in counts.most_common()], more=", and {} more")


def clocks(newest: int | None, now: int, what: str = "file") -> Finding:
    """Check that no stamp lies in the future. Delays and thresholds would be off by as much."""
    if newest is None or newest <= now + SKEW_US:
        return Finding("clocks", True, "no stamp lies in the future")
    found = f"the newest stamp in the {what} lies {relative(newest, now).removeprefix('in ')} in the future"
    advice = "this clock is behind, or was set back, or another host's is ahead; let all hosts keep time with NTP"
    return Finding("clocks", False, found, advice)

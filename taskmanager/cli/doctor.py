"""`taskmanager doctor`: checks the file and its surroundings, and says what to do about each finding."""

import os
import shutil
import socket
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from taskmanager.cli.database import check_is_there, read
from taskmanager.cli.options import answer_json, draw, file_options
from taskmanager.console.figures import relative, short, workflow_label
from taskmanager.console.observer import look, unknown_in, unrun_in
from taskmanager.console.overview import Finding, Health, InstanceView
from taskmanager.model.clock import MINUTE_US, SECOND_US, SystemClock
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.wording import counted
from taskmanager.rules.steps import MAX_RECORDED_CHARS, MAX_RECORDS
from taskmanager.store.protocol import FreeQueue
from taskmanager.store.sql.claims import free_queues
from taskmanager.store.sql.health import Owned, near_limit, newest_stamp, owned, unreadable
from taskmanager.store.sql.workflow_recovery import half_done
from taskmanager.store.sqlite.connection import WAL_LIMIT_BYTES
from taskmanager.store.sqlite.health import faults
from taskmanager.store.sqlite.locks import (
    Reader,
    WalState,
    WriterWatch,
    only_user_of,
    process_name,
    read_wal_index,
    without_lock,
)
from taskmanager.store.sqlite.presence import is_dead
from taskmanager.store.sqlite.reading import LOOP_PATIENCE_S, READ_PATIENCE_S
from taskmanager.store.sqlite.schema import missing_views, version
from taskmanager.store.sqlite.session import SqliteSession
from taskmanager.store.statistics import LiveWorkflow

MB: Final = 1_000_000
NEAR: Final = 0.8
"""The part of a limit from which on it is said."""
SKEW_US: Final = 5_000_000
"""A stamp that lies further in the future was written by another clock, or before this one was set back."""
PIN_LOOK_S: Final = 1.0  # a reader that stands at the same place for so long is no passer-by
PINNED_BYTES: Final = 4 * MB  # a pinned log below this size is nobody's trouble yet
NETWORK_TYPES: Final = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs"}
    | {"nfs4", "smb3", "smbfs"}
    | {f"fuse.{name}" for name in ("ceph-fuse", "gcsfuse", "glusterfs", "rclone", "s3fs", "sshfs")}
)
SHOWN: Final = 3
MAX_HALF_DONE: Final = 1_000  # nodes of each kind that are counted
MIN_FILES: Final = 10
"""Files that a volume must have room for: with fewer, a start may find none for its log, index and lock file."""
EPILOG: Final = """\b
Examples:
  taskmanager doctor
  taskmanager doctor --json --min-free 2000

Looks at permissions, the kind of file system, free disk space, the log and who pins it, who keeps others from writing,
the schema, every page of the file, tasks of dead instances, silent instances, functions that nobody knows,
workflows that do not go on, and clocks.
Changes nothing.
Exit codes: 0 all is well, 1 there are findings.
"""


@click.command(epilog=EPILOG)
@click.option(
    "--min-free", type=click.IntRange(min=0), default=200, show_default=True, metavar="MB",
    help="Less free disk space than this is a finding.",
)  # fmt: skip
@file_options
def doctor(min_free: int, db: Path, as_json: bool) -> int:
    """Check the file and its surroundings, and say what to do."""
    check_is_there(db)
    if not db.is_file():
        raise StoreError(f"{db} is not a file; give the path of the database")
    findings = list(around_the_file(db, min_free))
    # A lock that was just seen to be held for long would only be waited for a second time.
    is_locked = any(each.name == "locks" and not each.is_well for each in findings)
    try:
        with read(db, patience_s=LOOP_PATIENCE_S if is_locked else READ_PATIENCE_S) as connection:
            findings += inside_the_file(connection, db)
    except StoreError as exc:
        if isinstance(exc, StoreUnavailable) and all(each.is_well for each in findings):
            raise  # in one line, as every command; with findings, they say why
        findings.append(Finding("file", False, str(exc), "what is in it cannot be looked at before that is mended"))
    bad = sum(not each.is_well for each in findings)
    if as_json:
        checks = [
            {"name": each.name, "ok": each.is_well, "found": each.found, "advice": each.advice or None}
            for each in findings
        ]
        answer_json({"db": str(db), "findings": bad, "checks": checks})
    else:
        from taskmanager.console.terminal.tables import diagnosis_view

        draw(diagnosis_view(findings))
    return 1 if bad else 0


def _some(each: Sequence[str], separator: str = ", ", more: str = " and {} more") -> str:
    """`a, b, c and 4 more`."""
    return separator.join(each[:SHOWN]) + (more.format(len(each) - SHOWN) if len(each) > SHOWN else "")


# Around the file.


def around_the_file(db: Path, min_free_mb: int) -> Iterator[Finding]:
    """Yield the checks that do not open the file. Call it while this process has no connection to the file."""
    folder = db.resolve().parent
    yield permissions(db)
    is_read_only = hasattr(os, "statvfs") and bool(os.statvfs(db.resolve()).f_flag & os.ST_RDONLY)
    yield mount(db.resolve(), _mounts(), is_read_only=is_read_only)
    yield disk(db, shutil.disk_usage(folder).free, min_free_mb, files_left(folder))
    yield log(db)
    yield locks(db)


def permissions(db: Path) -> Finding:
    """Check that nobody else can read the file, which holds arguments and results. Its side files have its mode."""
    files = [db.resolve().with_name(db.resolve().name + ending) for ending in ("", "-wal", "-shm")]
    modes = {path.name: path.stat().st_mode & 0o777 for path in files if path.exists()}
    found = ", ".join(f"{name} has mode {mode:04o}" for name, mode in modes.items() if mode & 0o077)
    if found and os.name == "posix":
        return Finding("permissions", False, found, f"other users may read what tasks are given: chmod 600 {db}*")
    return Finding("permissions", True, "only its owner can read it")


def _mounts() -> list[tuple[str, str, str]]:
    """Return what is mounted: (mount point, type of file system, options); nothing where the system does not say."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    words = [line.split(" ") for line in lines]
    return [(each[1].replace("\\040", " "), each[2], each[3]) for each in words if len(each) > 3]


def mount(file: Path, mounts: Sequence[tuple[str, str, str]], *, is_read_only: bool = False) -> Finding:
    """Check that the file system is a local one. SQLite needs shared memory and locks, which network ones do not have.

    Linux makes a file system read-only whose disk fails: `ro`, or since 6.17 `emergency_ro` beside an unchanged `rw`.
    """
    name, below = "file system", [each for each in mounts if file.is_relative_to(each[0])]
    point, kind, options = max(reversed(below), key=lambda each: len(Path(each[0]).parts), default=("", "", ""))
    if "emergency_ro" in options.split(","):
        advice = "its disk may be failing: look into the system log, save what is there, and check the file system"
        return Finding(name, False, f"the system has made {point} read-only after an error", advice)
    if is_read_only:
        advice = "an application can save nothing there; look why (the system log), and mount it writable"
        return Finding(name, False, "it is mounted read-only", advice)
    if kind in NETWORK_TYPES:
        advice = "the file may be damaged when two hosts use it; move it to a local disk"
        return Finding(name, False, f"{point} is a network mount ({kind})", advice)
    return Finding(name, True, f"{kind} at {point}" if kind else "unknown; it must be a local one")


def files_left(folder: Path) -> int | None:
    """Return how many files can still be made there; None where nothing but the space limits them."""
    if not hasattr(os, "statvfs"):
        return None
    volume = os.statvfs(folder)
    return volume.f_favail if volume.f_files else None


def disk(db: Path, free_bytes: int, min_free_mb: int, more_files: int | None = None) -> Finding:
    """Check that the disk has room for more tasks, and inodes for the log and the lock files."""
    found = f"{free_bytes / MB:,.0f} MB free"
    if more_files is not None and more_files < MIN_FILES:
        found += f", but room for {counted(more_files, 'more file')} only (`df -i`)"
        return Finding(
            "disk", False, found, f"delete files that are not needed on the volume of {db}: each start makes three"
        )
    if free_bytes < min_free_mb * MB:
        advice = f"free some space on the volume of {db}, or `taskmanager purge --older-than 7d`"
        return Finding("disk", False, f"{found}, less than {min_free_mb:,} MB", advice)
    return Finding("disk", True, found)


def log(db: Path) -> Finding:
    """Check the size of the log, and find out who keeps it from being moved into the file."""
    first = read_wal_index(db)
    if not first.pinned_by:
        return judge_log(first, ())
    time.sleep(PIN_LOOK_S)
    second = read_wal_index(db)
    return judge_log(second, [reader for reader in second.pinned_by if reader in first.readers])


def judge_log(now: WalState, pinning: Collection[Reader]) -> Finding:
    """Judge the log. It can be cut once it has been moved into the file, up to where the oldest reader stands."""
    found = f"{now.size_bytes / MB:,.1f} MB"
    if pinning and now.size_bytes > PINNED_BYTES:
        who = ", ".join(sorted({process_name(reader.pid) for reader in pinning}))
        advice = (
            "that program keeps a read transaction open, so the log only grows; end its transaction, or the program"
        )
        return Finding("log", False, f"{found}, pinned by {who}", advice)
    if now.size_bytes > WAL_LIMIT_BYTES:
        advice = "it should have been cut; the application does it when it is idle, and when it stops"
        return Finding("log", False, found, advice)
    return Finding("log", True, found)


def locks(db: Path) -> Finding:
    """Check whether a program keeps the others from writing, or from reading too."""
    alone = only_user_of(db)
    if alone is not None:
        advice = "until it lets go, nobody else can read or write the file; let it finish, or end it"
        return Finding("locks", False, f"{process_name(alone)} keeps the file to itself", advice)
    writer = WriterWatch(db).judge()
    if writer is not None:
        advice = "until its transaction ends nothing can be saved, by the application neither; let it finish, or end it"
        return Finding("locks", False, f"{process_name(writer)} holds the write lock and commits nothing", advice)
    return Finding("locks", True, "nobody keeps others from writing")


# Inside the file.


def inside_the_file(connection: SqliteSession, db: Path) -> Iterator[Finding]:
    """Yield the checks of the pages and rows of the file."""
    yield schema(connection)
    if broken := faults(connection):
        advice = (
            f"stop the application, keep a copy of {db}*, and restore a backup, or save what can be read: "
            f"sqlite3 {db} .recover | sqlite3 new.db"
        )
        yield Finding("integrity", False, "; ".join(broken), advice)
        return
    yield Finding("integrity", True, "every page and index is sound")
    clock, database = SystemClock(), db.absolute()
    with connection.snapshot():
        overview = look(database, connection, clock)
        has, free, newest = owned(connection), free_queues(connection), newest_stamp(connection)
        left = half_done(connection, clock.now_us() - MINUTE_US, MAX_HALF_DONE)
    yield records(unreadable(connection))
    yield steps(near_limit(connection, int(NEAR * MAX_RECORDS), int(NEAR * MAX_RECORDED_CHARS)))
    alive = overview.with_health(Health.ALIVE, Health.FROZEN)
    yield claims([each for each in has if is_dead(database, each.owner)])
    yield sharing(db, connection, alive)
    yield living(alive)
    yield duties(alive)
    yield queues(free, alive)
    yield functions(free, alive)
    yield workflows(left, [each for each in overview.workflows if each.status == "PAUSED"])
    yield clocks(newest, clock.now_us())


def schema(connection: SqliteSession) -> Finding:
    """Check the views. The version, the tables and the indexes were checked when the file was opened."""
    found = f"version {version(connection)}"
    if views := missing_views(connection):
        advice = "another program has dropped that; restart the application, it makes that anew"
        return Finding("schema", False, f"{found} without {', '.join(views)}", advice)
    return Finding("schema", True, found)


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


def sharing(db: Path, connection: SqliteSession, alive: Sequence[InstanceView]) -> Finding:
    """Check that no instance has lost SQLite's lock on the file, because its process has read the file as bytes."""
    if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):  # without a log, nobody holds one all the time
        return Finding("sharing", True, "the file has no log that could be deleted in use")
    unlocked = without_lock(db, {each.row.pid for each in alive if each.row.hostname == socket.gethostname()})
    if unlocked:
        who = ", ".join(map(process_name, sorted(unlocked)))
        advice = (
            "code in that process has read the file as bytes (copied, hashed or served it), which drops the lock, and "
            "another program may delete the log in use; restart it, and copy the file with `taskmanager backup`"
        )
        return Finding("sharing", False, f"{who} has the file open without SQLite's lock on it", advice)
    told = "every instance holds SQLite's lock on the file"
    return Finding("sharing", True, "this system does not say who has locked the file" if unlocked is None else told)


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


def clocks(newest: int | None, now: int) -> Finding:
    """Check that no stamp lies in the future. Delays and thresholds would be off by as much."""
    if newest is None or newest <= now + SKEW_US:
        return Finding("clocks", True, "no stamp lies in the future")
    found = f"the newest stamp in the file lies {relative(newest, now).removeprefix('in ')} in the future"
    advice = "this clock is behind, or was set back, or another host's is ahead; let all hosts keep time with NTP"
    return Finding("clocks", False, found, advice)

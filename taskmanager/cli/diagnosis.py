"""The checks of `taskmanager doctor`, each with its finding: what was found, whether it is well, and what to do."""

import os
import shutil
import socket
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from taskmanager.cli.locks import WriterWatch, process_name, without_lock
from taskmanager.console.figures import relative, short
from taskmanager.console.observer import DEFAULT_HEARTBEAT_S, MISSED_BEATS
from taskmanager.console.overview import Finding
from taskmanager.engine.instance import is_dead
from taskmanager.model.clock import SECOND_US, SystemClock
from taskmanager.model.wording import counted
from taskmanager.store.protocol import FreeQueue, InstanceRow
from taskmanager.store.sqlite.beat import heartbeats
from taskmanager.store.sqlite.claims import free_queues
from taskmanager.store.sqlite.connection import WAL_LIMIT_BYTES
from taskmanager.store.sqlite.health import Owned, faults, newest_stamp, owned, unreadable
from taskmanager.store.sqlite.queries import instances
from taskmanager.store.sqlite.reading import snapshot
from taskmanager.store.sqlite.schema import missing_views, version
from taskmanager.store.sqlite.wal_index import Reader, WalState, only_user_of, read_wal_index
from taskmanager.store.statistics import said_by

MB: Final = 1_000_000
SKEW_US: Final = 5_000_000
"""A stamp that lies further in the future was written by another clock, or before this one was set back."""
PIN_LOOK_S: Final = 1.0
"""A reader that stands at the same place for so long is no passer-by."""
PINNED_BYTES: Final = 4 * MB
"""A pinned log below this size is nobody's trouble yet."""
NETWORK_TYPES: Final = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs"}
    | {"nfs4", "smb3", "smbfs"}
    | {f"fuse.{name}" for name in ("ceph-fuse", "gcsfuse", "glusterfs", "rclone", "s3fs", "sshfs")}
)
_SHOWN: Final = 3
MIN_FILES: Final = 10
"""Files that a volume must have room for: with fewer, a start may find none for its log, index and lock file."""


def around_the_file(db: Path, min_free_mb: int) -> Iterator[Finding]:
    """What can be said without opening it. Must run while this process has no connection to it."""
    yield permissions(db)
    yield mount(db.resolve(), _mounts(), is_read_only=_is_read_only(db))
    yield disk(db, shutil.disk_usage(db.resolve().parent).free, min_free_mb, files_left(db.resolve().parent))
    yield log(db)
    yield locks(db)


def permissions(db: Path) -> Finding:
    """Arguments and results are in the file, so nobody else should read it; SQLite gives its side files its mode."""
    files = [db.resolve().with_name(db.resolve().name + ending) for ending in ("", "-wal", "-shm")]
    modes = {path.name: path.stat().st_mode & 0o777 for path in files if path.exists()}
    open_to_others = [f"{name} has mode {mode:04o}" for name, mode in modes.items() if mode & 0o077]
    if open_to_others and os.name == "posix":
        return Finding(
            "permissions", False, ", ".join(open_to_others),
            f"other users may read what tasks are given: chmod 600 {db}*",
        )  # fmt: skip
    return Finding("permissions", True, "only its owner can read it")


def _mounts() -> list[tuple[str, str, str]]:
    """What is mounted: (mount point, type of file system, options); nothing where the system does not say."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    words = [line.split(" ") for line in lines]
    return [(each[1].replace("\\040", " "), each[2], each[3]) for each in words if len(each) > 3]


def _is_read_only(db: Path) -> bool:
    return hasattr(os, "statvfs") and bool(os.statvfs(db.resolve()).f_flag & os.ST_RDONLY)


def mount(file: Path, mounts: Sequence[tuple[str, str, str]], *, is_read_only: bool = False) -> Finding:
    """SQLite's log needs memory that all its users share, and locks that hold: a network file system has neither.

    Linux makes a file system read-only whose disk fails: `ro`, or since 6.17 `emergency_ro` beside an unchanged `rw`.
    """
    below = [each for each in mounts if file.is_relative_to(each[0])]
    point, kind, options = max(reversed(below), key=lambda each: len(Path(each[0]).parts), default=("", "", ""))
    if "emergency_ro" in options.split(","):
        return Finding(
            "file system", False, f"the system has made {point} read-only after an error",
            "its disk may be failing: look into the system log, save what is there, and check the file system",
        )  # fmt: skip
    if is_read_only:
        return Finding(
            "file system", False, "it is mounted read-only",
            "an application can save nothing there; look why (the system log), and mount it writable",
        )  # fmt: skip
    if not kind:
        return Finding("file system", True, "unknown; it must be a local one")
    if kind in NETWORK_TYPES:
        return Finding(
            "file system", False, f"{point} is a network mount ({kind})",
            "the file may be damaged when two hosts use it; move it to a local disk",
        )  # fmt: skip
    return Finding("file system", True, f"{kind} at {point}")


def files_left(folder: Path) -> int | None:
    """How many files can still be made there; None where nothing but the space limits them."""
    if not hasattr(os, "statvfs"):
        return None
    volume = os.statvfs(folder)
    return volume.f_favail if volume.f_files else None


def disk(db: Path, free_bytes: int, min_free_mb: int, more_files: int | None = None) -> Finding:
    """A full disk keeps tasks from being saved. One without inodes has no room for the log and the lock files."""
    found = f"{free_bytes / MB:,.0f} MB free"
    if more_files is not None and more_files < MIN_FILES:
        return Finding(
            "disk", False, f"{found}, but room for {counted(more_files, 'more file')} only (`df -i`)",
            f"delete files that are not needed on the volume of {db}: each start makes three",
        )  # fmt: skip
    if free_bytes < min_free_mb * MB:
        return Finding(
            "disk", False, f"{found}, less than {min_free_mb:,} MB",
            f"free some space on the volume of {db}, or `taskmanager purge --older-than 7d`",
        )  # fmt: skip
    return Finding("disk", True, found)


def log(db: Path) -> Finding:
    """How large the log is, and who keeps it from being moved into the file."""
    first = read_wal_index(db)
    if not first.pinned_by:
        return judge_log(first, ())
    time.sleep(PIN_LOOK_S)
    second = read_wal_index(db)
    return judge_log(second, [reader for reader in second.pinned_by if reader in first.readers])


def locks(db: Path) -> Finding:
    """Who keeps the others from writing, or from reading too."""
    alone = only_user_of(db)
    if alone is not None:
        return Finding(
            "locks", False, f"{process_name(alone)} keeps the file to itself",
            "until it lets go, nobody else can read or write the file; let it finish, or end it",
        )  # fmt: skip
    writer = WriterWatch(db).judge()
    if writer is not None:
        return Finding(
            "locks", False, f"{process_name(writer)} holds the write lock and commits nothing",
            "until its transaction ends nothing can be saved, by the application neither; let it finish, or end it",
        )  # fmt: skip
    return Finding("locks", True, "nobody keeps others from writing")


def judge_log(now: WalState, pinning: Collection[Reader]) -> Finding:
    """A log is cut when it has been moved, and it is moved up to where the oldest reader stands."""
    found = f"{now.size_bytes / MB:,.1f} MB"
    if pinning and now.size_bytes > PINNED_BYTES:
        who = ", ".join(sorted({process_name(reader.pid) for reader in pinning}))
        return Finding(
            "log", False, f"{found}, pinned by {who}",
            "that program keeps a read transaction open, so the log only grows; end its transaction, or the program",
        )  # fmt: skip
    if now.size_bytes > WAL_LIMIT_BYTES:
        return Finding(
            "log", False, found,
            "it should have been cut; the application does it when it is idle, and when it stops",
        )  # fmt: skip
    return Finding("log", True, found)


# Inside the file.


def inside_the_file(connection: sqlite3.Connection, db: Path) -> Iterator[Finding]:
    """What its pages and rows say."""
    yield schema(connection)
    broken = faults(connection)
    if broken:
        yield Finding(
            "integrity", False, "; ".join(broken),
            f"stop the application, keep a copy of {db}*, and restore a backup, or save what can be read: "
            f"sqlite3 {db} .recover | sqlite3 new.db",
        )  # fmt: skip
        return
    yield Finding("integrity", True, "every page and index is sound")
    now = SystemClock().now_us()
    with snapshot(connection):
        known, beats, has = instances(connection), heartbeats(connection), owned(connection)
        free, newest = free_queues(connection), newest_stamp(connection)
    yield records(unreadable(connection))
    database = db.absolute()
    alive = [each for each in known if not is_dead(database, each.instance_id)]
    yield claims([each for each in has if is_dead(database, each.owner)])
    yield sharing(db, connection, alive)
    yield living(alive, {sender: at for sender, _, at in sorted(beats, key=lambda beat: beat[2])}, now)
    yield duties(alive)
    yield functions(free, alive)
    yield clocks(newest, now)


def schema(connection: sqlite3.Connection) -> Finding:
    """Its version. Without its tables and indexes the file was refused; its views are for people only."""
    found = f"version {version(connection)}"
    if views := missing_views(connection):
        return Finding(
            "schema", False, f"{found} without {', '.join(views)}",
            "another program has dropped that; restart the application, it makes that anew",
        )  # fmt: skip
    return Finding("schema", True, found)


def sharing(db: Path, connection: sqlite3.Connection, alive: Sequence[InstanceRow]) -> Finding:
    """Instances that have lost SQLite's lock on the file, because their process has read it as bytes."""
    if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):  # without a log, nobody holds one all the time
        return Finding("sharing", True, "the file has no log that could be deleted in use")
    unlocked = without_lock(db, {each.pid for each in alive if each.hostname == socket.gethostname()})
    if unlocked is None:
        return Finding("sharing", True, "this system does not say who has locked the file")
    if unlocked:
        return Finding(
            "sharing", False,
            f"{', '.join(map(process_name, sorted(unlocked)))} has the file open without SQLite's lock on it",
            "code in that process has read the file as bytes (copied, hashed or served it), which drops the lock, and "
            "another program may delete the log in use; restart it, and copy the file with `taskmanager backup`",
        )  # fmt: skip
    return Finding("sharing", True, "every instance holds SQLite's lock on the file")


def records(unreadable_ids: Sequence[str]) -> Finding:
    """Unfinished tasks of which something cannot be read: a flipped bit, or another program."""
    if not unreadable_ids:
        return Finding("records", True, "every unfinished task can be read")
    some = ", ".join(unreadable_ids[:_SHOWN])
    more = f" and {len(unreadable_ids) - _SHOWN} more" if len(unreadable_ids) > _SHOWN else ""
    return Finding(
        "records", False, f"not all of {counted(len(unreadable_ids), 'unfinished task')} can be read: {some}{more}",
        "`taskmanager show ID` says what; mend the row, or it is FAILED when its turn comes",
    )  # fmt: skip


def claims(stale: Sequence[Owned]) -> Finding:
    """Tasks that a dead instance has: nobody runs them until they are given back."""
    if not stale:
        return Finding("claims", True, "no task is held by a dead instance")
    by_status = Counter[str]()
    for each in stale:
        by_status[each.status] += each.number
    what = ", ".join(f"{number:,} {status}" for status, number in sorted(by_status.items()))
    dead = counted(len({each.owner for each in stale}), "dead instance")
    return Finding(
        "claims", False, f"{what} held by {dead}",
        "start the application, or `taskmanager recover`",
    )  # fmt: skip


def living(alive: Sequence[InstanceRow], beats: Mapping[str, int], now: int) -> Finding:
    """Instances that hold their lock and have stopped giving signs of life."""
    silent = []
    for each in alive:
        since = now - max(beats.get(each.instance_id, 0), each.started_at)
        limit_s = MISSED_BEATS * (said_by(each).heartbeat_s or DEFAULT_HEARTBEAT_S)
        if since > limit_s * SECOND_US:
            silent.append(f"{process_name(each.pid)} on {each.hostname} for {short(since)}")
    if silent:
        return Finding(
            "instances", False, f"no sign of life of {', '.join(silent[:_SHOWN])}",
            "it is frozen, or cannot write; end it, and its tasks are recovered, or take them: "
            "`taskmanager recover --frozen 5` (minutes of silence)",
        )  # fmt: skip
    count = len(alive)
    return Finding("instances", True, f"{count or 'none'} alive" if count != 1 else "1 alive")


def duties(alive: Sequence[InstanceRow]) -> Finding:
    """What goes on beside the tasks of an instance, by its own account. The log is one of them."""
    failing = []
    for each in alive:
        said = said_by(each).failing_duties
        failing += [f"the {name} of {process_name(each.pid)}: {why}" for name, why in said.items()]
    if not failing:
        return Finding("duties", True, "heartbeat, recovery, retention and log work")
    more = f"; and {len(failing) - _SHOWN} more" if len(failing) > _SHOWN else ""
    return Finding(
        "duties", False, "; ".join(failing[:_SHOWN]) + more,
        "what it says there is wrong beside the tasks; its log, if it has one, says since when",
    )  # fmt: skip


def functions(free: Sequence[FreeQueue], alive: Sequence[InstanceRow]) -> Finding:
    """Tasks that wait although instances run, because none of them knows the function."""
    if not alive:
        return Finding("functions", True, "no instance runs that could know any")
    known: set[str] = set()
    for each in alive:
        names = said_by(each).task_names
        if names is None:
            return Finding("functions", True, f"process {each.pid} does not say which it knows")
        known |= names
    unknown = Counter[str]()
    for queue in free:
        if queue.task_name not in known:
            unknown[queue.task_name] += queue.count
    if not unknown:
        return Finding("functions", True, "every waiting task has an instance that knows its function")
    what = ", ".join(f"{name} ({number:,} waiting)" for name, number in unknown.most_common(_SHOWN))
    more = f", and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
    return Finding(
        "functions", False, f"known to no running instance: {what}{more}",
        "register the function under that name, or cancel its tasks: taskmanager cancel --task NAME",
    )  # fmt: skip


def is_known(task_name: str, alive: Sequence[InstanceRow]) -> bool:
    """Whether one of these instances knows the function, or does not say which it knows."""
    named = [said_by(each).task_names for each in alive]
    return any(names is None or task_name in names for names in named)


def clocks(newest: int | None, now: int) -> Finding:
    """Stamps from the future: delays and thresholds are off by as much."""
    if newest is None or newest <= now + SKEW_US:
        return Finding("clocks", True, "no stamp lies in the future")
    return Finding(
        "clocks", False, f"the newest stamp in the file lies {relative(newest, now).removeprefix('in ')} in the future",
        "this clock is behind, or was set back, or another host's is ahead; let all hosts keep time with NTP",
    )  # fmt: skip

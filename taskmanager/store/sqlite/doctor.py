"""The checks of `taskmanager doctor` that are about an SQLite file, its surroundings, and who has it open."""

import os
import shutil
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from taskmanager.model.errors import StoreError
from taskmanager.model.wording import counted
from taskmanager.store.place import Finding
from taskmanager.store.processes import process_name
from taskmanager.store.protocol import InstanceRow
from taskmanager.store.sql.session import Session
from taskmanager.store.sqlite.connection import WAL_LIMIT_BYTES
from taskmanager.store.sqlite.health import faults
from taskmanager.store.sqlite.locks import Reader, WalState, WriterWatch, only_user_of, read_wal_index, without_lock
from taskmanager.store.sqlite.schema import missing_views, version
from taskmanager.store.sqlite.session import SqliteSession

MB: Final = 1_000_000
PIN_LOOK_S: Final = 1.0  # a reader that stands at the same place for so long is no passer-by
PINNED_BYTES: Final = 4 * MB  # a pinned log below this size is nobody's trouble yet
NETWORK_TYPES: Final = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs"}
    | {"nfs4", "smb3", "smbfs"}
    | {f"fuse.{name}" for name in ("ceph-fuse", "gcsfuse", "glusterfs", "rclone", "s3fs", "sshfs")}
)
MIN_FILES: Final = 10
"""Files that a volume must have room for: with fewer, a start may find none for its log, index and lock file."""


class FileChecks:
    """What `taskmanager doctor` looks at around and inside a file."""

    what = "file"

    def __init__(self, db: Path) -> None:
        self._db = db

    def around(self, min_free_mb: int) -> Iterator[Finding]:
        """Yield the checks that do not open the file. Call it while this process has no connection to the file."""
        db = self._db
        if not db.is_file():
            raise StoreError(f"{db} is not a file; give the path of the database")
        yield permissions(db)
        is_read_only = hasattr(os, "statvfs") and bool(os.statvfs(db.resolve()).f_flag & os.ST_RDONLY)
        yield mount(db.resolve(), _mounts(), is_read_only=is_read_only)
        folder = db.resolve().parent
        yield disk(db, shutil.disk_usage(folder).free, min_free_mb, files_left(folder))
        yield log(db)
        yield locks(db)

    def inside(self, session: Session) -> Iterator[Finding]:
        """Yield the checks of the views, and of every page."""
        connection = _of_a_file(session)
        yield schema(connection)
        if broken := faults(connection):
            db = self._db
            advice = (
                f"stop the application, keep a copy of {db}*, and restore a backup, or save what can be read: "
                f"sqlite3 {db} .recover | sqlite3 new.db"
            )
            yield Finding("integrity", False, "; ".join(broken), advice, is_last=True)
        else:
            yield Finding("integrity", True, "every page and index is sound")

    def of_instances(self, session: Session, alive: Sequence[InstanceRow]) -> Iterator[Finding]:
        """Yield whether every living instance of this host holds SQLite's lock on the file."""
        yield sharing(self._db, _of_a_file(session), alive)


def _of_a_file(session: Session) -> SqliteSession:
    assert isinstance(session, SqliteSession), "a session of another place"
    return session


# Around the file.


def permissions(db: Path) -> Finding:
    """Check that nobody else can read the file, which holds arguments and results. Its side files have its mode."""
    files = [Path(f"{db.resolve()}{ending}") for ending in ("", "-wal", "-shm")]
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
        return Finding("locks", False, f"{writer} holds the write lock and commits nothing", advice)
    return Finding("locks", True, "nobody keeps others from writing")


# Inside the file.


def schema(connection: SqliteSession) -> Finding:
    """Check the views. The version, the tables and the indexes were checked when the file was opened."""
    found = f"version {version(connection)}"
    if views := missing_views(connection):
        advice = "another program has dropped that; restart the application, it makes that anew"
        return Finding("schema", False, f"{found} without {', '.join(views)}", advice)
    return Finding("schema", True, found)


def sharing(db: Path, connection: SqliteSession, alive: Sequence[InstanceRow]) -> Finding:
    """Check that no instance has lost SQLite's lock on the file, because its process has read the file as bytes."""
    if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):  # without a log, nobody holds one all the time
        return Finding("sharing", True, "the file has no log that could be deleted in use")
    unlocked = without_lock(db, {each.pid for each in alive if each.hostname == socket.gethostname()})
    if unlocked:
        who = ", ".join(map(process_name, sorted(unlocked)))
        advice = (
            "code in that process has read the file as bytes (copied, hashed or served it), which drops the lock, and "
            "another program may delete the log in use; restart it, and copy the file with `taskmanager backup`"
        )
        return Finding("sharing", False, f"{who} has the file open without SQLite's lock on it", advice)
    told = "every instance holds SQLite's lock on the file"
    return Finding("sharing", True, "this system does not say who has locked the file" if unlocked is None else told)

"""The lock file that proves to other processes that an instance lives.

Dead means that the lock can be taken. That is immediate and certain, also across containers that share a volume, where
pid and start time say nothing; those are recorded for people only. A forked child closes the inherited descriptor, or
it would keep its dead parent alive.

A lock file that is not there is no such proof: people and programs tidy up. The instance puts it back within
`PUT_BACK_S`, and who finds it gone looks again after that. Where the database is not there either, its volume is not,
with every lock on it: then nothing is known of anybody, and nothing is put into the empty folder.
"""

import contextlib
import os
import re
import stat
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from taskmanager.model.errors import StoreUnavailable
from taskmanager.model.ids import INSTANCE_ID
from taskmanager.model.logger import logger
from taskmanager.model.wording import remedy

try:
    import fcntl
except ImportError:  # Windows has none; there an instance counts as alive until its row goes stale
    fcntl = None  # type: ignore[assignment]  # asked for before each use

# No link is followed, and a pipe that somebody has put there is not waited for.
_SAFELY: Final = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_WORD: Final = r"(?a)[\w.-]{1,100}"


def lock_path(database: Path, instance_id: str) -> Path:
    """`<db>.<instance id>.lock`, beside the file itself: whoever came through a symbolic link must find it too."""
    file = database.resolve()
    # A row may name any owner, also one that leads into another directory, or that no file can be named after.
    is_word = re.fullmatch(_WORD, instance_id)
    # `with_name` raises for a root directory, which is to be refused like any other directory when it is opened.
    return Path(f"{file}.{instance_id if is_word else _word_for(instance_id)}.lock")


def _word_for(odd_id: str) -> str:
    import hashlib  # no instance makes such an id

    return hashlib.sha256(odd_id.encode("utf-8", "replace")).hexdigest()


_held: "weakref.WeakValueDictionary[str, InstanceLock]" = weakref.WeakValueDictionary()


class InstanceLock:
    """An exclusive `flock` for the life of an instance. Taken before the instance is registered in the store."""

    def __init__(self, database: Path, instance_id: str) -> None:
        self.path = lock_path(database, instance_id)
        self._database = database
        self._instance_id = instance_id
        self._fd: int | None = None
        self._changing = threading.RLock()
        """Held while the file is put back, by the thread of the heartbeat, or dropped, by that of the loop."""

    def take(self) -> None:
        """Create the lock file and lock it. `OSError` when the directory cannot be written."""
        new = self.path.with_name(f"{self.path.name.removesuffix('.lock')}-new.lock")
        while self._fd is None:
            # Locked under another name first: nobody may find the file of a living instance unlocked. Both names are
            # this instance's own. What is left of the other one is not waited for: a sweep may hold it in this loop.
            new.unlink(missing_ok=True)
            fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFELY, 0o600)
            try:
                is_in_place = self._is_locked_as(fd, new)
            except BaseException:
                os.close(fd)
                raise
            if is_in_place:
                self._fd = fd
                _open_like(fd, self._database)
            else:
                os.close(fd)
        _held[self._instance_id] = self

    def _is_locked_as(self, fd: int, new: Path) -> bool:
        """Lock the new file, and give it its name. False: a sweep came between, and has it or has removed it."""
        if fcntl is not None:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        with contextlib.suppress(FileNotFoundError):
            new.replace(self.path)
        return _is_at(fd, self.path)

    def put_back(self) -> bool:
        """Make the file anew if somebody has removed or replaced it; whether that was so. `OSError` as for `take`."""
        with self._changing:
            lost = self._fd
            if lost is None or _is_at(lost, self.path) or not self._database.exists():
                return False
            self._fd = None
            try:
                self.take()
            except OSError:
                self._fd = lost
                raise
            os.close(lost)
            return True

    def show_life(self) -> None:
        """Change the time of the file. `OSError` where that cannot be done."""
        if self._fd is not None:
            os.utime(self._fd if os.utime in os.supports_fd else self.path)

    def drop(self) -> None:
        """Remove the file, then let go, so that nobody finds a free lock of a living instance."""
        if self._fd is None:
            return
        with self._changing:  # a heartbeat that was not waited for would put the file back
            fd, self._fd = self._fd, None
            with contextlib.suppress(OSError):
                self.path.unlink()
            os.close(fd)

    def close_descriptor(self) -> None:
        """Close without removing the file: what a forked child does."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def sign_of_life(database: Path, instance_id: str) -> int | None:
    """A number that changes as long as the instance shows that it lives; None where there is none to be seen."""
    try:
        return lock_path(database, instance_id).stat().st_mtime_ns
    except OSError:
        return None


def _open_like(fd: int, database: Path) -> None:
    """Who may read the database may ask who lives: the mode of its other side files, which SQLite gives them, too."""
    with contextlib.suppress(OSError, AttributeError):  # Windows has neither
        found = database.stat()
        if os.geteuid() == 0:
            os.fchown(fd, found.st_uid, found.st_gid)
        os.fchmod(fd, found.st_mode & 0o666)


def _close_in_child() -> None:
    for lock in list(_held.values()):
        lock.close_descriptor()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def is_dead(database: Path, instance_id: str) -> bool:
    """Whether the lock of an instance can be taken (or is not there). On platforms without flock: whether it is gone.

    A shared lock is tried: two who ask at once do not take each other for the owner, and to ask it needs no permission
    to write.
    """
    if fcntl is not None:
        with _opened(lock_path(database, instance_id), os.O_RDONLY) as fd:
            if fd is not None:
                return _is_locked(fd, fcntl.LOCK_SH)
    return not has_lock_file(database, instance_id) and database.exists()


def has_lock_file(database: Path, instance_id: str) -> bool:
    """Whether its lock file is there, whoever holds it or not. A link or a directory in its place is not."""
    try:
        return stat.S_ISREG(lock_path(database, instance_id).lstat().st_mode)
    except FileNotFoundError:
        return False
    except OSError:  # nothing is known of it
        return True


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int | None]:
    """A descriptor of this file, or None where there is no such file, or a link, or it cannot be opened."""
    try:
        fd = os.open(path, flags | _SAFELY)
    except OSError:
        yield None
        return
    try:
        yield fd if stat.S_ISREG(os.fstat(fd).st_mode) else None
    finally:
        os.close(fd)


def _is_locked(fd: int, how: int) -> bool:
    """Whether it could be locked, now; closing the descriptor lets go."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_at(fd: int, path: Path) -> bool:
    """Whether the open file is the one of this name."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def lock_files(database: Path) -> Iterator[tuple[Path, str]]:
    """The lock files beside the database that are ours by their names, each with the id of its instance."""
    file = database.resolve()
    ours = re.compile(rf"{re.escape(file.name)}\.({INSTANCE_ID})(-new)?\.lock")
    with contextlib.suppress(OSError):  # a folder that may not be listed
        for path in file.parent.iterdir():
            if found := ours.fullmatch(path.name):
                yield path, found[1]


async def remove_abandoned_locks(database: Path, is_registered: Callable[[str], Awaitable[bool]]) -> None:
    """Remove the lock files that dead instances have left: those that nobody holds, and whose id the store does not
    have.

    Each is held while the store is asked for its id. A list of instances that was read before may be out of date:
    somebody may have registered since.
    """
    if fcntl is None:
        return
    for path, instance_id in list(lock_files(database)):
        with _opened(path, os.O_RDWR) as fd:
            if fd is None or not _is_locked(fd, fcntl.LOCK_EX) or await is_registered(instance_id):
                continue
            if _is_at(fd, path):
                with contextlib.suppress(OSError):
                    path.unlink()


class FilePresence:
    """The `Presence` of one instance beside a file: its lock file, and those of the others."""

    def __init__(self, database: Path, instance_id: str) -> None:
        self._database = database
        self._lock = InstanceLock(database, instance_id)

    def __repr__(self) -> str:
        return f"<FilePresence {self._lock.path.name}>"

    async def take(self) -> None:
        try:
            self._lock.take()
        except OSError as exc:
            raise StoreUnavailable(
                f"cannot create the lock file {self._lock.path} ({exc.strerror}); "
                f"{remedy(exc, 'make its directory writable')}"
            ) from exc

    def put_back(self) -> bool:
        try:
            if self._lock.put_back():
                logger.warning("the lock file of this instance was removed and is put back; it belongs to the database")
        except OSError as exc:
            logger.debug("the lock file of this instance could not be put back: %s", exc)
            return False
        return True

    is_detached = False
    """A lock is held as long as the process lives, wherever its file is."""
    unseen_after_s = seen_s = None

    def show_life(self) -> None:
        with contextlib.suppress(OSError):
            self._lock.show_life()

    def drop(self) -> None:
        self._lock.drop()

    def let_go(self) -> None:
        self._lock.close_descriptor()

    def is_dead(self, instance_id: str) -> bool:
        return is_dead(self._database, instance_id)

    def is_missing(self, instance_id: str) -> bool:
        return not has_lock_file(self._database, instance_id)

    def sign_of_life(self, instance_id: str) -> int | None:
        return sign_of_life(self._database, instance_id)

    async def clear_away(self, is_registered: Callable[[str], Awaitable[bool]]) -> None:
        await remove_abandoned_locks(self._database, is_registered)

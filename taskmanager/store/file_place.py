"""One SQLite file as the place of the tasks.

Every method imports what it needs when it is called: whoever declares a manager at import has no use for the rest yet.
"""

import contextlib
import os
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from taskmanager.model.clock import Clock, SystemClock
from taskmanager.model.config import DEFAULT_RECOVERY, RecoveryConfig
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.store.place import READ_PATIENCE_S, Room
from taskmanager.store.presence import PUT_BACK_S

if TYPE_CHECKING:
    from taskmanager.model.record import TaskRow
    from taskmanager.store.place import Place
    from taskmanager.store.sqlite.doctor import FileChecks
    from taskmanager.store.sqlite.locks import WriterWatch
    from taskmanager.store.sqlite.session import SqliteSession
    from taskmanager.store.sqlite.store import SqliteStore


class FilePlace:
    """A file, named as somebody wrote it. `str()` is that name."""

    put_back_s = PUT_BACK_S

    def __init__(self, file: str | os.PathLike[str]) -> None:
        self.file = Path(file)

    def __str__(self) -> str:
        return str(self.file)

    def __repr__(self) -> str:
        return f"<FilePlace {self.file}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FilePlace) and self.file == other.file

    def __hash__(self) -> int:
        return hash(self.file)

    @property
    def name(self) -> str:
        """The name of the file without its directory."""
        return self.file.name

    def absolute(self) -> "FilePlace":
        """See `Place.absolute`."""
        return FilePlace(self.file.absolute())

    def is_same(self, other: "Place | None") -> bool:
        """See `Place.is_same`. Links are followed."""
        if other is None or other.file is None:
            return False
        try:
            return self.file.samefile(other.file)
        except OSError:  # the file is not there yet
            return self.file.resolve() == other.file.resolve()

    def new_store(
        self,
        *,
        synchronous: Literal["full", "normal"] = "full",
        recovery: RecoveryConfig = DEFAULT_RECOVERY,
        clock: Clock | None = None,
    ) -> "SqliteStore":
        """See `Place.new_store`. A lock is known to be free at once."""
        from taskmanager.store.sqlite.store import SqliteStore

        return SqliteStore(self.file, synchronous=synchronous, is_dead=self.is_dead, clock=clock or SystemClock())

    def read(
        self, *, patience_s: float = READ_PATIENCE_S, is_any_version: bool = False
    ) -> "AbstractContextManager[SqliteSession]":
        """See `Place.read`."""
        from taskmanager.store.sqlite.reading import open_read_only

        return open_read_only(self.file, patience_s=patience_s, is_any_version=is_any_version)

    def for_many_looks(self) -> "FilePlace":
        """See `Place.for_many_looks`. A connection that stays open would keep the application from removing its log."""
        return self

    def write(self) -> "AbstractContextManager[SqliteSession]":
        """See `Place.write`."""
        from taskmanager.store.sqlite.opening import open_to_write

        return open_to_write(self.file, self.is_dead)

    def traces(self) -> Hashable:
        """Return the sizes and times of the file and its log."""
        file = self.file.resolve()
        return _trace(file), _trace(_log(file))

    def is_dead(self, instance_id: str) -> bool:
        """See `Place.is_dead`: whether the lock of the instance is free, or not there."""
        from taskmanager.store.sqlite.presence import is_dead

        return is_dead(self.file, instance_id)

    def is_missing(self, instance_id: str) -> bool:
        """See `Place.is_missing`: whether its lock file is not there."""
        from taskmanager.store.sqlite.presence import has_lock_file

        return not has_lock_file(self.file, instance_id)

    def sign_of_life(self, instance_id: str) -> int | None:
        """See `Place.sign_of_life`: the time of its lock file."""
        from taskmanager.store.sqlite.presence import sign_of_life

        return sign_of_life(self.file, instance_id)

    async def clear_away(self, is_registered: Callable[[str], Awaitable[bool]]) -> None:
        """See `Place.clear_away`: lock files."""
        from taskmanager.store.sqlite.presence import remove_abandoned_locks

        await remove_abandoned_locks(self.file, is_registered)

    def check_is_there(self, advice: str) -> None:
        """See `Place.check_is_there`."""
        self.check_process()
        try:
            self.file.stat()
        except (FileNotFoundError, NotADirectoryError, ValueError) as exc:
            raise StoreUnavailable(f"there is no file {self.file}; {advice}") from exc
        except OSError as exc:
            line = f"{self.file} cannot be reached ({exc.strerror}); look at the directories above it"
            raise StoreUnavailable(line) from exc

    def check_process(self) -> None:
        """See `Place.check_process`."""
        from taskmanager.store.sqlite.files import check_process

        check_process(self.file)

    def insert_through(self, connection: Any, row: "TaskRow") -> Coroutine[Any, Any, None] | None:
        """See `Place.insert_through`: a connection of `sqlite3` or `aiosqlite`."""
        from taskmanager.store.sqlite.caller import insert_through

        return insert_through(connection, row, self.file)

    def insert_statement(self, row: "TaskRow") -> tuple[str, tuple[object, ...]]:
        """See `Place.insert_statement`. The placeholders are `?`."""
        from taskmanager.store.sqlite.caller import insert_statement

        return insert_statement(row)

    def room(self) -> Room:
        """See `Place.room`: the size of the log, and what the volume has left."""
        import shutil

        log_bytes, disk_free_bytes = 0, None
        with contextlib.suppress(OSError):
            log_bytes = _log(self.file.resolve()).stat().st_size
        with contextlib.suppress(OSError):
            disk_free_bytes = shutil.disk_usage(self.file.parent).free
        return Room(log_bytes, disk_free_bytes)

    def writer_watch(self) -> "WriterWatch":
        """See `Place.writer_watch`: who holds SQLite's write lock."""
        from taskmanager.store.sqlite.locks import WriterWatch

        return WriterWatch(self.file)

    def back_up(self, target: Path, *, is_replacing: bool) -> int:
        """See `Place.back_up`."""
        from taskmanager.store.sqlite.backup import back_up

        with self.read(is_any_version=True) as connection:
            return back_up(connection, self.file, target, is_replacing=is_replacing)

    def version(self) -> int:
        """See `Place.version`."""
        from taskmanager.store.sqlite.schema import version

        with self.read(is_any_version=True) as connection:
            return version(connection)

    def script(self) -> str:
        """See `Place.script`: refuse."""
        raise StoreError(
            f"{self} is a file, which the application makes and migrates by itself when it starts; --sql is for a "
            "postgresql:// URL"
        )

    def doctor(self) -> "FileChecks":
        """See `Place.doctor`."""
        from taskmanager.store.sqlite.doctor import FileChecks

        return FileChecks(self.file)


def _log(file: Path) -> Path:
    return Path(f"{file}-wal")


def _trace(path: Path) -> tuple[int, ...]:
    """Return what a write to the file changes. An empty log does not count: SQLite makes one for readers too."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_size, found.st_mtime_ns) if found.st_size else ()

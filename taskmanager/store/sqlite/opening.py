"""Opens a file to write to it in the caller's thread, for what is no application: made and migrated as at a start."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from taskmanager.store.place import READ_PATIENCE_S
from taskmanager.store.sqlite.connection import check_sqlite_version, configure_writer, create_private, translated
from taskmanager.store.sqlite.files import check_process, open_existing
from taskmanager.store.sqlite.forks import new_guard
from taskmanager.store.sqlite.schema import migrate
from taskmanager.store.sqlite.session import SqliteSession


@contextmanager
def open_to_write(path: str | os.PathLike[str], is_dead: Callable[[str], bool]) -> Iterator[SqliteSession]:
    """A connection for the `with` block. `is_dead` tells of a registered instance whether it has ended.

    Raises `StoreUnavailable` when the file cannot be made or written, and `StoreError` when it is no database, has a
    newer schema or is damaged. Errors of the driver in the block are translated.
    """
    check_sqlite_version()
    check_process(path)
    create_private(Path(path))
    name = str(path)
    with translated(name), new_guard(), closing(open_existing(name, "mode=rw", timeout=READ_PATIENCE_S)) as connection:
        configure_writer(connection, "full")
        migrate(connection, name, is_dead)
        yield connection

"""Which files the demo takes from a directory, and the key each of them is known by."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

SKIPPED_DIRECTORIES: Final = frozenset({"__pycache__", "site-packages", "dist-packages", "node_modules"})


class Listing(NamedTuple):
    """Names below a directory, in order, and what was left out of them."""

    names: tuple[str, ...]
    unreadable_directories: int
    is_cut: bool


def list_files(directory: Path, *, limit: int, is_ours: Callable[[Path], bool]) -> Listing:
    """At most `limit` regular files below `directory`, without those that are `is_ours`.

    Links to files count as files, links to directories are not followed. Hidden directories, `__pycache__`,
    `site-packages` and `node_modules` are passed over; what is no regular file (a pipe, a device, a dangling link)
    is not listed, because reading it might never end.
    """
    unreadable: list[OSError] = []
    found: list[str] = []
    for path in _walk(directory, unreadable):
        if is_ours(path) or not _is_regular(path):
            continue
        if len(found) == limit:
            return Listing(tuple(found), len(unreadable), is_cut=True)
        found.append(os.path.relpath(path, directory))
    return Listing(tuple(found), len(unreadable), is_cut=False)


def _walk(directory: Path, unreadable: list[OSError]) -> Iterator[Path]:
    for folder, folders, files in os.walk(directory, onerror=unreadable.append):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_DIRECTORIES and not name.startswith("."))
        yield from (Path(folder) / name for name in sorted(files))


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def raw_name(name: str) -> bytes | None:
    """The bytes of a name that no text can hold (it has lone surrogates); None for every other."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return os.fsencode(name)
    return None


def key_of(name: str) -> str:
    """The idempotency key of a file. Relative names never begin with a slash, so the two kinds cannot meet."""
    raw = raw_name(name)
    return name if raw is None else f"/{raw.hex()}"

"""The two tasks of the demo: what somebody might do with every file of a directory.

Python files go to the process lane, because parsing holds the interpreter; hashing gives it up, so all other files go
to threads. Reading a file twice does no harm: both may run again after an interruption.
"""

import ast
import gc
import hashlib
import os
import warnings
from pathlib import Path
from typing import Final, NamedTuple

from taskmanager import Subclasses, task

CHUNK_BYTES: Final = 1 << 20
TIMEOUT_S: Final = 60.0
RETRIES: Final = 2
RETRY_DELAY_S: Final = 0.4

CODES: Final[dict[type[BaseException], str | Subclasses]] = {
    FileNotFoundError: "FILE_VANISHED",
    PermissionError: "NOT_ALLOWED",
    OSError: Subclasses("NOT_READABLE"),
    SyntaxError: Subclasses("SYNTAX_ERROR"),
    ValueError: Subclasses("SYNTAX_ERROR"),  # a null byte, before Python 3.12
    RecursionError: "TOO_DEEP",
    MemoryError: "TOO_DEEP",  # how the parser says that its stack is full
}


class FileFacts(NamedTuple):
    """What is kept of a file. `definitions`: functions and classes at the top level, None where it is not Python."""

    sha256: str
    size: int
    lines: int
    definitions: int | None = None


def _path(directory: str, name: str, raw: bytes | None) -> Path:
    """A stored argument is text; a file name need not be, so the path of such a one travels as bytes."""
    return Path(directory, name) if raw is None else Path(os.fsdecode(raw))


@task(
    name="demo.hash_file",
    persist=True,
    requeue_on_interrupt=True,
    retries=RETRIES,
    retry_delay=RETRY_DELAY_S,
    timeout=TIMEOUT_S,
    exception_mapper=CODES,
    executor="thread",
)
def hash_file(directory: str, name: str, raw: bytes | None = None) -> FileFacts:
    """Size, lines and SHA-256 of a file, whatever it holds."""
    digest = hashlib.sha256()
    size = lines = 0
    last = b"\n"
    with _path(directory, name, raw).open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            lines += chunk.count(b"\n")
            last = chunk
    return FileFacts(digest.hexdigest(), size, lines + (not last.endswith(b"\n")))


@task(
    name="demo.parse_python",
    persist=True,
    requeue_on_interrupt=True,
    retries=RETRIES,
    retry_delay=RETRY_DELAY_S,
    timeout=TIMEOUT_S,
    exception_mapper=CODES,
    executor="process",
)
def parse_python(directory: str, name: str, raw: bytes | None = None) -> FileFacts:
    """The same of a Python file, and its definitions counted. Raises `SyntaxError` for one that is none."""
    data = _path(directory, name, raw).read_bytes()
    gc.disable()  # a tree is many new objects and no cycle: collecting meanwhile costs a fifth of the time
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's files
            tree = ast.parse(data)
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        definitions = sum(isinstance(node, kinds) for node in tree.body)
        del tree
    finally:
        gc.enable()
    lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    return FileFacts(hashlib.sha256(data).hexdigest(), len(data), lines, definitions)

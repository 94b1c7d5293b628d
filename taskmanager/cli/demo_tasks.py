"""The program that `taskmanager demo` starts, stops and starts again: an ordinary user of the library with one task.

It enqueues one task for each file at every start; the idempotency key of a file finds the task that is there already.
"""

import ast
import asyncio
import hashlib
import json
import os
import signal
import sys
import threading
import warnings
from functools import partial
from pathlib import Path
from typing import Final

from taskmanager import Subclasses, TaskManager, TaskStatus, task
from taskmanager.model.escaping import escaped

CODES: Final[dict[type[BaseException], str | Subclasses]] = {
    FileNotFoundError: "FILE_VANISHED",
    SyntaxError: Subclasses("SYNTAX_ERROR"),
    ValueError: Subclasses("SYNTAX_ERROR"),  # a null byte, before Python 3.12
}


@task(
    name="demo.check_file", persist=True, executor="process", requeue_on_interrupt=True, retries=2, retry_delay=0.4,
    timeout=60, exception_mapper=CODES,
)  # fmt: skip
def check_file(directory: str, name: str, raw: bytes | None = None) -> dict[str, str | int]:
    """Return SHA-256 and size of a file, and how many definitions a Python file has. `raw` is a path that is no text.

    Raises `SyntaxError` for a Python file that is none. Parsing holds the interpreter, so the task has a process.
    """
    data = (Path(os.fsdecode(raw)) if raw else Path(directory, name)).read_bytes()
    facts: dict[str, str | int] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    if name.endswith(".py"):
        with warnings.catch_warnings(action="ignore"):  # invalid escapes in other people's files
            body = ast.parse(data).body
        facts["definitions"] = sum(isinstance(each, ast.FunctionDef | ast.ClassDef) for each in body)
    return facts


def raw_of(name: str) -> bytes | None:
    """Return the bytes of a name that no text can hold, because it has lone surrogates; None for every other."""
    return os.fsencode(name) if any("\udc80" <= sign <= "\udcff" for sign in name) else None


def key_of(name: str) -> str:
    """Return the idempotency key of a file. Relative names begin with no slash, so the two kinds cannot meet."""
    return name if (raw := raw_of(name)) is None else f"/{raw.hex()}"


async def work(manager: TaskManager, directory: str, names: list[str]) -> None:
    """Enqueue one task per file; return when nothing is unfinished, tasks of earlier starts and retries included."""
    for name in names:
        raw = raw_of(str(Path(directory, name)))
        arguments = (directory, name) if raw is None else (escaped(directory), escaped(name))
        check_file.with_options(idempotency_key=key_of(name)).enqueue(*arguments, raw)
        await asyncio.sleep(0)
    while any(count for status, count in (await manager.counts()).items() if not TaskStatus(status).is_terminal):
        await manager.join()
        await asyncio.sleep(0.05)  # a retry from before the restart waits in the file for its time


if __name__ == "__main__":
    # Draining for no time at all, so that the stop has something to interrupt; the default is 5 seconds.
    manager = TaskManager(sys.argv[1], drain_timeout=0.0, instance_name="demo")
    manager.register(check_file)
    names = json.loads(sys.stdin.buffer.readline())
    # The demo writes nothing more. When it is gone, however it ended, its end of stdin is closed, and this one stops.
    stop = partial(os.kill, os.getpid(), signal.SIGTERM)
    threading.Thread(target=lambda: os.read(0, 1) or stop(), daemon=True).start()
    manager.run(partial(work, manager, sys.argv[2], names))

"""The program that the demo starts, stops and starts again: an ordinary user of the library, in its own process.

It takes the names of the files from stdin and enqueues one task for each, every time it starts; the idempotency key of
a file finds the task that is there already, so nobody has to remember what was enqueued before.
"""

import asyncio
import os
import signal
import sys
import threading
from functools import partial
from typing import Final

from taskmanager import TaskManager, TaskStatus
from taskmanager.cli.demo.files import key_of, raw_name
from taskmanager.cli.demo.tasks import hash_file, parse_python
from taskmanager.model.escaping import escaped

STDIN: Final = 0
READ_BYTES: Final = 1 << 16
POLL_S: Final = 0.05
BREATH: Final = 100
"""Files enqueued before other tasks of the loop get a turn."""


def encode_names(names: tuple[str, ...]) -> bytes:
    """What the demo writes to stdin: the length of the rest, and the names, each ended by a null byte."""
    body = b"".join(os.fsencode(name) + b"\0" for name in names)
    return b"%d\n%b" % (len(body), body)


def read_names() -> list[str]:
    """The other end of `encode_names`. Read without buffering, because `stop_with_parent` goes on behind it."""
    data = b""
    while b"\n" not in data:
        data += _more()
    head, _, body = data.partition(b"\n")
    parts, missing = [body], int(head) - len(body)
    while missing > 0:
        parts.append(_more())
        missing -= len(parts[-1])
    return [os.fsdecode(name) for name in b"".join(parts).split(b"\0")[:-1]]


def _more() -> bytes:
    data = os.read(STDIN, READ_BYTES)
    if not data:
        raise EOFError("stdin ended before the names did")
    return data


def stop_with_parent() -> None:
    """Stop gracefully when the demo is gone, however it ended: then its end of stdin is closed."""

    def watch() -> None:
        while os.read(STDIN, READ_BYTES):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="demo-parent-watch", daemon=True).start()


def arguments(directory: str, name: str) -> tuple[str, str, bytes | None]:
    """The path as text, and as bytes too where it is none."""
    raw = raw_name(os.path.join(directory, name))  # noqa: PTH118  # a Path would have to be taken apart again
    return (directory, name, None) if raw is None else (escaped(directory), escaped(name), raw)


async def work(manager: TaskManager, directory: str, names: list[str]) -> None:
    """One task per file; returns when nothing is unfinished, tasks of earlier starts and retries included."""
    for count, name in enumerate(names):
        function = parse_python if name.endswith(".py") else hash_file
        function.with_options(idempotency_key=key_of(name)).enqueue(*arguments(directory, name))
        if count % BREATH == 0:
            await asyncio.sleep(0)
    while True:
        await manager.join()
        counts = await manager.counts()
        if not any(count for status, count in counts.items() if not TaskStatus(status).is_terminal):
            return
        await asyncio.sleep(POLL_S)  # a retry from before the restart waits in the file for its time


def main(database: str, directory: str) -> None:
    """Run on `database` until every file below `directory` that stdin names has an ended task, or a signal comes."""
    # Draining for no time at all, so that the stop has something to interrupt; the default is 5 seconds.
    manager = TaskManager(database, drain_timeout=0.0, instance_name="demo")
    manager.register(hash_file, parse_python)
    names = read_names()
    stop_with_parent()
    manager.run(partial(work, manager, directory, names))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The `taskmanager` command run in this process, and files for it to work on."""

import asyncio
import hashlib
import io
import sqlite3
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec

from taskmanager import TaskManager
from taskmanager.cli.commands import main


class Ran(NamedTuple):
    """What came of one command."""

    code: int
    out: str
    err: str

    def document(self, schema: Any) -> Any:
        """The one JSON document on stdout, checked against its schema; nothing else may stand there or on stderr."""
        assert self.err == "", self.err
        return msgspec.json.decode(self.out.encode(), type=schema)


def taskmanager(*arguments: str | Path, stdin: str = "", columns: int = 80) -> Ran:
    """Run it to its end."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    code: object = None
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        patch.object(sys, "argv", ["taskmanager", *map(str, arguments)]),
        patch.object(sys, "stdin", io.StringIO(stdin)),
        patch.dict("os.environ", {"COLUMNS": str(columns)}),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int)
    texts = []
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
        texts.append(stream.read())
    return Ran(code, *texts)


def digest(folder: Path) -> dict[str, str]:
    """What is in every file but the index of the log, in which every reader keeps its marks."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if not path.name.endswith("-shm") and path.stat().st_size
    }


def write_tasks(database: Path) -> dict[str, str]:
    """A file that an application has left in order: tasks by name, with two that failed and one that is delayed."""
    manager = TaskManager(database)

    @manager.task(persist=True, name="app.jobs:good")
    async def good(number: int) -> int:
        return number

    @manager.task(persist=True, name="app.jobs:bad", retries=1, retry_delay=0, queue_name="mail")
    async def bad(to: str, *, subject: str) -> None:
        raise ValueError(f"no such mailbox: {to}")

    async def work() -> dict[str, str]:
        async with manager:
            handles = {
                "good": good.with_options(tags={"user": "1"}).enqueue(1),
                "bad": bad.enqueue("ann", subject="hi"),
                "worse": bad.enqueue("bob", subject="ho"),
            }
            for handle in handles.values():
                await handle.result()
            handles["later"] = good.with_options(delay=3_600).enqueue(2)
        return {name: handle.task_id for name, handle in handles.items()}

    return asyncio.run(work())


def statuses(database: Path) -> dict[str, str]:
    """Id → status, as any program sees it."""
    with sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True) as connection:
        found = dict(connection.execute("SELECT id, status FROM taskmanager_tasks").fetchall())
    connection.close()
    return found

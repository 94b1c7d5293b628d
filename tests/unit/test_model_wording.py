"""Why something failed, in the words that the log and every screen share."""

import asyncio
import errno
import io
import logging
import os
from pathlib import Path

import pytest
from rich.console import Console

from taskmanager import BuiltInTaskCode, TaskError, TaskManager, TaskResult
from taskmanager.model.wording import MAX_WHY_CHARS, remedy, why
from tests.unit.command_line import taskmanager


@pytest.mark.parametrize(
    ("code", "message", "long", "short"),
    [
        ("SMTP_DOWN", "ConnectionError: refused", "SMTP_DOWN: ConnectionError: refused", None),
        ("UNHANDLED_EXCEPTION", "KeyError: 'a'", "UNHANDLED_EXCEPTION: KeyError: 'a'", "KeyError: 'a'"),
        (BuiltInTaskCode.UNHANDLED_EXCEPTION, "KeyError: 'a'", "UNHANDLED_EXCEPTION: KeyError: 'a'", "KeyError: 'a'"),
        ("UNHANDLED_EXCEPTION", "", "UNHANDLED_EXCEPTION", None),
        ("WORKER_CRASHED", None, "WORKER_CRASHED", None),
        ("TOO_SLOW", "one\n  two\r\n\tthree ", "TOO_SLOW: one two three", None),
        ("ODD", "a\x1b[31mred\x00", "ODD: a\\x1b[31mred\\x00", None),
        ("bad\x1bcode", "x", "bad\\x1bcode: x", None),
    ],
)
def test_why_is_code_type_and_message_in_one_line(code: str, message: str | None, long: str, short: str | None) -> None:
    """The message of an exception begins with its type. What a terminal would obey is shown, not sent."""
    assert why(code, message) == long
    assert why(code, message, is_short=True) == (short or long)


def test_why_of_a_huge_message_is_cut() -> None:
    """A page of HTML in an exception must not fill the log; the whole of it is in the file."""
    assert why("HUGE", "x" * 10_000_000) == f"HUGE: {'x' * MAX_WHY_CHARS} ..."
    assert why("HUGE", "x" * 50, max_chars=10) == f"HUGE: {'x' * 10} ..."


def test_the_log_and_the_screens_say_the_same_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The line of a retry, the final line, `list`, `show` and `watch`: whoever reads one of them needs no other."""
    caplog.set_level(logging.INFO, logger="taskmanager")
    manager = TaskManager(tmp_path / "tasks.db", exception_mapper={ConnectionError: "SMTP_DOWN"})
    console = Console(file=io.StringIO(), width=200)

    @manager.task(persist=True, retries=1, retry_delay=0, name="mail")
    async def mail() -> None:
        raise ConnectionError("smtp.example.org refused")

    @manager.task(persist=True, retries=1, retry_delay=0, name="invoice")
    async def invoice() -> TaskResult[None]:
        return TaskResult(err=TaskError("NO_INVOICE", "number 7\nis missing"))

    async def main() -> None:
        async with manager:
            for task in (mail, invoice):
                await task.enqueue().result()
            console.print(manager.console())

    asyncio.run(main())
    for name, reason in (
        ("mail", "SMTP_DOWN: ConnectionError: smtp.example.org refused"),
        ("invoice", "NO_INVOICE: number 7 is missing"),
    ):
        said = [r.getMessage() for r in caplog.records if r.__dict__.get("task_name") == name]
        assert [line.partition(")")[2] for line in said if "failed" in line] == [
            f" failed with {reason}; retry 1 of 1 in 0.0 s",
            f" failed after 2 attempts with {reason}",
        ]
        listed = taskmanager("list", "--db", tmp_path / "tasks.db", "--task", name, columns=200).out
        assert reason[:30] in listed
        shown = taskmanager("show", listed.splitlines()[1].split()[0], "--db", tmp_path / "tasks.db", columns=200).out
        assert shown.count(reason) >= 3  # in the head, and with each attempt
        assert reason in console.file.getvalue()  # type: ignore[attr-defined]  # it is a StringIO


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "free some"), (errno.EDQUOT, "free some"), (errno.EACCES, "make it writable")]
)
def test_remedy_for_a_disk_without_room_speaks_of_no_permission(number: int, words: str) -> None:
    """A disk may have space and no room for one file more: SQLite's own files fit on it, and the lock file does not."""
    assert words in remedy(OSError(number, os.strerror(number)), "make it writable")

"""The page of one task: everything that is known of it, whatever its values are."""

import asyncio
import base64
import json
import re
import sqlite3
from contextlib import closing
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from taskmanager import TaskManager, current_task, step
from taskmanager.store.file_place import FilePlace
from taskmanager.store.sql.task_views import Part
from taskmanager.web import values
from taskmanager.web.app import file_site, pages_of
from taskmanager.web.guard import Guard
from tests.web.visitor import Visitor, manager_on, visit

pytestmark = pytest.mark.anyio

MARKUP = "<script>alert(1)</script>"


def text_of(html: str) -> str:
    """Return what a person reads of a page."""
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html)))


def change(folder: Path, task_id: str, **columns: Any) -> None:
    """Write into the row of a task, as another program does."""
    names = ", ".join(f"{name} = ?" for name in columns)
    with closing(sqlite3.connect(folder / "tasks.db")) as connection, connection:
        connection.execute(f"UPDATE taskmanager_tasks SET {names} WHERE id = ?", (*columns.values(), task_id))


async def test_page_shows_attempts_with_traceback_log_and_next_step(tmp_path: Path) -> None:
    """What `taskmanager show` shows is on the page, and a part of the id is enough to come to it."""
    manager = manager_on(tmp_path)

    @manager.task(name="app:charge", persist=True, retries=1, retry_delay=0.01)
    async def charge(order: int, *, note: str) -> None:
        current_task().log("asking the bank")
        raise ValueError(f"order {order} was refused")

    async with manager, visit(manager) as visitor:
        handle = charge.with_options(tags={"customer": "ann"}).enqueue(7, note="first")
        assert not (await handle.result()).is_ok()
        await manager.flush()
        html = await visitor.text(f"tasks/{handle.task_id}")
        shown = text_of(html)
        for words in (
            "app:charge",
            "order 7 was refused",
            "Traceback of attempt 1",
            "asking the bank",
            "note",
            '"first"',
        ):
            assert words in shown
        assert "Retry runs it again" in shown
        assert 'href="../tasks?tag=customer%3Aann"' in html
        for part in (handle.task_id[-8:], handle.task_id[:-1]):
            answer = await visitor.get(f"tasks/{part}")
            assert (answer.status_code, answer.headers["location"]) == (307, f"../tasks/{handle.task_id}")


async def test_part_of_several_ids_leads_to_a_choice(tmp_path: Path) -> None:
    """A link from a log line that fits two tasks says so, and no task at all is a page with what to do."""
    manager = manager_on(tmp_path)

    @manager.task(persist=True)
    async def nothing() -> None: ...

    async with manager, visit(manager) as visitor:
        handles = [nothing.enqueue() for _ in range(2)]
        await asyncio.gather(*handles)
        await manager.flush()
        answer = await visitor.get(f"tasks/{handles[0].task_id[:8]}")
        assert answer.status_code == 300
        assert all(each.task_id in answer.text for each in handles)
        missing = await visitor.get("tasks/nope")
        assert (missing.status_code, "there is no task nope" in missing.text.lower()) == (404, True)


async def test_hostile_texts_are_shown_as_text(tmp_path: Path) -> None:
    """Markup, controls and bidirectional signs of rows never act in the page."""
    manager = manager_on(tmp_path)

    @manager.task(name=f"app:{MARKUP}", persist=True)
    async def hostile(text: str) -> str:
        current_task().log(text, field=text)
        raise ValueError(text)

    text = f"{MARKUP}\u202e\x1b[31m"
    async with manager, visit(manager) as visitor:
        handle = hostile.with_options(tags={"t": text}, queue_name=MARKUP).enqueue(text)
        await handle.result()
        await manager.flush()
        html = await visitor.text(f"tasks/{handle.task_id}")
        assert MARKUP not in html
        assert "\u202e" not in html
        assert "\x1b" not in html
        assert "\\u202e" in html


async def test_lone_surrogates_of_a_row_are_escapes_on_the_page(tmp_path: Path) -> None:
    """Half a character, which JSON may hold, would make the page impossible to send."""
    manager = manager_on(tmp_path)

    @manager.task(persist=True)
    async def echo(text: str) -> str:
        return text

    async with manager, visit(manager) as visitor:
        handle = echo.enqueue("x")
        await handle
        await manager.flush()
        log = [{"at": 1, "attempt": 1, "text": "\ud800"}]
        change(
            tmp_path,
            handle.task_id,
            args='["\\ud800"]',
            result='{"ok":"\\udfff"}',
            log=json.dumps(log),
            tags='{"a":"\\ud800"}',
        )
        html = await visitor.text(f"tasks/{handle.task_id}")
        assert "\\ud800" in html
        assert "\\udfff" in html


async def test_large_result_is_not_sent(tmp_path: Path) -> None:
    """Of 8 MB the page has the beginning, and says how much there is."""
    manager = manager_on(tmp_path)

    @manager.task(persist=True)
    async def dump() -> str:
        return "0123456789abcdef" * (8 * 1024 * 1024 // 16 - 16)

    async with manager, visit(manager) as visitor:
        handle = dump.enqueue()
        await handle
        await manager.flush()
        html = await visitor.text(f"tasks/{handle.task_id}")
        assert len(html) < 30_000
        assert "The beginning of 8.4 MB" in html


async def test_hidden_arguments_are_nowhere_on_the_page(tmp_path: Path) -> None:
    """`hide_arguments` hides arguments, results, what steps came to, and the words of a progress."""
    manager = manager_on(tmp_path)

    async def part() -> str:
        return "secret-step"

    @manager.task(persist=True)
    async def work(value: str) -> str:
        current_task().progress(1, 2, "secret-progress")
        await step(part)
        return "secret-result"

    async with manager, visit(manager, hide_arguments=True) as visitor:
        handle = work.enqueue("secret-argument")
        await handle
        await manager.flush()
        html = await visitor.text(f"tasks/{handle.task_id}")
        assert "secret" not in html
        assert "Hidden on this dashboard" in html


class Backwards:
    """A codec as an application may have one that encrypts."""

    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    def decode(self, data: bytes) -> bytes:
        return data[::-1]


async def test_sealed_values_stay_sealed(tmp_path: Path) -> None:
    """What the application encrypts is not shown, and the page says why."""
    manager = TaskManager(tmp_path / "tasks.db", codec=Backwards())

    @manager.task(persist=True)
    async def work(value: str) -> str:
        return value

    async with manager, visit(manager) as visitor:
        handle = work.enqueue("secret")
        await handle
        await manager.flush()
        html = await visitor.text(f"tasks/{handle.task_id}")
        assert base64.b64encode(b'["secret"]'[::-1]).decode() not in html
        assert html.count("Sealed by the application") == 2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("order no. 7", "order no. 7"),
        (None, "secret-argument"),
        (ValueError("secret-argument"), "format_arguments raised ValueError"),
        (7, "format_arguments returned int"),
    ],
)
async def test_format_arguments_writes_them_and_cannot_break_the_page(
    tmp_path: Path, answer: object, words: str
) -> None:
    """Its fault does not show what it may have been there to hide; only None means the usual text."""
    manager = manager_on(tmp_path)

    @manager.task(persist=True)
    async def work(value: str) -> None: ...

    def formatted(_name: str, _args: Any, _kwargs: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with manager, visit(manager, format_arguments=formatted) as visitor:
        handle = work.enqueue("secret-argument")
        await handle
        await manager.flush()
        html = await visitor.text(f"tasks/{handle.task_id}")
        assert words in html
        assert ("secret-argument" in html) == (answer is None)


async def test_memory_only_task_that_runs_is_shown_from_memory(tmp_path: Path) -> None:
    """A task that stands in no file is shown by the manager that runs it, with its progress, and can be cancelled."""
    manager = manager_on(tmp_path)
    begun = asyncio.Event()

    @manager.task(name="app:warm", persist=False)
    async def warm(shelf: int) -> None:
        current_task().progress(3, 4, "shelf")
        begun.set()
        await asyncio.Event().wait()

    async with manager, visit(manager) as visitor:
        handle = warm.enqueue(3)
        await begun.wait()
        html = await visitor.text(f"tasks/{handle.task_id}")
        assert "3 of 4 (75%)" in html
        assert "memory only" in html
        part = await visitor.get(f"tasks/{handle.task_id[-10:]}")
        assert part.status_code == 307
        await visitor.post(f"tasks/{handle.task_id}/cancel", {})
        result = await handle.result()
        assert result.err_value.error_code == "TASK_CANCELLED"


async def test_reader_gets_no_buttons(tmp_path: Path) -> None:
    """Who may only look sees no form on the page."""
    manager = manager_on(tmp_path)

    @manager.task(persist=True)
    async def work() -> None: ...

    async with manager, visit(manager) as actor, visit(manager, "read") as reader:
        handle = work.enqueue()
        await handle
        await manager.flush()
        address = f"tasks/{handle.task_id}"
        assert f'action="../{address}/retry"' in await actor.text(address)
        assert "<form" not in (await reader.text(address)).partition("<main")[2].partition("</main>")[0]


async def test_row_that_cannot_be_read_is_shown_with_its_fault(tmp_path: Path) -> None:
    """Another program may have written anything; the page says what is wrong, and shows the rest."""
    manager = manager_on(tmp_path)

    @manager.task(name="app:work", persist=True)
    async def work(value: int) -> int:
        return value

    async with manager, visit(manager) as visitor:
        handle = work.enqueue(7)
        await handle
        await manager.flush()
        change(tmp_path, handle.task_id, task_options="{", tags="[", progress="x", log="{", kwargs="[[[", result="{")
        html = await visitor.text(f"tasks/{handle.task_id}")
        assert "task_options is not the JSON that belongs there" in html
        assert "app:work" in html


async def test_memory_only_task_of_another_process_is_told_of(tmp_path: Path) -> None:
    """It stands in no row; the dashboard of the file says what its instance says of it."""
    manager = manager_on(tmp_path)
    begun, gate = asyncio.Event(), asyncio.Event()

    @manager.task(name="app:warm", persist=False)
    async def warm() -> None:
        current_task().progress(3, 4, "shelf")
        begun.set()
        await gate.wait()

    site = file_site(FilePlace(tmp_path / "tasks.db"), title="tasks")
    guard = Guard(pages_of(site), lambda _request: "act", read_only=False, title="tasks")
    async with manager, Visitor(guard) as visitor:
        handle = warm.enqueue()
        await begun.wait()
        async with asyncio.timeout(20):
            while (answer := await visitor.get(f"tasks/{handle.task_id}")).status_code != 200:  # noqa: ASYNC110  # what an instance tells in the file has no event
                await asyncio.sleep(0)
        assert "memory-only" in answer.text
        assert "3 of 4 (75%)" in answer.text
        assert (await visitor.get(f"tasks/{handle.task_id[-10:]}")).status_code == 307
        gate.set()
        await handle


@pytest.mark.parametrize("text", ["[" + "1" * 5_000 + "]", "[NaN]", "[" * 150 + "]" * 150, '["\\ud800"]', "[1"])
def test_arguments_that_cannot_be_read_are_shown_as_they_stand(text: str) -> None:
    """They are not sealed, so whoever looks for the fault sees them; with `format_arguments` nothing is shown raw."""
    args, kwargs = Part(text, len(text)), Part("{}", 2)
    shown = values.arguments("app:work", args, kwargs, None, is_hidden=False)
    assert (dict(shown.items)["positional"], shown.remark) == (text, values.UNREADABLE)
    formatted = values.arguments("app:work", args, kwargs, lambda *_: "formatted", is_hidden=False)
    assert (formatted.items, formatted.is_hidden) == ((), True)


def test_many_large_arguments_are_cut() -> None:
    """A page has the beginning of them, whichever way they are large."""
    text = json.dumps(["x" * 5_000, list(range(5_000)), *["y"] * 500])
    shown = values.arguments("app:work", Part(text, len(text)), Part("{}", 2), None, is_hidden=False)
    assert sum(len(each) for _, each in shown.items) <= values.MAX_SHOWN_CHARS
    assert shown.remark.startswith("the beginning of")


async def test_page_of_a_failed_task_names_its_button_to_whoever_has_no_shell(tmp_path: Path) -> None:
    """Whoever may only read has no button, and is told the command."""
    manager = manager_on(tmp_path)

    @manager.task(name="app:fail", persist=True)
    async def fail() -> None:
        raise ValueError("no")

    async with manager, visit(manager) as visitor, visit(manager, read_only=True) as reader:
        handle = fail.enqueue()
        assert (await handle.result()).is_err()
        await manager.flush()
        assert "nothing; Retry runs it again" in await visitor.text(f"tasks/{handle.task_id}")
        assert "taskmanager retry" in await reader.text(f"tasks/{handle.task_id}")

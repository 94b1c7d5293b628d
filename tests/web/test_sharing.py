"""What viewers share: the answer of a second, and nothing that belongs to one of them."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from taskmanager import TaskManager
from taskmanager.web import dashboard
from tests.web.rows import DATABASE, first_failure
from tests.web.visitor import Visitor, manager_on, visit

pytestmark = pytest.mark.anyio
PAGES = ("", "tasks", "queues", "failures")
FORKS = f"""
import asyncio, os, signal, sys
from taskmanager import TaskManager
from tests.web.visitor import Visitor, visit

async def look():
    async with visitor:
        for page in {PAGES}:
            print((await visitor.get(page)).status_code, flush=True)

visitor = visit(TaskManager(sys.argv[1]))
asyncio.run(look())
if not os.fork():
    signal.alarm(30)
    visitor = Visitor(visitor.app)
    asyncio.run(look())
    os._exit(0)
os.wait()
"""


def said(sentence: str) -> str:
    """Return the cookie that brings this sentence to the next page."""
    return f"taskmanager_said={quote(sentence)}"


@pytest.mark.parametrize("address", ["tasks/nobody", "workflows/nobody", "queues"])
async def test_sentence_is_for_who_has_acted_alone(tmp_path: Path, address: str) -> None:
    """Two viewers of one moment share what is drawn. The sentence names what one of them has done."""
    async with manager_on(tmp_path) as manager:
        app = dashboard(manager, auth=lambda _request: "act")
        async with Visitor(app) as one, Visitor(app) as other:
            told, silent = await asyncio.gather(one.get(address, cookie=said("Task 7 is mine.")), other.get(address))
    assert "Task 7 is mine." in told.text
    assert "Task 7 is mine." not in silent.text
    assert not any(line.startswith("taskmanager_said") for line in silent.headers.get_list("set-cookie"))


async def test_sentence_of_a_neighbour_is_plain_text(tmp_path: Path) -> None:
    """Without https another program of the host may set the cookie, with signs that turn a line around."""
    async with manager_on(tmp_path) as manager, visit(manager) as visitor:
        page = await visitor.get("queues", cookie=said("<b>\u202e!"))
    assert "&lt;b&gt;\\u202e!" in page.text


async def test_outcome_is_shown_by_a_worker_that_has_just_looked(tmp_path: Path) -> None:
    """The form goes to one worker, and the page after it comes from another one."""
    await first_failure(tmp_path)
    async with visit(TaskManager(tmp_path / DATABASE)) as one, visit(TaskManager(tmp_path / DATABASE)) as other:
        assert "Paused" not in await other.text("queues")
        answer = await one.post("queues/pause", {"queue": "mail"})
        page = await other.get("queues", cookie=f"taskmanager_said={answer.cookies['taskmanager_said']}")
        assert "Queue mail is paused." in page.text
        assert 'action="./queues/resume"' in page.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_page_is_answered_by_a_worker_that_was_forked_after_a_look(tmp_path: Path) -> None:
    """A server may load the application, and look at it, before it forks: the threads that read stay behind."""
    asyncio.run(first_failure(tmp_path))
    program = [sys.executable, "-W", "ignore", "-c", FORKS, str(tmp_path / DATABASE)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["200"] * 8, done.stderr

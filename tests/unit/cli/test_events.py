"""`send`, and how tasks are shown that sleep, or wait for it: on the file of an application that has stopped."""

import asyncio
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from taskmanager import TaskManager, sleep, wait_for
from tests.unit.cli.documents import ShownDocument
from tests.unit.command_line import taskmanager
from tests.unit.duties.scene import until


class SentDocument(msgspec.Struct, forbid_unknown_fields=True):
    """What was sent, as docs/command-line.md has it."""

    task_id: str
    name: str
    key: str | None


class Application:
    """Three tasks that wait, and what they come to when it runs again."""

    def __init__(self, database: Path) -> None:
        self.database = database
        self.ids = asyncio.run(self._begin())

    def _define(self) -> TaskManager:
        manager = TaskManager(self.database, store_poll=0.02)

        @manager.task(name="sleeps", persist=True, requeue_on_interrupt=True)
        async def sleeps() -> None:
            await sleep(timedelta(days=9))

        @manager.task(name="waits", persist=True, requeue_on_interrupt=True)
        async def waits() -> dict[str, str]:
            return await wait_for("approval", dict[str, str])

        @manager.task(name="hurries", persist=True, requeue_on_interrupt=True)
        async def hurries() -> int:
            return await wait_for("go", int, timeout=timedelta(days=9))

        return manager

    async def _begin(self) -> dict[str, str]:
        manager = self._define()
        async with manager:
            handles = {name: manager.enqueue(name) for name in ("sleeps", "waits", "hurries")}
            for each in handles.values():
                await each.saved()
            await until(lambda: not manager._instance.needed().engine.live)
            return {name: each.task_id for name, each in handles.items()}

    def comes_to(self, name: str) -> object:
        async def run() -> object:
            manager = self._define()
            async with manager:
                return await manager.handle(self.ids[name])

        return asyncio.run(run())


@pytest.fixture
def application(tmp_path: Path) -> Application:
    return Application(tmp_path / "tasks.db")


def test_show_tells_until_when_a_task_sleeps_and_what_it_waits_for(application: Application) -> None:
    """In words, and as columns."""
    said = {name: taskmanager("show", task_id, "--db", application.database).out for name, task_id in
            application.ids.items()}  # fmt: skip
    assert "Next: it sleeps, and goes on at 2" in said["sleeps"]
    assert "  sleep  until 2" in said["sleeps"]
    assert "Next: it waits for the event approval\n" in said["waits"]
    assert "  wait:approval  not ended" in said["waits"]
    assert "Next: it waits for the event go, and times out at 2" in said["hurries"]
    listed = taskmanager("list", "--db", application.database).out
    assert [line.split()[-2:] for line in listed.splitlines()[1:]] == [["in", "8d"], ["an", "event"], ["in", "8d"]]
    shown = taskmanager("show", application.ids["hurries"], "--db", application.database, "--json")
    (step,) = shown.document(ShownDocument).steps
    assert (step.number, step.name, step.waits_for, step.event_id) == (1, "wait:go", "go", None)
    assert step.due_at is not None


def test_sent_event_is_received_when_the_application_runs(application: Application) -> None:
    """The value is JSON, and null if there is none. With a key it is stored once."""
    waits = application.ids["waits"]
    ran = taskmanager("send", waits[-6:], "approval", '{"by": "ann"}', "--key", "form", "--db", application.database)
    assert (ran.code, ran.out) == (0, f"sent approval to task {waits}\n")
    again = taskmanager(
        "send", waits, "approval", '{"by": "bob"}', "--key", "form", "--db", application.database, "--json"
    )
    assert again.document(SentDocument) == SentDocument(waits, "approval", "form")
    assert application.comes_to("waits") == {"by": "ann"}
    ended = taskmanager("send", waits, "approval", "--db", application.database)
    assert (ended.code, ended.out) == (1, "")
    assert f"task {waits} has ended" in ended.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nobody", "go"], 1, "there is no task 'nobody'"),
        (["ID", "go", "yes"], 2, "the value must be JSON"),
        (["ID", ""], 1, "name must be text"),
        (["ID", "go", "1", "--key", ""], 1, "key must be text"),
    ],
)
def test_wrong_event_is_refused(application: Application, words: list[str], code: int, said: str) -> None:
    """And nothing is stored."""
    words = [application.ids["hurries"] if each == "ID" else each for each in words]
    ran = taskmanager("send", *words, "--db", application.database)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err

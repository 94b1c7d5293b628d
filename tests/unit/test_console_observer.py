"""What is seen of a file: who lives, what waits where, what goes wrong; and when it is looked at again."""

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taskmanager import QueueConfig, TaskManager, TaskStatus
from taskmanager.codec.report import loads_report
from taskmanager.console.documents import overview_document
from taskmanager.console.observer import SLOW_S, TICK_S, Observer, Watch, look
from taskmanager.console.overview import (
    Health,
    Overview,
)
from taskmanager.model.clock import SystemClock
from taskmanager.model.record import TaskWrite
from taskmanager.model.report import InstanceReport
from taskmanager.store.file_place import FilePlace
from taskmanager.store.presence import PUT_BACK_S
from taskmanager.store.sql.queries import counts
from taskmanager.store.sql.statistics import statistics
from taskmanager.store.sqlite.presence import InstanceLock
from taskmanager.store.sqlite.reading import open_read_only
from taskmanager.store.sqlite.session import SqliteSession
from tests.contract.rows import task
from tests.sessions import connect
from tests.unit.cli import workflow_file
from tests.unit.console_overviews import BAD_DAY, BUSY

pytestmark = pytest.mark.anyio
SECOND = 1_000_000


class SetClock:
    """Both times of the observer, moved by the test."""

    def __init__(self) -> None:
        self.wall = SystemClock().now_us()
        self.elapsed = 100.0

    def now_us(self) -> int:
        return self.wall

    def elapsed_s(self) -> float:
        return self.elapsed

    def advance(self, seconds: float) -> None:
        self.wall += round(seconds * SECOND)
        self.elapsed += seconds


async def make_file(path: Path, **options: Any) -> Path:
    """A file with history: 3 completed, 2 failed attempts of which one was retried."""
    manager = TaskManager(path, **options)
    fails = iter([True, False, True])

    @manager.task(persist=True, name="good")
    async def good() -> None: ...

    @manager.task(persist=True, name="bad", retries=1, retry_delay=0.0, retry_policy=None)
    async def bad() -> None:
        if next(fails):
            raise RuntimeError("once")

    @manager.task(persist=True, name="never", retries=0)
    async def never() -> None:
        raise RuntimeError("always")

    async with manager:
        for handle in [good.enqueue(), good.enqueue(), bad.enqueue(), never.enqueue()]:
            await handle.result()
        good.with_options(delay=3600).enqueue()
        await manager.flush()
    return path


def seen(path: Path) -> Overview:
    with open_read_only(path) as connection:
        return look(FilePlace(path), connection, SystemClock())


def names_in(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


def write(path: Path, sql: str, *values: object) -> None:
    with closing(connect(path)) as connection, connection:
        connection.execute(sql, values)


def register(path: Path, clock: SetClock, live_tasks: object = None, instance_id: str = "i1") -> None:
    text = None if live_tasks is None else json.dumps(live_tasks)
    write(
        path,
        "INSERT OR REPLACE INTO taskmanager_instances VALUES (?, 'web', 'host', 7, 'main', NULL, ?, NULL, ?, ?)",
        instance_id, clock.wall, text, clock.wall,
    )  # fmt: skip


def beat(path: Path, clock: SetClock) -> None:
    sql = "INSERT INTO taskmanager_heartbeats (sender_id, role, sent_at) VALUES ('i1', 'runner', ?)"
    write(path, sql, clock.wall)


async def test_history_is_told_in_windows(tmp_path: Path) -> None:
    """Pace, failures with their code, and which tasks fail or take long; nobody runs."""
    overview = seen(await make_file(tmp_path / "tasks.db"))
    assert overview.counts[TaskStatus.COMPLETED] == 3
    assert (overview.counts[TaskStatus.FAILED], overview.waiting_count) == (1, 1)
    assert (overview.hour.ended_count, overview.hour.failed_count) == (5, 2)
    assert (overview.minute.ended_count, overview.minute.failed_count) == (5, 2)
    assert [(each.task_name, each.failed_count) for each in overview.most_failing] == [("bad", 1), ("never", 1)]
    assert {each.task_name: each.ended_count for each in overview.slowest} == {"good": 2, "bad": 2, "never": 1}
    assert {(each.task_name, each.will_retry) for each in overview.failures} == {("bad", True), ("never", False)}
    assert {each.error_code for each in overview.failures} == {"UNHANDLED_EXCEPTION"}
    (queue,) = overview.queues
    assert (queue.queue_name, queue.waiting_count, queue.oldest_waiting_since) == ("default", 1, None)
    assert overview.instances == ()
    assert [problem.text for problem in overview.problems] == ["1 task waits, and no instance is running"]


async def test_a_running_instance_is_seen_with_its_memory(tmp_path: Path) -> None:
    """Limits, memory-only tasks and pauses of a living instance."""
    path = tmp_path / "tasks.db"
    manager = TaskManager(path, instance_name="web", queues=[QueueConfig("mail", max_concurrency=1)])

    @manager.task(queue_name="mail")
    async def wait() -> None: ...

    async with manager:
        await manager.pause("mail")
        wait.enqueue()
        from taskmanager.duties.reports import Reports

        assert manager._lifecycle is not None
        await Reports(manager._lifecycle.engine).show()
        overview = seen(path)
        await manager.resume("mail")
        await manager.join()
    (instance,) = overview.instances
    assert (instance.name, instance.health, instance.report.waiting_count) == ("web", Health.ALIVE, 1)
    (queue,) = overview.queues
    assert (queue.queue_name, queue.waiting_count, queue.limit, queue.is_paused) == ("mail", 1, 1, True)
    assert queue.oldest_waiting_since is not None
    assert overview.counts[TaskStatus.PENDING] == 1
    assert [each.text for each in overview.problems] == ["queue mail is paused, and 1 task waits in it"]


async def test_the_numbers_of_one_look_come_from_one_moment(tmp_path: Path) -> None:
    """What an instance says of itself may be a second old. Of persisted tasks the file counts, for every number."""
    path = tmp_path / "tasks.db"
    manager = TaskManager(path, concurrency=2)
    gates = [asyncio.Event() for _ in range(9)]

    @manager.task(name="job", persist=True)
    async def job(number: int) -> None:
        await gates[number].wait()

    @manager.task(name="memory")
    async def memory() -> None: ...

    async with manager:
        handles = [job.enqueue(number) for number in range(9)]
        await asyncio.gather(*(each.saved() for each in handles))
        in_memory = [memory.enqueue() for _ in range(2)]
        from taskmanager.duties.reports import Reports

        assert manager._lifecycle is not None
        await Reports(manager._lifecycle.engine).show()
        for number in (0, 1, 2):  # what it has said is old from here on
            gates[number].set()
            await handles[number]
        await manager.flush()
        overview = seen(path)
        for gate in gates:
            gate.set()
        await asyncio.gather(*handles, *in_memory)
    (instance,) = overview.instances
    (queue,) = overview.queues
    assert (overview.running_count, overview.waiting_count) == (2, 4 + 2)
    assert (queue.running_count, queue.waiting_count) == (2, 4 + 2)
    assert (instance.report.running_count, instance.report.waiting_count) == (2, 4 + 2)
    assert sorted(each.task_id for each in overview.running) == sorted(each.task_id for each in handles[3:5])
    assert overview.counts[TaskStatus.COMPLETED] == 3


async def test_tasks_whose_function_nobody_knows_are_a_problem(tmp_path: Path) -> None:
    """They wait for ever, and look like all that wait."""
    path = tmp_path / "tasks.db"
    async with TaskManager(path) as manager:
        engine = manager._engine()
        assert engine is not None
        from taskmanager.duties.reports import Reports

        assert await engine.store.commit([TaskWrite(task(f"t{n}", task_name="renamed"), None) for n in range(2)])
        await Reports(engine).show()
        (problem,) = seen(path).problems
    assert problem.text == "2 tasks wait for renamed, which no running instance knows"
    assert "import the module" in problem.advice


async def test_dead_alive_and_frozen_are_told_apart(tmp_path: Path) -> None:
    """By the lock file, and by a heartbeat that does not move on the observer's own clock."""
    path, clock = await make_file(tmp_path / "tasks.db"), SetClock()
    register(path, clock, {"heartbeat_s": 10})
    observer = Observer(FilePlace(path), clock)

    def health() -> Health:
        with open_read_only(path) as connection:
            (instance,) = observer.overview(statistics(connection, clock.now_us()), counts(connection)).instances
        return instance.health

    assert health() is Health.DEAD
    lock = InstanceLock(path, "i1")
    lock.take()
    assert health() is Health.ALIVE
    clock.advance(24)
    assert health() is Health.ALIVE
    clock.advance(2)
    assert health() is Health.FROZEN
    beat(path, clock)
    assert health() is Health.ALIVE
    clock.wall += 3600 * SECOND  # a clock that jumps makes nobody look frozen
    assert health() is Health.ALIVE
    clock.elapsed += 26
    assert health() is Health.FROZEN
    lock.path.unlink()  # somebody tidies up: it is put back in a moment, and until then nobody is dead
    assert health() is Health.FROZEN
    assert lock.put_back()
    assert health() is Health.FROZEN
    lock.drop()
    clock.advance(PUT_BACK_S)
    assert health() is Health.DEAD


async def test_tasks_that_the_dead_hold_are_a_problem(tmp_path: Path) -> None:
    """Of an instance that is registered, and of one that nobody knows any more."""
    path, clock = await make_file(tmp_path / "tasks.db"), SetClock()
    register(path, clock)
    own = "UPDATE taskmanager_tasks SET claimed_by_worker_id = ? WHERE status = 'PENDING'"
    write(path, own, "i1")
    texts = [problem.text for problem in seen(path).problems]
    assert texts[0].startswith("web (pid 7) died")
    assert texts[0].endswith("holds 1 unfinished task")
    write(path, own, "nobody")
    assert seen(path).problems[0].text == "1 unfinished task belongs to instances that are gone"


@pytest.mark.parametrize(
    "text", [None, "", "{", "[1]", '"x"', '{"tasks": [1, {}, {"task_id": 1}], "queues": [], "lanes": {"async": 1}}']
)
def test_a_document_of_another_shape_says_nothing(text: str | None) -> None:
    """It was written by another version, or by hand: the console shows the rest."""
    document = loads_report(text, "i1")
    assert (document.tasks, document.running_count) == ((), 0)
    assert isinstance(document, InstanceReport)


def test_a_document_with_strange_numbers_is_read() -> None:
    """Progress comes from users."""
    task = {"task_id": "a", "task_name": "n", "started_at": 5, "progress": {"done": "x", "total": 0, "text": 3}}
    (running,) = loads_report(json.dumps({"tasks": [task]}), "i1").tasks
    assert (running.done, running.fraction, running.left_us(100), running.text) == (None, None, None, "")


async def test_no_query_reads_the_whole_history(tmp_path: Path) -> None:
    """A look costs the same with a million rows: each of these tables is searched by an index, or read from its end."""
    path = await make_file(tmp_path / "tasks.db")
    await workflow_file.fill(path, 20)
    asked: list[str] = []
    with open_read_only(path) as connection:
        connection.set_trace_callback(asked.append)
        statistics(connection, SystemClock().now_us())
        connection.set_trace_callback(None)
        selects = {sql for sql in asked if sql.lstrip().startswith(("SELECT", "WITH"))}
        plans = [row[3] for sql in selects for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}")]
    large = re.compile(r"SCAN (taskmanager_(tasks|task_attempts|heartbeats|workflows|workflow_tasks)|t|n|w)\b")
    assert any("SEARCH" in plan for plan in plans)
    assert [plan for plan in plans if large.search(plan) and "INDEX" not in plan] == []


class _Instance(msgspec.Struct, forbid_unknown_fields=True):
    instance_id: str
    instance_name: str | None
    hostname: str
    pid: int
    health: str
    run_queues: list[str] | None
    started_at: str
    seen_at: str
    silent_s: float
    held_count: int
    running_count: int
    waiting_count: int
    stuck_count: int
    unwritten_count: int
    unsaved_count: int
    unsaved_since: str | None
    failing_duties: dict[str, str]
    degraded_since: str | None
    is_stopping: bool
    lanes: dict[str, dict[str, int | None]]
    unlisted_queue_count: int


class _Pace(msgspec.Struct, forbid_unknown_fields=True):
    since: str
    ended_count: int
    failed_count: int


class _Durations(msgspec.Struct, forbid_unknown_fields=True):
    p50_us: int | None
    p95_us: int | None
    p99_us: int | None


class _Status(msgspec.Struct, forbid_unknown_fields=True):
    taken_at: str
    problems: list[dict[str, str]]
    counts: dict[str, int]
    instances: list[_Instance]
    queues: list[dict[str, Any]]
    minute: _Pace
    hour: _Pace
    waited: _Durations
    ran: _Durations
    running: list[dict[str, Any]]
    slowest: list[dict[str, Any]]
    most_failing: list[dict[str, Any]]
    failures: list[dict[str, Any]]
    schedules: list[dict[str, Any]]
    workflows: list[dict[str, Any]]
    workflow_count: int
    storage: dict[str, Any]
    last_activity_at: str | None


async def test_json_has_this_shape(tmp_path: Path) -> None:
    """Names as in the tables, instants as ISO 8601 in UTC, every status counted."""
    path, clock = await make_file(tmp_path / "tasks.db"), SetClock()
    register(path, clock)
    text = json.dumps(overview_document(seen(path)))
    status = msgspec.json.decode(text, type=_Status)
    assert set(status.counts) == {each.value for each in TaskStatus}
    assert status.taken_at.endswith("Z")
    assert status.instances[0].health == "dead"
    assert set(status.failures[0]) >= {"task_id", "task_name", "error_code", "finished_at", "will_retry"}
    assert status.failures[0]["finished_at"].endswith("Z")


class Counted:
    """Opens a file, and counts how often."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0

    @contextmanager
    def __call__(self) -> Iterator[SqliteSession]:
        self.count += 1
        with open_read_only(self.path) as connection:
            yield connection


async def test_nothing_is_asked_or_drawn_while_nothing_changes(tmp_path: Path) -> None:
    """The file is not even opened; only now and then, for the ages on the screen."""
    path, clock = await make_file(tmp_path / "tasks.db"), SetClock()
    opener = Counted(path)
    watch = Watch(FilePlace(path), clock, opener)
    assert watch.look() is not None
    for _ in range(3):
        clock.advance(1.5)
        assert watch.look() is None
    register(path, clock)
    assert watch.look() is not None
    assert watch.look() is None
    register(path, clock, {"tasks": []})
    assert watch.look() is None  # a second must pass between two looks
    clock.advance(1.5)
    assert watch.look() is not None
    assert opener.count == 3
    clock.advance(SLOW_S)
    assert watch.look() is not None
    assert opener.count == 4


async def test_a_file_that_is_watched_is_closed_as_if_nobody_did(tmp_path: Path) -> None:
    """The application's stop moves the log into the file and removes it: then the file alone is all there is."""
    path = tmp_path / "tasks.db"
    async with TaskManager(path):
        watch = Watch(FilePlace(path), SystemClock(), FilePlace(path).read)
        assert watch.look() is not None
    assert names_in(tmp_path) == ["tasks.db"]


async def test_suspect_that_has_ended_in_the_file_is_none(tmp_path: Path) -> None:
    """An instance says what runs alone up to a second late. One of memory only is in no file, and is believed."""
    path, clock = await make_file(tmp_path / "tasks.db"), SetClock()
    facts = {"task_id": "a", "task_name": "n", "attempt": 2, "started_at": clock.wall, "held_count": 3}
    lock = InstanceLock(path, "i1")
    lock.take()
    for is_persisted in (True, False):
        register(path, clock, {"suspect": {**facts, "is_persisted": is_persisted}})
        (view,) = seen(path).instances
        assert (view.report.suspect is None) == is_persisted
    lock.drop()


async def test_running_tasks_are_drawn_anew_every_second(tmp_path: Path) -> None:
    """Its elapsed time moves although nobody writes."""
    path, clock = await make_file(tmp_path / "tasks.db"), SetClock()
    register(path, clock, {"tasks": [{"task_id": "a", "task_name": "n", "started_at": clock.wall}]})
    lock = InstanceLock(path, "i1")
    lock.take()
    watch = Watch(FilePlace(path), clock, FilePlace(path).read)
    assert watch.look() is not None
    clock.advance(TICK_S / 2)
    assert watch.look() is None
    clock.advance(TICK_S)
    overview = watch.look()
    assert overview is not None
    assert overview.taken_at - overview.running[0].started_at == round(1.5 * TICK_S * SECOND)
    lock.drop()


async def test_a_file_that_goes_away_is_waited_for(tmp_path: Path) -> None:
    """The screen says why it is empty, and fills when the file is back."""
    path, clock = await make_file(tmp_path / "tasks.db"), SetClock()
    watch = Watch(FilePlace(path), clock, FilePlace(path).read)
    assert watch.look() is not None
    away = path.rename(tmp_path / "away.db")
    clock.advance(SLOW_S)
    assert watch.look() is None
    assert watch.fault is not None
    assert "tasks.db" in watch.fault
    away.rename(path)
    assert watch.look() is not None
    assert watch.fault is None


def keys_in(document: object) -> set[str]:
    if isinstance(document, list):
        return {key for each in document for key in keys_in(each)}
    if not isinstance(document, dict):
        return set()
    return {*document, *(key for name, each in document.items() if name not in OPEN for key in keys_in(each))}


OPEN = {"counts", "failing_duties", "lanes"}
"""Objects with a key for each status, duty or lane."""


def test_the_page_has_every_key_of_the_object() -> None:
    """A key that is in no document is found by accident only."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    document = overview_document(replace(BUSY, problems=BAD_DAY.problems))
    assert len(document["running"]) * len(document["failures"]) * len(document["schedules"]) > 0
    names = keys_in(document) | keys_in(document["instances"][0]["lanes"]["async"])
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []

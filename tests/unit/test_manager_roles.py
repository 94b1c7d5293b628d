"""Instances with roles: some only enqueue, some run some queues, and each task runs once in one that runs its queue."""

import asyncio
import json
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskmanager import ConfigurationError, FailedTask, QueueConfig, QueueFull, Snooze, TaskManager, TaskStatus
from taskmanager.model.record import is_pause
from taskmanager.store.sqlite import stamp
from taskmanager.store.watch_protocol import Whereabouts
from tests.unit.command_line import taskmanager
from tests.unit.engine_worlds import assert_counters, engine_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


def manager_on(db: Path, log: list[tuple[str, str]] | None = None, name: str = "", **options: Any) -> Any:
    """A manager with the tasks `work` and `fleeting`; `work` notes which manager has run it."""
    manager = TaskManager(db, **{"store_poll": 0.02} | options)
    seen = [] if log is None else log

    @manager.task(name="work", persist=True, requeue_on_interrupt=True)
    async def work(label: str) -> str:
        seen.append((name, label))
        return label

    @manager.task(name="fleeting", persist=False)
    async def fleeting() -> None: ...

    return manager, work, fleeting


def rows(db: Path) -> list[tuple[str, str | None]]:
    """The status and the owner of each row."""
    with closing(sqlite3.connect(db)) as connection:
        return connection.execute("SELECT status, claimed_by_worker_id FROM taskmanager_tasks ORDER BY id").fetchall()


def write_watch_of(manager: TaskManager) -> object:
    assert manager._lifecycle is not None
    return manager._lifecycle._poller._write_watch


def problems_on(db: Path) -> str:
    document = json.loads(taskmanager("status", "--db", db, "--json").out)
    return "; ".join(each["text"] for each in document["problems"])


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110  # what another instance does in the file has no event
            await asyncio.sleep(0.005)


# What is configured.


@pytest.mark.parametrize(
    ("run_queues", "words"),
    [
        ("mail", r"run_queues must hold the names of queues, as in \('mail',\), not be the text 'mail'"),
        (5, "run_queues must hold the names of queues"),
        (["mail", ""], "run_queues: queue_name must be"),
        ([["mail"]], "run_queues: queue_name must be"),
    ],
)
def test_run_queues_must_be_names_of_queues(run_queues: Any, words: str) -> None:
    """The letters of a text are names too, of queues that nobody has."""
    with pytest.raises(ConfigurationError, match=words):
        TaskManager("never-opened.db", run_queues=run_queues)


def test_run_queues_are_copied() -> None:
    names = ["mail"]
    manager = TaskManager("never-opened.db", run_queues=names)
    names.append("reports")
    assert [manager._settings.runs(each) for each in ("mail", "reports")] == [True, False]


# What goes to the file.


async def test_a_queue_that_is_run_and_that_nothing_names_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its tasks may be to come; mostly it is a slip, and those of the real queue would wait without a word."""
    manager = TaskManager(tmp_path / "t.db", run_queues=("mial", "reports", "default"), queues=[QueueConfig("reports")])

    @manager.task(persist=True, queue_name="mail")
    async def send() -> None: ...

    async with manager:
        pass
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        (
            "queue 'mial' is run here, and no function names it; did you mean 'mail'? "
            "If it is right, add queues=[QueueConfig('mial')]"
        )
    ]


async def test_tasks_of_a_producer_are_free_rows(tmp_path: Path) -> None:
    """They are nobody's from their first commit on, so that a worker takes them at once, also if the producer dies."""
    manager, work, _ = manager_on(tmp_path / "tasks.db", run_queues=())
    async with manager:
        handles = [work.enqueue("a"), work.with_options(priority=1, tags={"user": "1"}).enqueue("b")]
        for each in handles:
            await each.saved()
        assert rows(tmp_path / "tasks.db") == [("PENDING", None)] * 2
        await until(lambda: not engine_of(manager).live)
        assert_counters(engine_of(manager))
        assert handles[0].status is TaskStatus.PENDING
    assert rows(tmp_path / "tasks.db") == [("PENDING", None)] * 2


async def test_a_worker_runs_what_a_producer_enqueues(tmp_path: Path) -> None:
    """The handles of the producer give the results."""
    log: list[tuple[str, str]] = []
    web, work, _ = manager_on(tmp_path / "tasks.db", log, "web", run_queues=())
    worker, _, _ = manager_on(tmp_path / "tasks.db", log, "worker")
    async with web, worker:
        handles = [work.enqueue(str(number)) for number in range(20)]
        delayed = work.with_options(delay=0.05).enqueue("later")
        assert await asyncio.gather(*handles, delayed) == [*map(str, range(20)), "later"]
        assert {name for name, _ in log} == {"worker"}
        assert len(log) == 21


async def test_each_instance_runs_only_its_queues(tmp_path: Path) -> None:
    log: list[tuple[str, str]] = []
    one, work, _ = manager_on(tmp_path / "tasks.db", log, "mail", run_queues=("mail",))
    other, _, _ = manager_on(tmp_path / "tasks.db", log, "reports", run_queues={"reports", "odd"})
    async with one, other:
        calls = [work.with_options(queue_name=name).enqueue(name) for name in ("mail", "reports") for _ in range(5)]
        await asyncio.gather(*calls)
    assert sorted(log) == [("mail", "mail")] * 5 + [("reports", "reports")] * 5


async def test_a_keyed_task_of_a_producer_is_one_free_row(tmp_path: Path) -> None:
    """The first write says whether the key has a row; what waits after that waits in the file."""
    log: list[tuple[str, str]] = []
    web, work, _ = manager_on(tmp_path / "tasks.db", log, "web", run_queues=())
    async with web:
        first, second = (work.with_options(idempotency_key="k").enqueue("a") for _ in range(2))
        await first.saved()
        await until(lambda: rows(tmp_path / "tasks.db") == [("PENDING", None)])
        third = work.with_options(idempotency_key="k").enqueue("a")
        worker, _, _ = manager_on(tmp_path / "tasks.db", log, "worker")
        async with worker:
            assert await asyncio.gather(first, second, third) == ["a"] * 3
    assert log == [("worker", "a")]


async def test_a_failed_key_is_run_again_by_a_worker(tmp_path: Path) -> None:
    """A producer puts the task over the row that has ended badly, and does not run it."""
    log: list[tuple[str, str]] = []
    web, work, _ = manager_on(tmp_path / "tasks.db", log, "web", run_queues=())
    async with web:
        first = work.with_options(idempotency_key="k", delay=3600).enqueue("a")
        await first.saved()
        assert await web.cancel(first.task_id)
        again = work.with_options(idempotency_key="k").enqueue("b")
        await again.saved()
        worker, _, _ = manager_on(tmp_path / "tasks.db", log, "worker")
        async with worker:
            assert await again == "b"
    assert log == [("worker", "b")]


async def test_tasks_go_to_the_file_when_their_queue_is_not_run_any_more(tmp_path: Path) -> None:
    """Rows of an earlier start, and tasks held before this one, wait in the file if their queue is not run any more."""
    db = tmp_path / "tasks.db"
    log: list[tuple[str, str]] = []
    before, work, _ = manager_on(db, log, "before", queues=[QueueConfig("default", max_concurrency=1)])
    async with before:
        await before.pause("default")
        await work.enqueue("old").saved()
    web, work, _ = manager_on(db, log, "web", run_queues=["other"])
    work.enqueue("held")
    async with web:
        await web.flush()
        await until(lambda: not engine_of(web).live)
        assert [status for status, owner in rows(db) if owner is None and status == "PENDING"] == ["PENDING"] * 2
    assert log == []


async def test_an_instance_takes_over_no_task_of_a_queue_it_does_not_run(tmp_path: Path) -> None:
    """An idle worker of another queue leaves what waits at a busy one."""
    gate, log = asyncio.Event(), []
    busy = TaskManager(tmp_path / "tasks.db", store_poll=0.02, concurrency=1)
    idle = TaskManager(tmp_path / "tasks.db", store_poll=0.02, run_queues=("other",))

    def tasks_of(manager: TaskManager, name: str) -> Any:
        async def work(number: int) -> None:
            log.append(name)
            await gate.wait()

        return manager.task(name="work", persist=True, requeue_on_interrupt=True)(work)

    tasks_of(idle, "idle")
    work = tasks_of(busy, "busy")
    async with busy, idle:
        handles = [work.enqueue(number) for number in range(6)]
        other = work.with_options(queue_name="other").enqueue(7)
        await until(lambda: "idle" in log)  # it has looked at the file since
        gate.set()
        await asyncio.gather(*handles, other)
    assert log.count("idle") == 1


async def test_a_schedule_of_a_producer_fires_into_the_file(tmp_path: Path) -> None:
    """The producer knows when, a worker runs it."""
    log: list[tuple[str, str]] = []
    web = TaskManager(tmp_path / "tasks.db", store_poll=0.02, run_queues=())
    worker = TaskManager(tmp_path / "tasks.db", store_poll=0.02)
    for manager, name in ((web, "web"), (worker, "worker")):

        async def tick(name: str = name) -> None:
            log.append((name, "tick"))

        task = manager.task(name="tick", persist=True)(tick)
        if manager is web:
            manager.schedule(every=timedelta(hours=1), name="hourly")(task)
    async with web, worker:
        await (await web.run_schedule("hourly")).result(timeout=10)
    assert log == [("worker", "tick")]


# How soon.


@pytest.mark.parametrize("told_by", ["system", "nobody", "nobody in this loop"])
async def test_a_task_goes_to_a_worker_and_back_long_before_the_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told_by: str
) -> None:
    """Both sides look at the log when it was written to, whether the system tells of that or not."""
    refused: list[int] = []

    def refuse(descriptor: int, *_: object) -> None:
        refused.append(descriptor)
        raise NotImplementedError

    if told_by == "nobody":
        monkeypatch.setattr(stamp, "_watched", lambda _: None)
    elif told_by == "nobody in this loop":
        for name in ("add_reader", "remove_reader"):
            monkeypatch.setattr(asyncio.get_running_loop(), name, refuse)
    db, log = tmp_path / "tasks.db", list[tuple[str, str]]()
    web, work, _ = manager_on(db, log, "web", run_queues=(), store_poll=3600)
    worker, _, _ = manager_on(db, log, "worker", store_poll=3600)
    async with web, worker:
        for label in "ab":
            assert await work.enqueue(label) == label
            if told_by != "nobody":  # it rests in between
                await until(lambda: bool(refused) or "looks" not in repr(write_watch_of(worker)))
    assert log == [("worker", "a"), ("worker", "b")]


async def test_an_instance_that_nobody_leaves_work_to_does_not_watch_the_log(tmp_path: Path) -> None:
    """Beside equals the poll is soon enough; nothing is paid for roles that nobody has."""
    one, work, _ = manager_on(tmp_path / "tasks.db")
    other, _, _ = manager_on(tmp_path / "tasks.db")
    async with one, other:
        await work.enqueue("a")
        await until(lambda: bool(engine_of(one).neighbours.living))
        assert "idle" in repr(write_watch_of(one))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system does not tell of writes")
@pytest.mark.parametrize("lost", ["tasks.db", "tasks.db-wal"])
async def test_no_closed_descriptor_is_watched_when_the_file_is_replaced(tmp_path: Path, lost: str) -> None:
    """The application's next connection gets the same number, and would not hear anything any more."""
    web, work, _ = manager_on(tmp_path / "tasks.db", run_queues=())
    async with web:
        waiting = asyncio.ensure_future(work.enqueue("a").result())
        await until(lambda: "waits for a write" in repr(write_watch_of(web)))
        store, watched = engine_of(web).store, list[bool]()
        close, look_after = store.close, store.look_after

        async def lose() -> Whereabouts:
            if not watched:
                (tmp_path / lost).rename(tmp_path / "old")
                assert "waits for a write" in repr(write_watch_of(web))
            return await look_after()

        async def closed() -> None:
            await close()
            watched.append("waits for a write" in repr(write_watch_of(web)))
            assert store.watch() is None

        store.close = closed  # type: ignore[method-assign]
        store.look_after = lose  # type: ignore[method-assign]
        await until(lambda: bool(watched))
        del store.close, store.look_after
        assert watched == [False]
        waiting.cancel()


# Waiting for all, and for room.


async def test_join_in_a_producer_waits_for_what_others_run(tmp_path: Path) -> None:
    """Its tasks are counted in the file, by the instance that has accepted them; those of others do not count."""
    log: list[tuple[str, str]] = []
    web, work, _ = manager_on(tmp_path / "tasks.db", log, "web", run_queues=())
    other, others_work, _ = manager_on(tmp_path / "tasks.db", log, "other", run_queues=())
    worker, _, _ = manager_on(tmp_path / "tasks.db", log, "worker")
    async with web, other:
        await others_work.with_options(delay=3600).enqueue("others").saved()
        await web.join(timeout=10)
        work.enqueue("a")
        work.with_options(tags={"user": "1"}, delay=0.05).enqueue("b")
        work.with_options(idempotency_key="k").enqueue("c")
        with pytest.raises(TimeoutError):
            await web.join(timeout=0.2)
        await web.join(tags={"user": "2"}, timeout=10)
        async with worker:
            await web.join(tags={"user": "1"}, timeout=10)
            assert ("worker", "b") in log
            await web.join(timeout=10)
            assert sorted(label for _, label in log) == ["a", "b", "c"]


async def test_join_in_a_producer_is_not_misled_by_tags(tmp_path: Path) -> None:
    """The options of a task hold the tags of its `on_failure`, which may be called as what `join` looks for."""
    web = TaskManager(tmp_path / "tasks.db", run_queues=())

    @web.task(persist=True)
    async def alert(failed: FailedTask) -> None: ...

    @web.task(persist=True, on_failure=alert.with_options(tags={"sent_by": "shop", "is_delay": "no"}))
    async def ship() -> None: ...

    async with web:
        handle = ship.enqueue()
        await handle.saved()
        await until(lambda: not engine_of(web).live)
        with pytest.raises(TimeoutError, match="wait in the file, or run in another process"):
            await web.join(timeout=0.05)
        row = await engine_of(web).store.fetch(handle.task_id)
        assert row is not None
        assert not is_pause(row.next_retry_at, row.snooze_count, row.task_options)


async def test_a_task_that_a_worker_runs_again_still_counts_in_join(tmp_path: Path) -> None:
    """Who has accepted it stands in its row for as long as that lives: also when it has run and waits again."""
    web, worker = (TaskManager(tmp_path / "tasks.db", store_poll=0.02, **each) for each in ({"run_queues": ()}, {}))
    calls: list[int] = []

    async def flaky() -> Snooze | None:
        calls.append(1)
        return Snooze(0.05) if len(calls) < 3 else None

    for manager in (web, worker):
        task = manager.task(name="flaky", persist=True)(flaky)
        if manager is web:
            enqueue = task.enqueue
    async with web, worker:
        enqueue()
        await web.join(timeout=20)
    assert len(calls) == 3


async def test_max_pending_counts_free_rows_of_a_queue_that_is_not_run_here(tmp_path: Path) -> None:
    """Without a worker a producer would fill the disk; a worker makes room."""
    queues = [QueueConfig("default", max_pending=3)]
    web, work, _ = manager_on(tmp_path / "tasks.db", run_queues=(), queues=queues)
    worker, _, _ = manager_on(tmp_path / "tasks.db")
    async with web:
        for number in range(3):
            await work.enqueue(str(number)).saved()
        with pytest.raises(QueueFull):
            work.enqueue("one too many")
        await work.with_options(queue_name="other").enqueue("as many as there is room for").saved()
        async with worker:
            await asyncio.wait_for(web.wait_for_room(), 10)
            await work.enqueue("again")
        await web.join(timeout=10)
    again, work, _ = manager_on(tmp_path / "tasks.db", run_queues=(), queues=queues)
    async with again:
        for number in range(3):
            work.enqueue(str(number))
        with pytest.raises(QueueFull):
            work.enqueue("one too many")
    async with again:  # the rows of before the start count, too
        with pytest.raises(QueueFull):
            work.enqueue("one too many")


async def test_a_producer_that_cancels_its_tasks_makes_room(tmp_path: Path) -> None:
    """No other instance writes then, and its own writes are none that a look at the file tells of."""
    web, work, _ = manager_on(tmp_path / "tasks.db", run_queues=(), queues=[QueueConfig("default", max_pending=1)])
    async with web:
        handle = work.enqueue("a")
        await handle.saved()
        await until(lambda: not engine_of(web).live)
        with pytest.raises(QueueFull):
            work.enqueue("b")
        assert await web.cancel(handle.task_id)
        assert handle.status is TaskStatus.CANCELLED
        await asyncio.wait_for(web.wait_for_room(), 10)
        await work.enqueue("b").saved()


async def test_an_idle_producer_does_not_count_its_free_rows_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be 100,000 rows of it, and four looks a second."""
    web, work, _ = manager_on(
        tmp_path / "tasks.db", run_queues=(), store_poll=3600, queues=[QueueConfig("default", max_pending=9)]
    )
    async with web:
        await work.enqueue("a").saved()
        queue = engine_of(web).dispatcher.queue("default")
        await until(lambda: queue.left_before == 1)  # its own look has counted it
        assert web._lifecycle is not None
        store, look, counts = engine_of(web).store, web._lifecycle._poller.look, list[int]()
        count = store.free_queues

        async def counted(most: int) -> Any:
            counts.append(most)
            return await count(most)

        monkeypatch.setattr(store, "free_queues", counted)
        for _ in range(4):
            await look()
        assert 1 <= len(counts) <= 2


# What is seen.


async def test_status_and_doctor_name_queues_that_nobody_runs(tmp_path: Path) -> None:
    db = tmp_path / "tasks.db"
    web, work, _ = manager_on(db, run_queues=())
    mail, _, _ = manager_on(db, run_queues=("mail",))
    async with web:
        handles = [work.with_options(queue_name=name).enqueue("a") for name in ("mail", "odd", "odd")]
        await asyncio.gather(*(each.saved() for each in handles))
        assert "in queue odd and 1 other queue, which no running instance runs" in problems_on(db)
        async with mail:
            await handles[0]
            document = taskmanager("status", "--db", db, "--json")
            roles = [each["run_queues"] for each in json.loads(document.out)["instances"]]
            assert sorted(roles) == [[], ["mail"]]
            await until(lambda: "2 tasks wait in queue odd, which no running instance runs" in problems_on(db))
            found = taskmanager("doctor", "--db", db, columns=200)
            assert (found.code, "run by no running instance: odd (2 waiting)" in found.out) == (1, True), found.out
            shown = taskmanager("show", handles[1].task_id, "--db", db, columns=200)
            assert "no running instance runs queue odd" in shown.out
            assert "only enqueues" in taskmanager("status", "--db", db, columns=120).out


# What nobody would run.


async def test_a_memory_only_task_that_nobody_would_run_is_refused(tmp_path: Path) -> None:
    web, _, fleeting = manager_on(tmp_path / "tasks.db", run_queues=("mail",))
    async with web:
        with pytest.raises(ConfigurationError, match=r"does not run its queue 'default' \(run_queues=\('mail',\)\)"):
            fleeting.enqueue()
        await fleeting.with_options(queue_name="mail").enqueue()


async def test_a_start_refuses_held_tasks_that_nobody_would_run(tmp_path: Path) -> None:
    """Whether a queue is run is decided at the start, before the file is opened."""
    web, work, fleeting = manager_on(tmp_path / "tasks.db", run_queues=())
    held = [fleeting.enqueue(), fleeting.with_options(queue_name="mail").enqueue()]
    kept = work.enqueue("a")
    with pytest.raises(ConfigurationError, match=r"2 memory-only tasks .* 'default', 'mail' \(run_queues=\(\)\)"):
        await web.start()
    assert not (tmp_path / "tasks.db").exists()
    for each in held:
        assert each.cancel()
    async with web:
        await kept.saved()


async def test_a_manager_that_runs_all_queues_refuses_nothing_after_a_role(tmp_path: Path) -> None:
    """A refusal lasts until the next start, by which `taskmanager run` has another say."""
    web, _, fleeting = manager_on(tmp_path / "tasks.db", run_queues=())
    async with web:
        pass
    web._settings = replace(web._settings, run_queues=None)
    async with web:
        await fleeting.enqueue()

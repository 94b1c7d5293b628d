"""The writer: what goes into one commit, what a failed one leaves behind, and who is told when."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.phases import Phase
from taskmanager.engine.write import writer as writer_module
from taskmanager.engine.write.outbox import HISTORY_BATCH, HISTORY_SLICE
from taskmanager.engine.write.writer import MAX_BATCH, Writer
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.record import AttemptRow, Expected, TaskRow, TaskWrite, Write
from taskmanager.model.states import TaskStatus
from taskmanager.model.workflows import HELD
from taskmanager.store.memory import MemoryStore
from taskmanager.store.protocol import CommitReport
from tests.unit.engine_lives import LIGHT, Ticks, new_live
from tests.unit.engine_worlds import OpenStore

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(20)]

TURNS = 200
"""Turns of the loop after which nothing happens any more."""
NEVER_S = 1_000.0


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer tries again at once."""
    monkeypatch.setattr(writer_module, "FIRST_RETRY_S", 0.0)
    monkeypatch.setattr(writer_module, "LAST_RETRY_S", 0.0)


class Listener:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def committed(self, live: LiveTask) -> None:
        self.heard.append(("committed", live.task_id))

    def lost(self, live: LiveTask, row: TaskRow | None) -> None:
        self.heard.append(("lost", live.task_id, row and row.status))

    def rejected(self, live: LiveTask, reason: str) -> None:
        self.heard.append(("rejected", live.task_id))

    def degraded(self, exc: StoreError) -> None:
        self.heard.append(("degraded",))

    def restored(self) -> None:
        self.heard.append(("restored",))

    def written(self) -> None:
        """Room for records; not what these tests are about."""

    def is_me(self, instance_id: str) -> bool:
        return instance_id == "me"

    def is_dead(self, instance_id: str) -> bool:
        return instance_id == "dead"


class Store(OpenStore):
    """Keeps what was sent to it; the next commits happen as the script says, one word of each kind per commit:

    "hold" waits for `gate`, "fail" raises in the end, "arrive" lets a failing one take effect all the same.
    """

    def __init__(self, *script: str) -> None:
        super().__init__()
        self.script = list(script)
        self.sent: list[list[Write]] = []
        self.gate = asyncio.Event()
        self.is_held = False

    async def commit(self, writes: Sequence[Write]) -> CommitReport:
        self.sent.append(list(writes))
        words = self.script.pop(0).split() if self.script else []
        if "hold" in words:
            self.is_held = True
            await self.gate.wait()
            self.is_held = False
            self.gate.clear()
        if "fail" not in words:
            return await super().commit(writes)
        if "arrive" in words:
            await super().commit(writes)
        raise StoreUnavailable("as the script says")

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.sent]

    def sent_of(self, task_id: str) -> list[tuple[str, Expected | None]]:
        """What was tried for one task, in order."""
        writes = [write for batch in self.sent for write in batch if write.task_id == task_id]
        return [(write.status, write.expected) for write in writes]


@asynccontextmanager
async def a_writer(store: Store, clock: Ticks | None = None, **options: Any) -> AsyncIterator[tuple[Writer, Listener]]:
    """One that runs; what it holds at the end is dropped."""
    intervals = {"commit_interval_s": NEVER_S, "snapshot_interval_s": NEVER_S} | options
    writer, listener = Writer(store, clock or Ticks(), **intervals), Listener()
    writer.start(listener)
    try:
        yield writer, listener
    finally:
        store.script.clear()
        store.gate.set()
        await writer.close(5.0)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something is true."""
    for _ in range(TURNS):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never happened")


async def quiescence() -> None:
    """Let everything happen that can."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


def attempt_of(live: LiveTask, number: int) -> AttemptRow:
    return AttemptRow(live.task_id, number, "FAILED", True, 1, 2, None, None, None, "me", "host", 1, "main", 2)


def start(live: LiveTask) -> None:
    """→ RUNNING, as the settlement does it."""
    live.status, live.started_at, live.start_count = TaskStatus.RUNNING, 1, live.start_count + 1


# What goes into a batch.


async def test_what_changes_during_a_commit_is_the_next_batch() -> None:
    """The batch grows with the load: one caller waits for one commit, many share one."""
    store = Store("hold")
    async with a_writer(store) as (writer, listener):
        writer.mark(new_live(task_id="a"))
        await until(lambda: store.is_held)
        for name in "bcd":
            writer.mark(new_live(task_id=name))
        await quiescence()
        assert store.sizes == [1]
        store.gate.set()
        await writer.flush()
        assert store.sizes == [1, 3]
        assert listener.heard == [("committed", name) for name in "abcd"]


async def test_a_batch_is_bounded() -> None:
    """A thousand changes do not become one transaction, and keep their order."""
    store = Store()
    async with a_writer(store) as (writer, _):
        lives = [new_live() for _ in range(2 * MAX_BATCH + 1)]
        for live in lives:
            writer.mark(live)
        await writer.flush()
        assert store.sizes == [MAX_BATCH, MAX_BATCH, 1]
        assert [write.task_id for batch in store.sent for write in batch] == [live.task_id for live in lives]


async def test_the_state_is_read_when_the_batch_is_made() -> None:
    """Accept and start, in one turn of the loop, are one row write."""
    store = Store()
    async with a_writer(store) as (writer, _):
        live = new_live()
        writer.mark(live)
        start(live)
        writer.mark(live)
        await writer.flush()
        ((write,),) = store.sent
        assert (write.status, write.expected) == ("RUNNING", None)
        assert live.saving.committed == Expected("RUNNING", "me", 1)


async def test_accepted_task_is_written_when_it_starts() -> None:
    """Accept and start are one row then; the commit of another task does not take along what was only accepted."""
    store = Store()
    async with a_writer(store) as (writer, _):
        waiting = new_live(task_id="waiting")
        writer.accept(waiting)
        await quiescence()
        assert store.sizes == []
        writer.mark(new_live())
        await until(lambda: store.sizes == [1])
        await quiescence()
        assert store.sizes == [1]
        start(waiting)
        writer.mark(waiting)
        await until(lambda: store.sizes == [1, 1])
        assert store.sent_of("waiting") == [("RUNNING", None)]


async def test_accepted_task_is_written_at_once_when_somebody_waits_for_it() -> None:
    """A caller of saved() marks it."""
    store = Store()
    async with a_writer(store) as (writer, _):
        accepted = new_live()
        writer.accept(accepted)
        writer.mark(accepted)
        await until(lambda: store.sizes == [1])


async def test_accepted_tasks_are_written_when_their_interval_is_over() -> None:
    """All that wait then, in as many batches as they fill, while changes fill batches too."""
    store = Store()
    async with a_writer(store, commit_interval_s=0.01) as (writer, _):
        for _ in range(MAX_BATCH + 1):
            writer.accept(new_live())
        await after(0.05)
        await until(lambda: store.sizes == [MAX_BATCH, 1])


async def test_a_slice_of_history_waits_no_longer_than_what_was_accepted() -> None:
    """Hundreds of records in one commit would hold up the loop once a second, and the requests that it serves."""
    store = Store()
    async with a_writer(store, commit_interval_s=0.0) as (writer, _):
        for _ in range(HISTORY_SLICE - 1):
            writer.record(ended(new_live(LIGHT)))
        await quiescence()
        assert store.sizes == []
        writer.record(ended(new_live(LIGHT)))
        await until(lambda: store.sizes == [HISTORY_SLICE])
        writer.record(ended(new_live(LIGHT)))
        await quiescence()
        assert store.sizes == [HISTORY_SLICE]


@pytest.mark.req("PR-52")
async def test_history_waits_for_its_interval_or_for_a_batch_of_it() -> None:
    """Memory-only records cost no commit of their own each."""
    store = Store()
    async with a_writer(store) as (writer, _):
        for _ in range(HISTORY_BATCH - 1):
            writer.record(ended(new_live(LIGHT)))
        await quiescence()
        assert store.sizes == []
        assert len(writer.unsaved_ended) == HISTORY_BATCH - 1
        writer.record(ended(new_live(LIGHT)))
        await until(lambda: store.sizes == [HISTORY_BATCH])
        await quiescence()
        assert not writer.unsaved_ended
    store = Store()
    async with a_writer(store, snapshot_interval_s=0.0) as (writer, _):
        writer.record(ended(new_live(LIGHT)))
        await until(lambda: store.sizes == [1])


def ended(live: LiveTask) -> LiveTask:
    live.status, live.phase, live.failed_at = TaskStatus.FAILED, Phase.ENDED, 5
    return live


async def test_two_tasks_of_one_key_are_never_in_one_batch() -> None:
    """They have one id; the answer to the first decides what the second is."""
    store = Store()
    async with a_writer(store) as (writer, listener):
        first, second = new_live(task_id="k"), new_live(task_id="k")
        first.idempotency_key = second.idempotency_key = "key"
        second.sent_at += 1
        writer.mark(first)
        writer.mark(second)
        await writer.flush()
        assert store.sizes == [1, 1]
        assert listener.heard == [("committed", "k"), ("lost", "k", "PENDING")]


# Failures.


async def test_a_batch_that_is_put_back_never_overwrites_newer_news() -> None:
    """The end came while the start was being written; the start failed; what is written next is the end."""
    store = Store("hold fail")
    async with a_writer(store) as (writer, listener):
        live, other = new_live(task_id="a"), new_live(task_id="b")
        start(live)
        live.attempts_due = (attempt_of(live, 1),)
        writer.mark(live)
        await until(lambda: store.is_held)
        live.status, live.completed_at = TaskStatus.COMPLETED, 9
        live.attempts_due = (attempt_of(live, 2),)
        writer.mark(live)
        writer.mark(other)
        store.gate.set()
        await writer.flush()
        assert store.sent_of("a") == [("RUNNING", None), ("COMPLETED", None)]
        assert [each.attempt for each in await store.fetch_attempts("a")] == [1, 2]
        assert writer.unsaved_count == 0
        assert listener.heard == [("degraded",), ("restored",), ("committed", "a"), ("committed", "b")]


async def test_what_was_put_back_goes_before_what_came_later() -> None:
    """Everything is written in order when the store is back."""
    store = Store("hold fail", "fail", "fail")
    async with a_writer(store) as (writer, _):
        for name in "ab":
            writer.mark(new_live(task_id=name))
        await until(lambda: store.is_held)
        writer.mark(new_live(task_id="c"))
        store.gate.set()
        await writer.flush()
        assert [write.task_id for write in store.sent[-1]] == ["a", "b", "c"]
        assert store.sizes == [2, 3, 3, 3]


@pytest.mark.parametrize("times", [1, 3])
async def test_a_commit_of_unknown_fate_that_arrived_is_recognised(times: int) -> None:
    """Insert and start had arrived; nobody is told that the claim is lost, and the end is written on top."""
    store = Store(*["arrive fail"] * times)
    async with a_writer(store) as (writer, listener):
        live = new_live(task_id="a")
        start(live)
        writer.mark(live)
        await writer.flush()
        assert live.saving.committed == Expected("RUNNING", "me", 1)
        live.status, live.completed_at = TaskStatus.COMPLETED, 9
        writer.mark(live)
        await writer.flush()
        assert store.sent_of("a")[-1] == ("COMPLETED", Expected("RUNNING", "me", 1))
        assert [word for word, *_ in listener.heard] == ["degraded", *["degraded"] * (times - 1), "restored"] + [
            "committed"
        ] * 2


async def test_a_start_that_arrived_and_was_taken_back_still_counts() -> None:
    """The fencing generation of a row never goes back, or an old writer might own the row again."""
    store = Store("arrive fail")
    async with a_writer(store) as (writer, listener):
        live = new_live(task_id="a")
        start(live)
        writer.mark(live)
        await until(lambda: ("degraded",) in listener.heard)
        live.status, live.started_at, live.start_count = TaskStatus.PENDING, None, 0
        writer.mark(live)
        await writer.flush()
        row = await store.fetch("a")
        assert row is not None
        assert (row.status, row.start_count, live.start_count) == ("PENDING", 1, 1)


async def test_a_start_taken_back_while_it_arrives_still_counts() -> None:
    """As above, where the commit of the start was only slow: a stop frees the row, and its count stays."""
    store = Store("hold")
    async with a_writer(store) as (writer, _):
        live = new_live(task_id="a")
        start(live)
        writer.mark(live)
        await until(lambda: store.is_held)
        live.status, live.started_at, live.start_count, live.owner = TaskStatus.PENDING, None, 0, None
        writer.mark(live)
        store.gate.set()
        await writer.flush()
        row = await store.fetch("a")
        assert row is not None
        assert (row.status, row.start_count) == ("PENDING", 1)


async def test_a_released_row_that_had_arrived_is_recognised() -> None:
    """Without an owner in the row it is still what we wrote."""
    store = Store("", "arrive fail")
    async with a_writer(store) as (writer, listener):
        live = new_live(task_id="a")
        writer.mark(live)
        await writer.flush()
        live.owner = None
        writer.mark(live)
        await writer.flush()
        assert [word for word, *_ in listener.heard] == ["committed", "degraded", "restored", "committed"]


async def test_the_row_of_somebody_else_is_never_taken_for_ones_own() -> None:
    """Recovered, claimed by another one, started again: a claim is lost, and is said so once."""
    store = Store()
    async with a_writer(store) as (writer, listener):
        live = new_live(task_id="a")
        start(live)
        writer.mark(live)
        await writer.flush()
        theirs = live.row()._replace(claimed_by_worker_id="other", start_count=2)
        assert not (await store.commit([TaskWrite(theirs, live.saving.committed)])).lost
        live.status, live.completed_at = TaskStatus.COMPLETED, 9
        writer.mark(live)
        await writer.flush()
        assert listener.heard == [("committed", "a"), ("lost", "a", "RUNNING")]
        assert await store.fetch("a") == theirs


async def test_the_answer_to_a_commit_does_not_undo_a_claim_that_came_before_it() -> None:
    """A row written free may be claimed again here before the writer hears that it was written."""
    store = Store("hold")
    async with a_writer(store) as (writer, listener):
        live = new_live(task_id="a")
        live.owner = None
        writer.mark(live)
        await until(lambda: store.is_held)
        live.status, live.owner, live.claimed_at = TaskStatus.CLAIMED, "me", 5
        live.saving.committed = live.expectation()
        claimed = live.row()
        start(live)
        writer.mark(live)
        store.gate.set()
        await until(lambda: ("committed", "a") in listener.heard)
        assert live.saving.committed == Expected("CLAIMED", "me", 0)
        store.sent.clear()
        store.put(claimed)
        await writer.flush()
        assert store.sent_of("a") == [("RUNNING", Expected("CLAIMED", "me", 0))]
        assert "lost" not in [word for word, *_ in listener.heard]


async def test_a_mistake_with_one_task_does_not_end_the_writer(caplog: pytest.LogCaptureFixture) -> None:
    """The others of the batch hear of their commit, what comes later is saved, and somebody is told."""
    store = Store()
    async with a_writer(store) as (writer, listener):
        heard = listener.committed

        def committed(live: LiveTask) -> None:
            if live.task_id == "a":
                raise ZeroDivisionError
            heard(live)

        listener.committed = committed  # type: ignore[method-assign]
        for name in "ab":
            writer.mark(new_live(task_id=name))
        await writer.flush()
        writer.mark(new_live(task_id="c"))
        await writer.flush()
        assert listener.heard == [("committed", "b"), ("committed", "c")]
        assert [record.levelname for record in caplog.records] == ["CRITICAL"]


async def test_a_row_that_cannot_be_stored_is_reported_and_not_tried_again() -> None:
    """The rest of its batch is committed."""
    store = Store()
    async with a_writer(store) as (writer, listener):
        bad, good = new_live(task_id="bad", priority=0), new_live(task_id="good")
        writer.mark(bad)
        writer.mark(good)
        await writer.flush()
        assert listener.heard == [("rejected", "bad"), ("committed", "good")]
        assert store.sizes == [2]
        assert writer.unsaved_count == 0


async def test_a_writer_that_somebody_cancelled_is_replaced_by_the_close() -> None:
    """The commit it was in may have arrived; what it wrote then is still its own."""
    store = Store("hold")
    async with a_writer(store) as (writer, listener):
        live = new_live(task_id="a")
        start(live)
        writer.mark(live)
        await until(lambda: store.is_held)
        assert writer._task is not None
        writer._task.cancel()
        await MemoryStore.commit(store, store.sent[0])
        await asyncio.wait([writer._task])
        live.status, live.completed_at = TaskStatus.COMPLETED, 9
        writer.mark(live)
        assert await writer.close(5.0) == 0
        assert [word for word, *_ in listener.heard] == ["committed"]
        row = await store.fetch("a")
        assert row is not None
        assert row.status == "COMPLETED"


# Waiting for the writer.


async def assert_waits_for_one_more(flush: asyncio.Task[None], store: Store, count: int) -> None:
    """The commit under way ends, and the flush still waits: for the next, which is number `count`, and no longer."""
    store.gate.set()
    await until(lambda: len(store.sent) == count)
    await quiescence()
    assert not flush.done()
    store.gate.set()
    await until(flush.done)


async def test_a_flush_waits_for_what_was_marked_before_it() -> None:
    """Later changes do not keep it waiting; history and accepted tasks do not make it wait for their interval."""
    store = Store("hold", "hold")
    async with a_writer(store) as (writer, _):
        writer.accept(new_live(task_id="a"))
        writer.record(ended(new_live(LIGHT, task_id="light")))
        flush = asyncio.create_task(writer.flush())
        await until(lambda: store.is_held)
        assert {write.task_id for write in store.sent[0]} == {"a", "light"}
        writer.mark(new_live(task_id="b"))
        await quiescence()
        assert not flush.done()
        store.gate.set()
        await until(flush.done)
        assert writer.unsaved_count == 1


async def test_a_flush_of_nothing_returns_at_once() -> None:
    """No commit is made for it."""
    store = Store()
    async with a_writer(store) as (writer, _):
        await writer.flush()
    assert store.sizes == []


async def test_a_flush_survives_changes_put_back_and_merged() -> None:
    """What failed while it changed again counts once: the barrier is neither forgotten nor passed too early."""
    store = Store("hold fail", "hold")
    async with a_writer(store) as (writer, _):
        live = new_live(task_id="a")
        writer.mark(live)
        flush = asyncio.create_task(writer.flush())
        await until(lambda: store.is_held)
        start(live)
        writer.mark(live)
        await assert_waits_for_one_more(flush, store, 2)
        assert writer.unsaved_count == 0


async def test_a_flush_waits_for_what_failed_and_changed_behind_many_others() -> None:
    """What was put back is written first, however many changes were queued before it changed again."""
    store = Store("hold fail", "hold")
    async with a_writer(store) as (writer, _):
        live = new_live(task_id="a")
        writer.mark(live)
        flush = asyncio.create_task(writer.flush())
        await until(lambda: store.is_held)
        for _ in range(MAX_BATCH + 100):
            writer.mark(new_live())
        start(live)
        writer.mark(live)
        await assert_waits_for_one_more(flush, store, 2)
        assert await store.fetch("a") is not None
        await writer.flush()
        assert writer.unsaved_count == 0
        assert len(store.sent_of("a")) == 2


async def test_a_flush_waits_for_the_second_try_of_what_was_marked_before_it() -> None:
    """Also when as many others of its batch are written as the flush would have waited for."""
    store = Store("hold", "hold")
    async with a_writer(store) as (writer, listener):

        def rejected(live: LiveTask, _reason: str) -> None:
            live.priority = 50
            writer.mark(live)

        listener.rejected = rejected  # type: ignore[method-assign]
        writer.mark(new_live(task_id="bad", priority=0))
        flush = asyncio.create_task(writer.flush())
        await asyncio.sleep(0)
        writer.mark(new_live(task_id="good"))
        await until(lambda: store.is_held)
        assert store.sizes == [2]
        await assert_waits_for_one_more(flush, store, 2)
        assert writer.unsaved_count == 0


async def test_a_flush_waits_for_the_second_try_of_what_has_changed_since() -> None:
    """Its first try found a commit that had seemed to fail; that is older than what the flush waits for."""
    store = Store("arrive fail", "hold", "hold")
    async with a_writer(store) as (writer, listener):
        live = new_live(task_id="a")
        start(live)
        writer.mark(live)
        await until(lambda: ("degraded",) in listener.heard)
        live.status, live.attempts_due = TaskStatus.PENDING, (attempt_of(live, 1),)
        await until(lambda: store.is_held)
        flush = asyncio.create_task(writer.flush())
        await asyncio.sleep(0)
        for _ in range(MAX_BATCH):
            writer.mark(new_live())
        start(live)
        writer.mark(live)
        await assert_waits_for_one_more(flush, store, 3)
        assert "a" in {write.task_id for write in store.sent[2]}
        await writer.flush()
        assert writer.unsaved_count == 0
        assert await store.fetch_attempts("a")


async def test_a_time_that_comes_during_the_commit_of_what_it_was_for_holds_up_nothing_later() -> None:
    """What comes next is written in time; it does not wait for somebody else to wake the writer."""
    store = Store("hold")
    async with a_writer(store, commit_interval_s=0.01) as (writer, _):
        writer.accept(new_live())
        flush = asyncio.create_task(writer.flush())
        await until(lambda: store.is_held)
        await after(0.05)
        store.gate.set()
        await until(flush.done)
        await quiescence()
        writer.accept(new_live())
        await after(0.05)
        await until(lambda: store.sizes == [1, 1])


async def after(wait_s: float) -> None:
    """Return when every timer that is due by then has rung."""
    is_over = asyncio.Event()
    asyncio.get_running_loop().call_later(wait_s, is_over.set)
    await is_over.wait()


async def test_a_store_that_refused_what_nobody_has_any_more_is_not_taken_to_refuse_for_ever() -> None:
    """What waits for its start is taken over while a slow disk keeps us out, and claimed again: all that was to be
    written is given up. A task starts only while the store is well, and only a task that starts is written.
    """
    store, live = Store(*["fail"] * 3), new_live(task_id="a")
    async with a_writer(store) as (writer, listener):
        writer.mark(live)
        await until(lambda: ("degraded",) in listener.heard)
        live.phase = Phase.LEFT
        await until(lambda: ("restored",) in listener.heard)
        assert (writer.degraded_since, writer.unsaved_count) == (None, 0)


async def test_quiet_is_held_while_a_commit_is_under_way() -> None:
    """Who counts memory and store together must not look between a commit and its answer."""
    store = Store("hold")
    async with a_writer(store) as (writer, listener):
        writer.mark(new_live(task_id="a"))
        await until(lambda: store.is_held)

        async def count() -> int:
            async with writer.quiet:
                return len(listener.heard)

        counted = asyncio.create_task(count())
        await quiescence()
        assert not counted.done()
        store.gate.set()
        assert await counted == 1


async def test_the_oldest_unsaved_change_includes_the_commit_under_way() -> None:
    """It may hang on a lock for as long as SQLite waits for it."""
    store, clock = Store("hold"), Ticks()
    async with a_writer(store, clock) as (writer, _):
        assert writer.oldest_unsaved_s() is None
        writer.mark(new_live(now=clock.now))
        await until(lambda: store.is_held)
        clock.now += 2_000_000
        writer.mark(new_live(now=clock.now))
        assert writer.oldest_unsaved_s() == 2.0
        clock.step(-7_200_000_000)
        assert writer.oldest_unsaved_s() == 2.0, "a clock that is set makes nothing older or younger"
        store.gate.set()
        await writer.flush()
        assert writer.oldest_unsaved_s() is None


async def test_a_close_says_how_much_could_not_be_written_and_tells_who_waits() -> None:
    """Nobody waits for a commit that will never come."""
    store = Store(*["fail"] * 10_000)
    writer, listener = Writer(store, Ticks()), Listener()
    writer.start(listener)
    live = new_live()
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    live.save_waiters_list().append(waiter)
    writer.mark(live)
    writer.record(ended(new_live(LIGHT)))
    flush = asyncio.create_task(writer.flush())
    assert await writer.close(0.01) == 2
    for waiting in (waiter, flush):
        with pytest.raises(StoreUnavailable, match="stopped"):
            await waiting
    with pytest.raises(StoreUnavailable, match="2 records"):
        await writer.flush()


async def test_a_close_goes_on_as_long_as_batches_get_through() -> None:
    """Nothing more comes; to end when the time is up would lose what a slow machine writes in a moment."""
    store = Store("", "hold", "hold")
    writer = Writer(store, Ticks())
    writer.start(Listener())
    for _ in range(2 * MAX_BATCH + 1):
        writer.mark(new_live())
    await until(lambda: store.is_held)
    closing = asyncio.create_task(writer.close(0.0))
    for batch in range(2):
        await until(lambda: store.is_held)
        assert not closing.done(), f"batch {batch}"
        store.gate.set()
        await until(lambda: not store.is_held)
    assert await closing == 0
    assert store.sizes == [MAX_BATCH, MAX_BATCH, 1]


async def test_a_close_waits_no_longer_for_batches_that_do_not_get_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """One was written, and the next hangs: on a lock, or on a disk that does not answer."""
    monkeypatch.setattr(writer_module, "STUCK_S", 0.05)
    store = Store("", "hold")
    writer = Writer(store, Ticks())
    writer.start(Listener())
    for _ in range(MAX_BATCH + 2):
        writer.mark(new_live())
    await until(lambda: store.is_held)
    assert await writer.close(0.0) == 2


async def test_a_close_ends_though_something_changes_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that nobody can end may report its progress as long as it likes."""
    store, live = Store(), new_live()
    writer = Writer(store, Ticks())

    class Restless(Listener):
        def written(self) -> None:
            live.progress_text = f"{len(store.sent)}"
            writer.mark(live)

    writer.start(Restless())
    writer.mark(live)
    await until(lambda: len(store.sent) > 1)
    monkeypatch.setattr(writer_module, "STUCK_S", 0.05)
    assert await writer.close(0.0) == 1


async def test_a_close_writes_everything_first() -> None:
    """Intervals are not waited for."""
    store = Store()
    async with a_writer(store) as (writer, _):
        writer.accept(new_live())
        writer.mark(new_live())
        writer.record(ended(new_live(LIGHT)))
        assert await writer.close(5.0) == 0
        assert await store.counts() | {TaskStatus.PENDING: 2, TaskStatus.FAILED: 1} == await store.counts()


async def test_start_that_had_arrived_before_a_failover_is_recognised() -> None:
    """Its answer was lost with the server, and the start was taken back. The new server has it, and it counts."""
    store, live = Store("arrive fail"), new_live(task_id="a")
    start(live)
    async with a_writer(store) as (writer, listener):

        def fail_over(_: StoreError) -> None:
            live.status, live.started_at, live.start_count = TaskStatus.PENDING, None, 0
            writer.lose_everything_committed([live])

        listener.degraded = fail_over  # type: ignore[method-assign]
        writer.mark(live)
        await writer.flush()
        assert [heard[0] for heard in listener.heard] == ["restored", "committed"]
        row = await store.fetch("a")
        assert row is not None
        assert (row.status, row.start_count, live.start_count) == ("PENDING", 1, 1)


async def test_a_new_file_gets_everything_that_lives() -> None:
    """What was committed to the old one is inserted again."""
    store = Store()
    async with a_writer(store) as (writer, _):
        live = new_live(task_id="a")
        start(live)
        writer.mark(live)
        await writer.flush()
        store.drop(store.live)
        writer.lose_everything_committed([live])
        await writer.flush()
        assert store.sent_of("a")[-1] == ("RUNNING", None)
        assert live.saving.committed == Expected("RUNNING", "me", 1)


KEPT = [("PENDING", 0, "other"), ("PENDING", 1, "other"), ("CLAIMED", 1, "other"), ("RUNNING", 1, "dead")]
GIVEN_UP = [
    *(("PENDING", 2, "other"), ("CLAIMED", 2, "other"), ("RUNNING", 1, "other"), ("RUNNING", 2, "other")),
    *(("RUNNING", 2, "dead"), ("COMPLETED", 1, "other"), ("COMPLETED", 1, "dead")),
]


@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize(("says", "start_count", "owner"), [*KEPT, *GIVEN_UP])
async def test_run_is_kept_over_a_copied_row_with_fewer_starts_that_runs_nowhere(
    says: str, start_count: int, owner: str, *, has_ended: bool
) -> None:
    """Nobody has begun it, or who had is dead. Another instance that lives may have taken and begun it from the copy
    since, and so it may be with one that has as many starts.
    """
    store, is_kept = Store(), (says, start_count, owner) in KEPT
    async with a_writer(store) as (writer, listener):
        live = new_live(task_id="a")
        at: dict[str, Any] = {
            "claimed_at": 1_500,
            "started_at": 1_500,
            "completed_at": 1_600 if says == "COMPLETED" else None,
        }
        copied = live.row()._replace(claimed_by_worker_id=owner, status=says, start_count=start_count, **at)
        live.start_count, live.phase = 1, Phase.RUNNING
        start(live)
        writer.mark(live)
        await writer.flush()
        if has_ended:
            live.status, live.completed_at, live.result_text = TaskStatus.COMPLETED, 9, "{}"
        store.drop(store.live)
        assert await MemoryStore.commit(store, [TaskWrite(copied, None)]) == CommitReport({}, {})
        writer.lose_everything_committed([live])
        await writer.flush()
        row = await store.fetch("a")
        assert row is not None
        assert (("lost", "a", says) in listener.heard) is not is_kept
        expected = (live.status.value, "me", 2) if is_kept else (says, owner, start_count)
        assert (row.status, row.claimed_by_worker_id, row.start_count) == expected


@pytest.mark.parametrize(("start_count", "is_kept"), [(0, True), (1, False)])
async def test_start_is_kept_over_a_free_row_of_a_copy_that_nobody_has_started(start_count: int, is_kept: bool) -> None:
    """Somebody who has run it from the copy has put it back: it snoozed, say. The same attempt would start again."""
    store = Store()
    async with a_writer(store) as (writer, listener):
        live = new_live(task_id="a")
        free = live.row()._replace(claimed_by_worker_id=None, start_count=start_count)
        writer.mark(live)
        await writer.flush()
        start(live)
        live.phase = Phase.STARTING
        store.drop(store.live)
        assert await MemoryStore.commit(store, [TaskWrite(free, None)]) == CommitReport({}, {})
        writer.lose_everything_committed([live])
        await writer.flush()
        row = await store.fetch("a")
        assert row is not None
        assert (("lost", "a", "PENDING") in listener.heard) is not is_kept
        assert (row.status, row.start_count) == (("RUNNING", 1) if is_kept else ("PENDING", 1))


@pytest.mark.parametrize(
    ("start_count", "is_put_back", "stays"), [(0, False, True), (0, True, False), (1, False, False)]
)
async def test_task_that_somebody_ended_in_a_copied_file_stays_ended(
    start_count: int, *, is_put_back: bool, stays: bool
) -> None:
    """It waited in the copy, and expired before this instance noticed. An end from before its start is no news."""
    store = Store()
    async with a_writer(store) as (writer, listener):
        live = new_live(task_id="a")
        live.start_count, live.run_number = start_count, int(is_put_back)
        ended = live.row()._replace(claimed_by_worker_id=None, status="EXPIRED", failed_at=1_500, start_count=0)
        writer.mark(live)
        await writer.flush()
        store.drop(store.live)
        assert await MemoryStore.commit(store, [TaskWrite(ended, None)]) == CommitReport({}, {})
        writer.lose_everything_committed([live])
        await writer.flush()
        row = await store.fetch("a")
        assert row is not None
        assert row.status == ("EXPIRED" if stays else "PENDING")
        assert (("lost", "a", "EXPIRED") in listener.heard) is stays


async def test_copied_row_in_the_newest_state_is_given_up_like_any_other() -> None:
    """The file was replaced by a copy that says what memory says. Whoever takes the row later has it: an older state is
    written over, and this one is not older.
    """
    store = Store()
    async with a_writer(store) as (writer, listener):
        live = new_live(task_id="a")
        writer.mark(live)
        await writer.flush()
        writer.lose_everything_committed([live])
        await writer.flush()
        row = await store.fetch("a")
        assert row is not None
        store.put(row._replace(status="CLAIMED", claimed_by_worker_id="other", claimed_at=9))
        start(live)
        writer.mark(live)
        await writer.flush()
        assert listener.heard[-1] == ("lost", "a", "CLAIMED")


async def test_task_that_was_freed_here_is_freed_in_a_copied_file_too() -> None:
    """The copy says that it runs here. Left so, it would look as if this instance had died with it."""
    store = Store()
    async with a_writer(store) as (writer, listener):
        live = new_live(task_id="a")
        start(live)
        writer.mark(live)
        await writer.flush()
        live.status, live.owner, live.phase = TaskStatus.PENDING, None, Phase.ENDED
        writer.lose_everything_committed([live])
        await writer.flush()
        row = await store.fetch("a")
        assert row is not None
        assert (row.status, row.claimed_by_worker_id, row.start_count) == ("PENDING", None, 1)
        assert not [each for each in listener.heard if each[0] == "lost"]


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING])
async def test_task_that_another_has_claimed_in_a_copied_file_begins_there(phase: Phase) -> None:
    """Another instance has claimed it from the copy. It stays there, unless its code has begun here."""
    store, has_begun = Store(), phase is Phase.RUNNING
    async with a_writer(store) as (writer, listener):
        live = new_live(task_id="a")
        claimed = live.row()._replace(claimed_by_worker_id="other", status="CLAIMED", claimed_at=1_500)
        start(live)
        live.phase = phase
        writer.mark(live)
        await writer.flush()
        store.drop(store.live)
        assert await MemoryStore.commit(store, [TaskWrite(claimed, None)]) == CommitReport({}, {})
        writer.lose_everything_committed([live])
        await writer.flush()
        row = await store.fetch("a")
        assert row is not None
        assert row.claimed_by_worker_id == ("me" if has_begun else "other")
        assert (("lost", "a", "CLAIMED") in listener.heard) is not has_begun


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING])
async def test_task_that_is_held_in_a_copied_file_begins_nothing(phase: Phase) -> None:
    """Its workflow was paused there before it could be written anew. What runs by then ends as it does beside any
    pause.
    """
    store = Store()
    async with a_writer(store) as (writer, listener):
        live = new_live(task_id="a")
        held = live.row()._replace(claimed_by_worker_id=HELD, is_workflow_task=1)
        start(live)
        live.phase = phase
        writer.mark(live)
        await writer.flush()
        store.drop(store.live)
        assert await MemoryStore.commit(store, [TaskWrite(held, None)]) == CommitReport({}, {})
        writer.lose_everything_committed([live])
        await writer.flush()
        assert (("lost", "a", "PENDING") in listener.heard) is (phase is Phase.STARTING)
        row = await store.fetch("a")
        assert row is not None
        assert row.claimed_by_worker_id == (HELD if phase is Phase.STARTING else "me")

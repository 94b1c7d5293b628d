"""The dispatcher: who starts next, under which limits, and how a slot is lent and taken back."""

import asyncio
import random
from typing import Any

import pytest

from taskmanager.engine.choose import dispatch
from taskmanager.engine.choose.dispatch import Dispatcher
from taskmanager.engine.words.attempt import Attempt
from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.phases import Phase
from taskmanager.model.config import QueueConfig
from tests.unit.engine_lives import around, definition_of, new_live, running

pytestmark = pytest.mark.anyio


def of_queue(queue_name: str, **options: Any) -> Definition:
    return definition_of(queue_name=queue_name, **options)


def sync(item: object = None) -> object:
    return item


DEFAULT, SAFE = definition_of(), definition_of(requeue_on_interrupt=True)
LIGHT, THREAD = definition_of(persist=False), definition_of(sync, persist=False)


class World:
    """A dispatcher, with names for its tasks."""

    def __init__(self, *queues: QueueConfig, concurrency: int = 100, threads: int = 100) -> None:
        self.dispatcher = Dispatcher({"async": concurrency, "thread": threads, "process": 1}, queues)
        self.kicks = 0
        self.dispatcher.wants_take = self._kick

    def _kick(self) -> None:
        self.kicks += 1

    def ready(self, name: str, definition: Definition = DEFAULT, **how: Any) -> LiveTask:
        """A task that waits for a slot; `crash_count` and `enqueued_at` as attributes."""
        live = new_live(definition, task_id=name, priority=how.pop("priority", 50))
        for field, value in how.items():
            setattr(live, field, value)
        self.dispatcher.queue(live.queue_name).entered += 1
        self.dispatcher.add_ready(live)
        return live

    def take(self) -> list[str]:
        """The names of what starts now."""
        return [live.task_id for live in self.dispatcher.take()]


# The order.


@pytest.mark.req("DS-005", "DS-s6")
def test_queues_come_before_priorities_and_priorities_before_age() -> None:
    """Over all queues and lanes, whatever else is apart inside: what needs the store and what does not."""
    world = World(QueueConfig("urgent", priority=1), QueueConfig("slow", priority=99), concurrency=100)
    world.ready("slow", of_queue("slow"), priority=1)
    world.ready("b", priority=50, enqueued_at=2)
    world.ready("a", SAFE, priority=50, enqueued_at=1)
    world.ready("c", LIGHT, priority=50, enqueued_at=3)
    world.ready("d", THREAD, priority=51, enqueued_at=0)
    world.ready("first", priority=2, enqueued_at=9)
    world.ready("urgent", of_queue("urgent"), priority=100)
    assert world.take() == ["urgent", "first", "a", "b", "c", "d", "slow"]


def test_equal_tasks_start_in_the_order_of_their_arrival() -> None:
    """Also where they are kept apart inside."""
    world = World()
    for number in range(30):
        world.ready(str(number), random.Random(number).choice([DEFAULT, SAFE, LIGHT]), enqueued_at=7)
    assert world.take() == [str(number) for number in range(30)]


# The limits.


@pytest.mark.parametrize("seed", range(20))
def test_the_best_of_all_that_may_start_is_next_each_time(seed: int) -> None:
    """Whatever is full, paused or gone meanwhile: the same as looking at every waiting task before every start."""
    chance = random.Random(seed)
    queues = [
        QueueConfig(f"q{n}", priority=chance.choice([10, 50]), max_concurrency=chance.choice([None, 1, 3]))
        for n in range(6)
    ]
    world = World(*queues, concurrency=chance.randrange(1, 15), threads=chance.randrange(1, 5))
    room: dict[str, float] = {each.name: each.max_concurrency or float("inf") for each in queues}
    room |= {lane: slots.limit or 0 for lane, slots in world.dispatcher.lanes.items()}
    world.dispatcher.set_paused("q0", paused=chance.random() < 0.5)
    room["q0"] = 0 if world.dispatcher.queue("q0").is_paused else room["q0"]
    waiting = []
    for number in range(40):
        queue = chance.choice(queues)
        definition = chance.choice([definition_of, definition_of, lambda **how: definition_of(sync, **how)])
        how = {"priority": chance.randrange(1, 4), "enqueued_at": chance.randrange(10)}
        live = world.ready(f"t{number}", definition(persist=False, queue_name=queue.name), **how)
        waiting.append((queue.priority, how["priority"], how["enqueued_at"], number, live))
        if chance.random() < 0.1:
            world.dispatcher.move(live, Phase.ENDED)
    expected = []
    for *_, live in sorted(waiting, key=lambda each: each[:4]):
        places = (live.queue_name, live.definition.lane)
        if live.phase is Phase.READY and all(room[place] for place in places):
            expected.append(live.task_id)
            for place in places:
                room[place] -= 1
    assert world.take() == expected


class Oracle:
    """Looks at every waiting task before every start."""

    def __init__(self, world: World, queues: list[QueueConfig]) -> None:
        self.world = world
        self.queues = {each.name: each for each in queues}
        self.waiting: list[LiveTask] = []
        self.running: list[LiveTask] = []

    def take(self) -> list[str]:
        taken = []
        while startable := [live for live in self.waiting if self._may_start(live)]:
            best = min(startable, key=lambda live: (self.queues[live.queue_name].priority, live.priority,
                                                    live.enqueued_at, int(live.task_id)))  # fmt: skip
            self.waiting.remove(best)
            self.running.append(best)
            taken.append(best.task_id)
        return taken

    def _may_start(self, live: LiveTask) -> bool:
        dispatcher, limit = self.world.dispatcher, self.queues[live.queue_name].max_concurrency
        in_lane = sum(each.definition.lane == live.definition.lane for each in self.running)
        in_queue = sum(each.queue_name == live.queue_name for each in self.running)
        if in_lane >= (dispatcher.lanes[live.definition.lane].limit or 0) or in_queue >= (limit or 1_000):
            return False
        needs_store = live.is_persisted and not live.definition.requeue_on_interrupt
        has_suspect = any(each.crash_count for each in self.running)
        is_held = has_suspect and (needs_store or live.crash_count > 0)
        is_paused = dispatcher.queue(live.queue_name).is_paused
        waits = needs_store or (live.is_persisted and dispatcher.is_detached())
        is_unseen = dispatcher.is_unseen and live.is_persisted
        return not (is_paused or is_held or is_unseen or (dispatcher.is_store_degraded and waits))


@pytest.mark.parametrize("seed", range(25))
def test_dispatch_takes_the_best_over_many_turns(seed: int) -> None:
    """Whatever was full, paused, held back by a suspect or by the store meanwhile, and whenever it is not any more."""
    chance = random.Random(seed)
    queues = [
        QueueConfig(f"q{n}", priority=chance.choice([10, 50]), max_concurrency=chance.choice([None, 1, 2]))
        for n in range(chance.choice((1, 3, 8)))
    ]
    world = World(*queues, concurrency=chance.randrange(1, 6), threads=chance.randrange(1, 4))
    oracle, names = Oracle(world, queues), iter(range(10_000))
    kinds: list[dict[str, Any]] = [{"persist": False}, {}, {"requeue_on_interrupt": True}]
    for _ in range(80):
        for _ in range(chance.randrange(6)):
            fn = chance.choice([None, None, sync])
            definition = definition_of(fn, queue_name=chance.choice(queues).name, **chance.choice(kinds))
            how = {"priority": chance.randrange(1, 4), "enqueued_at": chance.randrange(10)}
            how["crash_count"] = int(definition.is_persisted and chance.random() < 0.1)
            oracle.waiting.append(world.ready(str(next(names)), definition, **how))
        for live in chance.sample(oracle.running, k=min(len(oracle.running), chance.randrange(4))):
            oracle.running.remove(live)
            world.dispatcher.give_back(live)
        for queue in queues:
            if chance.random() < 0.1:
                world.dispatcher.set_paused(queue.name, paused=chance.random() < 0.5)
        if oracle.waiting and chance.random() < 0.1:
            gone = chance.choice(oracle.waiting)
            world.dispatcher.move(gone, Phase.ENDED)
            oracle.waiting.remove(gone)
        if chance.random() < 0.1:
            world.dispatcher.is_store_degraded = chance.random() < 0.5
        if chance.random() < 0.1:
            world.dispatcher.is_detached = chance.choice([lambda: True, lambda: False])
        if chance.random() < 0.1:
            world.dispatcher.is_unseen = chance.random() < 0.5
        assert world.take() == oracle.take()


def test_dispatch_forgets_queues_without_work() -> None:
    """What was configured stays, and all where something waits, runs or was left in the store, or is paused."""
    world = World(QueueConfig("configured"))
    dispatcher = world.dispatcher
    busy = world.ready("busy", of_queue("busy"))
    dispatcher.queue("busy").entered += 1
    running = world.ready("running", of_queue("running"), priority=1)
    assert world.take() == ["running", "busy"]
    dispatcher.give_back(busy)
    dispatcher.set_paused("paused", paused=True)
    dispatcher.queue("left").leave(50)
    for number in range(5_000):
        dispatcher.queue(f"customer {number}")
    for _ in range(20):
        dispatcher.forget_idle(0)
    assert set(dispatcher.queues) == {"configured", "busy", "running", "paused", "left"}
    dispatcher.give_back(running)
    dispatcher.queue("left").leave_nothing()
    dispatcher.set_paused("paused", paused=False)
    dispatcher.forget_idle(0)
    assert set(dispatcher.queues) == {"configured", "busy"}


def test_a_turn_looks_at_each_queue_a_few_times_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue is made by its name, one for each customer perhaps; and one that was used up costs nothing any more."""
    looks = 0
    may_start = Dispatcher._may_start

    def counted(self: Dispatcher, source: Any) -> bool:
        nonlocal looks
        looks += 1
        return may_start(self, source)

    monkeypatch.setattr(Dispatcher, "_may_start", counted)
    world = World(concurrency=1_000)
    for number in range(300):
        world.ready(f"t{number}", of_queue(f"customer {number}"))
    assert len(world.take()) == 300
    assert looks <= 3 * 300
    looks = 0
    world.ready("one more")
    assert world.take() == ["one more"]
    assert looks <= 3


def test_a_lane_is_never_fuller_than_its_limit() -> None:
    """A slot is taken by `take` and free with `give_back`, which asks for the next look."""
    world = World(concurrency=2)
    lives = [world.ready(name) for name in "abc"]
    assert world.take() == ["a", "b"]
    assert world.take() == []
    assert [live.phase for live in lives] == [Phase.STARTING, Phase.STARTING, Phase.READY]
    world.dispatcher.give_back(lives[0])
    assert world.kicks == 1
    assert world.take() == ["c"]


def test_lanes_do_not_wait_for_each_other() -> None:
    """A full lane leaves the tasks of the others alone."""
    world = World(concurrency=1, threads=1)
    for name in "ab":
        world.ready(name, LIGHT, priority=1)
        world.ready(name + "-thread", THREAD, priority=50)
    assert world.take() == ["a", "a-thread"]


def test_a_queue_is_never_fuller_than_its_limit_over_all_lanes() -> None:
    """The limit is the queue's, and the best task gets it, whatever its lane."""
    world = World(QueueConfig("narrow", max_concurrency=1))
    world.ready("async", of_queue("narrow"), priority=50)
    thread = world.ready("thread", definition_of(sync, queue_name="narrow", persist=False), priority=1)
    world.ready("other")
    assert world.take() == ["thread", "other"]
    world.dispatcher.give_back(thread)
    assert world.take() == ["async"]


def test_a_paused_queue_starts_nothing_and_stops_nobody() -> None:
    """Its tasks wait where they are until it goes on."""
    world = World(QueueConfig("mail", priority=1))
    world.ready("mail", of_queue("mail"))
    world.ready("other")
    world.dispatcher.queue("mail").is_paused = True
    assert world.take() == ["other"]
    world.dispatcher.queue("mail").is_paused = False
    assert world.take() == ["mail"]


def test_only_what_needs_the_store_waits_for_it() -> None:
    """Not safe to repeat, and persisted: its start must be written first. The others go on."""
    world = World()
    world.ready("needs it", DEFAULT, priority=1)
    world.ready("safe to repeat", SAFE)
    world.ready("memory only", LIGHT)
    world.dispatcher.is_store_degraded = True
    assert world.take() == ["safe to repeat", "memory only"]
    world.dispatcher.is_store_degraded = False
    assert world.take() == ["needs it"]


def test_dispatch_holds_back_what_others_run_while_detached() -> None:
    """They take this instance for dead and start its tasks; without the store it would not hear of that."""
    world = World()
    world.ready("needs it", DEFAULT, priority=1)
    world.ready("safe to repeat", SAFE)
    world.ready("memory only", LIGHT)
    world.dispatcher.is_store_degraded, world.dispatcher.is_detached = True, lambda: True
    assert world.take() == ["memory only"]
    world.dispatcher.is_detached = lambda: False
    assert world.take() == ["safe to repeat"]
    world.dispatcher.is_store_degraded = False
    assert world.take() == ["needs it"]


def test_dispatch_holds_back_what_is_stored_while_unseen() -> None:
    """The others may take this instance for dead, also when it can write again: they would fail what it has started."""
    world = World()
    world.ready("needs it", DEFAULT, priority=1)
    world.ready("safe to repeat", SAFE)
    world.ready("memory only", LIGHT)
    world.dispatcher.is_unseen = True
    assert world.take() == ["memory only"]
    assert world.take() == []
    world.dispatcher.is_unseen = False
    assert world.take() == ["needs it", "safe to repeat"]


def test_a_suspect_runs_apart_from_other_suspects_and_from_what_is_not_safe_to_repeat() -> None:
    """When the process dies again, it is known who did it, and nothing is harmed that could not be repeated."""
    world = World()
    first = world.ready("suspect", SAFE, crash_count=1, priority=1)
    world.ready("second suspect", SAFE, crash_count=2, priority=2)
    world.ready("not safe", DEFAULT, priority=3)
    world.ready("safe", SAFE, priority=4)
    world.ready("memory only", LIGHT, priority=5)
    assert world.take() == ["suspect", "safe", "memory only"]
    world.dispatcher.give_back(first)
    assert world.take() == ["second suspect"]
    assert world.take() == []


def test_a_suspect_starts_beside_what_runs_already() -> None:
    """A task that is not safe to repeat may run for hours, and others like it may follow it without a gap: a suspect
    that waited for them would hold them up, or never start.
    """
    world = World()
    world.ready("not safe", DEFAULT, priority=1)
    world.ready("suspect", SAFE, crash_count=1, priority=2)
    world.ready("not safe either", DEFAULT, priority=3)
    assert world.take() == ["not safe", "suspect"]


async def test_a_suspect_that_lends_its_slot_is_none_until_it_goes_on() -> None:
    """What it waits for may be what nothing unsafe runs beside; it goes on when no other suspect runs."""
    world = World()
    attempt = Attempt(world.ready("suspect", SAFE, crash_count=1), around(world.dispatcher))
    assert world.take() == ["suspect"]
    world.dispatcher.lend(attempt)
    other = world.ready("other suspect", SAFE, crash_count=1)
    world.ready("not safe", DEFAULT, priority=1)
    assert world.take() == ["not safe", "other suspect"]
    goes_on = world.dispatcher.take_back(attempt)
    assert world.take() == []
    assert not goes_on.done()
    world.dispatcher.give_back(other)
    world.ready("not safe either")
    assert world.take() == []
    assert goes_on.done()
    world.dispatcher.give_back(attempt.live)
    assert world.take() == ["not safe either"]


# Leaving early.


def test_an_entry_that_is_not_wanted_any_more_is_passed_over() -> None:
    """A cancel leaves it in its heap; neither a slot nor a start is lost to it."""
    world = World(concurrency=1)
    gone = world.ready("gone", priority=1)
    world.ready("next")
    world.dispatcher.move(gone, Phase.ENDED)
    assert world.take() == ["next"]


def test_a_task_that_left_and_came_back_waits_once_and_starts_once() -> None:
    """Its old entry is as good as the new one, and the second of the two is stale.

    A key was enqueued here while the claim of its row was on its way, and then others came to share the file: what
    waited was freed twice.
    """
    world = World()
    live = world.ready("a")
    for phase in (Phase.LEFT, Phase.ACCEPTED):
        world.dispatcher.move(live, phase)
    world.dispatcher.add_ready(live)
    assert list(world.dispatcher.waiting()) == [live]
    assert world.take() == ["a"]
    assert world.take() == []


def test_heaps_full_of_stale_entries_are_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task cancelled long before its time leaves memory with the others that are."""
    monkeypatch.setattr(dispatch, "STALE_CLEANUP_AT", 10)
    world = World()
    kept = [world.ready("ready"), new_live(task_id="delayed"), new_live(task_id="scheduled")]
    world.dispatcher.add_delayed(kept[1], 1.0)
    world.dispatcher.add_scheduled(kept[2], 5)
    for number in range(60):
        live = new_live(task_id=str(number))
        (world.dispatcher.add_delayed if number % 2 else world.dispatcher.add_scheduled)(live, 10**12)
        world.dispatcher.move(live, Phase.ENDED)
    assert len(world.dispatcher.delays) < 15
    assert set(world.dispatcher.waiting()) == set(kept)


# Time.


def test_each_kind_of_delay_has_its_own_clock() -> None:
    """Delays and retries by elapsed time, promises by wall time; both end among the ready."""
    world = World()
    delayed, scheduled = new_live(task_id="delayed"), new_live(task_id="scheduled")
    world.dispatcher.add_delayed(delayed, 10.0)
    world.dispatcher.add_scheduled(scheduled, 20_000_000)
    assert world.dispatcher.delays.next_delay_s(0.0, 5_000_000) == 10.0
    assert world.dispatcher.delays.next_delay_s(-90.0, 5_000_000) == 15.0
    assert world.dispatcher.delays.next_delay_s(-90.0, 50_000_000) == 0.0
    assert world.dispatcher.wake_due(9.9, 19_999_999) == []
    assert world.take() == []
    world.dispatcher.wake_due(10.0, 19_999_999)
    assert world.take() == ["delayed"]
    world.dispatcher.wake_due(10.0, 20_000_000)
    assert world.take() == ["scheduled"]
    assert world.dispatcher.delays.next_delay_s(0.0, 0) is None


def test_a_moment_that_was_put_off_does_not_wake_the_task() -> None:
    """Its earlier entry is stale."""
    world = World()
    live = new_live(task_id="a")
    world.dispatcher.add_delayed(live, 1.0)
    for phase in (Phase.LEFT, Phase.ACCEPTED):
        world.dispatcher.move(live, phase)
    world.dispatcher.add_delayed(live, 5.0)
    world.dispatcher.wake_due(1.0, 0)
    assert world.take() == []
    world.dispatcher.wake_due(5.0, 0)
    assert world.take() == ["a"]


@pytest.mark.req("DS-023")
def test_a_task_expires_only_while_it_waits() -> None:
    """At its very moment, once; started ones run to their end."""
    world = World()
    waits, runs = world.ready("waits", of_queue("paused")), world.ready("runs")
    world.dispatcher.set_paused("paused", paused=True)
    for live in (waits, runs):
        live.good_until = 100
        world.dispatcher.delays.watch_expiry(live)
    assert world.take() == ["runs"]
    assert world.dispatcher.wake_due(0.0, 99) == []
    assert world.dispatcher.wake_due(0.0, 100) == [waits]
    assert world.dispatcher.wake_due(0.0, 200) == []


# Counting, and room.


async def test_who_waits_for_room_is_woken_by_every_departure() -> None:
    """The counts are kept per queue; a retry waits again without having entered again."""
    world = World()
    live = world.ready("a")
    queue = world.dispatcher.queue("default")
    assert (queue.waiting, queue.stored_waiting) == (1, 1)
    room = asyncio.create_task(world.dispatcher.room("default", lambda _: queue.waiting > 0))
    await asyncio.sleep(0)
    assert world.take() == ["a"]
    await room
    assert (queue.waiting, queue.stored_waiting) == (0, 0)
    for phase in (Phase.RUNNING, Phase.ACCEPTED):
        world.dispatcher.move(live, phase)
    assert (queue.waiting, queue.stored_waiting) == (1, 1)


def test_the_worst_of_a_queue_is_known() -> None:
    """What a claim must undercut when memory is full."""
    world = World()
    queue = world.dispatcher.queue("default")
    assert queue.worst_priority() is None
    for priority, definition in ((30, DEFAULT), (70, LIGHT), (90, of_queue("mail"))):
        world.ready(str(priority), definition, priority=priority)
    assert queue.worst_priority() == 70


# Lending.


def begun(world: World, name: str) -> Attempt:
    world.ready(name)
    (live,) = world.dispatcher.take()
    return running(live, world.dispatcher)


async def test_a_lent_slot_is_used_by_others_and_given_back_before_new_ones() -> None:
    """Parents that wait for children cannot deadlock a full lane, and the limit holds."""
    world = World(concurrency=1)
    parent = begun(world, "parent")
    world.dispatcher.lend(parent)
    assert not parent.has_slot
    child = world.ready("child")
    world.ready("another", priority=99)
    assert world.take() == ["child"]
    back = world.dispatcher.take_back(parent)
    assert world.take() == []
    assert not back.done()
    world.dispatcher.give_back(child)
    assert world.take() == []
    assert back.done()
    assert parent.has_slot
    assert world.dispatcher.lanes["async"].running == 1


async def test_a_parent_that_was_cancelled_while_it_waited_for_its_slot_takes_none() -> None:
    """A slot owned by nobody would be lost for ever."""
    world = World(concurrency=1)
    parent = begun(world, "parent")
    world.dispatcher.lend(parent)
    holder = world.ready("holder")
    assert world.take() == ["holder"]
    back = world.dispatcher.take_back(parent)
    back.cancel()
    world.dispatcher.give_back(holder)
    world.ready("next")
    assert world.take() == ["next"]
    assert world.dispatcher.lanes["async"].running == 1


async def test_a_cancelled_attempt_gets_its_slot_at_once_to_clean_up() -> None:
    """Above the limit, for the moment: user code must see its cancellation."""
    world = World(concurrency=1)
    parent = begun(world, "parent")
    world.dispatcher.lend(parent)
    world.ready("other")
    assert world.take() == ["other"]
    world.dispatcher.take_back_now(parent)
    assert parent.has_slot
    assert world.dispatcher.lanes["async"].running == 2
    world.dispatcher.give_back(parent.live)
    world.ready("next")
    assert world.take() == []


async def test_slots_come_back_in_the_order_in_which_they_were_asked_for_as_far_as_their_queue_allows() -> None:
    """One whose queue is full does not stop the next."""
    world = World(QueueConfig("narrow", max_concurrency=1), concurrency=2)
    first = running(world.ready("first", of_queue("narrow")), world.dispatcher)
    second = running(world.ready("second"), world.dispatcher)
    assert set(world.take()) == {"first", "second"}
    for attempt in (first, second):
        world.dispatcher.lend(attempt)
    world.ready("narrow", of_queue("narrow"))
    assert world.take() == ["narrow"]
    backs = [world.dispatcher.take_back(attempt) for attempt in (first, second)]
    world.dispatcher.resume()
    assert [back.done() for back in backs] == [False, True]


async def test_a_stop_gives_slots_back_to_parents_and_starts_nothing_new() -> None:
    """They have to come to their end within the drain."""
    world = World(concurrency=1)
    parent = begun(world, "parent")
    world.dispatcher.lend(parent)
    world.ready("new")
    back = world.dispatcher.take_back(parent)
    world.dispatcher.resume()
    assert back.done()
    assert world.dispatcher.lanes["async"].running == 1


def test_repr_tells_the_state() -> None:
    """One line for a debugger."""
    world = World(concurrency=1)
    for name in "abc":
        world.ready(name)
    world.dispatcher.add_delayed(new_live(), 5.0)
    world.take()
    assert repr(world.dispatcher) == "<Dispatcher 1 running, 2 ready, 1 delayed>"

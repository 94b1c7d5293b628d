"""The queues in memory: order, emptiness, and clearing out what nobody wants any more."""

import pytest

from taskmanager.rules.ready import DelayedQueue, ReadyQueue


def test_priority_first_then_time_then_arrival() -> None:
    queue: ReadyQueue[str] = ReadyQueue()
    for priority, enqueued_at, item in [(5, 10, "c"), (1, 99, "a"), (5, 10, "d"), (5, 3, "b"), (9, 0, "e")]:
        queue.push(priority, enqueued_at, item)
    assert [queue.pop() for _ in range(len(queue))] == ["a", "b", "c", "d", "e"]
    assert not queue


def test_items_need_no_order_of_their_own() -> None:
    queue: ReadyQueue[object] = ReadyQueue()
    for enqueued_at in (2, 1, 2, 1):
        queue.push(1, enqueued_at, object())
    assert len([queue.pop() for _ in range(4)]) == 4


def test_an_empty_queue_says_so() -> None:
    queue: ReadyQueue[int] = ReadyQueue()
    assert (len(queue), bool(queue), list(queue), queue.worst_priority()) == (0, False, [], None)
    for ask in (queue.pop, queue.peek_key):
        with pytest.raises(IndexError, match="empty"):
            ask()


def test_the_key_of_the_first_item_can_be_seen() -> None:
    queue: ReadyQueue[str] = ReadyQueue()
    queue.push(5, 10, "row")
    assert queue.peek_key() == (5, 10, 0)
    queue.push(5, 9, "late")
    assert queue.peek_key() == (5, 9, 1)
    assert len(queue) == 2


def test_the_worst_priority_leaves_with_its_last_item() -> None:
    queue: ReadyQueue[str] = ReadyQueue()
    for priority, enqueued_at in [(7, 5), (7, 1), (3, 5)]:
        queue.push(priority, enqueued_at, "x")
    seen = [queue.worst_priority()]
    for _ in range(3):
        queue.pop()
        seen.append(queue.worst_priority())
    assert seen == [7, 7, 7, None]


def test_discarding_keeps_the_order_of_the_rest() -> None:
    queue: ReadyQueue[int] = ReadyQueue()
    for item, enqueued_at in enumerate([5, 6, 1, 7, 2, 8]):
        queue.push(1 + item % 2, enqueued_at, item)
    assert queue.discard_stale(lambda item: item in (1, 2)) == 2
    assert len(queue) == 4
    assert sorted(queue) == [0, 3, 4, 5]
    assert queue.worst_priority() == 2
    queue.push(2, 0, 9)
    assert [queue.pop() for _ in range(5)] == [4, 0, 9, 3, 5]


def test_discarding_everything_leaves_a_usable_queue() -> None:
    queue: ReadyQueue[int] = ReadyQueue()
    queue.push(1, 1, 1)
    assert queue.discard_stale(lambda _: True) == 1
    assert queue.worst_priority() is None
    queue.push(1, 1, 2)
    assert queue.pop() == 2


def test_queues_tell_their_state() -> None:
    ready: ReadyQueue[int] = ReadyQueue()
    ready.push(4, 1, 1)
    delayed: DelayedQueue[int] = DelayedQueue()
    delayed.push(2.5, 1)
    assert repr(ready) == "<ReadyQueue: 1 ready, worst priority 4>"
    assert repr(delayed) == "<DelayedQueue: 1 delayed, next due 2.5>"


def test_only_what_is_due_comes_in_order() -> None:
    queue: DelayedQueue[str] = DelayedQueue()
    for due, item in [(3.0, "c"), (1.0, "a"), (3.0, "d"), (9.0, "z"), (1.0, "b")]:
        queue.push(due, item)
    assert queue.pop_due(0.9) == []
    assert queue.pop_due(3.0) == ["a", "b", "c", "d"]
    assert (queue.next_due(), len(queue)) == (9.0, 1)
    assert queue.pop_due(99) == ["z"]
    assert queue.next_due() is None


def test_a_delayed_queue_discards_too() -> None:
    queue: DelayedQueue[int] = DelayedQueue()
    for due in (4, 3, 2, 1):
        queue.push(due, due)
    assert queue.discard_stale(lambda item: item % 2 == 0) == 2
    assert sorted(queue) == [1, 3]
    assert queue.pop_due(9) == [1, 3]


HEAP = [1, 10, 2, 11, 12, 3, 4]
"""In this order a heap holds them; without its first one the rest is none."""


def test_a_heap_without_its_first_item_is_in_order_again() -> None:
    """Of those that wait for a moment, and of those that have come too late for their row."""
    delayed: DelayedQueue[int] = DelayedQueue()
    ready: ReadyQueue[int] = ReadyQueue()
    ready.push(1, 99, 99)
    for item in HEAP:
        delayed.push(item, item)
        ready.push(1, item, item)
    for queue in (delayed, ready):
        assert queue.discard_stale(lambda item: item == 1) == 1
    assert delayed.pop_due(99) == [2, 3, 4, 10, 11, 12]
    assert [ready.pop() for _ in range(7)] == [2, 3, 4, 10, 11, 12, 99]

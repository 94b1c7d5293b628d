"""The queues in memory against the simplest thing that is right: a sorted list."""

from hypothesis import given
from hypothesis import strategies as st

from taskmanager.rules.ready import DelayedQueue, ReadyQueue

# Few distinct numbers, so that ties are common; None takes one out, "discard" clears every third item.
KEYS = st.tuples(st.integers(1, 4), st.integers(0, 5))
STEPS = st.lists(st.one_of(KEYS, KEYS, st.none(), st.just("discard")), max_size=80)


@given(STEPS)
def test_a_ready_queue_is_a_sorted_list(steps: list[tuple[int, int] | str | None]) -> None:
    queue: ReadyQueue[int] = ReadyQueue()
    model: list[tuple[int, int, int]] = []
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            queue.push(*step, number)
            model.append((*step, number))
            model.sort()
        elif step == "discard":
            stale = [entry for entry in model if entry[2] % 3 == 0]
            assert queue.discard_stale(lambda item: item % 3 == 0) == len(stale)
            model = [entry for entry in model if entry not in stale]
        elif model:
            assert queue.peek_key()[:2] == model[0][:2]
            assert queue.pop() == model.pop(0)[2]
        assert len(queue) == len(model)
        assert bool(queue) == bool(model)
        assert sorted(queue) == sorted(entry[2] for entry in model)
        assert queue.worst_priority() == max((entry[0] for entry in model), default=None)
        assert queue.count_up_to(2) == sum(entry[0] <= 2 for entry in model)
    assert [queue.pop() for _ in range(len(queue))] == [entry[2] for entry in model]


MOMENTS = st.one_of(st.integers(0, 20), st.floats(0, 20))


@given(st.lists(st.one_of(MOMENTS.map(lambda due: ("push", due)), MOMENTS.map(lambda now: ("pop", now))), max_size=80))
def test_a_delayed_queue_is_a_sorted_list(steps: list[tuple[str, float]]) -> None:
    queue: DelayedQueue[int] = DelayedQueue()
    model: list[tuple[float, int]] = []
    for number, (what, moment) in enumerate(steps):
        if what == "push":
            queue.push(moment, number)
            model.append((moment, number))
            model.sort()
        else:
            assert queue.pop_due(moment) == [item for due, item in model if due <= moment]
            model = [entry for entry in model if entry[0] > moment]
        assert len(queue) == len(model)
        assert queue.next_due() == (model[0][0] if model else None)
        assert sorted(queue) == sorted(item for _, item in model)

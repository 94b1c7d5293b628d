"""The phases of a task: which moves there are, and what `Dispatcher.move` counts with each."""

import logging
from typing import Any

import pytest

from taskmanager.engine.choose.dispatch import Dispatcher
from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.phases import HELD, MOVES, WAITING, ForbiddenMove, Phase
from tests.unit.engine_lives import LIGHT, WORK, new_live

ALL = [(old, new) for old in Phase for new in Phase]


def path_to(phase: Phase) -> list[Phase]:
    """A shortest way from the call to that phase."""
    paths = [[Phase.ARRIVED]]
    for path in paths:
        if path[-1] is phase:
            return path[1:]
        paths += [[*path, new] for new in MOVES[path[-1]] if new not in path]
    raise AssertionError(f"no way leads to {phase.name}")


class OneTask:
    """A dispatcher with one task, which holds its slot as the engine lets it."""

    def __init__(self, definition: Definition) -> None:
        self.dispatcher = Dispatcher({"async": 1, "thread": 1, "process": 1}, ())
        self.live: LiveTask = new_live(definition)
        self.dispatcher.queue("default").entered += 1
        self.given_up: list[LiveTask] = []
        self.dispatcher.give_up = self.given_up.append

    def go(self, phase: Phase) -> None:
        if phase is Phase.READY and phase in MOVES[self.live.phase]:
            self.dispatcher.add_ready(self.live)
        elif phase is Phase.STARTING and self.live.phase is Phase.ACCEPTED:
            assert self.dispatcher.start_claimed(self.live)
        elif phase is Phase.STARTING and phase in MOVES[self.live.phase]:
            assert self.dispatcher.take() == [self.live]
        else:
            self.dispatcher.move(self.live, phase)

    def counts(self) -> dict[str, Any]:
        queue, slots = self.dispatcher.queue("default"), self.dispatcher.lanes["async"]
        return {
            "waiting": queue.waiting,
            "waiting in all queues": 1 - self.dispatcher.left_count,
            "held": queue.stored_waiting,
            "unsaved ends": self.dispatcher.unsaved_end_count,
            "slots": (slots.running, queue.slots.running),
        }

    def expected(self, *, has_slot: bool) -> dict[str, Any]:
        phase, is_persisted = self.live.phase, self.live.is_persisted
        return {
            "waiting": phase in WAITING,
            "waiting in all queues": phase in WAITING,
            "held": is_persisted and phase in HELD,
            "unsaved ends": is_persisted and phase is Phase.ENDED,
            "slots": (has_slot, has_slot),
        }


@pytest.mark.parametrize("definition", [WORK, LIGHT], ids=["persisted", "memory-only"])
@pytest.mark.parametrize(("old", "new"), ALL, ids=[f"{old.name}-{new.name}" for old, new in ALL])
def test_every_move_is_counted_or_refused(
    definition: Definition, old: Phase, new: Phase, caplog: pytest.LogCaptureFixture
) -> None:
    """After a move the counts are those of the phase. A move that is not in the table changes nothing, and is told."""
    task = OneTask(definition)
    for phase in path_to(old):
        task.go(phase)
    # The slot of a running task is given back by whoever settles its attempt.
    has_slot = Phase.RUNNING in (old, *path_to(old)) or old is Phase.STARTING
    assert task.counts() == task.expected(has_slot=has_slot)
    if new in MOVES[old]:
        task.go(new)
        keeps_slot = has_slot and (old is not Phase.STARTING or new is Phase.RUNNING)
        assert task.live.phase is new
        assert task.counts() == task.expected(has_slot=keeps_slot or new is Phase.STARTING)
        return
    with caplog.at_level(logging.CRITICAL), pytest.raises(ForbiddenMove, match=f"from {old.name} to {new.name}"):
        task.go(new)
    assert task.live.phase is old
    assert task.counts() == task.expected(has_slot=has_slot)
    assert task.given_up == ([] if old is Phase.LEFT else [task.live])
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]
    assert f"sent_at {task.live.sent_at}" in caplog.text  # its history


def test_every_phase_is_reached_and_left() -> None:
    """Each stands on a way that begins with the call. Nothing ends in a phase that others wait for."""
    assert all(path_to(phase) for phase in Phase if phase is not Phase.ARRIVED)
    assert all(MOVES[phase] for phase in Phase)


def test_a_move_leaves_no_entry_of_a_heap_that_counts() -> None:
    """What left a heap early is skipped there; what was taken out of it is not counted as stale."""
    for way in ([Phase.READY, Phase.STARTING], [Phase.READY, Phase.ENDED], [Phase.READY, Phase.FREEING]):
        task = OneTask(WORK)
        for phase in way:
            task.go(phase)
        assert list(task.dispatcher.waiting()) == []
        assert task.dispatcher.take() == []

"""The state table, exhaustively: every pair of statuses."""

from itertools import product

import pytest

from taskmanager.model.states import LIVE, TERMINAL, TRANSITIONS, WAITING, TaskStatus, can_move

ALL = list(TaskStatus)


@pytest.mark.parametrize(("source", "target"), list(product(ALL, ALL)))
def test_a_move_is_legal_exactly_when_the_table_has_it(source: TaskStatus, target: TaskStatus) -> None:
    assert can_move(source, target) == any((move.source, move.target) == (source, target) for move in TRANSITIONS)


def test_the_table_names_every_move_once_and_says_why() -> None:
    pairs = [(move.source, move.target) for move in TRANSITIONS]
    assert len(pairs) == len(set(pairs))
    assert all(move.reason for move in TRANSITIONS)


def reachable(start: TaskStatus) -> set[TaskStatus]:
    found, todo = {start}, [start]
    while todo:
        source = todo.pop()
        for target in ALL:
            if can_move(source, target) and target not in found:
                found.add(target)
                todo.append(target)
    return found


@pytest.mark.parametrize("status", sorted(LIVE))
def test_every_live_status_can_reach_every_end(status: TaskStatus) -> None:
    assert reachable(status) >= TERMINAL


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_an_ended_task_goes_nowhere_but_back_to_waiting(status: TaskStatus) -> None:
    assert [target for target in ALL if can_move(status, target)] == [TaskStatus.PENDING]


def test_only_a_start_makes_a_task_running_and_only_running_completes() -> None:
    """User code runs between the two, so no other path may skip the recorded start."""
    assert {source for source in ALL if can_move(source, TaskStatus.RUNNING)} == WAITING
    assert [source for source in ALL if can_move(source, TaskStatus.COMPLETED)] == [TaskStatus.RUNNING]


def test_a_started_task_never_expires() -> None:
    assert not can_move(TaskStatus.RUNNING, TaskStatus.EXPIRED)


@pytest.mark.req("PR-47")
def test_eight_statuses_of_which_five_are_ends() -> None:
    assert len(ALL) == 8
    assert len(TERMINAL) == 5
    assert {status for status in ALL if status.is_terminal} == TERMINAL
    assert set(ALL) == TERMINAL | LIVE
    assert not TERMINAL & LIVE
    assert TaskStatus["SUCCESS"] is TaskStatus.COMPLETED

"""Death is a lock that stayed free for the whole grace while its owner was silent, seen by one session."""

import json

import pytest

from taskmanager.store.postgresql.lives import LAST_ID, MAX_STEP_S, Beats, Lives, lock_number, saying_no_lock

ME = "observed"
NUMBER = lock_number(ME)


class Observer:
    """Looks every second."""

    def __init__(self, grace_s: float = 10.0, silence_s: float = 300.0) -> None:
        self.lives = Lives(grace_s, silence_s)
        self.without_lock: set[str] = set()
        self.now_s = 100.0
        self.deaths = 0
        assert not self.lives.is_dead(ME, self.now_s)

    def look(self, *, held: bool = False, beats: bool = False, after_s: float = 1.0) -> bool:
        """Whether it is dead after one more look."""
        self.now_s += after_s
        held_numbers, beating = {NUMBER} if held else set(), {ME} if beats else set()
        self.deaths += self.lives.look(self.now_s, held_numbers, beating, self.without_lock)
        return self.lives.is_dead(ME, self.now_s)

    def looks_until_dead(self) -> int:
        """How many looks at a free lock of a silent owner it takes."""
        for count in range(1, 1000):
            if self.look():
                return count
        raise AssertionError("it lives for ever")


def test_lock_number_is_an_int4_and_always_the_same() -> None:
    numbers = {lock_number(f"instance-{n}") for n in range(1000)}
    assert len(numbers) == 1000
    assert all(-(2**31) <= each < 2**31 for each in numbers)
    assert lock_number("a") == -896040686  # other releases must compute the same


def test_lives_find_a_death_once_when_the_grace_has_passed() -> None:
    observer = Observer()
    observer.look(held=True)
    assert observer.looks_until_dead() == 11  # the first one finds the lock free
    assert observer.deaths == 1
    observer.look()
    assert observer.deaths == 1


def test_lives_count_from_the_first_question() -> None:
    """An instance that has just started holds a lock that no look has seen yet: rows of it are there already."""
    observer = Observer()
    for _ in range(100):
        observer.look()
    assert not observer.lives.is_dead("new", observer.now_s)
    observer.look()
    assert not observer.lives.is_dead("new", observer.now_s)


def test_lives_take_a_longer_grace_and_no_shorter_one() -> None:
    assert Observer(30.0).looks_until_dead() == 31
    assert Observer(0.0).looks_until_dead() == 11


def test_lives_begin_the_grace_anew_with_each_sign_of_life() -> None:
    observer = Observer()
    for sign in ({"held": True}, {"beats": True}):
        for _ in range(10):
            assert not observer.look()
        assert not observer.look(**sign)
    assert observer.looks_until_dead() == 10  # the look that noticed the beat has found the lock free


def test_lives_forget_what_a_lost_session_has_seen() -> None:
    observer = Observer()
    assert observer.looks_until_dead() == 11
    observer.lives.begin()
    assert not observer.lives.is_dead(ME, observer.now_s)
    assert observer.looks_until_dead() == 11


def test_lives_do_not_count_time_in_which_nobody_looked() -> None:
    """Whatever stopped this process for an hour may have stopped the owner, who will put its lock back."""
    observer = Observer()
    observer.look()
    assert not observer.look(after_s=3600.0)
    assert observer.looks_until_dead() == 10 - MAX_STEP_S


def test_lives_call_nobody_dead_while_looks_stall() -> None:
    """What the last look has seen may be over: the owner holds its lock again, and has started something."""
    observer = Observer()
    observer.looks_until_dead()
    observer.now_s += MAX_STEP_S
    assert observer.lives.is_dead(ME, observer.now_s)
    observer.now_s += 0.1
    assert not observer.lives.is_dead(ME, observer.now_s)
    assert observer.look(after_s=1.0), "and the next look tells"


def test_lives_take_a_dead_one_for_living_that_holds_its_lock_again() -> None:
    observer = Observer()
    observer.looks_until_dead()
    assert not observer.look(held=True)


def test_lives_forget_those_that_nobody_asks_about() -> None:
    observer = Observer()
    for _ in range(5402):
        observer.now_s += 2.0
        observer.lives.look(observer.now_s, set(), set())
    assert repr(observer.lives) == "<Lives 0 observed, 0 silent>"


def test_beats_are_new_by_their_rows() -> None:
    beats = Beats()
    assert beats.newest_id == LAST_ID
    assert beats.look({"a": 5, "b": 7}, 7) == {"a", "b"}  # nothing was known of them
    assert beats.look({"a": 5, "b": 7}, 7) == set()
    assert beats.look({"a": 9, "b": 7}, 9) == {"a"}
    assert beats.look({"a": 9, "b": 8}, 9) == {"b"}, "its row was committed after one with a greater id"
    assert beats.look({"a": 1}, 1) == {"a"}, "the table was emptied"


def test_lives_give_one_without_lock_as_long_as_until_tasks_grow_stale() -> None:
    """Nobody sees a lock of an instance behind a pooler, and its heartbeats are half a minute apart."""
    observer = Observer(silence_s=40.0)
    observer.without_lock.add(ME)
    for _ in range(5):
        assert not any(observer.look(beats=second == 0) for second in range(30))
    assert observer.looks_until_dead() == 40 - 29


def test_lives_give_one_that_had_no_lock_the_common_grace_later() -> None:
    observer = Observer(silence_s=40.0)
    observer.without_lock.add(ME)
    observer.look()
    observer.without_lock.clear()
    assert observer.looks_until_dead() == 10


@pytest.mark.parametrize("said", [None, "{}", '{"is_stopping":false,"tasks":[]}'])
def test_row_of_one_without_lock_says_so_beside_all_that_it_says(said: str | None) -> None:
    told = saying_no_lock(said)
    assert told.startswith('{"has_no_lock":true')
    assert json.loads(told) == {"has_no_lock": True, **json.loads(said or "{}")}

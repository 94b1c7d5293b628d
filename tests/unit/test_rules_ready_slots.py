"""Counted limits."""

import sys

import pytest

from taskmanager.rules.ready import Slots


def test_a_limit_is_full_when_as_many_run() -> None:
    slots = Slots(2)
    assert (slots.has_room, slots.free) == (True, 2)
    slots.take()
    slots.take()
    assert (slots.has_room, slots.free, slots.running) == (False, 0, 2)
    slots.give_back()
    assert (slots.has_room, slots.free, slots.running) == (True, 1, 1)


def test_no_limit_always_has_room() -> None:
    slots = Slots(None)
    slots.take()
    assert (slots.has_room, slots.free) == (True, sys.maxsize)


@pytest.mark.parametrize("limit", [None, 3])
def test_a_lower_cap_holds_for_as_long_as_it_is_set(limit: int | None) -> None:
    """A lane that cannot start as many as it may starts no more than the cap says."""
    slots = Slots(limit)
    slots.cap = 1
    assert (slots.has_room, slots.free) == (True, 1)
    slots.take()
    assert (slots.has_room, slots.free) == (False, 0)
    slots.cap = None
    assert slots.has_room


def test_above_the_limit_nothing_is_free() -> None:
    """A parent that goes on after its children may be counted before a slot is given back."""
    slots = Slots(1)
    slots.take()
    slots.take()
    assert (slots.has_room, slots.free, slots.running) == (False, 0, 2)
    slots.give_back()
    assert not slots.has_room


def test_giving_back_too_often_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="twice"):
        Slots(1).give_back()


def test_slots_tell_their_state() -> None:
    slots = Slots(100)
    slots.take()
    assert repr(slots) == "1 of 100 running"
    assert repr(Slots(None)) == "0 running, no limit"

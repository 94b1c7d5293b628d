"""What lists say of schedules, in the words that terminal and browser share."""

import pytest

from taskmanager.console.schedules import timing


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ("every 5 s", "every 5 s"),
        ("every 60 s", "every 1 min"),
        ("every 90 s", "every 90 s"),
        ("every 5400 s", "every 90 min"),
        ("every 3600 s", "every 1 h"),
        ("every 86400 s, jitter 600 s", "every 1 d, jitter 10 min"),
        ("every 3600.5 s", "every 3600.5 s"),
        ("0 7 * * mon UTC, jitter 120 s", "0 7 * * mon UTC, jitter 2 min"),
        ("every 0 s", "every 0 s"),
        ("nothing that is known", "nothing that is known"),
    ],
)
def test_timing_is_said_in_the_largest_unit_that_is_exact(definition: str, words: str) -> None:
    """Nobody divides 86400 by heart, and a rounded interval would not be the one that fires."""
    assert timing(definition) == words

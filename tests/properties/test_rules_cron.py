"""Cron expressions against a list of every minute of three years, in zones whose clocks change in every known way."""

import os
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmanager.model.clock import to_us
from taskmanager.rules.cron import Cron
from tests.properties.cron_scan import ZONES, Scan, ones, random_expression

EXPRESSIONS = int(os.environ.get("TASKMANAGER_CRON_EXPRESSIONS", "15"))
"""For each zone. `python -m tests.properties.cron_scan` asks far more questions."""
NEAR_CHANGE = 24 * 60
NEAR_SAMPLES = 16
FAR_SAMPLES = 40


def around_changes(scan: Scan, dice: random.Random) -> Callable[[bytes], Iterator[int]]:
    """Minutes around each change of the clocks, fires within a day of it, and some minutes from anywhere."""

    def minutes(fires: bytes) -> Iterator[int]:
        for change in scan.changes:
            yield from range(change - 150, change + 150, 30)
            first = change - NEAR_CHANGE
            near = list(ones(fires[first : change + NEAR_CHANGE]))
            yield from (first + place for place in near[:: 1 + len(near) // NEAR_SAMPLES])
        yield from (dice.randrange(scan.start, scan.stop) for _ in range(FAR_SAMPLES))

    return minutes


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
def test_the_next_fire_is_the_one_that_a_scan_of_every_minute_finds(zone: str) -> None:
    """For random expressions: fixed times once a day whatever the clocks do, steps at every real instant they match."""
    scan, dice = Scan(zone), random.Random(zone)
    cases = sum(scan.compare(random_expression(dice), around_changes(scan, dice)) for _ in range(EXPRESSIONS))
    assert cases > EXPRESSIONS * FAR_SAMPLES / 2


@given(st.randoms(use_true_random=False), st.sampled_from(ZONES), st.integers(0, 3 * 366 * 86_400 * 1_000_000))
def test_asked_with_its_own_answers_it_only_goes_forwards(dice: random.Random, zone: str, offset_us: int) -> None:
    """A scheduler that follows `after` neither stands still nor repeats, from any microsecond on."""
    cron = Cron(random_expression(dice).text, zone)
    instants = [to_us(datetime(2016, 1, 1, tzinfo=UTC)) + offset_us]
    for _ in range(8):
        following = cron.after(instants[-1])
        assert following is not None
        instants.append(following)
    assert all(earlier < later for earlier, later in pairwise(instants))

"""Cron expressions against a list of every minute of three years, in zones whose clocks change in every known way."""

import os
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmanager.model.clock import from_us, to_us
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


@pytest.mark.parametrize(
    ("expression", "zone", "since", "shown"),
    [
        # Days that a zone left out when it changed sides of the date line.
        ("30 2 * * *", "Pacific/Apia", "2011-12-29T00:00-10:00", "29 02:30, 31 00:00, 31 02:30"),
        ("0 */12 * * *", "Pacific/Apia", "2011-12-29T01:00-10:00", "29 12:00, 31 00:00, 31 12:00"),
        ("30 2 * * *", "Pacific/Kwajalein", "1993-08-20T00:00-12:00", "20 02:30, 22 00:00, 22 02:30"),
        # Midnight that does not exist, half an hour that exists twice, offsets of 45 minutes.
        ("0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00-03:00", "04 01:00, 05 00:00, 06 00:00"),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00+11:00", "05 01:45, 06 01:45, 07 01:45"),
        ("*/30 * * * *", "Australia/Lord_Howe", "2026-04-05T01:15+11:00", "05 01:30, 05 01:30, 05 02:00"),
        ("30 2 * * *", "Pacific/Chatham", "2026-09-26T12:00+12:45", "27 02:30, 28 02:30, 29 02:30"),
        # Seconds fall into one gap, and repeat no hour.
        ("*/20 30 2 * * *", "Europe/Berlin", "2026-03-28T12:00+01:00", "29 03:00, 30 02:30:00, 30 02:30:20"),
        ("*/20 30 2 * * *", "Europe/Berlin", "2026-10-25T02:30:20+02:00", "25 02:30:40, 26 02:30:00, 26 02:30:20"),
        ("0 0 29 2 *", "UTC", "2096-02-28T12:00+00:00", "29 00:00, 29 00:00, 29 00:00"),
    ],
)
def test_days_on_which_clocks_do_what_one_does_not_expect(expression: str, zone: str, since: str, shown: str) -> None:
    """The stated policy, to the letter: at the first instant after a gap, once, and in real time for steps."""
    cron, at_us = Cron(expression, zone), to_us(datetime.fromisoformat(since))
    for day_and_time in shown.split(", "):
        at_us = cron.after(at_us) or 0
        local = from_us(at_us).astimezone(ZoneInfo(zone))
        seconds = ":%S" if day_and_time.count(":") == 2 else ""
        assert local.strftime(f"%d %H:%M{seconds}") == day_and_time


def test_times_before_the_clocks_went_back_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second of the hour that exists twice lies behind; the next fire is found at once all the same."""
    cron, tried = Cron("0-59 0-59 0-23 * * *", "Europe/Berlin"), []
    exact = Cron._exact

    def noted(self: Cron, local: datetime) -> datetime | None:
        tried.append(local)
        return exact(self, local)

    monkeypatch.setattr(Cron, "_exact", noted)
    found = cron.after(to_us(datetime(2026, 10, 25, 1, 0, tzinfo=UTC)))
    assert found == to_us(datetime(2026, 10, 25, 2, 0, tzinfo=UTC))
    assert len(tried) == 2

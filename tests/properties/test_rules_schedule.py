"""What becomes of a schedule, for any timing, any policy and any moment: it goes forwards, and never in a burst."""

from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from taskmanager.rules.cron import Cron, cron_of
from taskmanager.rules.schedule import Hold, Move, Plan, Timing, Wait, judge, timing_of

SECOND_US = 1_000_000
START_US = 1_772_000_000 * SECOND_US  # some weeks before clocks change in Europe
CRONS = ("* * * * *", "*/7 * * * *", "30 2 * * *", "0 9-17 * * MON-FRI", "15,45 3 1,15 * *", "*/20 * * * * *")


@st.composite
def timings(draw: st.DrawFn) -> Timing:
    jitter_us = draw(st.sampled_from((0, 0, 3 * SECOND_US)))
    if draw(st.booleans()):
        return Timing("t", cron=None, every_us=draw(st.integers(4, 90_000)) * SECOND_US, jitter_us=jitter_us)
    cron = cron_of(draw(st.sampled_from(CRONS)), draw(st.sampled_from(("UTC", "Europe/Berlin"))))
    return Timing("t", cron=cron, every_us=None, jitter_us=jitter_us)


def like(timing: Timing) -> Timing:
    """The same timing, with nothing asked yet."""
    return Timing("t", cron=timing._cron, every_us=timing._every_us, jitter_us=timing.jitter_us)


def fires_until(timing: Timing, first: int, until: int, most: int) -> list[int]:
    """The plain way: one after the other."""
    found = [first]
    while len(found) <= most and (following := timing.after(found[-1], found[-1])) <= until:
        found.append(following)
    return found


@given(timings(), st.integers(0, 40 * 86_400))
def test_timing_read_from_its_words_fires_at_the_same_times(timing: Timing, seconds: int) -> None:
    """The file has the words alone, and the dashboard shows from them when a schedule fires."""
    found, at = timing_of("t", str(timing)), START_US + seconds * SECOND_US
    assert found is not None
    assert str(found) == str(timing)
    first = timing.after(at)
    assert (found.after(at), found.after(first, first)) == (first, timing.after(first, first))
    assert found.due(first) == timing.due(first)


@pytest.mark.parametrize("words", ["", "soon", "every 0 s", "every x s", "* * * * * Nowhere/At_All", "1 2 3 UTC"])
def test_words_that_are_no_timing_are_none(words: str) -> None:
    """Another version may have written the row; the page shows it without its fires."""
    assert timing_of("t", words) is None


@given(timings(), st.integers(0, 40 * 86_400), st.integers(1, 30))
def test_the_newest_fires_are_those_that_counting_finds(timing: Timing, seconds: int, count: int) -> None:
    """Found by halving, because a year of minutes cannot be counted while an application starts."""
    first = timing.after(START_US)
    fires = fires_until(timing, first, first + seconds * SECOND_US, 5_000)
    assume(len(fires) <= 5_000)
    assert timing.newest(first, first + seconds * SECOND_US, count) == fires[-count:][0]


@given(timings(), st.integers(1, 12), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 90_000)), min_size=1))
def test_remembered_fires_change_no_answer(timing: Timing, count: int, asked: list[tuple[int, int]]) -> None:
    """A timing remembers the newest fires of a backlog; whatever is asked for next, it answers as a new one would."""
    made = [timing, timing]
    fire = until = timing.after(START_US)
    for steps, seconds in asked:
        until += seconds * SECOND_US
        for _ in range(steps):
            fire = timing.after(fire, fire)
        until = max(until, fire)
        made[1] = like(timing)
        assert len({each.newest(fire, until, count) for each in made}) == 1
        assert len({each.last_due(fire, until) for each in made if timing.due(fire) <= until}) <= 1


class CountedCron(Cron):
    """How often it was asked."""

    count = 0

    def after(self, instant_us: int) -> int | None:
        self.count += 1
        return super().after(instant_us)


@pytest.mark.parametrize("expression", ["* * * * *", "*/10 9-17 * 2 MON-FRI"])
@pytest.mark.parametrize("most", [1, 100, 2_000])
def test_a_backlog_is_reckoned_once_and_not_with_each_of_its_runs(expression: str, most: int) -> None:
    """After a year of absence: what a run costs does not depend on how many are to be made up behind it."""
    cron = CountedCron(expression, "Europe/Berlin")
    plan = Plan(Timing("t", cron=cron, every_us=None), "all", most, "skip")
    next_run_at, runs, cron.count = plan.timing.after(START_US), 0, 0
    now = START_US + 365 * 86_400 * SECOND_US
    while isinstance(step := judge(plan, next_run_at, now, now, False), Move):
        next_run_at, runs = step.next_run_at, runs + 1
    assert 1 <= runs <= most
    assert cron.count <= 200 + 10 * runs


@given(
    timings(),
    st.sampled_from(("skip", "latest", "all")),
    st.sampled_from(("skip", "queue", "allow")),
    st.integers(1, 5),
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 200_000), st.booleans()), min_size=1, max_size=8),
)
@example(
    Timing("t", cron=None, every_us=4 * SECOND_US, jitter_us=3 * SECOND_US), "latest", "skip", 1, True, [(193, False)]
)
def test_a_schedule_only_goes_forwards_and_never_in_a_burst(
    timing: Timing, catch_up: Any, overlap: Any, most: int, watches: bool, looks: list[tuple[int, bool]]
) -> None:
    """Looked at in any rhythm, watched or not, busy or not: fires are due, in order, each at most once, and bounded."""
    plan = Plan(timing, catch_up, most, overlap)
    now, next_run_at = START_US, timing.after(START_US)
    fired: list[int] = []
    for seconds, is_busy in looks:
        now += seconds * SECOND_US
        at_this_look = 0
        while True:
            step = judge(plan, next_run_at, now, START_US if watches else now, is_busy)
            if isinstance(step, Wait):
                assert step.until_us == timing.due(next_run_at) > now
                break
            if isinstance(step, Hold):
                assert is_busy
                assert overlap != "allow"
                break
            assert isinstance(step, Move)
            assert step.next_run_at > next_run_at
            if step.fire_at is not None:
                assert next_run_at <= step.fire_at < step.next_run_at
                assert timing.due(step.fire_at) <= now
                assert not (is_busy and overlap != "allow")
                fired.append(step.fire_at)
                at_this_look += 1
            next_run_at = step.next_run_at
        assert at_this_look <= (most if catch_up == "all" else 1)
    assert fired == sorted(set(fired))


@given(timings(), st.integers(0, 10**12))
def test_jitter_stays_behind_its_fire_and_in_its_bound(timing: Timing, offset_us: int) -> None:
    """And is the same whoever asks."""
    fire = timing.after(START_US + offset_us)
    assert fire <= timing.due(fire) < fire + max(1, timing.jitter_us)
    assert timing.due(fire) == timing.due(fire)

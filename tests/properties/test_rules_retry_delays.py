"""Retry delays: inside their band, never above the cap, never an overflow."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmanager.model.config import RetryPolicy
from taskmanager.model.result import MAX_DELAY_S
from taskmanager.rules.retry import LONGEST_DELAY_S, RetryRule

DICE = st.floats(0, 1, exclude_max=True)
CAPS = st.one_of(st.none(), st.floats(1, 1e6))
POLICIES = st.one_of(
    st.lists(st.integers(1, 86_400), min_size=1, max_size=20).map(
        lambda each: RetryPolicy.fixed(each, auto_retry_for=["X"])
    ),
    st.builds(
        lambda base, count, jitter, cap: RetryPolicy.exponential(
            base_seconds=base, max_retries=count, auto_retry_for=["X"], jitter=jitter, max_delay_seconds=cap
        ),
        st.integers(1, 86_400),
        st.integers(1, 20),
        st.booleans(),
        CAPS,
    ),
)
SHORTHANDS = st.builds(
    RetryRule.shorthand,
    st.integers(0, 1_000_000),
    st.floats(0, MAX_DELAY_S),
    st.one_of(st.floats(1, 10), st.floats(1, 1e300)),
)


@pytest.mark.req("RP-09", "RP-12", "RP-16", "RP-17")
@given(POLICIES, st.integers(1, 20), DICE)
def test_a_delay_lies_within_a_quarter_of_the_plan(policy: RetryPolicy, number: int, dice: float) -> None:
    if policy.backoff_strategy == "exponential":
        planned = policy.intervals[0] * 2.0 ** (number - 1)
    else:
        planned = float(policy.intervals[min(number, len(policy.intervals)) - 1])
    cap = policy.max_delay_seconds
    planned = planned if cap is None else min(planned, cap)
    delay = RetryRule.from_policy(policy).delay_s(number, dice)
    if policy.jitter:
        assert 0.75 * planned * (1 - 1e-12) <= delay <= 1.25 * planned * (1 + 1e-12)
    else:
        assert delay == min(planned, LONGEST_DELAY_S)


@pytest.mark.req("RP-s3")
@given(st.one_of(POLICIES.map(RetryRule.from_policy), SHORTHANDS), st.integers(1, 10**30), DICE)
def test_no_number_of_retries_overflows_or_passes_the_cap(rule: RetryRule, number: int, dice: float) -> None:
    delay = rule.delay_s(number, dice)
    assert math.isfinite(delay)
    assert 0 <= delay <= (1.25 * LONGEST_DELAY_S if rule.max_delay_s is None else rule.max_delay_s)


@given(SHORTHANDS, st.sampled_from([1, 2_000_000, 10**400]), DICE)
def test_the_shorthand_waits_at_most_an_hour(rule: RetryRule, number: int, dice: float) -> None:
    assert 0 <= rule.delay_s(number, dice) <= 3_600


@given(st.one_of(POLICIES.map(RetryRule.from_policy), SHORTHANDS))
def test_a_rule_is_equal_after_its_way_through_a_row(rule: RetryRule) -> None:
    assert RetryRule.from_options(rule.to_options()) == rule


ODD: list[object] = [None, True, 0, -1, 3, 10**400, 0.0, 0.5, math.nan, math.inf, "", "X", [], ["X"], [0], [[]], {}]


@given(st.dictionaries(st.sampled_from(sorted(RetryRule.none().to_options())), st.sampled_from(ODD)), DICE)
def test_a_damaged_rule_never_raises(damage: dict[str, object], dice: float) -> None:
    whole = RetryRule.shorthand(3, 1.0, 2.0).to_options()
    rule = RetryRule.from_options({**whole, **damage})
    delay = rule.next_delay_s("X", 0, dice)
    assert delay is None or 0 <= delay <= 1.25 * LONGEST_DELAY_S

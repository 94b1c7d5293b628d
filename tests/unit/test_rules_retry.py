"""Retry rules: which failures run again, after how long, and how a rule survives in a row."""

import enum
import json
import math
from typing import Any

import pytest

from taskmanager.model.config import ExceptionMapper, RetryPolicy
from taskmanager.model.errors import ConfigurationError
from taskmanager.model.result import Subclasses, TaskError
from taskmanager.model.states import BuiltInTaskCode
from taskmanager.rules.retry import DEFAULT_INTERVALS, LONGEST_DELAY_S, RetryRule, code_of, with_retry_numbers

MIDDLE = 0.5  # the dice that change nothing
FIXED = RetryRule.from_policy(RetryPolicy.fixed([60, 300, 900], auto_retry_for=["TRANSIENT_ERROR"]))


def exponential(base: int = 30, count: int = 5, **more: Any) -> RetryRule:
    return RetryRule.from_policy(
        RetryPolicy.exponential(base_seconds=base, max_retries=count, auto_retry_for=["X"], **more)
    )


@pytest.mark.req("RP-02", "RP-09")
def test_fixed_delays_are_the_intervals() -> None:
    assert [FIXED.next_delay_s("TRANSIENT_ERROR", spent, MIDDLE) for spent in range(4)] == [60, 300, 900, None]


@pytest.mark.req("RP-12", "RP-13")
def test_exponential_doubles() -> None:
    assert [exponential().delay_s(number, MIDDLE) for number in range(1, 6)] == [30, 60, 120, 240, 480]


@pytest.mark.req("RP-16", "RP-17")
@pytest.mark.parametrize(("dice", "delay"), [(0.0, 45.0), (0.25, 52.5), (0.5, 60.0), (0.75, 67.5)])
def test_jitter_spreads_a_minute_evenly_over_45_to_75_seconds(dice: float, delay: float) -> None:
    assert exponential(base=60).delay_s(1, dice) == pytest.approx(delay)


@pytest.mark.req("RP-19")
def test_without_jitter_the_dice_do_not_matter() -> None:
    rule = exponential(base=60, jitter=False)
    assert {rule.delay_s(1, dice) for dice in (0.0, 0.3, 0.999)} == {60.0}


@pytest.mark.req("RP-21", "RP-38", "RP-56")
def test_only_listed_codes_are_retried() -> None:
    policy = RetryPolicy.exponential(
        base_seconds=60, max_retries=5, auto_retry_for=["RATE_LIMITED", "SERVICE_UNAVAILABLE"]
    )
    rule = RetryRule.from_policy(policy)
    assert rule.next_delay_s("RATE_LIMITED", 0, MIDDLE) == 60
    assert rule.next_delay_s("TIMEOUT", 0, MIDDLE) is None
    assert rule.next_delay_s("WORKER_CRASHED", 0, MIDDLE) is None


@pytest.mark.req("RP-23")
@pytest.mark.parametrize("named", ["WORKER_CRASHED", BuiltInTaskCode.WORKER_CRASHED])
def test_built_in_codes_match_however_they_are_spelt(named: str) -> None:
    rule = RetryRule.from_policy(RetryPolicy.fixed([1], auto_retry_for=[named]))
    assert rule.covers("WORKER_CRASHED")
    assert rule.covers(BuiltInTaskCode.WORKER_CRASHED)


@pytest.mark.req("RP-39")
def test_retries_end_at_the_maximum() -> None:
    assert exponential(count=2).next_delay_s("X", 1, MIDDLE) == 60
    assert exponential(count=2).next_delay_s("X", 2, MIDDLE) is None
    assert exponential(count=2).next_delay_s("X", 3, MIDDLE) is None


@pytest.mark.req("RP-s3")
def test_the_uncapped_maximum_of_a_policy_is_reached() -> None:
    assert exponential(base=86_400, count=20).delay_s(20, MIDDLE) == 86_400 * 2**19 == LONGEST_DELAY_S


@pytest.mark.req("RP-s3")
def test_the_floor_of_a_policy_holds_before_jitter() -> None:
    assert exponential(base=1).delay_s(1, 0.0) == 0.75


@pytest.mark.req("RP-18", "RP-s3")
def test_the_cap_holds_after_jitter_and_tasks_at_the_cap_still_spread() -> None:
    rule = exponential(base=60, max_delay_seconds=100)
    assert rule.delay_s(5, 0.999) == 100
    assert rule.delay_s(5, 0.0) == 75


@pytest.mark.req("RP-s4")
def test_past_the_last_fixed_interval_it_stays_there() -> None:
    assert FIXED.delay_s(50, MIDDLE) == 900


def test_the_shorthand_retries_any_failure_but_a_crash_or_a_cancellation() -> None:
    rule = RetryRule.shorthand(3, 1.0, 2.0)
    assert [rule.next_delay_s("ANY", spent, MIDDLE) for spent in range(4)] == [1, 2, 4, None]
    assert rule.covers("UNHANDLED_EXCEPTION")
    assert rule.covers(BuiltInTaskCode.TASK_TIMEOUT)
    assert not rule.covers("WORKER_CRASHED")
    assert not rule.covers("TASK_CANCELLED")


def test_the_shorthand_has_no_floor_and_an_hour_as_its_cap() -> None:
    assert RetryRule.shorthand(1, 0.01, 1).delay_s(1, MIDDLE) == 0.01
    assert RetryRule.shorthand(1, 0, 2).delay_s(1_000_000, MIDDLE) == 0
    assert RetryRule.shorthand(30, 1.0, 2.0).delay_s(30, 0.999) == 3_600


def test_no_retries_means_never() -> None:
    assert RetryRule.shorthand(0, 1.0, 2.0).next_delay_s("ANY", 0, MIDDLE) is None
    assert RetryRule.none().next_delay_s("ANY", 0, MIDDLE) is None


def test_the_shorthand_names_every_fault() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RetryRule.shorthand(-1, math.nan, 0.5)
    for part in ("retries", "retry_delay", "retry_backoff"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("retries", "delay", "backoff"),
    [
        (True, 1, 2),
        (1.0, 1, 2),
        (1_000_001, 1, 2),
        (1, -0.1, 2),
        (1, math.inf, 2),
        (1, "1", 2),
        (1, 1, math.inf),
        (1, 1, None),
        (1, 10**400, 2),
    ],
)
def test_the_shorthand_refuses(retries: Any, delay: Any, backoff: Any) -> None:
    with pytest.raises(ConfigurationError):
        RetryRule.shorthand(retries, delay, backoff)


RULES = [
    FIXED,
    exponential(max_delay_seconds=100),
    exponential(max_delay_seconds=math.inf),
    exponential(max_delay_seconds=10**400),
    RetryRule.shorthand(3, 0.5, 1.5),
    RetryRule.none(),
]


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_comes_back_from_a_row_equal(rule: RetryRule) -> None:
    stored = json.dumps(rule.to_options(), allow_nan=False)
    assert RetryRule.from_options(json.loads(stored)) == rule


CORRUPT: list[dict[str, Any]] = [
    {"codes": "X"},
    {"codes": [1]},
    {"max_retries": -1},
    {"max_retries": 10**9},
    {"max_retries": True},
    {"max_retries": None},
    {"factor": 0.5},
    {"factor": 10**400},
    {"factor": math.nan},
    {"min_delay_s": -1},
    {"max_delay_s": "1"},
    {"jitter": 1},
    {"is_exponential": None},
]


@pytest.mark.parametrize("change", CORRUPT)
def test_a_corrupt_rule_is_no_retry(change: dict[str, Any]) -> None:
    assert RetryRule.from_options({**FIXED.to_options(), **change}) == RetryRule.none()


@pytest.mark.parametrize("missing", [name for name in FIXED.to_options() if name != "intervals"])
def test_an_incomplete_rule_is_no_retry(missing: str) -> None:
    options = FIXED.to_options()
    del options[missing]
    assert RetryRule.from_options(options) == RetryRule.none()


@pytest.mark.parametrize("options", [None, {}, [], "x", 3])
def test_stored_options_that_are_no_rule_give_no_retry(options: Any) -> None:
    assert RetryRule.from_options(options) == RetryRule.none()


@pytest.mark.req("RP-s4")
@pytest.mark.parametrize("intervals", [None, [], "60", 60, [60, "x"], [-1], [math.nan]])
def test_corrupt_intervals_become_the_defaults(intervals: Any) -> None:
    rule = RetryRule.from_options({**FIXED.to_options(), "intervals": intervals})
    assert rule.intervals == DEFAULT_INTERVALS
    assert rule.max_retries == 3


@pytest.mark.req("RP-53")
def test_the_numbers_of_retries_join_what_the_task_put_there() -> None:
    numbers = {"count": 3, "max": 3, "exhausted": True}
    own = TaskError("X", "why", {"host": "a"})
    told = with_retry_numbers(own, count=3, maximum=3, exhausted=True)
    assert told == TaskError("X", "why", {"host": "a", "retry": numbers})
    assert own.data == {"host": "a"}
    assert with_retry_numbers(TaskError("X"), count=3, maximum=3, exhausted=True).data == {"retry": numbers}
    listed = TaskError("X", data=[1])  # type: ignore[arg-type]
    assert with_retry_numbers(listed, count=3, maximum=3, exhausted=True).data == {"data": [1], "retry": numbers}


@pytest.mark.req("RP-53", "RP-s6")
def test_the_numbers_of_retries_join_a_built_in_error_too() -> None:
    crashed = TaskError(BuiltInTaskCode.WORKER_CRASHED, "gone")
    told = with_retry_numbers(crashed, count=0, maximum=0, exhausted=False)
    assert (told.error_code, told.message) == ("WORKER_CRASHED", "gone")


class Base(Exception):
    pass


class Middle(Base):
    pass


class Leaf(Middle):
    pass


@pytest.mark.req("RP-26", "RP-31", "RP-32", "RP-33", "RP-34", "RP-35")
@pytest.mark.parametrize(
    ("task_mapper", "global_mapper", "task_default", "code"),
    [
        ({Leaf: "TASK"}, {Leaf: "GLOBAL"}, "DEFAULT", "TASK"),
        ({}, {Leaf: "GLOBAL"}, "DEFAULT", "GLOBAL"),
        (None, {Leaf: "GLOBAL"}, "DEFAULT", "GLOBAL"),
        ({ValueError: "TASK"}, {KeyError: "GLOBAL"}, "DEFAULT", "DEFAULT"),
        (None, None, None, "UNHANDLED_EXCEPTION"),
    ],
)
def test_the_order_of_resolution(task_mapper: Any, global_mapper: Any, task_default: str | None, code: str) -> None:
    assert code_of(Leaf, task_mapper, global_mapper, task_default, "UNHANDLED_EXCEPTION") == code


@pytest.mark.req("RP-27", "RP-37")
def test_a_plain_entry_matches_no_subclass() -> None:
    assert code_of(Leaf, {Middle: "TASK", Base: "TASK"}, {Exception: "GLOBAL"}, None, "NONE") == "NONE"


def test_a_subclasses_entry_matches_its_class_and_what_derives_from_it() -> None:
    mapper: ExceptionMapper = {Middle: Subclasses("MIDDLE")}
    assert code_of(Leaf, mapper, None, None, "NONE") == "MIDDLE"
    assert code_of(Middle, mapper, None, None, "NONE") == "MIDDLE"
    assert code_of(Base, mapper, None, None, "NONE") == "NONE"


def test_the_nearest_class_wins_and_the_exact_one_before_it() -> None:
    mapper: ExceptionMapper = {Base: Subclasses("BASE"), Middle: Subclasses("MIDDLE")}
    assert code_of(Leaf, mapper, None, None, "NONE") == "MIDDLE"
    assert code_of(Leaf, {**mapper, Leaf: "LEAF"}, None, None, "NONE") == "LEAF"
    assert code_of(Leaf, {Base: Subclasses("BASE"), Middle: "EXACT_MIDDLE"}, None, None, "NONE") == "BASE"


def test_the_tasks_own_subclasses_come_before_an_exact_global_entry() -> None:
    assert code_of(Leaf, {Base: Subclasses("TASK")}, {Leaf: "GLOBAL"}, None, "NONE") == "TASK"


def test_a_resolved_code_always_makes_an_error() -> None:
    class Own(str, enum.Enum):  # noqa: UP042  # the older spelling, whose str() is its name
        CODE = "OWN_CODE"

    assert TaskError(code_of(Leaf, None, None, None, "UNHANDLED_EXCEPTION")).error_code == "UNHANDLED_EXCEPTION"
    assert TaskError(code_of(Leaf, {Leaf: Own.CODE}, None, None, "NONE")).error_code == "OWN_CODE"


@pytest.mark.parametrize("jitter", [True, False])
def test_no_retry_of_a_policy_comes_sooner_than_in_a_second_before_jitter(jitter: bool) -> None:
    """An interval of nothing would be a busy loop, whatever the stored rule says."""
    rule = RetryRule.from_options({**FIXED.to_options(), "intervals": [0], "min_delay_s": 1.0, "jitter": jitter})
    assert rule.delay_s(1, 0.5) == 1.0


@pytest.mark.parametrize("cap", [math.inf, 10**400])
def test_a_cap_that_nothing_reaches_is_none(cap: float) -> None:
    """It could not be stored, and would cap nothing."""
    policy = RetryPolicy.exponential(base_seconds=1, max_retries=3, auto_retry_for=["X"], max_delay_seconds=cap)
    assert RetryRule.from_policy(policy).max_delay_s is None

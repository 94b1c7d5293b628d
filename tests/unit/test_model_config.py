"""Retry policies, queues and recovery settings: what is accepted, what is refused, and that every fault is named."""

import enum
import math
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from taskmanager.model.config import ExceptionMapper, QueueConfig, RecoveryConfig, RetryPolicy, mapper_faults
from taskmanager.model.errors import ConfigurationError, TaskManagerError
from taskmanager.model.result import Subclasses
from taskmanager.model.states import BuiltInTaskCode

CODES = ["TRANSIENT_ERROR"]


def policy(**changes: Any) -> RetryPolicy:
    return RetryPolicy(**{"auto_retry_for": CODES, **changes})


@pytest.mark.req("RP-03", "RP-s1")
def test_the_codes_are_required_and_may_not_be_empty() -> None:
    with pytest.raises(TypeError, match="auto_retry_for"):
        RetryPolicy()  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="at least one code"):
        policy(auto_retry_for=[])


@pytest.mark.req("RP-03")
def test_one_string_is_no_list_of_codes() -> None:
    with pytest.raises(ConfigurationError, match="not one string"):
        policy(auto_retry_for="TRANSIENT_ERROR")


@pytest.mark.req("RP-04", "RP-06", "RP-07", "RP-08")
def test_defaults() -> None:
    made = policy()
    assert (made.max_retries, made.intervals, made.backoff_strategy) == (3, (60, 300, 900), "fixed")
    assert made.jitter is True
    assert made.max_delay_seconds is None


@pytest.mark.req("RP-05", "RP-s1")
@pytest.mark.parametrize("count", [1, 20])
def test_retries_from_1_to_20_are_accepted(count: int) -> None:
    assert policy(max_retries=count, intervals=[1] * count).max_retries == count


@pytest.mark.req("RP-05", "RP-s1")
@pytest.mark.parametrize("count", [0, -1, 21, True, 3.0, "3", None])
def test_other_numbers_of_retries_are_refused(count: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_retries"):
        policy(max_retries=count, intervals=[1] * (count if type(count) is int else 3))


@pytest.mark.req("RP-s1", "RP-06")
@pytest.mark.parametrize("interval", [0, -1, 86_401, 1.5, True, "60", None, math.nan])
def test_intervals_outside_a_second_to_a_day_are_refused(interval: Any) -> None:
    with pytest.raises(ConfigurationError, match="intervals"):
        policy(max_retries=1, intervals=[interval])


@pytest.mark.req("RP-s1")
@pytest.mark.parametrize("interval", [1, 86_400])
def test_the_ends_of_the_interval_range_are_accepted(interval: int) -> None:
    assert policy(max_retries=1, intervals=[interval]).intervals == (interval,)


@pytest.mark.req("RP-07")
@pytest.mark.parametrize("strategy", ["linear", "FIXED", "", None, ["fixed"]])
def test_other_strategies_are_refused(strategy: Any) -> None:
    with pytest.raises(ConfigurationError, match="backoff_strategy"):
        policy(backoff_strategy=strategy)


@pytest.mark.req("RP-08")
@pytest.mark.parametrize("jitter", [1, None, "yes"])
def test_jitter_is_a_bool(jitter: Any) -> None:
    with pytest.raises(ConfigurationError, match="jitter"):
        policy(jitter=jitter)


@pytest.mark.req("RP-10", "RP-54")
@pytest.mark.parametrize("intervals", [[60, 300], [60, 300, 900, 900], []])
def test_fixed_needs_one_interval_per_retry(intervals: list[int]) -> None:
    with pytest.raises(ValueError, match="one interval per retry"):
        policy(max_retries=3, intervals=intervals)


@pytest.mark.req("RP-01", "RP-11")
def test_fixed_is_short_for_the_constructor() -> None:
    assert RetryPolicy.fixed([60, 300, 900], auto_retry_for=CODES) == RetryPolicy(
        max_retries=3, intervals=[60, 300, 900], backoff_strategy="fixed", auto_retry_for=CODES
    )


@pytest.mark.req("RP-14")
def test_exponential_is_short_for_the_constructor() -> None:
    assert RetryPolicy.exponential(base_seconds=30, max_retries=5, auto_retry_for=CODES) == RetryPolicy(
        max_retries=5, intervals=[30], backoff_strategy="exponential", auto_retry_for=CODES
    )


@pytest.mark.req("RP-15", "RP-55")
@pytest.mark.parametrize("intervals", [[60, 300, 900], []])
def test_exponential_needs_exactly_one_base(intervals: list[int]) -> None:
    with pytest.raises(ValueError, match="exactly one base interval"):
        policy(backoff_strategy="exponential", intervals=intervals)


@pytest.mark.req("RP-20")
def test_both_short_forms_take_jitter() -> None:
    assert RetryPolicy.fixed([1], auto_retry_for=CODES, jitter=False).jitter is False
    made = RetryPolicy.exponential(base_seconds=1, max_retries=1, auto_retry_for=CODES, jitter=False)
    assert made.jitter is False


@pytest.mark.req("RP-22", "RP-23", "RP-s6")
def test_own_codes_and_built_in_codes_are_accepted() -> None:
    made = policy(auto_retry_for=["RATE_LIMITED", "UNHANDLED_EXCEPTION", BuiltInTaskCode.WORKER_CRASHED])
    assert made.auto_retry_for == ("RATE_LIMITED", "UNHANDLED_EXCEPTION", "WORKER_CRASHED")
    assert {type(code) for code in made.auto_retry_for} == {str}


@pytest.mark.req("RP-22")
def test_members_of_a_string_enum_count_by_their_value() -> None:
    class Own(str, enum.Enum):  # noqa: UP042  # the older spelling, whose str() is its name
        LIMITED = "RATE_LIMITED"

    assert policy(auto_retry_for=[Own.LIMITED]).auto_retry_for == ("RATE_LIMITED",)


@pytest.mark.req("RP-24", "RP-s2")
@pytest.mark.parametrize(
    "code", ["rate_limited", "Rate", "1ST", "_X", "", "A B", "A-B", "A\n", "ÄRGER", 7, None, ValueError]
)
def test_codes_that_are_not_upper_snake_case_are_refused(code: Any) -> None:
    with pytest.raises(ConfigurationError, match="auto_retry_for"):
        policy(auto_retry_for=[code])


@pytest.mark.req("RP-24", "RP-s2")
@pytest.mark.parametrize("code", ["A", "X1", "A_B", "TIMEOUT_ERROR", "ERROR", "A__B_"])
def test_codes_that_only_look_odd_are_accepted(code: str) -> None:
    assert policy(auto_retry_for=[code]).auto_retry_for == (code,)


@pytest.mark.req("RP-25", "RP-s2")
@pytest.mark.parametrize("code", ["TimeoutError", "MyException", "HTTP2Error", "My_Error", "Exception0Exception"])
def test_names_of_exceptions_are_refused_with_a_hint(code: str) -> None:
    with pytest.raises(ConfigurationError, match="exception_mapper"):
        policy(auto_retry_for=[code])


@pytest.mark.req("RP-s1")
def test_unknown_fields_are_refused() -> None:
    with pytest.raises(TypeError, match="retries"):
        policy(retries=3)


@pytest.mark.req("RP-s3")
@pytest.mark.parametrize("cap", [0, 0.5, -1, math.nan, True, "60"])
def test_a_cap_below_a_second_is_refused(cap: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_delay_seconds"):
        policy(max_delay_seconds=cap)


def test_every_fault_of_a_policy_is_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        policy(auto_retry_for=["bad", "TimeoutError"], max_retries=99, intervals=[0], jitter="no", max_delay_seconds=0)
    for part in ("'bad'", "'TimeoutError'", "max_retries", "intervals", "jitter", "max_delay_seconds"):
        assert part in str(caught.value)


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        policy().max_retries = 5  # type: ignore[misc]


@pytest.mark.req("RP-28", "RP-s6")
def test_a_mapper_value_is_a_code_of_ones_own() -> None:
    good: ExceptionMapper = {TimeoutError: "TIMEOUT", OSError: Subclasses("IO"), ValueError: "UNHANDLED_EXCEPTION"}
    assert mapper_faults(good) == []
    assert mapper_faults(None) == []
    for value in ("timeout", "TimeoutError", "WORKER_CRASHED", Subclasses("WORKER_CRASHED"), 7):
        assert len(mapper_faults({TimeoutError: value})) == 1, value  # type: ignore[dict-item]
    assert len(mapper_faults({"TimeoutError": "TIMEOUT"})) == 1  # type: ignore[dict-item]


def test_a_queue_names_every_fault() -> None:
    with pytest.raises(ConfigurationError) as caught:
        QueueConfig(" ", priority=0, max_concurrency=0, max_pending=-1, scope="host")  # type: ignore[arg-type]
    for part in ("queue_name", "priority", "max_concurrency", "max_pending", "scope"):
        assert part in str(caught.value)
    assert QueueConfig("mail", priority=100).max_concurrency is None


@pytest.mark.req(
    "RC-05", "RC-06", "RC-07", "RC-08", "RC-09", "RC-10", "RC-11", "RC-12", "RC-13", "RC-15", "RC-16", "RC-17", "RC-18",
    "RC-19", "RC-20", "RC-s8", "HB-16", "HB-38",
)  # fmt: skip
def test_recovery_defaults() -> None:
    config = RecoveryConfig()
    assert config == RecoveryConfig(
        auto_requeue_stale_claimed=True,
        claimed_stale_threshold_ms=120_000,
        auto_fail_stale_running=True,
        running_stale_threshold_ms=300_000,
        finalizing_stale_threshold_ms=300_000,
        crashed_worker_recovery_grace_ms=10_000,
        check_interval_ms=30_000,
        runner_heartbeat_interval_ms=30_000,
        claimer_heartbeat_interval_ms=30_000,
        heartbeat_retention_hours=24,
        worker_state_retention_hours=168,
        terminal_record_retention_hours=720,
        worker_state_snapshot_interval_ms=30_000,
        retention_delete_batch_size=500,
    )


@pytest.mark.req("RC-21")
def test_the_basic_example_is_valid() -> None:
    RecoveryConfig(
        auto_requeue_stale_claimed=True,
        claimed_stale_threshold_ms=120_000,
        auto_fail_stale_running=True,
        running_stale_threshold_ms=300_000,
        check_interval_ms=30_000,
    )


@pytest.mark.req("RC-14")
def test_the_grace_may_be_zero() -> None:
    assert RecoveryConfig(crashed_worker_recovery_grace_ms=0).crashed_worker_recovery_grace_ms == 0


# Each with settings of its neighbours that leave only the range to judge.
SHORT_BEATS: dict[str, Any] = {"runner_heartbeat_interval_ms": 1_000, "claimer_heartbeat_interval_ms": 1_000}
LONG_THRESHOLDS = {
    "claimed_stale_threshold_ms": 3_600_000,
    "running_stale_threshold_ms": 7_200_000,
    "finalizing_stale_threshold_ms": 7_200_000,
}
RANGES = [
    pytest.param("claimed_stale_threshold_ms", 2_000, 3_600_000, SHORT_BEATS, marks=pytest.mark.req("RC-45")),
    pytest.param("running_stale_threshold_ms", 2_000, 7_200_000, SHORT_BEATS, marks=pytest.mark.req("RC-46")),
    pytest.param("finalizing_stale_threshold_ms", 2_000, 7_200_000, SHORT_BEATS, marks=pytest.mark.req("RC-s1")),
    pytest.param("crashed_worker_recovery_grace_ms", 0, 3_600_000, {}, marks=pytest.mark.req("RC-s1")),
    pytest.param("check_interval_ms", 1_000, 600_000, {}, marks=pytest.mark.req("RC-47")),
    pytest.param("runner_heartbeat_interval_ms", 1_000, 120_000, LONG_THRESHOLDS, marks=pytest.mark.req("RC-48")),
    pytest.param("claimer_heartbeat_interval_ms", 1_000, 120_000, LONG_THRESHOLDS, marks=pytest.mark.req("RC-48")),
    pytest.param("heartbeat_retention_hours", 1, 8_760, {}, marks=pytest.mark.req("RC-s2")),
    pytest.param("worker_state_retention_hours", 1, 8_760, {}, marks=pytest.mark.req("RC-s2")),
    pytest.param("terminal_record_retention_hours", 1, 43_800, {}, marks=pytest.mark.req("RC-s2")),
    pytest.param("worker_state_snapshot_interval_ms", 1_000, 300_000, {}, marks=pytest.mark.req("RC-s8")),
    pytest.param("retention_sweep_interval_s", 30, 86_400, {}, marks=pytest.mark.req("RC-s8")),
    pytest.param("retention_delete_batch_size", 50, 10_000, {}, marks=pytest.mark.req("RC-s8")),
    pytest.param("crash_budget", 1, 1_000, {}),
]


@pytest.mark.parametrize(("name", "low", "high", "beside"), RANGES)
def test_ranges_include_their_ends_and_nothing_beyond(name: str, low: int, high: int, beside: dict[str, Any]) -> None:
    for end in (low, high):
        assert getattr(RecoveryConfig(**{**beside, name: end}), name) == end
    refused: list[object] = [low - 1, high + 1, float(low), str(low), True]
    for value in refused:
        with pytest.raises(ConfigurationError, match=name):
            RecoveryConfig(**{**beside, name: value})


@pytest.mark.req("RC-45", "RC-46", "RC-s1")
@pytest.mark.parametrize(
    "name", ["claimed_stale_threshold_ms", "running_stale_threshold_ms", "finalizing_stale_threshold_ms"]
)
def test_one_second_is_in_the_range_of_a_threshold_and_less_is_not(name: str) -> None:
    """No heartbeat is short enough for a threshold of one second, so only the message tells the range."""
    with pytest.raises(ConfigurationError) as at_the_end:
        RecoveryConfig(**{**SHORT_BEATS, name: 1_000})
    assert "must be from" not in str(at_the_end.value)
    with pytest.raises(ConfigurationError, match=f"{name} must be from 1_000"):
        RecoveryConfig(**{**SHORT_BEATS, name: 999})


@pytest.mark.req("RC-43", "RC-44", "RC-49", "HB-39")
@pytest.mark.parametrize(
    ("threshold", "beat"),
    [
        ("running_stale_threshold_ms", "runner_heartbeat_interval_ms"),
        ("finalizing_stale_threshold_ms", "runner_heartbeat_interval_ms"),
        ("claimed_stale_threshold_ms", "claimer_heartbeat_interval_ms"),
    ],
)
def test_a_threshold_is_at_least_twice_its_heartbeat(threshold: str, beat: str) -> None:
    twice: dict[str, Any] = {threshold: 60_000, beat: 30_000}
    RecoveryConfig(**twice)
    with pytest.raises(ConfigurationError, match=f"{threshold} .* twice {beat}"):
        RecoveryConfig(**{**twice, threshold: 59_999})


@pytest.mark.req("RC-50", "HB-40")
def test_a_threshold_that_equals_its_heartbeat_is_a_value_error() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RecoveryConfig(runner_heartbeat_interval_ms=30_000, running_stale_threshold_ms=30_000)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TaskManagerError)


@pytest.mark.req("RC-51", "RC-52", "HB-41", "HB-42")
@pytest.mark.parametrize(("beat", "stale"), [(60_000, 600_000), (60_000, 300_000), (10_000, 30_000)])
def test_the_examples_for_heavy_and_quick_tasks_are_valid(beat: int, stale: int) -> None:
    RecoveryConfig(runner_heartbeat_interval_ms=beat, running_stale_threshold_ms=stale)


@pytest.mark.req("RC-38")
def test_the_grace_is_bound_to_no_heartbeat() -> None:
    RecoveryConfig(crashed_worker_recovery_grace_ms=1)


@pytest.mark.req("RC-s3")
def test_every_fault_of_the_recovery_settings_is_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RecoveryConfig(
            running_stale_threshold_ms=30_000,
            claimed_stale_threshold_ms=30_000,
            check_interval_ms=0,
            heartbeat_retention_hours=0,
            auto_fail_stale_running=1,  # type: ignore[arg-type]
        )
    for part in ("running_stale", "claimed_stale", "check_interval", "heartbeat_retention", "auto_fail_stale"):
        assert part in str(caught.value)


@pytest.mark.req("RC-60", "RC-61", "RC-18", "RC-19", "RC-20")
def test_retention_may_be_longer_or_switched_off() -> None:
    RecoveryConfig(
        heartbeat_retention_hours=48, worker_state_retention_hours=24 * 14, terminal_record_retention_hours=24 * 90
    )
    off = RecoveryConfig(
        heartbeat_retention_hours=None, worker_state_retention_hours=None, terminal_record_retention_hours=None
    )
    assert off.terminal_record_retention_hours is None


def test_only_retention_can_be_none() -> None:
    with pytest.raises(ConfigurationError, match="check_interval_ms"):
        RecoveryConfig(check_interval_ms=None)  # type: ignore[arg-type]


@pytest.mark.req("RC-62", "RC-64")
@pytest.mark.parametrize(("claimed", "running"), [(False, False), (True, False), (False, True)])
def test_the_two_switches_are_independent(claimed: bool, running: bool) -> None:
    config = RecoveryConfig(auto_requeue_stale_claimed=claimed, auto_fail_stale_running=running)
    assert (config.auto_requeue_stale_claimed, config.auto_fail_stale_running) == (claimed, running)

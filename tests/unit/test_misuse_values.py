"""Values of the wrong kind, parameter by parameter: refused at the call, by name, as `ConfigurationError`."""

import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from taskmanager import (
    ConfigurationError,
    QueueConfig,
    RecoveryConfig,
    RetryPolicy,
    Snooze,
    Task,
    TaskError,
    TaskManager,
)
from taskmanager.testing import isolated

CODES = ["TRANSIENT"]

# What newcomers give by mistake. A table names what is right or left to Python; everything else must be refused.
WRONG: Mapping[str, object] = {
    "none": None,
    "zero": 0,
    "number": 3,
    "negative": -1,
    "nan": math.nan,
    "inf": math.inf,
    "huge": 10**40,
    "true": True,
    "text": "x",
    "empty": "",
    "blank": " ",
    "control": "a\nb",
    "surrogate": "\ud800",
    "bytes": b"x",
    "list": [],
    "dict": {},
    "object": object(),
    "class": RetryPolicy,
    "naive": datetime(2030, 1, 1),  # that is the mistake
    "date": date(2030, 1, 1),
    "span": timedelta(1),
    "past-span": timedelta(-1),
}

SECONDS = "zero number span"
POSITIVE = "number span"
NUMBER = "number"
FLAG = "true"
TEXT = "text"


async def work(n: int = 1) -> int:
    """A task."""
    return n


def a_manager(**options: Any) -> object:
    return TaskManager(**{"snapshot_db": "never-opened.db", **options})


def a_task(**options: Any) -> object:
    return TaskManager("never-opened.db").task(**options)(work)


def a_short_policy(**options: Any) -> object:
    return a_task(retries=1, **options)


def a_call(**options: Any) -> object:
    task: Task[..., Any] = TaskManager("never-opened.db").task(work)
    return task.with_options(**options).enqueue(1)


def a_cron(**options: Any) -> object:
    return TaskManager("never-opened.db").schedule(**{"cron": "0 3 1 * *", **options})(work)


def an_interval(**options: Any) -> object:
    return TaskManager("never-opened.db").schedule(**{"every": 60, **options})(work)


def a_policy(**options: Any) -> object:
    return RetryPolicy(**{"auto_retry_for": CODES, "max_retries": 1, "intervals": [1], **options})


def fixed(intervals: Any) -> object:
    return RetryPolicy.fixed(intervals, auto_retry_for=CODES)


def exponential(**options: Any) -> object:
    return RetryPolicy.exponential(**{"base_seconds": 1, "max_retries": 1, "auto_retry_for": CODES, **options})


def a_queue(**options: Any) -> object:
    return QueueConfig(**{"name": "mail", **options})


# Per parameter: what is accepted of the above. A path may be nearly any text, and a set of codes is a list of them.
ACCEPTED: Mapping[Callable[..., object], Mapping[str, str]] = {
    a_manager: {
        "snapshot_db": "none text control",
        "snapshot_interval": NUMBER,
        "commit_interval": "zero number",
        "requeue_pending": FLAG,
        "synchronous": "",
        "concurrency": "number huge",
        "threads": "none number huge",
        "processes": "none number huge",
        "queues": "list",
        "max_pending": "none number huge",
        "max_in_memory": "number huge",
        "retry_policy": "none",
        "exception_mapper": "none dict",
        "default_unhandled_error_code": "",
        "recovery": "",
        "codec": "none",
        "drain_timeout": "zero number",
        "store_poll": NUMBER,
        "instance_name": "none text empty blank control",
    },
    a_task: {
        "name": "none text",
        "persist": "none true",
        "requeue_on_interrupt": FLAG,
        "retries": "none zero number",
        "retry_delay": "true",  # its default
        "retry_backoff": "",
        "retry_policy": "none",
        "exception_mapper": "none dict",
        "default_unhandled_error_code": "none",
        "queue_name": TEXT,
        "priority": NUMBER,
        "timeout": f"none {POSITIVE}",
        "executor": "none",
    },
    a_short_policy: {"retry_delay": SECONDS, "retry_backoff": "number huge"},
    a_call: {
        "delay": f"none {SECONDS}",
        "run_at": "none",
        "good_until": "none",
        "priority": "none number",
        "queue_name": "none text",
        "timeout": f"none {POSITIVE}",
        "idempotency_key": "none text blank control",
        "tags": "none dict",
    },
    a_cron: {
        "cron": "",
        "timezone": "none",
        "name": "none text",
        "args": "",
        "kwargs": "none dict",
        "catch_up": "",
        "max_catch_up_runs": NUMBER,
        "overlap": "",
        "run_on_startup": FLAG,
        "jitter": SECONDS,
    },
    an_interval: {"every": POSITIVE},
    a_policy: {
        "auto_retry_for": "",
        "max_retries": "",
        "intervals": "",
        "backoff_strategy": "",
        "jitter": FLAG,
        "max_delay_seconds": "none number inf huge",
    },
    exponential: {"base_seconds": NUMBER, "max_retries": NUMBER, "auto_retry_for": "", "jitter": FLAG},
    a_queue: {
        "name": TEXT,
        "priority": NUMBER,
        "max_concurrency": "none number",
        "max_pending": "none number",
        "scope": "",
    },
}
CASES = [
    pytest.param(make, name, accepted.split(), id=f"{make.__name__}-{name}")
    for make, table in ACCEPTED.items()
    for name, accepted in table.items()
]


@pytest.mark.parametrize(("make", "name", "accepted"), CASES)
def test_a_value_of_the_wrong_kind_is_refused_by_name(
    make: Callable[..., object], name: str, accepted: list[str]
) -> None:
    """One line that says which parameter, what it takes and what was given; nothing of ours by its inner name."""
    for kind, value in WRONG.items():
        if kind in accepted:
            make(**{name: value})
            continue
        with pytest.raises(ConfigurationError) as caught:
            make(**{name: value})
        text = str(caught.value)
        assert name in text, (kind, text)
        assert "\n" not in text, text
        assert not any(inner in text for inner in ("TaskOptions", "ScheduleOptions", "Settings", "__init__")), text


@pytest.mark.parametrize("value", [None, 3, "60", b"x", {}, object(), timedelta(1)])
def test_the_intervals_of_the_short_form_are_a_list(value: object) -> None:
    """`RetryPolicy.fixed(60)` is one bracket away from right."""
    with pytest.raises(ConfigurationError, match="intervals must be a list of seconds"):
        fixed(value)


@pytest.mark.parametrize(
    "path", ["sqlite:///tasks.db", ":memory:", "file:tasks.db?mode=ro", "", "~/tasks.db", "tasks\0.db", b"t.db"]
)
def test_a_value_that_is_no_path_is_no_database(path: Any) -> None:
    """`:memory:` would be a file of that name, and an empty path the current directory."""
    with pytest.raises(ConfigurationError, match="snapshot_db .* None"):
        TaskManager(path)


@pytest.mark.parametrize("option", ["retry_delay", "retry_backoff"])
def test_a_delay_without_retries_means_nothing(option: str) -> None:
    """Also beside a full policy, which has delays of its own."""
    for beside in ({}, {"retry_policy": RetryPolicy(auto_retry_for=CODES)}):
        with pytest.raises(ConfigurationError, match=f"{option} means nothing without retries="):
            a_task(**{option: 5}, **beside)


def test_a_fault_is_said_once() -> None:
    """And all faults of a call together."""
    with pytest.raises(ConfigurationError) as caught:
        a_task(retries="3")
    assert str(caught.value).count("retries") == 1
    with pytest.raises(ConfigurationError) as caught:
        a_call(delay=-1, priority=0, tags=3)
    assert all(name in str(caught.value) for name in ("delay", "priority", "tags"))


@pytest.mark.parametrize("seconds", [None, -1, math.nan, math.inf, True, "3", timedelta(-1)])
def test_a_snooze_takes_seconds(seconds: Any) -> None:
    """In the task, where it is made."""
    with pytest.raises(ConfigurationError, match="Snooze must be"):
        Snooze(seconds)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((None,), "error_code"),
        ((404,), "error_code"),
        ((ValueError("x"),), "error_code"),
        (("RATE_LIMITED", ValueError("x")), r"str\(exc\)"),
        (("RATE_LIMITED", None), "message"),
        (("TASK_TIMEOUT",), "BuiltInTaskCode.TASK_TIMEOUT"),
    ],
)
def test_an_error_has_a_code_and_a_text(arguments: tuple[Any, ...], words: str) -> None:
    """An exception in the place of either is what people write first."""
    with pytest.raises(ConfigurationError, match=words):
        TaskError(*arguments)


@pytest.mark.anyio
async def test_an_instant_at_the_end_of_the_calendar_is_one() -> None:
    """Whatever its zone: "for ever" in New York is in the year 10,000 of UTC, and the record must stay readable."""
    west, east = timezone(timedelta(hours=-12)), timezone(timedelta(hours=14))
    manager = TaskManager(None)
    task = manager.task(name="for ever")(work)
    async with isolated(manager):
        for zone in (UTC, west, east):
            first, last = (each.replace(tzinfo=zone) for each in (datetime.min, datetime.max))
            handle = task.with_options(run_at=first, good_until=last).enqueue()
            await handle
            waits = task.with_options(run_at=last, good_until=last).enqueue()
            assert (await handle.info()).good_until == (await waits.info()).enqueued_at
            assert waits.cancel()
        assert len(await manager.list()) == 6


@pytest.mark.parametrize("flag", ["auto_requeue_stale_claimed", "auto_fail_stale_running"])
def test_a_switch_is_true_or_false(flag: str) -> None:
    """`"no"` would mean yes."""
    for value in (None, 0, 1, "no"):
        with pytest.raises(ConfigurationError, match=flag):
            RecoveryConfig(**{flag: value})  # type: ignore[arg-type]  # that is the mistake

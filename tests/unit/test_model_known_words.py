"""Unknown option names: all of them in one refusal, each with what it is called here."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from taskmanager import QueueConfig, RecoveryConfig, RetryPolicy, TaskManager, task
from taskmanager.model.known_words import _options
from taskmanager.model.meant_words import _NEIGHBOURS, _PLACES

manager = TaskManager(None)


@manager.task
async def work() -> None: ...


def queue(**options: Any) -> QueueConfig:
    return QueueConfig("mail", **options)


def policy(**options: Any) -> RetryPolicy:
    return RetryPolicy(auto_retry_for=["RATE_LIMITED"], **options)


def fixed(**options: Any) -> RetryPolicy:
    return RetryPolicy.fixed([1], auto_retry_for=["RATE_LIMITED"], **options)


free: Any = task
options: Any = work.with_options
CALLS: dict[str, Callable[..., Any]] = {
    "TaskManager()": TaskManager,
    "QueueConfig()": queue,
    "RecoveryConfig()": RecoveryConfig,
    "RetryPolicy()": policy,
    "task()": free,
    "with_options()": options,
    "schedule()": manager.schedule,
}


def refusal(subject: str, *words: str) -> str:
    with pytest.raises(TypeError) as refused:
        CALLS[subject](**dict.fromkeys(words, 3))
    return str(refused.value)


@pytest.mark.parametrize(
    ("subject", "words", "meant"),
    [
        # A slip of the finger, another style of writing, and the words of other systems.
        ("TaskManager()", ["concurency"], ["'concurrency'"]),
        ("TaskManager()", ["maxPending", "MAX_IN_MEMORY"], ["'max_pending'", "'max_in_memory'"]),
        ("TaskManager()", ["max_workers", "db_path"], ["concurrency=", "threads=", "processes=", "snapshot_db"]),
        ("TaskManager()", ["broker", "backend"], ["snapshot_db"]),
        ("TaskManager()", ["max_jobs", "max_tries", "poll_delay"], ["concurrency=", "retry_policy=", "'store_poll'"]),
        ("TaskManager()", ["immediate", "jobstores"], ["taskmanager.testing.isolated", "snapshot_db"]),
        ("TaskManager()", ["queue", "shutdown_grace_period"], ["queues=[QueueConfig(", "'drain_timeout'"]),
        ("QueueConfig()", ["concurrency_limit", "limit"], ["'max_concurrency'"]),
        ("QueueConfig()", ["global_limit", "maxsize"], ['scope="file"', "'max_pending'"]),
        ("RecoveryConfig()", ["result_expires", "rescue_after"], ["'terminal_record_retention_hours'", "stale"]),
        ("RetryPolicy()", ["max_attempts", "default_retry_delay"], ["'max_retries'", "base_seconds="]),
        ("RetryPolicy()", ["autoretry_for", "retry_backoff_max"], ["'auto_retry_for'", "'max_delay_seconds'"]),
        ("task()", ["max_retries", "queue", "time_limit"], ["'retries'", "'queue_name'", "'timeout'"]),
        ("task()", ["countdown", "unique"], ["with_options(delay=", "with_options(idempotency_key="]),
        ("with_options()", ["eta", "queueing_lock", "defer_by"], ["'run_at'", "'idempotency_key'", "'delay'"]),
        ("schedule()", ["crontab", "tz", "misfire_grace_time"], ["'cron'", "'timezone'", "'catch_up'"]),
        # An option that there is, of something else.
        ("TaskManager()", ["check_interval_ms"], ["recovery=RecoveryConfig(check_interval_ms=...)"]),
        ("TaskManager()", ["max_delay_seconds"], ["RetryPolicy(max_delay_seconds=...)"]),
        ("QueueConfig()", ["requeue_on_interrupt"], ["@manager.task(requeue_on_interrupt=...)"]),
        ("task()", ["cron"], ["@manager.schedule(cron=...)"]),
        ("with_options()", ["retries"], ["@manager.task(retries=...)"]),
    ],
)
def test_all_unknown_words_are_named_with_what_was_meant(subject: str, words: list[str], meant: list[str]) -> None:
    """One refusal shows every wrong word, in the words of the system that somebody comes from too."""
    said = refusal(subject, *words)
    assert said.startswith(f"{subject} has no option ")
    assert all(f"no option {word!r}; did you mean " in said for word in words), said
    assert all(word in said for word in meant), said


def test_words_that_nobody_can_guess_get_the_list() -> None:
    """They stand together at the end, so that the list is shown once."""
    said = refusal("QueueConfig()", "zzz", "limit", "qqq")
    assert said == (
        "QueueConfig() has no option 'limit'; did you mean 'max_concurrency'? It has no option 'zzz' or 'qqq'; there "
        "are name, priority, max_concurrency, max_pending, scope"
    )


def test_a_short_form_names_the_full_one_for_what_it_lacks() -> None:
    """`RetryPolicy.fixed` has one retry per interval; the advice must not be refused in its turn."""
    with pytest.raises(TypeError, match="did you mean RetryPolicy\\(max_retries=...\\)"):
        fixed(max_attempts=3)


def test_every_advice_names_what_there_is() -> None:
    """The table is checked against the signatures: an option that is renamed takes its advice along."""
    known = set().union(*_options.values())
    for subject, table in _NEIGHBOURS.items():
        assert subject in _PLACES
        for ours, theirs in table.items():
            subject_of_advice = ours.split("=")[0].split(",")[0].split("(")[0].split(".")[0].strip("@")
            assert subject_of_advice in known | {
                "with_options", "manager", "QueueConfig", "RetryPolicy", "taskmanager", "current_task",
                "the recipe for a rate",
            }, ours  # fmt: skip
            words = theirs.split()
            assert words == sorted(set(words)), f"{subject} {ours}: sorted, each once"
            assert not set(words) & set(_options[subject]), f"{subject} has these itself"
        every = [word for theirs in table.values() for word in theirs.split()]
        assert len(every) == len(set(every)), f"{subject}: {sorted({w for w in every if every.count(w) > 1})}"


@pytest.mark.parametrize("subject", CALLS)
def test_signatures_stay_visible(subject: str) -> None:
    """Editors, `help` and Sphinx show names and defaults, not `*args, **kwargs`."""
    call = {"QueueConfig()": QueueConfig, "RetryPolicy()": RetryPolicy}.get(subject, CALLS[subject])
    parameters = inspect.signature(call).parameters
    named = {name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}
    assert set(_options[subject]) - named <= {"snapshot_db", "name"}
    assert all(each.kind is not each.VAR_KEYWORD for each in parameters.values())
    assert inspect.signature(RecoveryConfig).parameters["crash_budget"].default == 3
    assert inspect.signature(manager.task).parameters["retry_delay"].default == 1.0

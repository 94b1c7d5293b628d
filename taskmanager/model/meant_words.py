"""Says which option was meant by a word that a callable does not know.

People who come from other systems use the words of those systems, so the table below says what each of these words is
called here.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final

Options = Mapping[str, Sequence[str]]
"""The names of the options of each callable."""

_FILE: Final = "snapshot_db, the first argument"
_POLICY: Final = "retry_policy=RetryPolicy(...), or retries= of a task"
_RATE: Final = "the recipe for a rate, docs/recipes.md#at-most-five-per-second"
_EXPONENTIAL: Final = "intervals=, or RetryPolicy.exponential(base_seconds=...)"

_NEIGHBOURS: Final[Mapping[str, Mapping[str, str]]] = {
    "TaskManager()": {
        _FILE: "app backend backend_url broker broker_url connection connection_string connector data_store database"
        " database_url db db_file db_path db_url dsn file filename host jobstore jobstores path redis"
        " redis_settings redis_url repo result_backend sqlite_path storage store uri url",
        "concurrency= (async tasks), threads= or processes=": "concurrency_limit concurrent_tasks executor executors"
        " limit max_concurrency max_concurrent max_concurrent_jobs max_concurrent_tasks max_instances max_jobs"
        " max_parallel max_tasks max_workers n_workers num_workers parallelism pool pool_size worker_concurrency"
        " worker_count workers",
        "threads": "max_threads n_threads num_threads thread_count thread_limit thread_pool_size worker_threads",
        "processes": "max_processes n_processes num_processes process_count process_limit worker_processes",
        _POLICY: "attempts autoretry_for backoff default_retry_delay max_attempts max_retries max_tries retries retry"
        " retry_backoff retry_delay retry_jobs retry_strategy tries",
        "requeue_pending=True": "acks_late durable persist persistent requeue requeue_on_interrupt",
        "drain_timeout": "grace_period graceful_timeout job_completion_wait shutdown_grace_period shutdown_timeout"
        " stop_timeout",
        "timeout= of a task, or drain_timeout= for the stop": "job_timeout task_time_limit task_timeout time_limit"
        " timeout",
        "queues=[QueueConfig(...)]": "default_queue queue queue_name queue_names task_queues",
        "max_pending": "backlog max_backlog max_length max_queue_size max_queued max_size maxsize queue_size",
        "store_poll": "fetch_poll_interval poll_delay poll_interval polling_interval",
        "snapshot_interval= or commit_interval=": "autosave flush_interval save_interval sync_interval",
        "codec": "encoder job_serializer json_dumps result_serializer serializer task_serializer",
        "recovery=RecoveryConfig(terminal_record_retention_hours=...)": "history_retention keep_result max_age prune"
        " result_expires result_ttl retention retention_days retention_hours",
        "recovery=RecoveryConfig(...)": "heartbeat heartbeat_interval recover recovery_config stale_after"
        " visibility_timeout",
        "instance_name": "hostname name node worker_name",
        "timezone= of @manager.schedule": "enable_utc timezone tz utc",
        "taskmanager.testing.isolated(manager)": "always_eager eager immediate task_always_eager testing",
        "exception_mapper": "error_map error_mapper exceptions on_error",
    },
    "QueueConfig()": {
        "name, the first argument": "queue queue_name",
        "max_concurrency": "concurrency concurrency_limit concurrent limit local_limit max_concurrent max_instances"
        " max_jobs max_parallel max_running max_tasks max_workers parallelism size threads worker_concurrency"
        " workers",
        'max_concurrency= with scope="file"': "cluster_limit cluster_wide_cap global_concurrency global_limit",
        "max_pending": "backlog capacity max_backlog max_length max_queue_size max_queued max_size maxlen maxsize"
        " queue_size",
        "manager.pause(queue_name)": "paused",
        _RATE: "max_rate rate rate_limit",
    },
    "RecoveryConfig()": {
        "terminal_record_retention_hours": "history_retention keep_result max_age prune_after result_expires result_ttl"
        " retention retention_days retention_hours task_retention_hours",
        "runner_heartbeat_interval_ms= and claimer_heartbeat_interval_ms=": "heartbeat heartbeat_interval"
        " heartbeat_interval_ms heartbeat_interval_s",
        "running_stale_threshold_ms= and claimed_stale_threshold_ms=": "rescue_after stale_after stale_threshold"
        " stale_threshold_ms stalled_after threshold_ms visibility_timeout",
        "check_interval_ms": "interval interval_ms poll_interval reaper_interval recovery_interval",
        "crash_budget": "max_crashes max_stalled_count",
    },
    "RetryPolicy()": {
        "max_retries": "attempts limit max_attempts max_tries retries retry retry_count stop total tries",
        _EXPONENTIAL: "backoff_base backoff_factor base base_delay base_seconds countdown default_retry_delay delay"
        " delay_seconds exponential_wait factor initial_delay interval interval_seconds linear_wait min_backoff"
        " multiplier retry_backoff retry_delay wait wait_initial",
        "backoff_strategy": "backoff kind retry_strategy strategy",
        "max_delay_seconds": "cap max_backoff max_delay max_interval max_wait retry_backoff_max wait_max",
        "jitter": "retry_jitter wait_jitter",
        "auto_retry_for": "autoretry_for codes dont_autoretry_for error_codes errors exceptions on retry_exceptions"
        " retry_for retry_on retry_when throws",
    },
    "task()": {
        "retries": "attempts max_attempts max_retries max_tries retry retry_count total_attempts tries",
        "retry_policy=RetryPolicy(auto_retry_for=...)": "autoretry_for retry_config retry_exceptions retry_for"
        " retry_jitter retry_on retry_strategy retry_when throws",
        "retry_policy=RetryPolicy(max_delay_seconds=...)": "max_backoff max_delay retry_backoff_max",
        "retry_delay": "default_retry_delay min_backoff retry_interval retry_wait",
        "retry_backoff": "backoff backoff_factor",
        "queue_name": "channel queue routing_key",
        "persist": "durability durable persistent save store",
        "requeue_on_interrupt": "acks_late idempotent reject_on_worker_lost safe_to_repeat",
        "timeout": "execution_timeout job_timeout max_execution_time max_runtime soft_time_limit task_timeout"
        " time_limit",
        "executor": "executor_type lane mode pool process run_in runner thread",
        "on_failure": "dead_letter errback link_error on_error on_exception",
        "name": "actor_name id job_name task_id task_name",
        "with_options(delay=...) at the call": "countdown defer_by delay",
        "with_options(run_at=...) at the call": "defer_until eta run_at schedule_at scheduled_at",
        "with_options(idempotency_key=...) at the call": "job_id key lock queueing_lock unique",
        "with_options(good_until=...) at the call": "deadline expire expires max_age ttl",
        "with_options(tags=...) at the call": "labels meta metadata tag tags",
        "QueueConfig(max_concurrency=...) for its queue": "concurrency concurrency_limit limit max_concurrency"
        " max_concurrent max_instances max_workers",
        '@manager.schedule(cron="...") above @manager.task': "crontab periodic schedule",
        _RATE: "max_rate rate rate_limit throttle",
        "current_task() inside the function": "bind context pass_context",
    },
    "with_options()": {
        "delay": "countdown defer_by delay_seconds in_seconds schedule_in start_in wait",
        "run_at": "at defer_until eta run_date schedule schedule_at scheduled_at start_at when",
        "good_until": "deadline expire expires expires_at max_age ttl valid_until",
        "queue_name": "channel queue routing_key",
        "timeout": "job_timeout soft_time_limit time_limit",
        "idempotency_key": "dedup_key dedupe_key id job_id key lock message_id queueing_lock task_id unique unique_key",
        "tags": "headers labels meta metadata tag",
    },
    "schedule()": {
        "cron": "crontab expr expression rrule trigger",
        "every": "delta frequency interval period run_every seconds",
        "every= with timedelta(...), or cron=": "day day_of_week days hour hours minute minutes month second week weeks"
        " year",
        "timezone": "tz tzinfo utc",
        "name": "id job_id key schedule_id",
        "catch_up": "coalesce misfire_grace_time misfire_policy missed",
        "overlap": "allow_overlap concurrent max_instances max_running_jobs unique",
        "run_on_startup": "immediate run_at_startup run_immediately run_now",
        "args": "arguments",
    },
}
"""For each callable: the name of an option here, and the words of other systems for it."""

_PLACES: Final = {
    "TaskManager()": "TaskManager({}=...)",
    "RetryPolicy()": "RetryPolicy({}=...)",
    "QueueConfig()": "queues=[QueueConfig({}=...)]",
    "RecoveryConfig()": "recovery=RecoveryConfig({}=...)",
    "task()": "@manager.task({}=...)",
    "with_options()": "task.with_options({}=...)",
    "schedule()": "@manager.schedule({}=...)",
}
_NEARNESS: Final = 0.8
"""Words that are less similar than this only look alike, such as `retention` and `recovery`."""


def said_of(unknown: Iterable[str], subject: str, options: Options) -> str:
    """Return what is wrong with these words, after "TaskManager() has "."""
    meant = {word: _meant(word, subject, options) for word in unknown}
    sentences = [f"no option {word!r}{advice}" for word, advice in meant.items() if advice]
    lost = " or ".join(repr(word) for word, advice in meant.items() if not advice)
    if lost:
        sentences.append(f"no option {lost}; there are {', '.join(options[subject])}")
    return " It has ".join(sentences)


def _meant(word: str, subject: str, options: Options) -> str:
    """Return `; did you mean ...?`, or an empty text if nothing is similar enough."""
    advice, spelled = _advice(subject, options), _spelled(word)
    near = [spelled] if spelled in advice else get_close_matches(spelled, advice, n=1, cutoff=_NEARNESS)
    return f"; did you mean {advice[near[0]]}?" if near else ""


def _advice(subject: str, options: Options) -> dict[str, str]:
    """Return what to write here for each word. Words are options of this call or others, and words of other systems."""
    known = options[subject]
    place = re.sub(r"\.\w+", "", subject)  # RetryPolicy.fixed has the words of RetryPolicy
    found = {_spelled(name): repr(name) for name in known}
    for ours, theirs in _NEIGHBOURS.get(place, {}).items():
        form = repr(ours) if ours in known else _PLACES[place] if ours in options[place] else ours
        for word in theirs.split():
            found.setdefault(_spelled(word), form.format(ours))
    for other, form in _PLACES.items():
        for name in options.get(other, ()):
            found.setdefault(_spelled(name), form.format(name))
    return found


def _spelled(word: str) -> str:
    """Return one spelling for max_workers, maxWorkers and MAXWORKERS."""
    return word.replace("_", "").lower()

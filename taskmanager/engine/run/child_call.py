"""The call of one attempt in a child process: what is sent, what the child reports, and what its end means."""

from typing import Any

from taskmanager.engine.run.child import ChildCall, ChildReply, News
from taskmanager.engine.run.lanes import BrokenProcess
from taskmanager.engine.words.attempt import Attempt
from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.outcome import Outcome, extra_of, failure_in_words, outcome_of
from taskmanager.model.logger import logger
from taskmanager.model.result import TaskError, trusted_code
from taskmanager.model.states import BuiltInTaskCode
from taskmanager.model.wording import counted


def child_call(
    attempt: Attempt, args: tuple[Any, ...], kwargs: dict[str, Any], step: Definition | None = None
) -> ChildCall:
    """Return what a child is sent to run this attempt, or a step of it that is the function of another task."""
    live = attempt.live
    definition = step or live.definition
    return ChildCall(
        definition.module, definition.qualname, args, kwargs, live.task_id, definition.name,
        attempt.number, attempt.tags, attempt.started_at, live.timeout_s, live.scheduled_for,
    )  # fmt: skip


def hear(attempt: Attempt, news: News) -> None:
    """Take what the code of an attempt reports from its child, as if it were reported here."""
    for entry in news.entries:
        attempt.log(*entry)
    if news.progress:
        attempt.progress(*news.progress)
    extra = extra_of(attempt.live)
    for fields in news.records:
        logger.pass_on({**extra, **fields})
    if news.dropped_count:
        logger.warning(
            "%s of task %s (%s) were dropped: its child process logs more than can be passed on",
            counted(news.dropped_count, "log record"),
            extra["task_name"],
            extra["task_id"],
            extra=extra,
        )


def outcome_of_reply(attempt: Attempt, reply: ChildReply) -> Outcome:
    """Return the outcome of a reply from a child. Raises `TypeError` for a value that is a mistake."""
    if reply.code is not None:
        return Outcome("failed", error=error_in(reply))
    if reply.words is not None:
        return failure_in_words(attempt.live.definition, reply.kind or Exception, reply.words, reply.trace)
    if reply.lost is not None:
        return Outcome("ok", error=TaskError(BuiltInTaskCode.RESULT_NOT_AVAILABLE, reply.lost))
    return outcome_of(reply.value)


def error_in(reply: ChildReply) -> TaskError:
    """Return the error that the function has returned."""
    return TaskError(trusted_code(reply.code or ""), reply.words or "", reply.value)


def outcome_of_crash(exc: BrokenProcess) -> Outcome:
    """Return the outcome of an attempt whose child has died."""
    tail = f"\nThe end of what it had written:\n{exc.tail}" if exc.tail else ""
    return Outcome("crashed", error=TaskError(BuiltInTaskCode.WORKER_CRASHED, str(exc)), reason=f"{exc}{tail}")

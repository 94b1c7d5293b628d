"""What becomes of the nodes of a workflow, and of the workflow. Each is decided from counters, and not from lists.

A join concerns what a node comes `after`. Inputs are judged beside it: a value must come from a node that has
completed, and a `TaskResult` from any that has ended.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from taskmanager.codec.results import encode_error_text
from taskmanager.codec.values import split_object
from taskmanager.model.result import TaskError
from taskmanager.model.states import BuiltInTaskCode, TaskStatus
from taskmanager.model.workflows import AFTER, RESULT, VALUE

_BASE64: Final = re.compile(r"[A-Za-z0-9+/]+={0,2}")
"""What the codec of an application has made of a result."""


class Counts(NamedTuple):
    """What a node counts of the nodes that it depends on. SKIPPED is `failed`."""

    join: str
    min_success: int | None
    allow_failed: int
    open: int
    completed: int
    failed: int
    inputs_open: int
    inputs_failed: int


def is_awaited(means: int, join: str) -> bool:
    """Return whether the node waits for this edge as an input.

    It does not wait for the `TaskResult` of a node of which its own join needs only some.
    """
    return bool(means & VALUE) or (means & RESULT > 0 and (join == "all" or not means & AFTER))


def judged(counts: Counts) -> Literal["READY", "SKIPPED"] | None:
    """Return what becomes of a node that is PENDING, or None if it waits on."""
    if counts.inputs_failed:
        return "SKIPPED"
    holds = _join_holds(counts)
    if holds is None:
        return None
    if not holds:
        return "SKIPPED"
    return None if counts.inputs_open else "READY"


def _join_holds(counts: Counts) -> bool | None:
    if counts.open + counts.completed + counts.failed == 0:
        return True
    if counts.join == "all":
        return None if counts.open else bool(not counts.failed or counts.allow_failed)
    wanted = 1 if counts.join == "any" else counts.min_success or 1
    if counts.completed >= wanted:
        return True
    return None if counts.completed + counts.open >= wanted else False


def is_absorbed(is_optional: bool, dependents: Collection[str]) -> bool | None:
    """Return whether the failure of a node harms nobody, given the statuses of what depends on it.

    None: that is not known yet, because one of them waits.
    """
    if is_optional:
        return True
    if not dependents or "SKIPPED" in dependents:
        return False
    return None if "PENDING" in dependents else True


class NodeEnd(NamedTuple):
    """How a node ends: its status, and the stored form of its result or of its error."""

    status: str
    result: str | None
    error: str | None


class WorkflowEnd(NamedTuple):
    """How a workflow ends. `error` is the stored form of an error."""

    status: str
    error: str | None


_WITHOUT_RESULT: Final = {
    TaskStatus.COMPLETED: BuiltInTaskCode.RESULT_NOT_AVAILABLE,
    TaskStatus.FAILED: BuiltInTaskCode.WORKER_CRASHED,
    TaskStatus.CANCELLED: BuiltInTaskCode.TASK_CANCELLED,
    TaskStatus.EXPIRED: BuiltInTaskCode.TASK_EXPIRED,
    TaskStatus.INTERRUPTED: BuiltInTaskCode.TASK_INTERRUPTED,
}


def end_of_node(status: str, result: str | None) -> NodeEnd:
    """Return the end of a node whose task has ended with this status and this stored result.

    A task that has completed without a result, or with an error in its place, has given its dependents nothing, so its
    node is FAILED. What the codec of the application has sealed is taken for what the status says.
    """
    task_status = TaskStatus(status)
    if result is None:
        return _failed(_WITHOUT_RESULT[task_status], f"its task is {status} and has no result")
    held = _held(result)
    if held is None:
        return _failed(BuiltInTaskCode.WORKER_CRASHED, f"its task is {status} and its result cannot be read")
    if task_status is TaskStatus.COMPLETED and held != "err":
        return NodeEnd("COMPLETED", result, None)
    if held == "ok":
        return _failed(_WITHOUT_RESULT[task_status], f"its task is {status} and has no error")
    return NodeEnd("FAILED", None, result)


def _held(text: str) -> Literal["ok", "err", "sealed"] | None:
    """Return what stands in a stored result, or None if it cannot be read."""
    if type(text) is not str:  # what the store makes of bytes that are no text
        return None
    if not text.startswith("{"):
        return "sealed" if _BASE64.fullmatch(text) else None
    try:
        parts = split_object(text)
    except (ValueError, RecursionError):
        return None
    return "err" if "err" in parts else "ok" if "ok" in parts else None


def _failed(code: BuiltInTaskCode, message: str) -> NodeEnd:
    return NodeEnd("FAILED", None, stored(code, message))


def stored(code: BuiltInTaskCode, message: str) -> str:
    """Return the stored form of an error of the library."""
    return encode_error_text(TaskError(code, message))


def end_of_workflow(
    *,
    is_cancelled: bool,
    output: int | None,
    cases: Sequence[Collection[int]] | None,
    ends: Mapping[int, tuple[str, str | None]],
    first_error: str | None,
) -> WorkflowEnd:
    """Return how a workflow ends whose nodes have all ended.

    `ends` has the status and the error of the output and of the nodes that the cases name, in the order in which they
    ended. `first_error` is that of the first failure which was not absorbed. With cases these alone decide. The output
    belongs to every case.
    """
    if is_cancelled:
        return WorkflowEnd("CANCELLED", stored(BuiltInTaskCode.TASK_CANCELLED, "the workflow was cancelled"))
    if cases is None and first_error is not None:
        return WorkflowEnd("FAILED", first_error)
    needed = () if output is None else (output,)
    wanted = [{*case, *needed} for case in (((),) if cases is None else cases)]
    if any(all(index in ends and ends[index][0] == "COMPLETED" for index in case) for case in wanted):
        return WorkflowEnd("COMPLETED", None)
    errors = [error for index, (_, error) in ends.items() if error and any(index in case for case in wanted)]
    return WorkflowEnd("FAILED", errors[0] if errors else _not_met(cases))


def _not_met(cases: Iterable[object] | None) -> str:
    if cases is None:
        return stored(BuiltInTaskCode.UPSTREAM_SKIPPED, "the output of the workflow was skipped")
    return stored(BuiltInTaskCode.WORKFLOW_SUCCESS_CASE_NOT_MET, "no success case of the workflow was met")

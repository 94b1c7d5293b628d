"""Reads what the task of a node of a workflow needs, once its start is committed and before its code runs.

What other nodes came to is read here, and not when the task is made: whoever makes it may know neither the function nor
the codec, and a value that a thousand nodes take would be written a thousand times. Nothing of this is an attempt: if
the code must not run, the task ends, or waits, without one.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from taskmanager.engine.words.attempt import Attempt
from taskmanager.engine.words.outcome import Outcome
from taskmanager.model.errors import ArgumentError, StoreError, StoreUnavailable
from taskmanager.model.result import TaskError
from taskmanager.model.states import BuiltInTaskCode
from taskmanager.model.workflows import NodeStart

READ_AGAIN_S: Final = 0.25
"""The pause before it is read again from a store that cannot be read now."""


async def take_inputs(attempt: Attempt, is_stopping: Callable[[], bool]) -> Outcome | None:
    """Give the attempt its arguments, with the inputs among them. Return the outcome if its code must not run.

    A store that cannot be read now is waited for, until the manager stops.
    """
    while True:
        try:
            return _begin(attempt, await attempt.node_start())
        except StoreUnavailable:
            if is_stopping():
                return Outcome("unstarted")
            await asyncio.sleep(READ_AGAIN_S)
        except StoreError as exc:
            return _refused(BuiltInTaskCode.WORKFLOW_CHECK_FAILED, f"the workflow cannot be looked at: {exc}")


def _begin(attempt: Attempt, start: NodeStart | None) -> Outcome | None:
    if start is None:
        return _refused(BuiltInTaskCode.WORKFLOW_STOPPED, "its workflow is not in the store any more")
    if start.is_cancelled or start.workflow_status == "CANCELLED":
        return _refused(BuiltInTaskCode.WORKFLOW_STOPPED, f"workflow {start.workflow_id} is cancelled")
    if start.workflow_status == "PAUSED" or start.waits:
        return Outcome("held")
    live, codec = attempt.live, attempt.live.definition.arguments
    attempt.workflow_id = start.workflow_id
    try:
        attempt.arguments = codec.decode_with(live.args_text or "[]", live.kwargs_text or "{}", start.inputs)
    except ArgumentError as exc:
        return _refused(BuiltInTaskCode.ARGUMENT_MISMATCH, str(exc))
    return None


def _refused(code: BuiltInTaskCode, message: str) -> Outcome:
    return Outcome("refused", error=TaskError(code, message))

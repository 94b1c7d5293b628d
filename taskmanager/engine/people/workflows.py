"""What people ask of workflows: to start one, to pause, resume and cancel it, and what has become of it and its nodes.

All of it is in the store. So it is the same for a workflow of any instance, and whoever runs its nodes.

A caller may be cancelled while its write is on the way. The write arrives all the same, and nobody else would ask the
nodes that run here to end, or tell what has followed. So each write is shielded together with that.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast, get_args

from taskmanager.engine.engine import Engine
from taskmanager.engine.words.definition import RowCodec
from taskmanager.engine.words.live_task import GOES_ON, Ending
from taskmanager.engine.words.loops import shielded
from taskmanager.model.checks import check_limit, is_storable
from taskmanager.model.clock import from_us
from taskmanager.model.errors import ConfigurationError, StoreUnavailable, UnknownTask, unknown_workflow
from taskmanager.model.logger import logger
from taskmanager.model.result import TaskError, TaskResult
from taskmanager.model.states import TERMINAL, BuiltInTaskCode, TaskStatus
from taskmanager.model.workflows import (
    ENDED_NODE,
    Graph,
    NodeInfo,
    NodeRow,
    NodeStatus,
    WorkflowInfo,
    WorkflowRow,
    WorkflowStatus,
)
from taskmanager.store.workflow_protocol import Advance

MAX_TRIES: Final = 5
"""How often a start is tried again when the workflow changes under it."""
READ_AGAIN_S: Final = 0.25
"""The pause before a result is read again, where the store could not be read."""
PAGE: Final = 500
"""Rows that are read at once, to tell of their end."""


def info_of(row: WorkflowRow, codec: RowCodec) -> WorkflowInfo:
    """Return a workflow as users see it."""
    return WorkflowInfo(
        workflow_id=row.id,
        name=row.name,
        status=cast("WorkflowStatus", row.status),
        sent_at=from_us(row.sent_at),
        error=None if row.error is None else codec.decode_error(row.error),
    )


def node_info_of(row: NodeRow, codec: RowCodec) -> NodeInfo:
    """Return a node as users see it."""
    error = None if row.error is None else codec.decode_error(row.error)
    return NodeInfo(node_id=row.node_id, status=cast("NodeStatus", row.status), task_id=row.task_id, error=error)


class Workflows:
    """The workflows of the store, for one engine."""

    def __init__(self, engine: Engine) -> None:
        self._store, self._clock, self._identity = engine.store, engine.clock, engine.identity
        self._follower, self._row_codec, self._life = engine.follower, engine.row_codec, engine.life
        self._live, self._claiming = engine.live, engine.claiming
        self._free_rows = engine.free_rows

    # Starting.

    async def start(self, graph: Graph) -> bool:
        """Start a workflow. Return whether there is one with its id already.

        That one is followed, or run again if it has ended badly. Raises `ConfigurationError` if it has ended badly and
        is defined in another way.
        """
        return await shielded(self._start(graph))

    async def _start(self, graph: Graph) -> bool:
        root = graph.workflows[0]
        for _ in range(MAX_TRIES):
            found, advance = await self._free_rows.answer_of(self._store.start_workflow(graph, self._clock.now_us()))
            self._free_rows.note_advance(advance)
            if found is None:
                return False
            if found.status not in ("FAILED", "CANCELLED"):
                if found.definition_key != root.definition_key:
                    text = "workflow %s is %s, and was started with another definition; it is followed as it is"
                    logger.info(text, found.id, found.status)
                return True
            if found.definition_key != root.definition_key:
                raise ConfigurationError(
                    f"workflow {found.id} is {found.status} and was started with another definition "
                    f"({found.definition_key}, not {root.definition_key}), so it cannot be run again as this one; "
                    "give this one another workflow_id"
                )
            if await self._did(self._store.reopen_workflow, found.id):
                return True
        return True

    async def _did(self, verb: Callable[[str, int], Awaitable[Advance | None]], workflow_id: str) -> bool:
        advance = await self._free_rows.answer_of(verb(workflow_id, self._clock.now_us()))
        if advance is None:
            return False
        self._free_rows.note_advance(advance)
        await self._tell_ends(advance.cancelled)
        return True

    async def _tell_ends(self, task_ids: Sequence[str]) -> None:
        """Tell of waiting tasks that have ended with their workflow, and that nobody has put back since."""
        for start in range(0, len(task_ids), PAGE):
            for row in (await self._store.fetch_ids(task_ids[start : start + PAGE])).values():
                if row.status in TERMINAL:
                    self._free_rows.note_end(row, self._row_codec.decode_result(row))

    # Acting.

    async def pause(self, workflow_id: str) -> bool:
        """Start nothing more of it. False if it does not run. Raises `UnknownTask`."""
        return await shielded(self._act(self._store.pause_workflow, workflow_id))

    async def resume(self, workflow_id: str) -> bool:
        """Go on with a paused one. False if it is not paused. Raises `UnknownTask`."""
        return await shielded(self._act(self._store.resume_workflow, workflow_id))

    async def cancel(self, workflow_id: str) -> bool:
        """End what waits, and ask what runs to end. False if it has ended. Raises `UnknownTask`."""
        return await shielded(self._cancel(workflow_id))

    async def _cancel(self, workflow_id: str) -> bool:
        if not await self._act(self._store.cancel_workflow, workflow_id):
            return False
        self._free_rows.look()  # the waiters of tasks that have ended with it are told then
        async with self._claiming:  # the answer to a claim may have been made before the request
            asked = self._store.fetch_cancel_requests(self._identity.instance_id)
            for task_id in await self._free_rows.answer_of(asked):
                if (live := self._live.get(task_id)) is not None:
                    self._life.cancel(live)
        return True

    async def _act(self, verb: Callable[[str, int], Awaitable[Advance | None]], workflow_id: str) -> bool:
        if await self._did(verb, workflow_id):
            return True
        await self.row(workflow_id)
        return False

    # Looking.

    async def row(self, workflow_id: str) -> WorkflowRow:
        """Return its row. Raises `UnknownTask`."""
        row = await self._store.fetch_workflow(workflow_id)
        if row is None:
            raise unknown_workflow(workflow_id)
        return row

    async def info(self, workflow_id: str) -> WorkflowInfo:
        """Return one workflow as users see it. Raises `UnknownTask`."""
        return info_of(await self.row(workflow_id), self._row_codec)

    async def nodes(self, workflow_id: str) -> tuple[NodeInfo, ...]:
        """Return its nodes in the order in which they were added. Raises `UnknownTask`."""
        rows = await self._store.fetch_nodes(workflow_id)
        if not rows:
            await self.row(workflow_id)
        return tuple(node_info_of(row, self._row_codec) for row in rows)

    async def list(
        self, status: str | None, name: str | None, limit: int, before: str | None
    ) -> tuple[WorkflowInfo, ...]:
        """Return workflows that are no children, newest first, older than the workflow `before`."""
        if status is not None and status not in (known := get_args(WorkflowStatus)):
            raise ConfigurationError(f"workflows: status must be one of {', '.join(known)}, not {status!r}")
        check_limit(limit, "workflows")
        if name is not None and not is_storable(name):
            raise ConfigurationError(f"workflows: name must be text or None, not {name!r}")
        place = None
        if before is not None:
            found = await self.row(before)
            place = found.sent_at, found.id
        rows = await self._store.fetch_workflows(status, name, limit, place)
        return tuple(info_of(row, self._row_codec) for row in rows)

    # What it came to.

    async def wait(self, workflow_id: str) -> Ending:
        """Return how it has ended when it has. Raises `UnknownTask`."""
        row = await self._follower.watch_workflow(workflow_id)
        if row is None:
            return GOES_ON
        while True:
            try:
                return Ending(TaskStatus(row.status), await self._result(row))
            except StoreUnavailable as exc:
                if self._life.is_stopping:
                    raise
                logger.debug("what workflow %s came to is read as soon as the store can be read: %s", workflow_id, exc)
                await asyncio.sleep(READ_AGAIN_S)

    async def stands_in(self, inner: str, outer: str) -> bool:
        """Return whether a workflow is another one or stands in it, as far as the store can be read now."""
        at: str | None = inner
        while at is not None and at != outer:
            try:
                row = await self._store.fetch_workflow(at)
            except StoreUnavailable:
                return False
            at = None if row is None else row.parent_workflow_id
        return at == outer

    async def result_of(self, workflow_id: str, node_id: str) -> TaskResult[Any]:
        """Return what one of its nodes has come to, as far as it has. Raises `UnknownTask`."""
        node = await self._store.fetch_node(workflow_id, node_id)
        if node is None:
            known = ", ".join(each.node_id for each in (await self.nodes(workflow_id))[:5])
            raise UnknownTask(f"workflow {workflow_id} has no node {node_id!r}; it has {known}")
        if node.status == "COMPLETED":
            return await self._value(node)
        if node.status == "FAILED" and node.error is not None:
            return TaskResult(err=self._row_codec.decode_error(node.error))
        if node.status == "SKIPPED":
            return _error(BuiltInTaskCode.UPSTREAM_SKIPPED, f"node {node_id!r} was skipped")
        if node.status in ENDED_NODE:
            return _error(BuiltInTaskCode.RESULT_NOT_AVAILABLE, f"nothing is stored of what node {node_id!r} came to")
        return _error(BuiltInTaskCode.UPSTREAM_PENDING, f"node {node_id!r} has not ended")

    async def _result(self, row: WorkflowRow) -> TaskResult[Any]:
        if row.status == "COMPLETED":
            return await self._output(row)
        if row.error is not None:
            return TaskResult(err=self._row_codec.decode_error(row.error))
        is_cancelled = row.status == "CANCELLED"
        code = BuiltInTaskCode.TASK_CANCELLED if is_cancelled else BuiltInTaskCode.RESULT_NOT_AVAILABLE
        return _error(code, f"workflow {row.id} is {row.status}")

    async def _output(self, row: WorkflowRow) -> TaskResult[Any]:
        """Return the value of the output node, or those of all nodes that have completed, by their ids."""
        nodes = [each for each in await self._store.fetch_nodes(row.id) if each.status == "COMPLETED"]
        if row.output_task_index is not None:
            output = next((each for each in nodes if each.task_index == row.output_task_index), None)
            if output is None:
                return _error(BuiltInTaskCode.RESULT_NOT_AVAILABLE, "its output node has not completed")
            return await self._value(output)
        values: dict[str, Any] = {}
        for node in nodes:
            found = await self._value(node)
            if found.is_err():
                return found
            values[node.node_id] = found.ok_value
        return TaskResult(ok=values)

    async def _value(self, node: NodeRow) -> TaskResult[Any]:
        if node.sub_workflow_id is not None:
            child = await self._store.fetch_workflow(node.sub_workflow_id)
            if child is not None and child.status == "COMPLETED":
                return await self._output(child)
        if node.result is None:
            node = await self._store.fetch_node(node.workflow_id, node.node_id) or node
        return self._row_codec.decode(node.task_name, node.result)


def _error(code: BuiltInTaskCode, message: str) -> TaskResult[Any]:
    return TaskResult(err=TaskError(code, message))

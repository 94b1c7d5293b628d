"""`WorkflowHandle`: await a workflow, look at its nodes, pause, resume and cancel it; and `start`, which gives one."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, final

from taskmanager.current_instance import CurrentInstance
from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.live_task import Ending
from taskmanager.engine.words.waiters import lent_slot, running_attempt
from taskmanager.handle import not_completed
from taskmanager.model.checks import check_timeout, check_workflow_id
from taskmanager.model.errors import ConfigurationError
from taskmanager.model.ids import new_task_id
from taskmanager.model.result import TaskResult
from taskmanager.model.states import TaskStatus
from taskmanager.model.workflows import NodeInfo, WorkflowInfo, WorkflowStatus
from taskmanager.task import Task
from taskmanager.workflow import Workflow
from taskmanager.workflow_graph import graph_of

if TYPE_CHECKING:
    from taskmanager.engine.people.workflows import Workflows

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


@final
class WorkflowHandle(Generic[R_co]):
    """One workflow, of whichever instance. It runs whether you keep the handle or not.

    Everything but `workflow_id` and `is_duplicate` raises `UnknownTask` if there is no such workflow, `ManagerStopped`
    if the manager does not run, and `StoreUnavailable` if the file cannot be read or written now.
    """

    __slots__ = ("_instance", "_is_duplicate", "_workflow_id")

    def __init__(self, instance: CurrentInstance, workflow_id: str, *, is_duplicate: bool = False) -> None:
        check_workflow_id(workflow_id)
        self._instance, self._workflow_id, self._is_duplicate = instance, workflow_id, is_duplicate

    @property
    def workflow_id(self) -> str:
        """The id. `manager.workflow(workflow_id)` makes a handle of it again, also after a restart."""
        return self._workflow_id

    @property
    def is_duplicate(self) -> bool:
        """Whether `start_workflow` found a workflow of this id, which it follows."""
        return self._is_duplicate

    def __await__(self) -> Generator[Any, None, R_co]:
        """Wait for the end, and return the value of the output node, or those of all nodes by their ids.

        Raises `TaskFailed`, `TaskCancelled` or, at a stop, `TaskInterrupted`, with the id of the workflow. While it is
        paused the wait goes on.
        """
        return self._value().__await__()

    async def _value(self) -> R_co:
        ending = await self._ending()
        if ending.status is TaskStatus.COMPLETED and ending.result.is_ok():
            return cast("R_co", ending.result.ok_value)
        exc = not_completed(self._workflow_id, ending)
        exc.of = "workflow"
        raise exc

    async def result(self, *, timeout: float | None = None) -> TaskResult[R_co]:
        """Wait for the end, and return the value or the error. A failure raises nothing.

        Raises `TimeoutError` after `timeout` seconds.
        """
        check_timeout(timeout)
        try:
            async with asyncio.timeout(timeout):
                return (await self._ending(is_bounded=timeout is not None)).result
        except TimeoutError:
            if timeout is None:
                raise
            raise TimeoutError(f"workflow {self._workflow_id} has not ended after {timeout:g} s") from None

    async def _ending(self, *, is_bounded: bool = False) -> Ending:
        if self._instance.is_of_another_loop():
            return await self._instance.in_its_loop(self._ending(is_bounded=is_bounded))
        attempt, workflows = running_attempt(), self._instance.needed().workflows
        own = None if attempt is None or is_bounded else attempt.workflow_id
        if own is not None and await workflows.stands_in(own, self._workflow_id):
            raise ConfigurationError(
                f"task {attempt and attempt.task_name} awaits workflow {self._workflow_id}, which it is a node of, and "
                "would wait for ever"
            )
        async with lent_slot(None, {}, is_bounded=is_bounded):
            return await workflows.wait(self._workflow_id)

    def wait(self, *, timeout: float | None = None) -> R_co:
        """Wait in this thread for the end, and return the value, as `await` does on an event loop.

        Raises the same, `TimeoutError` after `timeout` seconds, and `ConfigurationError` on the loop of the manager and
        inside its tasks.
        """
        return self._instance.call(self, timeout)

    async def status(self) -> WorkflowStatus:
        """Return the status as it is now. PAUSED is no end."""
        row = await self._ask(lambda workflows: workflows.row(self._workflow_id))
        return cast("WorkflowStatus", row.status)

    async def nodes(self) -> tuple[NodeInfo, ...]:
        """Return its nodes, in the order in which they were added."""
        return await self._ask(lambda workflows: workflows.nodes(self._workflow_id))

    async def result_of(self, node_id: str, /) -> TaskResult[Any]:
        """Return what a node has come to: `UPSTREAM_SKIPPED` if it was skipped, `UPSTREAM_PENDING` until it has ended.

        Raises `UnknownTask` if there is no such node.
        """
        return await self._ask(lambda workflows: workflows.result_of(self._workflow_id, node_id))

    async def pause(self) -> bool:
        """Start nothing more of it; what runs goes on. Return False if it does not run."""
        return await self._ask(lambda workflows: workflows.pause(self._workflow_id))

    async def resume(self) -> bool:
        """Go on with it. Return False if it is not paused."""
        return await self._ask(lambda workflows: workflows.resume(self._workflow_id))

    async def cancel(self) -> bool:
        """Cancel what waits, and ask what runs to end. Return False if it has ended."""
        return await self._ask(lambda workflows: workflows.cancel(self._workflow_id))

    async def _ask(self, what: "Callable[[Workflows], Coroutine[Any, Any, T]]") -> T:
        if self._instance.is_of_another_loop():
            return await self._instance.in_its_loop(self._ask(what))
        return await what(self._instance.needed().workflows)

    def __repr__(self) -> str:
        return f"<WorkflowHandle {self._workflow_id}>"


async def info_of(handle: WorkflowHandle[Any]) -> WorkflowInfo:
    """Return one workflow as `manager.workflows()` lists it. Raises what the methods of the handle raise."""
    return await handle._ask(lambda workflows: workflows.info(handle.workflow_id))  # noqa: SLF001  # of this module


async def start(
    instance: CurrentInstance,
    workflow: Workflow[T],
    workflow_id: str | None,
    definition_of: Callable[[Task[..., Any]], Definition],
) -> WorkflowHandle[T]:
    """Store a workflow, whose first nodes are ready then. See `TaskManager.start_workflow`."""
    workflow_id = new_task_id() if workflow_id is None else workflow_id
    running = instance.needed()
    graph = graph_of(workflow, workflow_id, definition_of, running.engine.clock.now_us())
    is_duplicate = await running.workflows.start(graph)
    return WorkflowHandle(instance, workflow_id, is_duplicate=is_duplicate)

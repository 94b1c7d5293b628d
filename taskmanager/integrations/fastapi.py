"""An HTTP API over a manager, for FastAPI: `app.include_router(router(manager, auth=...), prefix="/taskmanager")`.

Running the manager needs nothing from here: `FastAPI(lifespan=manager.lifespan)`, `Depends(manager.background)`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

try:
    from fastapi import APIRouter, Depends, HTTPException, Query, Response, Security, params
    from fastapi.security.base import SecurityBase
    from pydantic import AfterValidator, BeforeValidator, WithJsonSchema
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        f"{exc.name} is not installed; install it with: pip install 'fastapi>=0.110'", name=exc.name
    ) from exc

from taskmanager.integrations.answers import (
    StatusName,
    TaskmanagerHealth,
    TaskmanagerPage,
    TaskmanagerRefusal,
    TaskmanagerSchedule,
    TaskmanagerTask,
    TaskmanagerTaskDetail,
    TaskmanagerWorkflow,
    TaskmanagerWorkflowDetail,
    TaskmanagerWorkflowPage,
    detail_of,
    health_of,
    workflow_detail_of,
    workflow_of,
)
from taskmanager.manager import TaskManager
from taskmanager.model.clock import span_us
from taskmanager.model.errors import (
    ConfigurationError,
    ManagerStopped,
    ManagerStopping,
    QueueFull,
    StoreUnavailable,
    UnknownTask,
)
from taskmanager.model.record import TaskInfo
from taskmanager.model.states import TaskStatus
from taskmanager.model.workflows import WorkflowStatus
from taskmanager.workflow_handle import WorkflowHandle, info_of

__all__ = ["router"]

MAX_PAGE: Final = 500
ANSWER_S: Final = 5.0
"""The time that a request waits for the file."""


def _tags(given: list[str] | None) -> dict[str, str]:
    """Return tags that are given as `NAME=VALUE`."""
    found: dict[str, str] = {}
    for each in given or ():
        name, sign, value = each.partition("=")
        if not (name and sign):
            raise ValueError(f"{each!r} is no tag with a value; write NAME=VALUE, as in customer=42")
        if found.setdefault(name, value) != value:
            raise ValueError(f"the tag {name!r} is given twice, and no task has two values of it")
    return found


def _checked_tags(given: list[str] | None) -> list[str] | None:
    _tags(given)
    return given


def _since(given: str) -> datetime | timedelta:
    """Return the instant that is given, or the span before now. A span without a unit is seconds."""
    for text in given, f"{given}s":
        if (span := span_us(text)) is not None:
            return timedelta(microseconds=span)
    with suppress(ValueError):
        if (instant := datetime.fromisoformat(given)).tzinfo is not None:
            return instant
    raise ValueError(f"{given!r} must be a span such as 90s, 15m, 1h or 7d, or an instant such as 2026-01-31T12:00:00Z")


_Tags = Annotated[
    list[str] | None,
    Query(description="Only tasks with this tag, NAME=VALUE; of several they must have all"),
    AfterValidator(_checked_tags),
]
_Since = Annotated[
    datetime | timedelta | None,
    Query(description="Only tasks that ended (or else last changed) since then: 90s, 15m, 1h, 7d, or an instant"),
    BeforeValidator(_since),
    WithJsonSchema({"type": "string"}),
]


def router(
    manager: TaskManager,
    *,
    auth: Callable[..., Any] | params.Depends | None,
    health_auth: Callable[..., Any] | params.Depends | Literal["same"] | None = "same",
    tracebacks: bool = False,
) -> APIRouter:
    """Return routes for the tasks of `manager`: list, show, counts, retry, cancel, schedules, workflows, health.

    `auth` is a dependency that every route requires, a function or `Depends(...)`. None must be written out: it lets
    everybody who reaches the application read and act. `health_auth` is the dependency of `/healthz`, by default the
    same; None lets every probe in. `tracebacks` adds the traceback of user code to the detail of a task.

    Raises `ConfigurationError` if one of them is something else.
    """
    if not isinstance(manager, TaskManager):
        raise ConfigurationError(f"router takes a TaskManager, not {manager!r}")
    if not isinstance(tracebacks, bool):  # "no" would mean yes
        raise ConfigurationError(f"tracebacks must be True or False, not {tracebacks!r}")
    required = _required("auth", auth)
    health_required = required if health_auth == "same" else _required("health_auth", health_auth)
    made = APIRouter(tags=["taskmanager"], responses={503: _says("The manager or its file does not answer")})
    _add_reading(made, manager, required, tracebacks)
    _add_acting(made, manager, required)
    _add_schedules(made, manager, required)
    _add_workflows(made, manager, required)
    _add_workflow_actions(made, manager, required)
    _add_health(made, manager, health_required)
    return made


def _required(name: str, auth: Any) -> list[params.Depends]:
    if auth is None:
        return []
    required = auth if isinstance(auth, params.Depends) else Depends(auth)
    dependency: Any = required.dependency
    if not callable(dependency) or dependency in (Depends, Security):
        raise ConfigurationError(f"{name} must be a dependency (a function, or Depends(...)) or None, not {auth!r}")
    # A class is called with each request, which makes an object and checks nothing.
    is_class = isinstance(dependency, type) and issubclass(dependency, SecurityBase)
    if is_class or (isinstance(dependency, SecurityBase) and not getattr(dependency, "auto_error", True)):
        advice = "give an object that raises errors itself, such as HTTPBearer(), or a function that does"
        raise ConfigurationError(f"{name} is {dependency!r}, which lets everybody in; {advice}")
    return [required]


def _says(text: str) -> dict[str, Any]:
    return {"model": TaskmanagerRefusal, "description": text}


_NOT_FOUND: Final[dict[int | str, dict[str, Any]]] = {404: _says("There is none of that id or name")}
_NOT_NOW: Final[dict[int | str, dict[str, Any]]] = {**_NOT_FOUND, 409: _says("It is in no state for it")}


@asynccontextmanager
async def _refusals() -> AsyncIterator[None]:
    """Turn errors of the manager into answers. Their messages hold no data of users except names and ids.

    An action waits until it is recorded, and that can take as long as the file takes no writes. A client should not
    wait so long.
    """
    try:
        async with asyncio.timeout(ANSWER_S):
            yield
    except UnknownTask as exc:
        raise HTTPException(404, str(exc)) from exc
    except TimeoutError as exc:
        text = (
            f"the file has not answered for {ANSWER_S:g} s; look whether it was done all the same before you repeat it"
        )
        raise HTTPException(503, text) from exc
    except (ManagerStopped, ManagerStopping, StoreUnavailable, QueueFull) as exc:
        raise HTTPException(503, str(exc)) from exc


def _add_reading(made: APIRouter, manager: TaskManager, required: list[params.Depends], tracebacks: bool) -> None:
    @made.get("/tasks", dependencies=required, responses=_NOT_FOUND, summary="Tasks, newest first")
    async def list_tasks(
        status: StatusName | None = None,
        task_name: str | None = None,
        queue_name: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
        before: Annotated[str | None, Query(description="The id of the last task of the page before")] = None,
        tag: _Tags = None,
        error_code: str | None = None,
        since: _Since = None,
    ) -> TaskmanagerPage:
        async with _refusals():
            found = await manager.list(
                status=None if status is None else TaskStatus(status),
                task_name=task_name,
                queue_name=queue_name,
                tags=_tags(tag), error_code=error_code, since=since,
                limit=limit, before=before,
            )  # fmt: skip
        return TaskmanagerPage(
            tasks=[TaskmanagerTask.model_validate(each) for each in found],
            next_before=found[-1].task_id if len(found) == limit else None,
        )

    @made.get("/tasks/{task_id}", dependencies=required, responses=_NOT_FOUND, summary="One task, with its attempts")
    async def show_task(task_id: str) -> TaskmanagerTaskDetail:
        async with _refusals():
            return detail_of(await _existing(manager, task_id), tracebacks)

    @made.get(
        "/counts",
        dependencies=required,
        response_model=dict[StatusName, int],
        summary="How many tasks have each status",
    )
    async def count_tasks() -> dict[TaskStatus, int]:
        async with _refusals():
            return await manager.counts()


def _add_acting(made: APIRouter, manager: TaskManager, required: list[params.Depends]) -> None:
    async def acted(task_id: str, act: Callable[[], Awaitable[bool]], word: str) -> TaskmanagerTask:
        async with _refusals():
            done = await act()
            info = await _existing(manager, task_id)
        if not done:
            raise HTTPException(409, f"task {task_id} is {info.status} and cannot be {word} now")
        return TaskmanagerTask.model_validate(info)

    @made.post("/tasks/{task_id}/retry", status_code=202, dependencies=required, responses=_NOT_NOW)
    async def retry_task(
        task_id: str,
        force: Annotated[bool, Query(description="Repeat a task that was completed, too")] = False,
    ) -> TaskmanagerTask:
        """Run an ended task again, with its stored arguments."""
        return await acted(task_id, lambda: manager.retry(task_id, force=force), "retried")

    @made.post("/tasks/{task_id}/cancel", status_code=202, dependencies=required, responses=_NOT_NOW)
    async def cancel_task(task_id: str) -> TaskmanagerTask:
        """Ask a waiting or running task of any instance to end. Answer when the request is recorded."""
        return await acted(task_id, lambda: manager.cancel(task_id), "cancelled")


def _add_schedules(made: APIRouter, manager: TaskManager, required: list[params.Depends]) -> None:
    @made.get("/schedules", dependencies=required, summary="All schedules, and when they fire next")
    async def list_schedules() -> list[TaskmanagerSchedule]:
        async with _refusals():
            return [TaskmanagerSchedule.model_validate(each) for each in await manager.schedules()]

    @made.post("/schedules/{name:path}/pause", status_code=204, dependencies=required, responses=_NOT_FOUND)
    async def pause_schedule(name: str) -> None:
        """Pause a schedule until it is resumed."""
        async with _refusals():
            await manager.pause_schedule(name)

    @made.post("/schedules/{name:path}/resume", status_code=204, dependencies=required, responses=_NOT_FOUND)
    async def resume_schedule(name: str) -> None:
        """Resume a schedule."""
        async with _refusals():
            await manager.resume_schedule(name)

    @made.post("/schedules/{name:path}/run", status_code=202, dependencies=required, responses=_NOT_FOUND)
    async def run_schedule(name: str) -> TaskmanagerTask:
        """Run a schedule once now. Its regular fires are not affected."""
        async with _refusals():
            handle = await manager.run_schedule(name)
            return TaskmanagerTask.model_validate(await handle.info())


def _add_workflows(made: APIRouter, manager: TaskManager, required: list[params.Depends]) -> None:
    @made.get("/workflows", dependencies=required, responses=_NOT_FOUND, summary="Workflows, newest first")
    async def list_workflows(
        status: WorkflowStatus | None = None,
        name: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
        before: Annotated[str | None, Query(description="The id of the last workflow of the page before")] = None,
    ) -> TaskmanagerWorkflowPage:
        async with _refusals():
            found = await manager.workflows(status=status, name=name, limit=limit, before=before)
        return TaskmanagerWorkflowPage(
            workflows=[workflow_of(each) for each in found],
            next_before=found[-1].workflow_id if len(found) == limit else None,
        )

    @made.get("/workflows/{workflow_id:path}", dependencies=required, responses=_NOT_FOUND)
    async def show_workflow(workflow_id: str) -> TaskmanagerWorkflowDetail:
        """One workflow, with its nodes."""
        async with _refusals():
            handle = manager.workflow(workflow_id)
            return workflow_detail_of(await info_of(handle), await handle.nodes())


def _add_workflow_actions(made: APIRouter, manager: TaskManager, required: list[params.Depends]) -> None:
    async def acted(
        workflow_id: str, act: Callable[[WorkflowHandle[Any]], Awaitable[bool]], word: str
    ) -> TaskmanagerWorkflow:
        async with _refusals():
            handle = manager.workflow(workflow_id)
            done = await act(handle)
            info = await info_of(handle)
        if not done:
            raise HTTPException(409, f"workflow {workflow_id} is {info.status} and cannot be {word} now")
        return workflow_of(info)

    @made.post("/workflows/{workflow_id:path}/pause", status_code=202, dependencies=required, responses=_NOT_NOW)
    async def pause_workflow(workflow_id: str) -> TaskmanagerWorkflow:
        """Start nothing more of a workflow. What runs goes on."""
        return await acted(workflow_id, lambda handle: handle.pause(), "paused")

    @made.post("/workflows/{workflow_id:path}/resume", status_code=202, dependencies=required, responses=_NOT_NOW)
    async def resume_workflow(workflow_id: str) -> TaskmanagerWorkflow:
        """Go on with a paused workflow."""
        return await acted(workflow_id, lambda handle: handle.resume(), "resumed")

    @made.post("/workflows/{workflow_id:path}/cancel", status_code=202, dependencies=required, responses=_NOT_NOW)
    async def cancel_workflow(workflow_id: str) -> TaskmanagerWorkflow:
        """Cancel what waits of a workflow, and ask what runs to end. Answer when the request is recorded."""
        return await acted(workflow_id, lambda handle: handle.cancel(), "cancelled")


def _add_health(made: APIRouter, manager: TaskManager, required: list[params.Depends]) -> None:
    @made.head("/healthz", dependencies=required, include_in_schema=False)  # what many monitors ask with
    @made.get(
        "/healthz",
        dependencies=required,
        responses={
            503: {"model": TaskmanagerHealth, "description": "The file cannot be written, or the manager does not run"}
        },
    )
    async def healthz(response: Response) -> TaskmanagerHealth:
        """Say whether this instance accepts and keeps tasks now. It answers even when the file does not."""
        found = health_of(manager.status())
        if found.status != "ok":
            response.status_code = 503
        return found


async def _existing(manager: TaskManager, task_id: str) -> TaskInfo:
    info = await manager.get(task_id, include_attempts=True)
    if info is None:
        raise UnknownTask(f"there is no task {task_id}")
    return info

"""An HTTP API over a manager, for FastAPI: `app.include_router(router(manager, auth=...), prefix="/taskmanager")`.

Running the manager needs nothing from here: `FastAPI(lifespan=manager.lifespan)`, `Depends(manager.background)`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any, Final, Literal

try:
    from fastapi import APIRouter, Depends, HTTPException, Query, Response, Security, params
    from fastapi.security.base import SecurityBase
    from pydantic import BaseModel, ConfigDict, TypeAdapter, field_validator
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        f"{exc.name} is not installed; install it with: pip install 'fastapi>=0.110'", name=exc.name
    ) from exc

from taskmanager.codec.safe import loads_flat, safe_value
from taskmanager.manager import TaskManager
from taskmanager.model.errors import (
    ArgumentError,
    ConfigurationError,
    ManagerStopped,
    ManagerStopping,
    QueueFull,
    StoreUnavailable,
    UnknownTask,
)
from taskmanager.model.record import AttemptInfo, TaskInfo
from taskmanager.model.report import ManagerStatus
from taskmanager.model.result import TaskResult
from taskmanager.model.states import TaskStatus
from taskmanager.store.constraints import encodable

__all__ = ["router"]

MAX_PAGE: Final = 500
ANSWER_S: Final = 5.0
"""The time that a request waits for the file."""
_ANYTHING: Final[TypeAdapter[Any]] = TypeAdapter(
    Any, config=ConfigDict(ser_json_inf_nan="strings", ser_json_bytes="base64")
)
# An enum would be a model of its own in the schema, and `TaskStatus` is a name that others use too.
_Status = Literal["PENDING", "CLAIMED", "RUNNING", "COMPLETED", "FAILED", "CANCELLED", "EXPIRED", "INTERRUPTED"]


class _Answer(BaseModel):
    """A model whose texts come from the application, and may have characters that UTF-8 cannot hold."""

    model_config = ConfigDict(from_attributes=True)

    @field_validator("*", mode="before")
    @classmethod
    def _can_be_sent(cls, value: object) -> object:
        return _encodable(value)


# Their names stand in the OpenAPI schema of the application, which may well have a `Task` and a `Page` of its own.


class TaskmanagerFault(_Answer):
    """The reason why a task did not succeed."""

    error_code: str
    message: str
    data: Any = None


class TaskmanagerTask(_Answer):
    """One task without its arguments and its result. `TaskmanagerTaskDetail` has both."""

    task_id: str
    task_name: str
    queue_name: str
    priority: int
    status: _Status
    saved: bool
    sent_at: datetime
    enqueued_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    good_until: datetime | None
    next_retry_at: datetime | None
    scheduled_for: datetime | None
    cancel_requested_at: datetime | None
    retry_count: int
    max_retries: int
    start_count: int
    crash_count: int
    tags: dict[str, str]
    idempotency_key: str | None
    error_code: str | None
    progress: dict[str, Any] | None


class TaskmanagerAttempt(_Answer):
    """One attempt that has ended. `traceback` is None unless the router has `tracebacks=True`."""

    attempt: int
    outcome: str
    will_retry: bool
    started_at: datetime
    finished_at: datetime
    error_code: str | None
    error_message: str | None
    traceback: str | None
    worker_pid: int | None
    worker_hostname: str | None


class TaskmanagerTaskDetail(TaskmanagerTask):
    """One task with its arguments, result, log and attempts.

    Arguments that a `codec=` has sealed are the text that is stored. Where JSON cannot hold a result or a part of it,
    there is a short text.
    """

    args: list[Any] | str | None
    kwargs: dict[str, Any] | str | None
    result: Any
    error: TaskmanagerFault | None
    traceback: str | None
    log: list[dict[str, Any]]
    attempts: list[TaskmanagerAttempt]


class TaskmanagerPage(_Answer):
    """Tasks, newest first. `next_before` is the `before` of the next page. It is None if this page was not full."""

    tasks: list[TaskmanagerTask]
    next_before: str | None


class TaskmanagerSchedule(_Answer):
    """One schedule. `definition` is its timing in words. If no running instance declares it, it does not fire."""

    schedule_name: str
    task_name: str
    definition: str
    last_run_at: datetime | None
    next_run_at: datetime | None
    last_task_id: str | None
    run_count: int
    is_paused: bool
    is_declared: bool


class TaskmanagerHealth(_Answer):
    """The health of this instance. `ok` comes with 200, everything else with 503. Durations are seconds.

    `oldest_waiting_s` says how long the oldest task that waits for a slot has been due, `oldest_unsaved_s` how old the
    oldest change is that a crash would lose. `failing_duties` names background duties that keep failing (heartbeat,
    reaper, retention, ...). The reason is in the log and in `manager.status()`: this answer may be open to everybody.
    """

    status: Literal["ok", "degraded", "stopping", "not running"]
    storage_degraded_since: datetime | None
    oldest_waiting_s: float | None
    oldest_unsaved_s: float | None
    waiting_count: int
    running_count: int
    abandoned_count: int
    failing_duties: list[str]


class TaskmanagerRefusal(BaseModel):
    """The reason why a request was not carried out, in a sentence."""

    detail: str


def router(
    manager: TaskManager,
    *,
    auth: Callable[..., Any] | params.Depends | None,
    health_auth: Callable[..., Any] | params.Depends | Literal["same"] | None = "same",
    tracebacks: bool = False,
) -> APIRouter:
    """Return routes for the tasks of `manager`: list, show, counts, retry, cancel, schedules, health.

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
_NOT_NOW: Final[dict[int | str, dict[str, Any]]] = {**_NOT_FOUND, 409: _says("The task is in no state for it")}


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
        status: _Status | None = None,
        task_name: str | None = None,
        queue_name: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
        before: Annotated[str | None, Query(description="The id of the last task of the page before")] = None,
    ) -> TaskmanagerPage:
        async with _refusals():
            found = await manager.list(
                status=None if status is None else TaskStatus(status),
                task_name=task_name,
                queue_name=queue_name,
                limit=limit,
                before=before,
            )
        return TaskmanagerPage(
            tasks=[TaskmanagerTask.model_validate(each) for each in found],
            next_before=found[-1].task_id if len(found) == limit else None,
        )

    @made.get("/tasks/{task_id}", dependencies=required, responses=_NOT_FOUND, summary="One task, with its attempts")
    async def show_task(task_id: str) -> TaskmanagerTaskDetail:
        async with _refusals():
            return _detail(await _existing(manager, task_id), tracebacks)

    @made.get(
        "/counts", dependencies=required, response_model=dict[_Status, int], summary="How many tasks have each status"
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
        found = _health(manager.status())
        if found.status != "ok":
            response.status_code = 503
        return found


async def _existing(manager: TaskManager, task_id: str) -> TaskInfo:
    info = await manager.get(task_id, include_attempts=True)
    if info is None:
        raise UnknownTask(f"there is no task {task_id}")
    return info


def _health(status: ManagerStatus) -> TaskmanagerHealth:
    word: Literal["ok", "degraded", "stopping", "not running"] = "not running"
    if status.state == "draining":
        word = "stopping"
    elif status.state == "open":
        word = "ok" if status.storage_degraded_since is None else "degraded"
    return TaskmanagerHealth(
        status=word,
        storage_degraded_since=status.storage_degraded_since,
        oldest_waiting_s=status.oldest_waiting_s,
        oldest_unsaved_s=status.oldest_unsaved_s,
        waiting_count=status.waiting_count,
        running_count=status.running_count,
        abandoned_count=status.abandoned_count,
        failing_duties=sorted(status.failing_duties),
    )


def _detail(info: TaskInfo, tracebacks: bool) -> TaskmanagerTaskDetail:
    value, fault = _sides(info.result)
    return TaskmanagerTaskDetail(
        **TaskmanagerTask.model_validate(info).model_dump(),
        args=_stored(info.args, list),
        kwargs=_stored(info.kwargs, dict),
        result=value,
        error=fault,
        traceback=info.failed_reason if tracebacks else None,
        log=[_log_line(each) for each in info.log or ()],
        attempts=[_attempt(each, tracebacks) for each in info.attempts or ()],
    )


def _attempt(info: AttemptInfo, tracebacks: bool) -> TaskmanagerAttempt:
    return TaskmanagerAttempt(
        attempt=info.attempt,
        outcome=info.outcome.value,
        will_retry=info.will_retry,
        started_at=info.started_at,
        finished_at=info.finished_at,
        error_code=info.error_code,
        error_message=info.error_message,
        traceback=info.failed_reason if tracebacks else None,
        worker_pid=info.worker_pid,
        worker_hostname=info.worker_hostname,
    )


def _sides(result: TaskResult[Any] | None) -> tuple[Any, TaskmanagerFault | None]:
    if result is None:
        return None, None
    if result.is_ok():
        return _as_json(result.ok_value), None
    error = result.err_value
    return None, TaskmanagerFault(error_code=error.error_code, message=error.message, data=_as_json(error.data))


def _as_json(value: Any) -> Any:
    """Return a value of the application as JSON: by its fields if it has some, else as a short text.

    NaN and the infinities become texts too, and bytes become base64.
    """
    try:
        value = _ANYTHING.dump_python(value, mode="json")
    except Exception:  # noqa: BLE001  # an object of the application may raise anything when it is looked at
        return safe_value(value)
    return safe_value(value)


def _encodable(value: Any) -> Any:
    """Return the value with lone surrogates as escapes, as the file has them too."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_encodable(each) for each in value]
    return value


def _stored(text: str | None, kind: type[Any]) -> Any:
    """Return stored arguments as JSON data. Sealed ones stay text."""
    if text is None:
        return None
    try:
        found = loads_flat(text)
    except ArgumentError:
        return text
    return found if isinstance(found, kind) else text


def _log_line(line: Mapping[str, Any]) -> dict[str, Any]:
    at = line.get("at")
    return {**line, "at": at.isoformat() if isinstance(at, datetime) else at}

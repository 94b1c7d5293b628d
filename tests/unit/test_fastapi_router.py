"""`taskmanager.integrations.fastapi.router`: the records over HTTP, and who may see and do what."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException, Security
from fastapi.security import APIKeyHeader, HTTPBearer, SecurityScopes
from fastapi.testclient import TestClient

from taskmanager import ConfigurationError, TaskManager, current_task, sleep, step
from taskmanager.integrations.fastapi import router
from taskmanager.store.memory import MemoryStore
from taskmanager.testing import FaultyStore, isolated

SECRET = "a secret in the traceback"


@dataclass
class Receipt:
    number: int
    ratio: float
    at: datetime


def made_manager(database: Path | None = None) -> TaskManager:
    """A manager with a task that gives an object, one that fails, and one that waits."""
    manager = TaskManager(database)
    release = asyncio.Event()

    @manager.task(name="pay", persist=database is not None)
    async def pay(order: int, *, note: str = "") -> Receipt:
        current_task().log("paying", order=order)
        current_task().progress(1, 2, "half")
        return Receipt(order, float("nan"), datetime(2026, 1, 1, tzinfo=UTC))

    @manager.task(name="fail", retries=1, retry_delay=0)
    async def fail() -> None:
        assert SECRET
        raise ValueError("not today")

    @manager.task(name="wait", queue_name="slow")
    async def wait() -> None:
        await release.wait()

    @manager.task(name="opaque")
    async def opaque() -> object:
        return {"lock": asyncio.Lock(), "text": "here"}

    return manager


def serve(manager: TaskManager, **options: Any) -> TestClient:
    app = FastAPI(lifespan=manager.lifespan)
    app.include_router(router(manager, **{"auth": None, **options}), prefix="/tm")
    return TestClient(app)


@pytest.fixture
def manager() -> TaskManager:
    return made_manager()


@pytest.fixture
def client(manager: TaskManager) -> Iterator[TestClient]:
    with serve(manager) as made:
        yield made


def ended(client: TestClient, manager: TaskManager, name: str, *args: Any, **kwargs: Any) -> str:
    """Enqueue one, wait for its end, and give its id."""

    async def run() -> str:
        handle = manager.enqueue(name, *args, **kwargs)
        await handle.result()
        return handle.task_id

    assert client.portal is not None
    return client.portal.call(run)


# Who may.

EVERY_ROUTE = [
    ("GET", "/tm/tasks"),
    ("GET", "/tm/tasks/x"),
    ("POST", "/tm/tasks/x/retry"),
    ("POST", "/tm/tasks/x/cancel"),
    ("GET", "/tm/counts"),
    ("GET", "/tm/schedules"),
    ("POST", "/tm/schedules/x/pause"),
    ("POST", "/tm/schedules/x/resume"),
    ("POST", "/tm/schedules/x/run"),
    ("GET", "/tm/workflows"),
    ("GET", "/tm/workflows/x"),
    ("POST", "/tm/workflows/x/pause"),
    ("POST", "/tm/workflows/x/resume"),
    ("POST", "/tm/workflows/x/cancel"),
    ("GET", "/tm/healthz"),
]


def test_authentication_is_said_or_explicitly_not_wanted(manager: TaskManager) -> None:
    """Nobody opens this to the world by leaving something out, or by a value that is no dependency."""
    with pytest.raises(TypeError, match="auth"):
        router(manager)  # type: ignore[call-arg]
    for wrong in ("secret", False, True, 7):
        with pytest.raises(ConfigurationError, match="auth must be a dependency"):
            router(manager, auth=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="health_auth must be a dependency"):
        router(manager, auth=None, health_auth=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", [lambda each: each, Depends], ids=["as it is", "in Depends"])
@pytest.mark.parametrize("open_to_all", [HTTPBearer, HTTPBearer(auto_error=False), APIKeyHeader, Depends, Security])
def test_an_auth_that_lets_everybody_in_is_refused(manager: TaskManager, open_to_all: Any, form: Any) -> None:
    """A class of the framework in the place of an object, and a scheme that leaves the refusal to a function that is
    not there: each route would answer, and nobody would notice.
    """
    with pytest.raises(ConfigurationError, match="auth"):
        router(manager, auth=form(open_to_all))
    with pytest.raises(ConfigurationError, match="health_auth"):
        router(manager, auth=None, health_auth=form(open_to_all))


def test_every_route_asks_the_dependency(manager: TaskManager) -> None:
    """The list above is complete, and without credentials each of its routes answers 401 or 403."""
    with serve(manager, auth=HTTPBearer()) as client:
        paths = client.get("/openapi.json").json()["paths"]
        known = {(method.upper(), path) for path, item in paths.items() for method in item}
        names = {"tasks": "{task_id}", "workflows": "{workflow_id}"}
        assert known == {(m, re.sub(r"/x\b", f"/{names.get(p.split('/')[2], '{name}')}", p)) for m, p in EVERY_ROUTE}
        for method, path in [*EVERY_ROUTE, ("HEAD", "/tm/healthz")]:
            assert client.request(method, path).status_code in (401, 403), path
            header = {"Authorization": "Bearer x"}
            assert client.request(method, path, headers=header).status_code in (200, 404), path


def test_a_dependency_may_be_given_ready_made_and_use_scopes(manager: TaskManager) -> None:
    """`Security(...)` and `Depends(...)` are taken as they are."""
    seen: list[list[str]] = []

    def admin(scopes: SecurityScopes) -> None:
        seen.append(scopes.scopes)
        raise HTTPException(403, "no")

    with serve(manager, auth=Security(admin, scopes=["tasks"])) as client:
        assert client.get("/tm/counts").status_code == 403
    assert seen == [["tasks"]]


def test_a_probe_is_let_in_where_that_is_said(manager: TaskManager) -> None:
    """`health_auth=None` opens `/healthz` and nothing else."""
    with serve(manager, auth=HTTPBearer(), health_auth=None) as client:
        assert client.get("/tm/healthz").status_code == 200
        assert client.get("/tm/counts").status_code in (401, 403)


# Reading.


def test_tasks_are_listed_newest_first_in_pages(client: TestClient, manager: TaskManager) -> None:
    """Every task once, whatever the page size; filters apply; what is no id is 404, what is no limit 422."""
    ids = [ended(client, manager, "pay", number) for number in range(5)]
    ended(client, manager, "fail")
    found, before = [], None
    for _ in range(4):
        page = client.get(
            "/tm/tasks", params={"task_name": "pay", "limit": 2, **({"before": before} if before else {})}
        )
        found += [each["task_id"] for each in page.json()["tasks"]]
        before = page.json()["next_before"]
        if before is None:
            break
    assert found == ids[::-1]
    failed = client.get("/tm/tasks", params={"status": "FAILED"}).json()["tasks"]
    assert [(each["task_name"], each["error_code"]) for each in failed] == [("fail", "UNHANDLED_EXCEPTION")]
    assert client.get("/tm/tasks", params={"queue_name": "slow"}).json() == {"tasks": [], "next_before": None}
    assert client.get("/tm/tasks", params={"before": "nothing"}).status_code == 404
    for wrong in ({"limit": 0}, {"limit": 501}, {"status": "LOST"}):
        assert client.get("/tm/tasks", params=wrong).status_code == 422


def test_tasks_are_listed_by_tags_error_code_and_time(client: TestClient, manager: TaskManager) -> None:
    """A task must have all that is given. Times are spans before now, as on the command line, or instants."""
    for customer, day in ("a", "mon"), ("a", "tue"), ("b", "tue"):
        call = manager.get_task("pay").with_options(tags={"customer": customer, "day": day})
        assert client.portal is not None
        client.portal.call(lambda call=call: call.enqueue(1).result())
    failed = ended(client, manager, "fail")

    def found(**params: Any) -> list[dict[str, Any]]:
        answer = client.get("/tm/tasks", params=params)
        assert answer.status_code == 200, answer.text
        return [each["tags"] or each["task_id"] for each in answer.json()["tasks"]]

    assert found(tag="customer=b") == [{"customer": "b", "day": "tue"}]
    assert found(tag=["customer=a", "day=tue"]) == [{"customer": "a", "day": "tue"}]
    assert found(tag="customer=a", limit=1) == [{"customer": "a", "day": "tue"}]
    assert found(tag="customer=") == found(tag="none=x=y") == found(error_code="OTHER") == []
    assert found(error_code="UNHANDLED_EXCEPTION") == [failed]
    for since in "1h", "90 s", "60", "0.5d", "2026-01-01T00:00:00Z", "2026-01-01T02:00:00+02:00":
        assert len(found(since=since)) == 4, since
    for since in "0s", "0", "9999-12-31T23:59:59Z":
        assert found(since=since) == [], since


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("tag", "customer", "NAME=VALUE"),
        ("tag", "=a", "NAME=VALUE"),
        ("tag", ["a=1", "a=2"], "twice"),
        ("since", "yesterday", "1h"),
        ("since", "-1", "1h"),
        ("since", "2026-01-01T00:00:00", "1h"),
    ],
)
def test_a_filter_that_is_none_is_refused(client: TestClient, name: str, value: Any, why: str) -> None:
    """A mistake must not look like an empty list; the answer says what is expected, in the form of FastAPI."""
    answer = client.get("/tm/tasks", params={name: value})
    assert answer.status_code == 422
    (fault,) = answer.json()["detail"]
    assert fault["loc"] == ["query", name]
    assert why in fault["msg"]


def test_one_task_is_shown_with_what_went_in_and_came_out(client: TestClient, manager: TaskManager) -> None:
    """Arguments, result, log, progress and attempts as JSON; a number that JSON does not have is text."""
    shown = client.get(f"/tm/tasks/{ended(client, manager, 'pay', 7, note='thanks')}").json()
    assert (shown["args"], shown["kwargs"], shown["error"]) == ([7], {"note": "thanks"}, None)
    assert shown["result"] == {"number": 7, "ratio": "nan", "at": "2026-01-01T00:00:00Z"}
    assert shown["progress"]["done"] == 1
    assert shown["log"][0]["text"] == "paying"
    assert datetime.fromisoformat(shown["log"][0]["at"]).tzinfo is not None
    assert [each["outcome"] for each in shown["attempts"]] == ["COMPLETED"]
    assert client.get("/tm/tasks/nothing").json() == {"detail": "there is no task nothing"}


def test_steps_of_one_task_are_shown(tmp_path: Path) -> None:
    """With what a step has raised. A sleep and a wait are among them."""
    manager = TaskManager(tmp_path / "tasks.db")

    async def charge(order: int) -> int:
        if order < 0:
            raise ValueError("no order")
        return order

    @manager.task(name="steps", persist=True, requeue_on_interrupt=True)
    async def steps() -> None:
        await step(charge, 7)
        await sleep(0, key="later")
        await step(charge, -1)

    with serve(manager) as client:
        found = client.get(f"/tm/tasks/{ended(client, manager, 'steps')}").json()["steps"]
    assert [(each["number"], each["key"], each["attempts"]) for each in found] == [
        (1, None, 1), (None, "later", 1), (2, None, 1),
    ]  # fmt: skip
    assert found[1]["name"] == "sleep"
    assert found[1]["ended_at"] is not None
    assert (found[0]["error"], found[2]["error"]["error_code"]) == (None, "UNHANDLED_EXCEPTION")


def test_a_result_that_is_no_json_does_not_break_the_page(client: TestClient, manager: TaskManager) -> None:
    """A memory-only task may give any object: its parts that are JSON are shown, the others are named."""
    result = client.get(f"/tm/tasks/{ended(client, manager, 'opaque')}").json()["result"]
    assert result["text"] == "here"
    assert "Lock" in result["lock"]


@pytest.mark.parametrize("is_kept", [False, True])
def test_text_that_utf8_cannot_hold_is_shown_with_escapes(tmp_path: Path, is_kept: bool) -> None:
    """A file name that is no UTF-8, in everything that the application says of a task, in memory and in the file."""
    manager, name = TaskManager(tmp_path / "tasks.db" if is_kept else None), "caf\udce9"

    @manager.task(name="read", persist=is_kept)
    async def read(path: str) -> None:
        current_task().log("reading", path=name)
        current_task().progress(1, 2, name)
        raise ValueError(name)

    with serve(manager, tracebacks=True) as client:

        async def run() -> str:
            handle = read.enqueue("kept" if is_kept else name)  # what is to be kept is refused at the call
            await handle.result()
            return handle.task_id

        assert client.portal is not None
        task_id = client.portal.call(run)
        shown = client.get(f"/tm/tasks/{task_id}")
        assert shown.status_code == 200, shown.text
        assert shown.json()["error"]["message"] == "ValueError: caf\\udce9"
        assert shown.json()["log"][0]["path"] == shown.json()["progress"]["text"] == "caf\\udce9"
        assert client.get("/tm/tasks").json()["tasks"][0]["task_id"] == task_id


@pytest.mark.parametrize("tracebacks", [False, True])
def test_a_traceback_is_shown_only_where_the_router_was_made_for_it(manager: TaskManager, tracebacks: bool) -> None:
    """It quotes source and paths. The error's code and message are always there."""
    with serve(manager, tracebacks=tracebacks) as client:
        task_id = ended(client, manager, "fail")
        answer = client.get(f"/tm/tasks/{task_id}")
        assert answer.json()["error"] == {
            "error_code": "UNHANDLED_EXCEPTION",
            "message": "ValueError: not today",
            "data": {"retry": {"count": 1, "max": 1, "exhausted": True}},
        }
        assert [each["error_message"] for each in answer.json()["attempts"]] == ["ValueError: not today"] * 2
        assert ("Traceback" in answer.text) is tracebacks
        assert "Traceback" not in client.get("/tm/tasks").text


def test_counts_have_every_status(client: TestClient, manager: TaskManager) -> None:
    """Zeros included, so that a chart has all its lines."""
    ended(client, manager, "pay", 1)
    assert client.get("/tm/counts").json() == {
        **dict.fromkeys(["PENDING", "CLAIMED", "RUNNING", "FAILED", "CANCELLED", "EXPIRED", "INTERRUPTED"], 0),
        "COMPLETED": 1,
    }


# Acting.


def test_a_task_is_retried_where_it_can_be(tmp_path: Path) -> None:
    """202 with the record; 409 where the task is in no state for it, 404 where there is none; `force` for a success."""
    manager = made_manager(tmp_path / "tasks.db")
    with serve(manager) as client:
        paid = ended(client, manager, "pay", 1)
        refused = client.post(f"/tm/tasks/{paid}/retry")
        assert refused.status_code == 409
        assert refused.json() == {"detail": f"task {paid} is COMPLETED and cannot be retried now"}
        again = client.post(f"/tm/tasks/{paid}/retry", params={"force": True})
        assert (again.status_code, again.json()["task_id"]) == (202, paid)
        assert client.post("/tm/tasks/nothing/retry").status_code == 404


def test_a_task_is_cancelled_where_it_can_be(client: TestClient, manager: TaskManager) -> None:
    """Running or waiting; an ended one is 409, none is 404."""
    assert client.portal is not None

    async def start() -> str:
        return manager.enqueue("wait").task_id

    task_id = client.portal.call(start)
    cancelled = client.post(f"/tm/tasks/{task_id}/cancel")
    assert cancelled.status_code == 202
    assert cancelled.json()["cancel_requested_at"] is not None
    client.portal.call(manager.join)
    assert client.get(f"/tm/tasks/{task_id}").json()["status"] == "CANCELLED"
    assert client.post(f"/tm/tasks/{task_id}/cancel").status_code == 409
    assert client.post("/tm/tasks/nothing/cancel").status_code == 404


def test_schedules_are_listed_paused_resumed_and_run(tmp_path: Path) -> None:
    """Names may hold slashes and colons; an unknown one is not found."""
    manager = TaskManager(tmp_path / "tasks.db", store_poll=0.02)
    name = "app.jobs:clean/up"

    @manager.schedule(every=3600, name=name)
    @manager.task(name="clean")
    async def clean() -> str:
        return "clean"

    def shown() -> dict[str, Any]:
        (found,) = client.get("/tm/schedules").json()
        assert (found["schedule_name"], found["task_name"], found["run_count"]) == (name, "clean", 0)
        return dict(found)

    with serve(manager) as client:
        assert shown()["is_declared"] is True
        assert client.post(f"/tm/schedules/{name}/pause").status_code == 204
        assert shown()["is_paused"] is True
        assert client.post(f"/tm/schedules/{name}/resume").status_code == 204
        assert shown()["is_paused"] is False
        ran = client.post(f"/tm/schedules/{name}/run")
        assert (ran.status_code, ran.json()["task_name"]) == (202, "clean")
        assert client.portal is not None

        async def result() -> Any:
            return await manager.handle(ran.json()["task_id"])

        assert client.portal.call(result) == "clean"
        for verb in ("pause", "resume", "run"):
            assert client.post(f"/tm/schedules/no/such/{verb}").status_code == 404


# Health.


def test_health_is_ok_while_tasks_are_accepted_and_kept(client: TestClient, manager: TaskManager) -> None:
    """The age of the oldest task that waits for a slot is there; the delayed one is not late."""
    assert client.get("/tm/healthz").json() == {
        "status": "ok",
        "storage_degraded_since": None,
        "oldest_waiting_s": None,
        "oldest_unsaved_s": None,
        "waiting_count": 0,
        "running_count": 0,
        "abandoned_count": 0,
        "failing_duties": [],
    }


def test_health_names_the_duties_that_keep_failing(client: TestClient, manager: TaskManager) -> None:
    """Tasks are accepted and kept all the same, so it is 200; why is not for everybody who may ask."""
    engine = manager._engine()
    assert engine is not None
    engine.failing_duties["retention"] = "OSError: /srv/secret is gone"
    answer = client.get("/tm/healthz")
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")
    assert answer.json()["failing_duties"] == ["retention"]


def test_health_tells_how_long_the_oldest_task_has_been_waiting() -> None:
    """For a slot: not for its delay."""
    manager = TaskManager(None, concurrency=1)

    @manager.task(name="wait")
    async def wait() -> None:
        await asyncio.Event().wait()

    async def enqueue() -> None:
        wait.enqueue()
        wait.with_options(priority=1).enqueue()
        wait.with_options(delay=60).enqueue()

    with serve(manager) as client:
        assert client.portal is not None
        client.portal.call(enqueue)
        found = client.get("/tm/healthz").json()
        assert (found["status"], found["running_count"], found["waiting_count"]) == ("ok", 1, 2)
        assert 0 < found["oldest_waiting_s"] < 60
        for each in client.get("/tm/tasks").json()["tasks"]:
            client.post(f"/tm/tasks/{each['task_id']}/cancel")
        assert client.get("/tm/healthz").json()["oldest_waiting_s"] is None


@pytest.mark.anyio
async def test_health_is_503_while_the_file_takes_no_writes() -> None:
    """It awaits nothing of the store, so it answers although the store does not; so do the others, 503 and soon."""
    manager = TaskManager("tasks.db")  # not opened: the world has a store of its own

    @manager.task(name="kept", persist=True, requeue_on_interrupt=True)
    async def kept() -> None: ...

    app = FastAPI()
    app.include_router(router(manager, auth=None))
    store = FaultyStore(MemoryStore())
    async with (
        isolated(manager, store=store.as_store()) as world,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client,
    ):
        store.is_down = True
        task_id = kept.with_options(delay=3600).enqueue().task_id
        await world.advance(2)
        answer = await client.get("/healthz")
        assert (answer.status_code, answer.json()["status"]) == (503, "degraded")
        assert answer.json()["oldest_unsaved_s"] > 0
        assert answer.json()["storage_degraded_since"] is not None
        assert (await client.get("/tasks")).status_code == 503
        assert (await client.get("/counts")).status_code == 503
        refused = await client.post(f"/tasks/{task_id}/cancel")
        assert (refused.status_code, refused.json()["detail"][:21]) == (503, "the file has not answ")
        store.is_down = False
        await world.advance(5)
        assert (await client.get("/healthz")).json()["status"] == "ok"
        assert (await client.get(f"/tasks/{task_id}")).json()["status"] == "CANCELLED"  # asked for, and kept


def test_a_manager_that_does_not_run_is_said_so(manager: TaskManager) -> None:
    """An application that forgot its lifespan learns it from the probe."""
    app = FastAPI()
    app.include_router(router(manager, auth=None))
    client = TestClient(app)
    assert (client.get("/healthz").status_code, client.get("/healthz").json()["status"]) == (503, "not running")
    assert client.get("/tasks").status_code == 503
    assert "does not run" in client.get("/tasks").json()["detail"]


# Around it.


def test_the_schema_has_a_model_for_every_answer(client: TestClient) -> None:
    """A generated client knows what it gets, the refusals included."""
    schema = client.get("/openapi.json").json()
    for path, item in schema["paths"].items():
        for method, operation in item.items():
            good = next(code for code in operation["responses"] if code.startswith("2"))
            if good != "204":
                assert operation["responses"][good]["content"]["application/json"]["schema"], (method, path)
            assert "503" in operation["responses"]
    ours = {name for name in schema["components"]["schemas"] if name not in ("HTTPValidationError", "ValidationError")}
    kinds = ("Task", "TaskDetail", "Page", "Attempt", "Step", "Fault", "Health", "Schedule", "Refusal")
    kinds += ("Workflow", "WorkflowDetail", "WorkflowPage", "Node")
    assert ours == {f"Taskmanager{kind}" for kind in kinds}  # the application has a Task and a Page of its own
    assert {"404", "409"} <= set(schema["paths"]["/tm/tasks/{task_id}/retry"]["post"]["responses"])


def test_a_router_is_made_before_the_manager_starts_and_for_several_of_them() -> None:
    """Two managers, two prefixes, one application; generated operation ids stay apart."""
    first, second = made_manager(), made_manager()
    app = FastAPI(lifespan=first.lifespan)
    app.include_router(router(first, auth=None), prefix="/first")
    app.include_router(router(second, auth=None), prefix="/second", dependencies=[Depends(lambda: None)])
    ids = [each["operationId"] for item in app.openapi()["paths"].values() for each in item.values()]
    assert len(ids) == len(set(ids))


def test_the_core_imports_no_framework() -> None:
    """Who has none installed needs none; who imports the integration without one is told what to install."""
    program = (
        "import sys, taskmanager\n"
        "assert not {'fastapi', 'starlette', 'pydantic'} & set(sys.modules)\n"
        "sys.modules['fastapi'] = None\n"
        "import taskmanager.integrations.fastapi"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, text=True)
    assert "pip install 'fastapi>=0.110'" in run.stderr.splitlines()[-1]


def test_a_user_in_the_dependency_is_the_applications(manager: TaskManager) -> None:
    """The dependency may have dependencies and parameters of its own."""

    def key(api_key: str) -> str:
        return api_key

    def admin(api_key: Annotated[str, Depends(key)]) -> None:
        if api_key != "right":
            raise HTTPException(403)

    with serve(manager, auth=admin) as client:
        assert client.get("/tm/counts", params={"api_key": "wrong"}).status_code == 403
        assert client.get("/tm/counts", params={"api_key": "right"}).status_code == 200

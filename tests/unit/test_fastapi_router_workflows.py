"""The routes of workflows: a list in pages, one with its nodes, and what may be done to it in which state."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from taskmanager import TaskManager, Workflow
from taskmanager.integrations.fastapi import router


class Site:
    """An application with a manager whose tasks wait until they may end."""

    def __init__(self, database: Path) -> None:
        self.manager = TaskManager(database, requeue_pending=True)
        self.release = asyncio.Event()
        app = FastAPI(lifespan=self.manager.lifespan)
        app.include_router(router(self.manager, auth=None), prefix="/tm")
        self.client = TestClient(app)

        @self.manager.task(name="app:wait")
        async def wait(text: str) -> str:
            await self.release.wait()
            return text

        @self.manager.task(name="app:fail")
        async def fail() -> None:
            raise ValueError("not today")

        self.wait, self.fail = wait, fail

    def call(self, function: Any, *args: Any) -> Any:
        """Run this on the loop of the application."""
        assert self.client.portal is not None
        return self.client.portal.call(function, *args)

    def start(self, workflow_id: str, *, fails: bool = False) -> None:
        """Start a workflow of two nodes. One that fails is waited for."""
        workflow: Workflow[Any] = Workflow("pair")
        first = (workflow.add(self.fail) if fails else workflow.add(self.wait, "a")).named("first")
        workflow.add(self.wait, "b").named("second").after(first)

        async def started() -> None:
            handle = await self.manager.start_workflow(workflow, workflow_id=workflow_id)
            if fails:
                await handle.result(timeout=10)

        self.call(started)

    def end(self, workflow_id: str) -> None:
        """Let the tasks end, and wait for the workflow."""

        async def ended() -> None:
            self.release.set()
            await self.manager.workflow(workflow_id).result(timeout=10)

        self.call(ended)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """It runs during the test, and nothing of it waits at the end."""
    site = Site(tmp_path / "tasks.db")
    with site.client:
        yield site
        site.call(site.release.set)


def test_workflow_is_shown_with_its_nodes(site: Site) -> None:
    """A node has a task once it is ready; the id may have slashes."""
    site.start("pairs/1")
    found = site.client.get("/tm/workflows/pairs/1").json()
    assert {name: found[name] for name in ("workflow_id", "name", "status", "error")} == {
        "workflow_id": "pairs/1", "name": "pair", "status": "RUNNING", "error": None,
    }  # fmt: skip
    first, second = found["nodes"]
    assert (first["node_id"], second["node_id"], second["status"]) == ("first", "second", "PENDING")
    assert site.client.get(f"/tm/tasks/{first['task_id']}").json()["task_name"] == "app:wait"
    assert second["task_id"] is None


def test_workflow_and_node_say_why_they_have_failed(site: Site) -> None:
    """What comes after the failed node is skipped."""
    site.start("w", fails=True)
    found = site.client.get("/tm/workflows/w").json()
    assert (found["status"], found["error"]["message"]) == ("FAILED", "ValueError: not today")
    assert [node["status"] for node in found["nodes"]] == ["FAILED", "SKIPPED"]
    assert found["nodes"][0]["error"]["error_code"] == "UNHANDLED_EXCEPTION"


def test_workflows_are_listed_in_pages_and_by_status_and_name(site: Site) -> None:
    """Newest first, as tasks are."""
    for workflow_id in ("w-1", "w-2", "w-3"):
        site.start(workflow_id, fails=workflow_id == "w-2")

    def listed(**options: Any) -> list[str]:
        return [each["workflow_id"] for each in site.client.get("/tm/workflows", params=options).json()["workflows"]]

    page = site.client.get("/tm/workflows", params={"limit": 2}).json()
    assert (len(page["workflows"]), page["next_before"]) == (2, "w-2")
    assert listed(before="w-2") == ["w-1"]
    assert listed(status="FAILED") == ["w-2"]
    assert listed(name="pair") == ["w-3", "w-2", "w-1"]
    assert listed(name="other") == []
    assert site.client.get("/tm/workflows", params={"status": "ODD"}).status_code == 422
    assert site.client.get("/tm/workflows", params={"before": "nobody"}).status_code == 404


def test_workflow_is_paused_resumed_and_cancelled_in_its_states(site: Site) -> None:
    """Where there is nothing to do, the answer says in which state it is; an unknown id is not found."""

    def post(action: str, workflow_id: str = "w") -> tuple[int, str]:
        answer = site.client.post(f"/tm/workflows/{workflow_id}/{action}")
        found = answer.json()
        return answer.status_code, found.get("status") or found["detail"]

    site.start("w")
    assert post("resume") == (409, "workflow w is RUNNING and cannot be resumed now")
    assert post("pause") == (202, "PAUSED")
    assert post("pause") == (409, "workflow w is PAUSED and cannot be paused now")
    assert post("resume") == (202, "RUNNING")
    status, _ = post("cancel")
    assert status == 202
    site.end("w")
    assert post("cancel") == (409, "workflow w is CANCELLED and cannot be cancelled now")
    for action in ("pause", "resume", "cancel"):
        assert post(action, "nobody")[0] == 404
    assert site.client.get("/tm/workflows/nobody").status_code == 404

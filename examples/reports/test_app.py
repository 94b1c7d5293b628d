"""The service's own tests: no server, no file, no waiting. `python -m pytest test_app.py`"""

from collections.abc import AsyncIterator

import httpx
import pytest
from app import app
from jobs import Report, build_report, manager, send_email

from taskmanager.testing import World, isolated

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with isolated(manager) as made, app.router.lifespan_context(app):
        yield made


@pytest.fixture
async def client(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as made:
        yield made


async def test_a_report_is_built_and_announced_once(world: World, client: httpx.AsyncClient) -> None:
    wanted = {"pages": "100", "address": "ada@acme.test"}
    ordered = await client.post("/reports/acme", params=wanted, headers={"Idempotency-Key": "7"})
    again = await client.post("/reports/acme", params=wanted, headers={"Idempotency-Key": "7"})
    assert again.json() == ordered.json()
    await world.drain()  # a hundred pages take no time here
    shown = (await client.get(f"/reports/{ordered.json()['task_id']}")).json()
    assert (shown["status"], shown["report"]["pages"]) == ("COMPLETED", 100)
    assert [each.task_name for each in world.enqueued] == [build_report.name, send_email.name]


async def test_a_deploy_in_the_middle_of_a_report_costs_nothing_but_time(
    world: World, client: httpx.AsyncClient
) -> None:
    ordered = await client.post("/reports/acme", params={"pages": 100})
    await world.advance(10)
    await world.restart()
    await world.drain()
    assert (await client.get(f"/reports/{ordered.json()['task_id']}")).json()["status"] == "COMPLETED"


async def test_nobody_is_welcomed_at_a_wrong_address(world: World, client: httpx.AsyncClient) -> None:
    assert (await client.post("/customers", params={"address": "nowhere"})).status_code == 422
    assert not world.enqueued
    assert (await client.post("/customers", params={"address": "ada@acme.test"})).status_code == 201
    assert [each.args for each in world.enqueued] == [("ada@acme.test", "Welcome")]


async def test_the_team_has_one_mail_per_working_day(world: World) -> None:
    await world.advance(7 * 24 * 3600)
    assert [each.args[0] for each in world.enqueued].count("team@acme.test") == 5


async def test_the_function_alone(world: World) -> None:
    report = await build_report("acme", 0)
    assert isinstance(report, Report)
    assert not world.enqueued


async def test_tasks_are_seen_by_those_with_the_key(client: httpx.AsyncClient) -> None:
    assert (await client.get("/admin/counts")).status_code == 401
    assert (await client.get("/admin/counts", headers={"X-API-Key": "change me"})).status_code == 200
    assert (await client.get("/admin/healthz")).json()["status"] == "ok"

"""What is noted of an action: who, what, and which."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from taskmanager.web.forms import TOLD_AT_ONCE, audit
from tests.web.visitor import Visitor, manager_on, visit

pytestmark = pytest.mark.anyio


async def test_action_is_logged_with_who_what_and_which(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line, whatever is in the names. The application says who it is; else the address does."""
    caplog.set_level(logging.INFO, "taskmanager")
    manager = manager_on(tmp_path)
    async with manager, visit(manager) as visitor:
        await visitor.post("queues/pause", {"queue": "mail\nforged line\x1b[2J\u202e"})
        named = Visitor(with_user(visitor))
        await named.post("queues/resume", {"queue": "mail"})
    told = [each.getMessage() for each in caplog.records if each.getMessage().startswith("dashboard: ")]
    assert told == [
        "dashboard: 127.0.0.1: paused queue: mail\\nforged line\\x1b[2J\\u202e",
        "dashboard: Ada\\nLovelace: resumed queue: mail",
    ]


def with_user(visitor: Visitor) -> ASGIApp:
    """The same dashboard behind a middleware that knows its users, as Starlette's does."""
    app = visitor.app

    async def middleware(scope: Scope, receive: Receive, send: Send) -> None:
        scope["user"] = SimpleNamespace(display_name="Ada\nLovelace")
        await app(scope, receive, send)

    return middleware


def test_every_task_of_a_large_action_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """A line that says "and 480 more" is no answer to the question who has cancelled this one."""
    caplog.set_level(logging.INFO, "taskmanager")
    request = Request({"type": "http", "taskmanager.viewer": SimpleNamespace(name="ada")})
    ids = [f"id-{number}" for number in range(2 * TOLD_AT_ONCE + 1)]
    audit(request, "cancelled", ids)
    told = [each.getMessage().removeprefix("dashboard: ada: cancelled: ") for each in caplog.records]
    assert ", ".join(told).split(", ") == ids
    assert len(told) == 3

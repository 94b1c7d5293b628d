"""The applications of docs/dashboard.md, with people who sign in: who sees, who acts, and what the log says of it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.test_readme import ROOT, environment, modules_of

PAGE = ROOT / "docs" / "dashboard.md"
PATIENCE_S = 60.0
VISIT = """
import logging, re, sys

logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
logging.getLogger("httpx").setLevel("WARNING")
for name in ("httpx", "httpx2", "django.request"):
    logging.getLogger(name).setLevel("CRITICAL")

def visit(client, **how):
    page = client.get("/tasks/queues", **how)
    token = client.cookies.get("taskmanager_form", "")
    headers = how.pop("headers", {})
    sent = {**headers, "sec-fetch-site": "same-origin"}
    form = {"queue": "mail", "form_token": token}
    done = client.post("/tasks/queues/pause", data=form, headers=sent, follow_redirects=False, **how)
    return page.status_code, done.status_code, client.get("/tasks", headers=headers, **how).status_code
"""


def printed(folder: Path, program: str) -> list[str]:
    """What a program says that imports the modules of the page, sorted: Litestar logs in a thread of its own."""
    for name, text in modules_of(PAGE).items():
        (folder / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", VISIT + program],
        cwd=folder, env={**environment(), "ADA_PASSWORD": "right"}, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = [re.search(r"^\(.*|dashboard: .*", line) for line in (done.stdout + done.stderr).splitlines()]
    return sorted(found[0] for found in told if found is not None)


def test_django_knows_its_users_on_the_dashboard(tmp_path: Path) -> None:
    """A superuser acts, the staff looks, and nobody else gets in. The session is that of Django."""
    pytest.importorskip("django")
    program = """
from asgi import app
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from starlette.testclient import TestClient

call_command("migrate", verbosity=0)
cookies = {}
for name, rights in {"root": {"is_superuser": True}, "ann": {"is_staff": True}, "bob": {}}.items():
    browser = Client()
    browser.force_login(User.objects.create_user(name, **rights))
    cookies[name] = browser.cookies["sessionid"].value
with TestClient(app) as client:
    for name, cookie in cookies.items():
        client.cookies.clear()
        client.cookies.set("sessionid", cookie)
        print(visit(client))
    client.cookies.clear()
    print(visit(client))
"""
    assert printed(tmp_path, program) == [
        "(200, 303, 200)",
        "(200, 403, 200)",
        "(403, 403, 403)",
        "(403, 403, 403)",
        "dashboard: root: paused queue: mail",
    ]


def test_fastapi_asks_for_a_password_and_names_the_user(tmp_path: Path) -> None:
    """The name that was given stands in the log of actions."""
    program = """
from fastapi.testclient import TestClient
from main import app

with TestClient(app) as client:
    print(visit(client, auth=("ada", "right")))
    print(visit(client, auth=("ada", "")))
    print(visit(client, auth=("eve", "")))
    print(visit(client))
"""
    assert printed(tmp_path, program) == [
        "(200, 303, 200)",
        "(401, 401, 401)",
        "(401, 401, 401)",
        "(401, 401, 401)",
        "dashboard: ada: paused queue: mail",
    ]


def test_starlette_and_litestar_let_in_whom_their_page_names(tmp_path: Path) -> None:
    """By the users of the middleware, and by the groups of the proxy."""
    pytest.importorskip("litestar")
    program = """
import api, shop
from starlette.testclient import TestClient

with TestClient(shop.app) as client:
    print(visit(client, headers={"x-name": "ada"}))
    print(visit(client, headers={"x-name": "bob"}))
with TestClient(api.app) as client:
    print(visit(client, headers={"x-auth-request-groups": "operators"}))
    print(visit(client, headers={"x-auth-request-groups": "support"}))
    print(visit(client))
"""
    assert printed(tmp_path, program) == [
        "(200, 303, 200)",
        "(200, 303, 200)",
        "(200, 403, 200)",
        "(200, 403, 200)",
        "(403, 403, 403)",
        "dashboard: ada: paused queue: mail",
        "dashboard: testclient: paused queue: mail",
    ]

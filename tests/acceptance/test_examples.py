"""The applications in `examples/`, run as their README files say."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.acceptance.serving import Server, free_port
from tests.crash.harness import ROOT, Site, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")]

REPORTS: Final = ROOT / "examples" / "reports"
ADMIN: Final = {"X-API-Key": "change me"}
SLOW, FAST = {"REPORTS_PAGE_S": "1"}, {"REPORTS_PAGE_S": "0.01"}


class Answer(NamedTuple):
    """What a request came to."""

    status: int
    body: Any


def ask(method: str, url: str, headers: Mapping[str, str]) -> Answer:
    """One request; a refusal is an answer too."""
    call = urllib.request.Request(url, method=method, headers=dict(headers))
    try:
        with urllib.request.urlopen(call, timeout=20) as answer:
            return Answer(answer.status, json.loads(answer.read()))
    except urllib.error.HTTPError as refusal:
        with refusal:
            return Answer(refusal.code, json.loads(refusal.read()))


def curl(line: str, port: int, task_id: str) -> Answer:
    """Do what a line of the README does."""
    words = iter(shlex.split(line.replace("TASK_ID", task_id)))
    assert next(words) == "curl"
    method, url, headers = "GET", "", {}
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        else:
            url = word.replace(":8000", f":{port}")
    return ask(method, url, headers)


def steps() -> Iterator[str]:
    """What the tour of the README does: its requests, and one restart."""
    for line in (REPORTS / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith(("curl ", "Now press Ctrl-C")):
            yield line


class Tour:
    """The application in a directory of its own, and what it has answered."""

    def __init__(self, folder: Path) -> None:
        for file in ("app.py", "jobs.py"):
            shutil.copy(REPORTS / file, folder)
        self._folder = folder
        self._port = free_port()
        self.answers: dict[str, list[Answer]] = {}
        self.task_id = ""
        self.server = self._start(SLOW)

    def _start(self, environment: Mapping[str, str]) -> Server:
        command = ("uvicorn", "app:app", "--port", str(self._port))
        return Server(Site(self._folder), self._port, *command, folder=self._folder, environment=environment)

    def until_ready(self) -> None:
        """Wait until it answers."""
        wait_for(lambda: self.server.is_ready("/admin/healthz"), self.server.log)

    def follow(self, step: str) -> None:
        """One step of the README."""
        if not step.startswith("curl "):
            self.server.stop(signal.SIGINT)
            self.server = self._start(FAST)
            self.until_ready()
            return
        answer = curl(step, self._port, self.task_id)
        path = shlex.split(step.replace("-X POST ", ""))[1].partition(":8000")[2]
        self.answers.setdefault(path, []).append(answer)
        if path.startswith("/reports/acme"):
            self.task_id = answer.body["task_id"]

    def report(self) -> Any:
        """The report as it is now."""
        return self.get(f"/reports/{self.task_id}").body

    def get(self, path: str) -> Answer:
        """One look."""
        return ask("GET", f"{self.server.url}{path}", ADMIN)


@pytest.fixture
def tour(tmp_path: Path) -> Iterator[Tour]:
    made = Tour(tmp_path)
    try:
        made.until_ready()
        yield made
    finally:
        made.server.kill()


def test_the_tour_of_the_reports_service_goes_as_its_readme_says(tour: Tour) -> None:
    """Every request of the README, with Ctrl-C and a new start where it says so, in the middle of a report."""
    for step in steps():
        tour.follow(step)
    ordered, again = tour.answers["/reports/acme?pages=20&address=ada@acme.test"]
    assert (ordered.status, ordered.body) == (202, again.body)
    assert tour.answers["/reports/TASK_ID"][0].body["status"] == "RUNNING"
    assert [each.status for each in tour.answers["/customers?address=nowhere"]] == [422]
    assert [each.status for each in tour.answers["/customers?address=ada@acme.test"]] == [201]
    assert [each.status for each in tour.answers["/feedback?text=very%20good%20reports"]] == [202]
    assert all(each.status == 200 for path, found in tour.answers.items() if "/admin/" in path for each in found)
    wait_for(lambda: tour.report()["status"] == "COMPLETED", tour.server.log)
    assert tour.report()["report"]["pages"] == 20
    shown = tour.get(f"/admin/tasks/{tour.task_id}").body
    assert [each["outcome"] for each in shown["attempts"]] == ["INTERRUPTED", "COMPLETED"]
    wait_for(lambda: tour.get("/admin/counts").body["COMPLETED"] == 4, tour.server.log)
    mails = tour.get("/admin/tasks?task_name=jobs:send_email").body["tasks"]
    assert [each["status"] for each in mails] == ["COMPLETED"] * 2
    tour.server.stop()
    assert "close it here" in tour.server.log()


def test_the_examples_tests_pass() -> None:
    """They are what a user copies."""
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        (*command, "test_app.py"),
        cwd=REPORTS,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

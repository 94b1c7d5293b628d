"""Flask, Django and Litestar as docs/web-frameworks.md shows them, under their servers, while requests come in.

The files of the page are served by the commands of the page. What a server said yes to has ended in the file, once,
whether the server was stopped, reloaded or killed. The file is read by plain `sqlite3`.
"""

import os
import shlex
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.acceptance.serving import Accepted, Load, Server, free_port, loaded
from tests.acceptance.test_readme import ROOT, blocks, modules_of
from tests.crash.harness import Site, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals"),
]

PAGE = ROOT / "docs" / "web-frameworks.md"
ENOUGH = 30
"""Accepted requests, at least, between two ends of a server."""

Change = Callable[[Server, set[int]], object]
"""Ends processes of a server. It is given those in which tasks ran since the last change."""


def command_of(application: str) -> list[str]:
    """The command of the page that serves this application."""
    lines = [block.text for block in blocks() if block.page == PAGE and block.language == "sh"]
    (line,) = (each for each in lines if each.split()[-1] == application)
    return shlex.split(line)


class Hosted:
    """The files of the page in a folder, and the command that serves one of its applications there."""

    def __init__(self, folder: Path, application: str) -> None:
        for name, text in modules_of(PAGE).items():
            (folder / name).write_text(text, encoding="utf-8")
        self.site, self.port = Site(folder), free_port()
        self._command = command_of(application)

    def started(self, *options: str) -> Server:
        """A server, with further options."""
        program, *words = self._command
        where = ("--port", str(self.port)) if program == "uvicorn" else ("--bind", f"127.0.0.1:{self.port}")
        folder = self.site.folder
        environment = {"HOME": str(folder), "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
        return Server(self.site, self.port, program, *where, *options, *words, folder=folder, environment=environment)

    @contextmanager
    def served(self, *options: str) -> Iterator[Server]:
        """A server that answers. All of its processes end with the block."""
        server = self.started(*options)
        try:
            yield server.until_ready()
        finally:
            server.kill()

    def processes(self) -> set[int]:
        """Those in which tasks ran."""
        return {pid for (pid,) in self.site.query("SELECT DISTINCT worker_pid FROM taskmanager_task_attempts")}

    def judge(self, accepted: list[Accepted], server: Server) -> None:
        """Wait until every task has ended. All that was accepted is there, completed once, and a view shows it."""
        unfinished = "SELECT count(*) FROM taskmanager_tasks WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING')"
        wait_for(lambda: self.site.query(unfinished) == [(0,)], server.log)
        self.site.assert_sound()
        self.site.assert_settled()
        statuses = self.site.statuses()
        assert Counter(statuses.get(each.label) for each in accepted) == {"COMPLETED": len(accepted)}
        first = accepted[0]
        shown = server.request("GET", f"/status/{first.task_id['task_id']}")
        assert shown == {"status": "COMPLETED", "report": f"a report for {first.label}"}
        assert server.request("GET", "/quick/ada") == {"report": "a report for ada"}


def under_load(hosted: Hosted) -> AbstractContextManager[Load]:
    """Requests that order reports, each of another customer."""
    return loaded(hosted.site.folder, hosted.port, "reports", connections=4)


def end_under_load(
    hosted: Hosted, *options: str, changes: Sequence[Change] = (), workers: int = 1, before: Sequence[Accepted] = ()
) -> None:
    """Change the workers of a server while requests come in, stop it, let another start finish, and judge."""
    ran = hosted.processes() if before else set()
    with under_load(hosted) as load:

        def until_more_ran(server: Server) -> set[int]:
            """Wait until new processes have run tasks, as many as there are workers. Return them."""
            wait_for(lambda: len(hosted.processes() - ran) >= workers, server.log)
            load.until(len(load.accepted()) + ENOUGH)
            new = hosted.processes() - ran
            ran.update(new)
            return new

        with hosted.served(*options) as server:
            for change in changes:
                change(server, until_more_ran(server))
            until_more_ran(server)
            server.stop()
            assert "Traceback" not in server.log()
        with hosted.served(*options) as server:
            until_more_ran(server)
            hosted.judge([*before, *load.stop()], server)
            server.stop()


def kill(server: Server, workers: set[int]) -> None:
    """As the system does that has no memory left. gunicorn starts others in their place."""
    for pid in workers:
        os.kill(pid, signal.SIGKILL)


def test_flask_under_gunicorn_loses_nothing(tmp_path: Path) -> None:
    """Two workers, which a change of the code restarts."""
    hosted, tasks = Hosted(tmp_path, "app:app"), tmp_path / "tasks.py"

    def reload(server: Server, workers: set[int]) -> None:
        tasks.write_text(tasks.read_text() + "# changed\n")

    end_under_load(hosted, "--reload", changes=[reload], workers=2)


def test_django_under_gunicorn_that_preloads_loses_nothing(tmp_path: Path) -> None:
    """Two workers, forked when the application is loaded, which SIGHUP restarts, and which are killed."""
    hosted = Hosted(tmp_path, "wsgi:application")

    def reload(server: Server, workers: set[int]) -> None:
        server.process.send_signal(signal.SIGHUP)

    end_under_load(hosted, "--preload", changes=[reload, kill], workers=2)


def test_litestar_under_uvicorn_loses_nothing(tmp_path: Path) -> None:
    """One process, whose lifespan is the manager's, and which is killed."""
    hosted = Hosted(tmp_path, "api:app")
    with under_load(hosted) as load:
        with hosted.served() as server:
            load.until(ENOUGH)
            server.kill()
        accepted = load.stop()
    end_under_load(hosted, before=accepted)


def test_a_manager_hosted_before_the_fork_is_refused_in_the_workers(tmp_path: Path) -> None:
    """The server ends, and its log says what to do."""
    hosted = Hosted(tmp_path, "app:app")
    (tmp_path / "app.py").write_text(
        (tmp_path / "app.py").read_text() + "block = manager.in_thread()\nblock.__enter__()\n"
    )
    server = hosted.started("--preload")
    try:
        assert server.process.wait(30) > 0
    finally:
        server.kill()
    assert "WrongProcess" in server.log()
    assert "hook" in server.log()

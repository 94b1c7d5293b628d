"""Real servers on real sockets, stopped by real signals while requests come in: what was accepted ends, once.

The load comes from a process of its own, and a server is stopped while it goes on. What counts is in the file, read by
plain `sqlite3`, and in the lines that the tasks left.
"""

import http.client
import os
import signal
import socket
import struct
from collections import Counter
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from websockets.sync.client import connect

from tests.acceptance.serving import Accepted, Server, free_port, loaded, logged, served
from tests.crash.harness import TERMINAL, Site, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals"),
]

APP = "tests.acceptance.served:app"
KINDS = ("once", "safe", "added", "plain")


def uvicorn(port: int, *options: str, app: str = APP) -> tuple[str, ...]:
    """The command. Keep-alive clients that go on asking would hold a stopping server for ever without the time-out."""
    return ("uvicorn", app, "--port", str(port), "--no-access-log", "--timeout-graceful-shutdown", "3", *options)


def until_nothing_is_unfinished(server: Server) -> None:
    """Every task in the file and in memory has ended."""

    def is_idle() -> bool:
        counts = server.request("GET", "/counts")
        return not any(count for status, count in counts.items() if status not in TERMINAL)

    wait_for(is_idle, server.log)


def assert_each_ended_once(site: Site, accepted: list[Accepted]) -> None:
    """What the server said yes to is in the file, completed by exactly one attempt, and its code ran exactly once.

    A route with plain `BackgroundTasks` says yes before it hands over. When the server's time-out has passed it stops
    the manager and still answers on connections that it has: such a task is refused, and the log says so.
    """
    site.assert_sound()
    site.assert_settled()
    statuses, starts = site.statuses(), site.starts()
    refused = [each for each in accepted if kind(each) == "plain" and each.label not in statuses]
    assert len(refused) <= logged(site, "task once was added to a response and is not accepted")
    accepted = [each for each in accepted if each not in refused]
    assert Counter(statuses.get(each.label) for each in accepted) == {"COMPLETED": len(accepted)}
    assert {each.label: starts[each.label] for each in accepted if starts[each.label] != 1} == {}
    ids = {
        label: task_id for task_id, label in site.query("SELECT id, json_extract(args, '$[0]') FROM taskmanager_tasks")
    }
    assert [each for each in accepted if each.task_id not in (None, ids[each.label])] == []
    completed = dict(
        site.query(
            "SELECT task_id, count(*) FROM taskmanager_task_attempts WHERE outcome = 'COMPLETED' GROUP BY task_id"
        )
    )
    assert {each.label for each in accepted if completed.get(ids[each.label]) != 1} == set()


def pids(site: Site) -> set[int]:
    """The processes in which tasks ran."""
    return {line.pid for line in site.lines("start")}


def kind(accepted: Accepted) -> str:
    """The route."""
    return accepted.label.split("-")[0]


class Round(NamedTuple):
    """One start of a server, and how many processes of it serve."""

    command: tuple[str, ...]
    workers: int = 1


def serve_under_load(site: Site, port: int, *rounds: Round, requests: int) -> list[Accepted]:
    """Start and stop one server after the other while requests come in; the last one may finish. What they accepted."""
    accepted: list[Accepted] = []
    with loaded(site.folder, port, *KINDS) as load:
        for number, (command, workers) in enumerate(rounds, 1):
            wanted_processes = len(pids(site)) + min(workers, 2)
            with served(site, port, *command) as server:
                server.until_logged("Application startup complete", workers)
                load.until(len(load.accepted()) + requests)
                wait_for(partial(has_processes, site, wanted_processes), server.log)
                if number == len(rounds):
                    accepted = load.stop()
                    until_nothing_is_unfinished(server)
                server.stop()
    return accepted


def has_processes(site: Site, count: int) -> bool:
    """Whether tasks ran in so many processes."""
    return len(pids(site)) >= count


def test_a_server_restarted_under_load_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    """SIGTERM again and again; with `saved()`, synchronous, with `Background`, with plain `BackgroundTasks`."""
    site, port = Site(tmp_path), free_port()
    accepted = serve_under_load(site, port, *[Round(uvicorn(port))] * 3, requests=150)
    assert {kind(each) for each in accepted} == set(KINDS)
    assert_each_ended_once(site, accepted)


def test_four_workers_share_one_file(tmp_path: Path) -> None:
    """Four instances, each with its own tasks and connections; a stop under load, and a single one goes on."""
    site, port = Site(tmp_path), free_port()
    rounds = Round(uvicorn(port, "--workers", "4"), workers=4), Round(uvicorn(port))
    assert_each_ended_once(site, serve_under_load(site, port, *rounds, requests=100))


def test_a_reload_loses_nothing(tmp_path: Path) -> None:
    """The reloader stops its process with SIGTERM and starts another, while requests come in."""
    site, port = Site(tmp_path), free_port()
    module = tmp_path / "reloaded.py"
    module.write_text("from tests.acceptance.served import app as app\n")
    command = uvicorn(port, "--reload", "--reload-dir", str(tmp_path), app="reloaded:app")
    with loaded(tmp_path, port, *KINDS) as load, served(site, port, *command, folder=tmp_path) as server:
        load.until(100)
        module.write_text(module.read_text() + "# touched\n")
        wait_for(partial(has_processes, site, 2), server.log)
        load.until(len(load.accepted()) + 100)
        accepted = load.stop()
        until_nothing_is_unfinished(server)
        server.stop()
    assert len(pids(site)) == 2
    assert_each_ended_once(site, accepted)


def test_a_preloaded_application_opens_its_file_in_the_workers_only(tmp_path: Path) -> None:
    """gunicorn loads the application, and forks: the manager was made in the parent and starts in each child."""
    site, port = Site(tmp_path), free_port()
    command = (
        *("gunicorn", APP, "--worker-class", "uvicorn_worker.UvicornWorker", "--workers", "2", "--preload"),
        *("--bind", f"127.0.0.1:{port}", "--graceful-timeout", "10"),
    )
    with loaded(tmp_path, port, *KINDS) as load:
        for is_last in (False, True):
            with served(site, port, *command, environment={"HOME": str(tmp_path)}) as server:
                load.until(len(load.accepted()) + 200)
                if is_last:
                    accepted = load.stop()
                    until_nothing_is_unfinished(server)
                server.stop()
                assert server.process.returncode == 0, server.log()
    assert [line.label for line in site.lines("loaded")] == ["no file yet", "file is there"]
    assert not pids(site) & {line.pid for line in site.lines("loaded")}
    assert len(pids(site)) >= 2
    assert_each_ended_once(site, accepted)


def reset(connection: socket.socket) -> None:
    """Leave without a word: the other side gets RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def send_only(port: int, method: str, path: str, *, is_answered: bool) -> None:
    """A client that asks, reads at most the beginning of the answer, and is gone."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path)
    if is_answered:
        assert connection.getresponse().read(1024)
    assert connection.sock is not None
    reset(connection.sock)


def test_clients_that_leave_cancel_nothing_and_a_hung_route_holds_nothing(tmp_path: Path) -> None:
    """Disconnects first; then SIGTERM with a route that never answers and a task that takes too long.

    The server's time-out for requests passes, then the manager's drain, and both are over in bounded time. What had
    been handed over has ended, what the cancelled route had only added is dropped and named.
    """
    site, port = Site(tmp_path), free_port()
    command = ("uvicorn", APP, "--port", str(port), "--timeout-graceful-shutdown", "1")
    with served(site, port, *command, environment={"SERVED_DRAIN_S": "1"}) as server:
        send_only(port, "POST", "/once/left?seconds=0.3", is_answered=False)
        send_only(port, "GET", "/stream/streamed", is_answered=True)
        send_only(port, "POST", "/hangs/hung", is_answered=False)
        with connect(f"ws://127.0.0.1:{port}/socket/socket") as websocket:
            websocket.recv(timeout=10)
            reset(websocket.socket)
        finished = {"left", "streamed", "socket", "hung enqueued"}
        wait_for(lambda: {line.label for line in site.lines("finish")} >= finished, server.log)
        server.request("POST", "/once/long?seconds=60")
        wait_for(lambda: "long" in site.starts(), server.log)
        server.stop(within_s=12)
        assert server.process.returncode == -signal.SIGTERM
    assert site.lines("let go", "hung")
    assert site.statuses() == {**dict.fromkeys(finished, "COMPLETED"), "long": "INTERRUPTED"}
    assert "Application shutdown complete" in server.log()
    site.assert_sound()
    site.assert_settled()

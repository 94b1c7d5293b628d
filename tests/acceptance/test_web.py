"""`taskmanager web` from outside: what it prints, who reaches it, and how it ends."""

import http.client
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.acceptance.test_command_line import PATIENCE_S, command, run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


class Served:
    """A `taskmanager web` that listens."""

    def __init__(self, process: "subprocess.Popen[str]", address: str) -> None:
        self.process = process
        self.address = address
        self.port = urlsplit(address).port

    def answer(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
        """The status and the text of an answer, on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text


@contextmanager
def served(folder: Path, *options: str, **environment: str) -> Iterator[Served]:
    """A server on a free port, which ends with the block."""
    words = command(folder, "web", "--port", "0", *options)
    words["env"] |= environment
    process = subprocess.Popen(**words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert "http://" in line, process.communicate(timeout=PATIENCE_S)
        yield Served(process, line.split()[-1])
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_web_ends_with_viewers_connected(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Ten browsers keep their connections open, and one has sent half of a request."""
    with served(tmp_path) as server:
        viewers = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S) for _ in range(10)]
        for each in viewers:
            each.request("GET", "/queues")
            answer = each.getresponse()
            assert answer.status == 503
            assert b"there is no file" in answer.read().lower()
        half = socket.create_connection(("127.0.0.1", server.port))
        half.sendall(b"GET /queues HTTP/1.1\r\nHost: local")
        server.process.send_signal(number)
        _, errors = server.process.communicate(timeout=PATIENCE_S)
        assert server.process.returncode == code, errors
        assert "Traceback" not in errors
        for each in viewers:
            each.close()
        half.close()
    assert list(tmp_path.iterdir()) == []


def test_web_prints_the_token_once_and_logs_it_nowhere(tmp_path: Path) -> None:
    """It is in the address to click, and in no line of a log that others read."""
    with served(tmp_path, "--host", "0.0.0.0", "--token") as server:
        token = urlsplit(server.address).query.removeprefix("token=")
        assert len(token) >= 40
        assert server.answer("/queues")[0] == 401
        assert server.answer(f"/queues?token={token}")[0] == 303
        assert server.answer("/queues", {"Authorization": f"Bearer {token}", "Host": "any.example"})[0] == 503
        server.process.send_signal(signal.SIGTERM)
        out, errors = server.process.communicate(timeout=PATIENCE_S)
    assert token not in out + errors
    with served(tmp_path, TASKMANAGER_WEB_TOKEN="sixteen characters and more") as server:
        assert server.address.endswith("?token=sixteen%20characters%20and%20more")
        assert server.answer("/queues")[0] == 401


def test_web_asks_a_function_of_the_application(tmp_path: Path) -> None:
    """It is imported from the current directory, as by `taskmanager run`."""
    (tmp_path / "admin.py").write_text(
        "async def may_see(request):\n    return request.headers.get('x-level')\n\nnot_one = 3\n"
    )
    with served(tmp_path, "--auth", "admin:may_see", "--host", "0.0.0.0") as server:
        assert server.answer("/queues")[0] == 403
        assert server.answer("/queues", {"X-Level": "read", "Host": "any.example"})[0] == 503
    with served(tmp_path, "--auth", "admin:may_see", "--allowed-host", "tasks.example.com") as server:
        assert server.answer("/queues", {"X-Level": "read", "Host": "any.example"})[0] == 421
        assert server.answer("/queues", {"X-Level": "read", "Host": "tasks.example.com"})[0] == 503
    for target, reason in (("admin", "names no function"), ("admin:other", "has no 'other'"), ("admin:not_one", "3")):
        refused = run(tmp_path, "web", "--port", "0", "--auth", target)
        assert refused.returncode in (1, 2)
        assert reason in refused.stderr
        assert "Traceback" not in refused.stderr


def test_web_believes_no_header_of_a_proxy(tmp_path: Path) -> None:
    """Anybody can write them."""
    forged = {"X-Forwarded-Host": "localhost", "X-Forwarded-Proto": "https", "X-Forwarded-For": "127.0.0.1"}
    with served(tmp_path) as server:
        assert server.answer("/queues", {**forged, "Host": "evil.example"})[0] == 421
        assert server.answer("/queues", forged)[0] == 503


def test_web_refuses_to_be_open_to_others(tmp_path: Path) -> None:
    """What decides is the address it is bound to; one line says what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for options, code, reason in (
            (("--host", "0.0.0.0"), 2, "can be reached from other machines"),
            (("--host", "::"), 2, "can be reached from other machines"),
            (("--host", "no-such-host.invalid"), 1, "no such address"),
            (("--port", port), 1, f"port {port} is in use"),
            (("--token", "short"), 2, "16 characters"),
            (("--allowed-host", "https://tasks.example.com/"), 2, "write a name"),
            (("--allowed-host", "fd00::1"), 2, "write a name"),
            (("--token", "--auth", "a:b"), 2, "exclude each other"),
        ):
            refused = run(tmp_path, "web", "--port", "0", *options)
            assert (refused.returncode, refused.stdout) == (code, ""), (options, refused.stderr)
            assert reason in refused.stderr
            assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize("missing", ["starlette", "jinja2", "uvicorn"])
def test_web_says_what_to_install(tmp_path: Path, missing: str) -> None:
    """The core does not need these libraries, so they may well not be there."""
    program = f"import sys; sys.modules[{missing!r}] = None; from taskmanager.cli.commands import main; main()"
    words = command(tmp_path)
    refused = subprocess.run(
        **{**words, "args": [sys.executable, "-c", program, "web", "--port", "0"]},
        capture_output=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"{missing} is not installed; install it with: pip install 'taskmanager[web]'" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1

"""Who gets in where `taskmanager web` serves a file: by the Host name, by the token, by the address it is bound to."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from httpx import Response

from taskmanager.store.file_place import FilePlace
from taskmanager.store.sqlite import schema
from taskmanager.web.local import TokenAuth, everybody_here, file_dashboard, hosts_of, is_loopback
from tests.sessions import connect
from tests.web.visitor import Visitor, manager_on

pytestmark = pytest.mark.anyio
TOKEN = "a token of thirty-two characters"


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    """A file whose application is down."""
    async with manager_on(tmp_path):
        pass
    return tmp_path / "tasks.db"


def with_token(file: Path, **options: Any) -> Visitor:
    """A visitor of a dashboard that asks for the token."""
    return Visitor(file_dashboard(FilePlace(file), TokenAuth(TOKEN), hosts=None, **options))


EVERY_ADDRESS = ("", "queues", "healthz", "static/dashboard.css", "static/dashboard.js", "no-such", "?token=x")


async def test_page_whose_name_leads_to_this_machine_gets_nothing(file: Path) -> None:
    """A name of another site that resolves to 127.0.0.1 makes its pages "the same site". The Host header tells."""
    foreign = (
        "evil.example:8421", "evil.example", "localhost", "localhost:80", "localhost.:8421", "127.0.0.1:8422",
        "127.0.0.1:8421.evil.example", "127.0.0.1:8421@evil.example", "evil.example#localhost:8421", "", "[::1]",
        "2130706433:8421", "0.0.0.0:8421",
    )  # fmt: skip
    async with Visitor(file_dashboard(FilePlace(file), everybody_here, hosts=hosts_of(8421, ()))) as visitor:
        for host in foreign:
            for address in EVERY_ADDRESS:
                answer = await visitor.get(address, host=host)
                assert (answer.status_code, "set-cookie" in answer.headers) == (421, False), (host, address)
            assert (await visitor._client.post("queues/pause", headers={"host": host})).status_code == 421
        two = await visitor._client.get("queues", headers=[("host", "localhost:8421"), ("host", "evil.example")])
        assert two.status_code == 421
        for host in ("127.0.0.1:8421", "localhost:8421", "[::1]:8421", "LOCALHOST:8421"):
            assert (await visitor.get("queues", host=host)).status_code == 200, host


async def test_other_names_are_allowed_by_name(file: Path) -> None:
    """With a port for that port only, without one for any: a proxy or a tunnel listens where it wants."""
    hosts = hosts_of(80, ("Tasks.example.com", "localhost:9000", "[fd00::1]"))
    async with Visitor(file_dashboard(FilePlace(file), everybody_here, hosts=hosts)) as visitor:
        for host, wanted in {
            "tasks.example.com": 200, "tasks.example.com:8443": 200, "localhost:9000": 200, "localhost": 200,
            "localhost:80": 200, "[fd00::1]:1": 200, "localhost:9001": 421, "tasks.example.com.evil.example": 421,
            "a.tasks.example.com": 421, "fd00::1": 421, "127.0.0.1:8080": 421,
        }.items():  # fmt: skip
            assert (await visitor.get("queues", host=host)).status_code == wanted, host


async def test_token_comes_once_in_the_address_and_then_as_a_cookie(file: Path) -> None:
    """The address that stays in the browser, its history and what it sends on has no token. Nor has the cookie."""
    async with with_token(file) as visitor:
        welcome = await visitor.get(f"queues?queue=a%26b&token={TOKEN.replace(' ', '+')}&since=")
        assert (welcome.status_code, welcome.headers["location"]) == (303, "./queues?queue=a%26b&since=")
        assert welcome.headers["referrer-policy"] == "no-referrer"
        assert welcome.headers["cache-control"] == "no-store"
        (cookie,) = [each for each in welcome.headers.get_list("set-cookie") if each.startswith("taskmanager_web")]
        assert {"HttpOnly", "Path=/", "SameSite=Strict"} <= set(cookie.split("; "))
        assert not [each for each in (cookie, welcome.text) if TOKEN in each or TOKEN[:8] in each]
        assert (await visitor.get("queues")).status_code == 200
        assert (await visitor.post("queues/pause", {"queue": "a"})).status_code == 303
    async with with_token(file) as visitor:
        assert (await visitor.get(f"?token={TOKEN}")).headers["location"] == "./"
        assert (await visitor.get(f"workflows/a%2Fb%3Fc?token={TOKEN}")).headers["location"] == "./a%2Fb%3Fc"


async def test_cookie_is_good_after_a_restart_and_for_this_token_only(file: Path) -> None:
    """It is judged by the token alone, which another process may have as well."""
    async with with_token(file) as one, with_token(file) as again:
        await one.get(f"?token={TOKEN}")
        again._client.cookies.update(one._client.cookies)
        assert (await again.get("queues")).status_code == 200
    other = Visitor(file_dashboard(FilePlace(file), TokenAuth("another token of any length"), hosts=None))
    async with other:
        other._client.cookies.update(one._client.cookies)
        assert (await other.get("queues")).status_code == 401
        await other.get("?token=another token of any length")
        assert len([name for name in other._client.cookies if name.startswith("taskmanager_web")]) == 2


def is_refused(answer: Response) -> bool:
    """Whether an answer tells somebody unknown what to do, and nothing else."""
    return (answer.status_code, "does not know you" in answer.text) == (401, True) and "queues" not in answer.text


async def test_nobody_gets_in_without_the_token(file: Path) -> None:
    """Whatever looks like it."""
    auth = TokenAuth(TOKEN)
    async with Visitor(file_dashboard(FilePlace(file), auth, hosts=None)) as visitor:
        for query in ("", "?token=", f"?token={TOKEN[:-1]}", f"?token={TOKEN}x", "?token=%ff%00", f"?TOKEN={TOKEN}"):
            for address in ("", "queues", "healthz", "static/dashboard.js"):
                assert is_refused(await visitor.get(address + query)), address + query
        for value in ("", TOKEN, "é"):
            cookies = f"{auth._cookie_name}={value}; token={TOKEN}".encode()
            assert is_refused(await visitor._client.get("queues", headers={b"cookie": cookies}))
        posted = await visitor._client.post(f"queues/pause?token={TOKEN}", data={"token": TOKEN})
        assert is_refused(posted)
        for scheme in (f"Bearer {TOKEN}x", "Bearer", f"Basic {TOKEN}", TOKEN):
            assert is_refused(await visitor.get("healthz", authorization=scheme))
        assert (await visitor.get("healthz", authorization=f"Bearer {TOKEN}")).status_code == 503
        assert (await visitor.get("static/dashboard.css")).status_code == 200


async def test_read_only_holds_with_a_token(file: Path) -> None:
    """The token opens the pages, and the option decides what they do."""
    async with with_token(file, read_only=True) as visitor:
        await visitor.get(f"?token={TOKEN}")
        assert (await visitor.post("queues/pause", {"queue": "a"})).status_code == 403


@pytest.mark.parametrize(
    ("is_here", "address"),
    [
        (True, "127.0.0.1"), (True, "127.8.9.1"), (True, "::1"), (True, "::ffff:127.0.0.1"),
        (False, "0.0.0.0"), (False, "::"), (False, "192.168.1.7"), (False, "fe80::1%eth0"), (False, "::ffff:10.0.0.1"),
    ],
)  # fmt: skip
async def test_loopback_is_judged_by_the_bound_address(is_here: bool, address: str) -> None:
    """All of 127.0.0.0/8 is this machine, and "all interfaces" is everybody."""
    assert is_loopback(address) is is_here


@pytest.mark.parametrize("content", [None, b"", b"not a database, by far" * 99])
async def test_file_that_cannot_be_read_is_a_page_with_its_reason(tmp_path: Path, content: bytes | None) -> None:
    """No traceback, and the file is not made."""
    file = tmp_path / "tasks.db"
    if content is not None:
        file.write_bytes(content)
    async with Visitor(file_dashboard(FilePlace(file), everybody_here, hosts=None)) as visitor:
        page, health = await visitor.get("queues"), await visitor.get("healthz")
    assert (page.status_code, health.status_code) == (503, 503)
    assert "tasks.db" in page.text
    assert health.json()["status"] == "unreadable"
    assert file.exists() is (content is not None)


async def test_health_of_a_file_says_whether_an_instance_lives(tmp_path: Path) -> None:
    """`taskmanager web` on a file is no sign that anybody runs its tasks."""
    async with manager_on(tmp_path):
        file = file_dashboard(FilePlace(tmp_path / "tasks.db"), everybody_here, hosts=None)
        async with Visitor(file) as visitor:
            answer = await visitor.get("healthz")
            assert (answer.status_code, answer.json()["status"]) == (200, "ok")
            assert answer.headers["content-type"] == "application/json"
    async with Visitor(file_dashboard(FilePlace(tmp_path / "tasks.db"), everybody_here, hosts=None)) as visitor:
        answer = await visitor.get("healthz")
        assert (answer.status_code, answer.json()["status"]) == (503, "not running")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("INSERT INTO taskmanager_schema VALUES (999, 'of tomorrow', 0)", "has schema version 999"),
        ("DELETE FROM taskmanager_schema WHERE version > 2", "has lost the rows"),
        ("DROP TABLE taskmanager_tasks", "taskmanager_tasks"),
        ("PRAGMA locking_mode = EXCLUSIVE", "locked"),
    ],
)
async def test_file_of_another_version_or_state_is_a_page_too(file: Path, change: str, reason: str) -> None:
    """Every page says why and what to do, and looks again: 503 for as long as it takes, and for actions, too."""
    with closing(connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.executescript(f"{change}; BEGIN IMMEDIATE; PRAGMA user_version = 1; COMMIT")
        async with Visitor(file_dashboard(FilePlace(file), everybody_here, hosts=None)) as visitor:
            for address in ("", "tasks", "queues", "failures", "schedules", "instances", "workflows", "tasks/x"):
                page = await visitor.get(address)
                assert (page.status_code, reason in page.text) == (503, True), (address, page.text)
                assert "Traceback" not in page.text
            acted = await visitor.post("queues/pause", {"queue": "a"})
            assert (acted.status_code, reason in acted.text) == (503, True)
            assert (await visitor.get("healthz")).json()["status"] == "unreadable"


async def test_file_that_waits_for_its_migration_is_a_page(tmp_path: Path) -> None:
    """It was written by an older version. The application brings it up to date, and nobody else."""
    file = tmp_path / "tasks.db"
    with closing(connect(file)) as connection, connection:
        schema.create(connection, schema.migrations()[:2])
    async with Visitor(file_dashboard(FilePlace(file), everybody_here, hosts=None)) as visitor:
        page = await visitor.get("tasks")
    assert (page.status_code, "has schema version 2" in page.text) == (503, True), page.text

"""Who sees a page and who acts: every way in that is not meant is refused, and says nothing."""

import asyncio
import logging
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.authentication import BaseUser, SimpleUser, UnauthenticatedUser
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from taskmanager import ConfigurationError, TaskManager
from taskmanager.web import dashboard, guard
from taskmanager.web.guard import MAX_FORM_BYTES, Guard, is_same_site, name_of, still_allowed
from tests.web.visitor import Visitor, manager_on, visit

pytestmark = pytest.mark.anyio
SAME = {"sec-fetch-site": "same-origin"}


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[TaskManager]:
    """A running manager with a queue to pause."""
    made = manager_on(tmp_path)
    async with made:
        yield made


def visitor_with(manager: TaskManager, auth: Any, **options: Any) -> Visitor:
    """A visitor of a dashboard with this auth."""
    return Visitor(dashboard(manager, auth=auth, **options))


@pytest.mark.parametrize("auth", [None, "act", True, Visitor])
async def test_auth_is_a_function_or_refused_at_once(manager: TaskManager, auth: Any) -> None:
    """A class is called with each request, which makes an object, and checks nothing."""
    with pytest.raises(ConfigurationError, match="auth must be a function"):
        dashboard(manager, auth=auth)


async def test_auth_may_be_sync_or_async_and_is_asked_with_every_request(manager: TaskManager) -> None:
    """A right that was taken away ends with the next look."""
    asked: list[str] = []
    answers: list[Any] = ["act", "read", None]

    async def waiting(request: Request) -> Any:
        asked.append(request.url.path)
        return answers[len(asked) - 1]

    async with visitor_with(manager, waiting) as visitor:
        assert [(await visitor.get("queues")).status_code for _ in range(3)] == [200, 200, 403]
    assert asked == ["/queues"] * 3


@pytest.mark.parametrize("level", [True, False, 1, "", "ACT", "admin", b"act", ["act"], object()])
async def test_answer_of_auth_that_is_no_level_lets_nobody_in(
    manager: TaskManager, level: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """`return user.is_staff` looks right, and would let everybody act, or nobody know why not."""
    async with visitor_with(manager, lambda _request: level) as visitor:
        answer = await visitor.get("queues")
    assert answer.status_code == 500
    assert "must return 'read', 'act' or None" in caplog.text


async def test_auth_that_fails_lets_nobody_in_and_tells_only_the_log(
    manager: TaskManager, caplog: pytest.LogCaptureFixture
) -> None:
    """The text of the error may hold the password of the directory service."""

    def failing(_request: Request) -> Any:
        raise RuntimeError("the secret of the directory")

    async with visitor_with(manager, failing) as visitor:
        answer = await visitor.get("queues")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.exc_info is not None


async def test_auth_may_refuse_as_starlette_does(manager: TaskManager, caplog: pytest.LogCaptureFixture) -> None:
    """That is how a browser is asked for a password, or led to the page where people sign in."""
    answers = iter(
        [
            HTTPException(401, "secret", {"WWW-Authenticate": "Basic"}),
            HTTPException(303, headers={"Location": "/login"}),
            HTTPException(200, "a mistake"),
            HTTPException(503, "a mistake"),
        ]
    )

    def asking(_request: Request) -> Any:
        raise next(answers)

    async with visitor_with(manager, asking) as visitor:
        password, login, odd, broken = [await visitor.get("queues") for _ in range(4)]
    assert (password.status_code, password.headers["www-authenticate"]) == (401, "Basic")
    assert "secret" not in password.text
    assert (login.status_code, login.headers["location"]) == (303, "/login")
    assert (odd.status_code, broken.status_code) == (500, 500)
    assert caplog.text.count("auth has failed") == 2


async def test_only_who_opens_a_page_is_led_away_to_sign_in(manager: TaskManager) -> None:
    """An open page says that its session is over; a form does not end at another site, which browsers would refuse."""

    async def leading(_request: Request) -> Any:
        raise HTTPException(303, headers={"Location": "https://sso.example.com/"})

    async with visitor_with(manager, leading) as visitor:
        opened = await visitor.get("queues")
        looked = await visitor.get("queues", **{"x-live": "1"})
        posted = await visitor._client.post("queues/pause", data={"queue": "a"}, headers=SAME)
    assert (opened.status_code, opened.headers["location"]) == (303, "https://sso.example.com/")
    for answer in (looked, posted):
        assert (answer.status_code, "location" in answer.headers) == (401, False)
        assert "ign in to see this page" in answer.text


async def test_nobody_gets_a_page_an_asset_or_a_word_of_health(manager: TaskManager) -> None:
    """Except for what the page that says so is made of."""
    async with visit(manager, None) as visitor:
        for address in ("", "queues", "tasks/x", "healthz", "static/dashboard.js", "static/no-such", "no-such"):
            answer = await visitor.get(address)
            assert answer.status_code == 403, address
            assert "not allowed to see" in answer.text
        assert (await visitor.get("static/dashboard.css")).status_code == 200


async def test_reader_cannot_act_and_has_no_form(manager: TaskManager) -> None:
    """Nor can anybody where the dashboard is read-only."""
    for level, options in (("read", {}), ("act", {"read_only": True})):
        async with visit(manager, level, **options) as visitor:
            assert "<form method=" not in await visitor.text("queues")
            assert (await visitor.post("queues/pause", {"queue": "default"})).status_code == 403
    async with visit(manager) as visitor:
        assert "Paused" not in await visitor.text("queues")


def request_with(headers: dict[str, str], scheme: str = "http") -> Request:
    """A request with these headers."""
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "scheme": scheme, "headers": raw, "method": "POST", "path": "/"})


@pytest.mark.parametrize(
    ("is_ours", "headers"),
    [
        (True, {"sec-fetch-site": "same-origin", "host": "tasks.example.com"}),
        (False, {"sec-fetch-site": "same-site", "origin": "https://tasks.example.com", "host": "tasks.example.com"}),
        (False, {"sec-fetch-site": "cross-site", "origin": "https://tasks.example.com", "host": "tasks.example.com"}),
        (False, {"sec-fetch-site": "none", "host": "tasks.example.com"}),
        (False, {"sec-fetch-site": "", "origin": "https://tasks.example.com", "host": "tasks.example.com"}),
        (True, {"origin": "https://tasks.example.com", "host": "tasks.example.com"}),
        (True, {"origin": "https://Tasks.example.com", "host": "tasks.example.COM:443"}),
        (True, {"origin": "http://tasks.example.com", "host": "tasks.example.com:80"}),
        (True, {"origin": "http://[::1]:8421", "host": "[::1]:8421"}),
        (False, {"origin": "http://tasks.example.com:8000", "host": "tasks.example.com"}),
        (False, {"origin": "https://evil.example", "host": "tasks.example.com"}),
        (False, {"origin": "https://user@tasks.example.com", "host": "tasks.example.com"}),
        (False, {"origin": "null", "host": "tasks.example.com"}),
        (False, {"origin": "null", "host": ""}),
        (False, {"origin": "", "host": ""}),
        (False, {"origin": "https://", "host": ""}),
        (False, {"origin": "ftp://tasks.example.com", "host": "tasks.example.com"}),
        (False, {"origin": "https://[broken", "host": "tasks.example.com"}),
        (False, {"host": "tasks.example.com"}),
        (False, {"origin": "https://tasks.example.com"}),
        (False, {}),
    ],
)
async def test_form_comes_from_this_site_or_is_refused(is_ours: bool, headers: dict[str, str]) -> None:
    """`Sec-Fetch-Site` decides where there is one; else `Origin` names the host that was asked."""
    assert is_same_site(request_with(headers)) is is_ours


async def test_form_without_its_token_is_refused(manager: TaskManager) -> None:
    """No page of another site can know the token, whatever else its request has."""
    async with visit(manager) as visitor:
        tokens: tuple[Any, ...] = ("", "x" * 43, "é")
        for token in tokens:
            answer = await visitor.post("queues/pause", {"queue": "default", "form_token": token})
            assert (answer.status_code, "too old" in answer.text) == (403, True)
        bare = await visitor._client.post("queues/pause", data={"queue": "default"}, headers=SAME)
        assert bare.status_code == 403
        assert (await visitor.post("queues/pause", {"queue": "default"})).status_code == 303


async def test_form_goes_through_in_any_worker_and_after_a_restart(manager: TaskManager) -> None:
    """The token is in the browser alone."""
    async with visit(manager) as one, visit(manager) as other:
        await one.get("queues")
        other._client.cookies.update(one._client.cookies)
        answer = await other._client.post(
            "queues/pause", data={"queue": "a", "form_token": one._client.cookies["taskmanager_form"]}, headers=SAME
        )
        assert answer.status_code == 303


async def test_form_that_is_too_large_is_not_read(manager: TaskManager) -> None:
    """Whether it says its size or not."""
    sent = 0

    async def parts() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 100 * MAX_FORM_BYTES:
            sent += 100_000
            yield b"x" * 100_000

    async with visit(manager) as visitor:
        said = await visitor._client.post("queues/pause", content=b"x" * (MAX_FORM_BYTES + 1), headers=SAME)
        unsaid = await visitor._client.post("queues/pause", content=parts(), headers=SAME)
    assert (said.status_code, unsaid.status_code) == (413, 413)
    assert sent <= 2 * MAX_FORM_BYTES


async def test_form_that_does_not_arrive_is_given_up(manager: TaskManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server waits with its stop for every request, so none may wait for ever for its sender."""
    monkeypatch.setattr(guard, "FORM_S", 0.05)

    async def parts() -> AsyncIterator[bytes]:
        yield b"queue="
        await asyncio.Event().wait()

    async with visit(manager) as visitor:
        answer = await visitor._client.post("queues/pause", content=parts(), headers=SAME)
    assert (answer.status_code, "nothing was done" in answer.text) == (408, True)


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "QUERY"])
async def test_other_methods_are_refused(manager: TaskManager, method: str) -> None:
    """And nothing allows another site to ask more."""
    async with visit(manager) as visitor:
        answer = await visitor._client.request(method, "queues")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_address_of_the_other_method_is_a_page(manager: TaskManager) -> None:
    """Whoever reloads after a form comes there."""
    async with visit(manager) as visitor:
        got = await visitor.get("queues/pause")
        posted = await visitor.post("queues", {})
        assert (got.status_code, posted.status_code) == (405, 405)
        assert "<h1>" in got.text
        assert "<h1>" in posted.text


@pytest.mark.parametrize("query", [b"x=\xff\xfe", b"x= \r\nSet-Cookie:a=b", b"\x00", b"%ff%zz&&=&token"])
async def test_query_of_any_bytes_is_read(manager: TaskManager, query: bytes) -> None:
    """Some servers let bytes through that no address may have. None of them reaches a header, or breaks a page."""

    async def odd(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "query_string": query}, receive, send)

    app = dashboard(manager, auth=lambda _request: "act")
    async with Visitor(odd) as visitor:
        assert (await visitor.get("queues")).status_code == 200
        led = await visitor.get("queues/")
        assert re.fullmatch(r"\.\./queues\?[!-~]*", led.headers["location"])


async def test_head_answers_as_get_does(manager: TaskManager) -> None:
    """Monitors and link checkers ask so."""
    async with visit(manager) as visitor:
        for address in ("queues", "healthz", "static/dashboard.css", "no-such"):
            got, head = await visitor.get(address), await visitor._client.head(address)
            assert (head.status_code, head.headers["content-type"]) == (got.status_code, got.headers["content-type"])


async def test_every_answer_tells_the_browser_to_be_strict(manager: TaskManager) -> None:
    """Pages, refusals, redirects and assets."""
    async with visit(manager) as visitor:
        answers = [await visitor.get(each) for each in ("queues", "healthz", "static/dashboard.js", "no-such")]
        answers.append(await visitor.post("queues/pause", {"queue": "a"}))
        answers.append(await visitor._client.put("queues"))
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        is_asset = "static/" in str(answer.url)
        assert ("no-store" in answer.headers["cache-control"]) is not is_asset


async def test_form_cookie_is_for_this_host_only_where_there_is_https(manager: TaskManager) -> None:
    """`__Host-`: a neighbour in the same domain cannot set it, and it never goes over plain http."""
    app = dashboard(manager, auth=lambda _request: "act")
    for scheme, wanted in (
        ("http", ["taskmanager_form=", "HttpOnly", "Path=/", "SameSite=Lax"]),
        ("https", ["__Host-taskmanager_form=", "HttpOnly", "Path=/", "SameSite=Lax", "Secure"]),
    ):
        visitor = Visitor(app)
        visitor._client.base_url = f"{scheme}://test/"
        async with visitor:
            (cookie,) = (await visitor.get("queues")).headers.get_list("set-cookie")
            first, *rest = cookie.split("; ")
            assert [first.partition("=")[0] + "=", *sorted(rest)] == wanted
            assert (await visitor.get("queues")).headers.get_list("set-cookie") == []
            token = first.partition("=")[2]
            done = await visitor._client.post("queues/pause", data={"queue": "a", "form_token": token}, headers=SAME)
            said = done.headers["set-cookie"]
            assert said.startswith("__Host-taskmanager_said=" if scheme == "https" else "taskmanager_said=")
            assert "is paused" in await visitor.text("queues")
            assert "is paused" not in await visitor.text("queues")


async def test_still_allowed_asks_auth_again(manager: TaskManager) -> None:
    """What is sent for long ends when the right to see it does, and when nobody can tell."""
    answers: list[Any] = ["read"]
    found: list[bool] = []

    def auth(request: Request) -> Any:
        if isinstance(answers[-1], Exception):
            raise answers[-1]
        return answers[-1]

    app: Any = dashboard(manager, auth=auth)

    async def streaming(scope: Any, receive: Any, send: Any) -> None:
        for answer in ("read", "act", None, RuntimeError("down"), "nonsense"):
            answers.append(answer)
            found.append(await still_allowed(Request(scope)))
        await pages(scope, receive, send)

    pages, app._app = app._app, streaming
    async with Visitor(app) as visitor:
        await visitor.get("healthz")
    assert found == [True, True, False, False, False]


async def test_auth_that_waits_keeps_nobody_else_waiting(manager: TaskManager) -> None:
    """A plain function may ask a database; the event loop goes on meanwhile."""
    is_free = threading.Event()

    def waiting(_request: Request) -> Any:
        return "act" if is_free.wait(30) else None

    async with visitor_with(manager, waiting) as visitor, asyncio.TaskGroup() as group:
        looking = group.create_task(visitor.get("queues"))
        group.create_task(asyncio.to_thread(is_free.set))
    assert looking.result().status_code == 200


async def test_auth_that_hangs_leaves_the_threads_of_the_application_alone(manager: TaskManager) -> None:
    """Its plain functions run in threads, too, and would wait until somebody mends what the dashboard asks."""
    is_free = threading.Event()

    asked = threading.Semaphore(0)

    def hanging(_request: Request) -> Any:
        asked.release()
        return "act" if is_free.wait(60) else None

    async with visitor_with(manager, hanging) as visitor, asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(visitor.get("healthz"))
        try:
            async with asyncio.timeout(20):
                for _ in range(guard.AUTH_THREADS):
                    await asyncio.to_thread(asked.acquire)
                assert await run_in_threadpool(lambda: 7) == 7
        finally:
            is_free.set()


class Lazy:
    """A user who is loaded when somebody looks, as Django's, which cannot be done in an event loop."""

    @property
    def username(self) -> str:
        raise RuntimeError("you cannot call this from an async context")


@pytest.mark.parametrize(
    ("user", "name"),
    [
        (SimpleUser("ada"), "ada"), (UnauthenticatedUser(), "127.0.0.1"), (BaseUser(), "127.0.0.1"), ("ada", "ada"),
        (SimpleNamespace(username="ada", email="ada@example.org"), "ada"), (SimpleNamespace(email="a@b"), "a@b"),
        (None, "127.0.0.1"), (SimpleNamespace(username=""), "127.0.0.1"), (SimpleNamespace(name="x" * 999), "x" * 100),
        (SimpleNamespace(username=7), "7"), (object(), "127.0.0.1"), (Lazy(), "127.0.0.1"),
    ],
)  # fmt: skip
def test_viewer_is_called_as_the_application_calls_users(user: object, name: str) -> None:
    """Whichever framework has set it. Without a name it is the address."""
    scope = {"type": "http", "headers": [], "client": ("127.0.0.1", 5000)}
    assert name_of(Request(scope if user is None else {**scope, "user": user})) == name


async def test_client_that_leaves_is_noticed_before_and_after_its_form(manager: TaskManager) -> None:
    """Half a form is no form. Behind a whole one the pages still hear that nobody waits for the answer."""
    heard: list[str] = []

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        heard.extend([(await receive())["type"], (await receive())["type"]])

    token, sent = "x" * 40, [].append
    headers = [(b"cookie", f"taskmanager_form={token}".encode()), (b"sec-fetch-site", b"same-origin")]
    scope = {"type": "http", "method": "POST", "path": "/x", "headers": headers, "scheme": "http", "query_string": b""}
    body = f"form_token={token}".encode()
    guard = Guard(page, lambda _request: "act", title="", read_only=False)
    for is_whole, wanted in ((False, []), (True, ["http.request", "http.disconnect"])):
        messages = [{"type": "http.request", "body": body, "more_body": not is_whole}, {"type": "http.disconnect"}]

        async def receive(left: list[Any] = messages) -> Any:
            return left.pop(0)

        async def send(message: Any) -> None:
            sent(message)

        await guard(scope, receive, send)
        assert heard == wanted

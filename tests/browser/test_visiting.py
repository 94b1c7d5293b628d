"""What the tests of the dashboard rely on: a browser's complaints about a page fail the test."""

import contextlib
import http.server
import threading
from collections.abc import Iterator
from typing import Final

import pytest

from tests.browser.conftest import Visit

PAGES: Final = {
    "/good": "<script nonce='right'>console.log('hello')</script>",
    "/says-error": "<script nonce='right'>console.error('bad news')</script>",
    "/says-warning": "<script nonce='right'>console.warn('bad omen')</script>",
    "/throws": "<script nonce='right'>throw new Error('no luck')</script>",
    "/rejects": "<script nonce='right'>Promise.reject(new Error('no luck either'))</script>",
    "/has-inline-script": "<script>document.title = 'owned'</script>",
    "/has-inline-style": "<p style='color: red'>no</p>",
    "/has-handler": "<img alt='' src='picture' onload=\"document.title = 'owned'\">",
    "/asks-another-host": "<img alt='' src='http://example.org/picture'>",
    "/asks-for-what-is-missing": "<img alt='' src='missing'>",
    "/asks-nobody": "<script nonce='right'>fetch('/hangs-up').catch(() => 0)</script>",
}
POLICY: Final = "default-src 'none'; script-src 'nonce-right'; img-src 'self'; connect-src 'self'"
PIXEL: Final = b"<svg xmlns='http://www.w3.org/2000/svg'/>"


class Pages(http.server.BaseHTTPRequestHandler):
    """Serves them, and hangs up where it is told to."""

    def do_GET(self) -> None:
        if self.path == "/hangs-up":
            return
        body, kind = PAGES.get(self.path, "").encode(), "text/html"
        if self.path in ("/picture", "/favicon.ico"):
            body, kind = PIXEL, "image/svg+xml"
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>page</title>" + body if kind == "text/html" else body)

    def log_message(self, *_: object) -> None:
        """Be silent."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    with contextlib.closing(server.socket):
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
        server.server_close()


def test_visitor_has_nothing_to_say_against_a_good_page(visit: Visit, url: str) -> None:
    """Also without scripts, where a page cannot say anything itself."""
    for has_script in (True, False):
        with visit(url, has_script=has_script) as visitor:
            assert visitor.go("good").title() == "page"


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("says-error", "bad news"),
        ("says-warning", "bad omen"),
        ("throws", "no luck"),
        ("rejects", "no luck either"),
        ("has-inline-script", "policy script-src"),
        ("has-inline-style", "policy style-src"),
        ("has-handler", "policy script-src"),
        ("asks-another-host", "policy img-src"),
        ("asks-for-what-is-missing", "404"),
        ("asks-nobody", "/hangs-up failed"),
    ],
)
def test_visitor_complains_of_each_kind_of_fault(visit: Visit, url: str, page: str, complaint: str) -> None:
    """A fault of a page is a failure of its test, and the message says what it was."""
    with pytest.raises(AssertionError) as told, visit(url) as visitor:
        visitor.go(page).wait_for_load_state("networkidle")
    assert complaint in str(told.value)


def test_visitor_forgives_what_the_test_brings_about(visit: Visit, url: str) -> None:
    """And nothing else."""
    with visit(url) as visitor:
        visitor.complaints.forgive("bad omen")
        visitor.go("says-warning")
        assert not visitor.complaints.left()
        visitor.complaints.forgive("bad news")
        visitor.go("says-error")


def test_visitor_sees_the_wishes_of_the_test(visit: Visit, url: str) -> None:
    """Theme, width and motion arrive in the page."""
    with visit(url, theme="dark", width=320) as visitor:
        page = visitor.go("good")
        assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
        assert page.evaluate("matchMedia('(prefers-reduced-motion: reduce)').matches")
        assert page.evaluate("innerWidth") == 320

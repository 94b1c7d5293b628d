"""Reads the HTML of pages as a browser does, says what is in it, and follows the links."""

from collections import deque
from collections.abc import AsyncIterator, Iterator
from html.parser import HTMLParser
from typing import Final, NamedTuple
from urllib.parse import urljoin

from httpx import Response

from tests.web.visitor import SITE, Visitor

MAX_PAGES: Final = 400
"""Addresses that a walk asks for."""


class Element(NamedTuple):
    """One start tag."""

    name: str
    attributes: dict[str, str]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def elements_of(html: str) -> list[Element]:
    """Return every element of a page."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader.elements


def text_of(html: str) -> str:
    """Return what can be read on a page."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return " ".join(reader.texts)


def links_of(html: str) -> Iterator[str]:
    """Return every address that a page leads to, loads or sends to."""
    for element in elements_of(html):
        for name in ("href", "src", "action", "formaction"):
            if name in element.attributes:
                yield element.attributes[name]


async def walk(visitor: Visitor) -> AsyncIterator[tuple[str, Response]]:
    """Ask for every address that can be reached by links from the overview, each once."""
    waiting, seen = deque([f"{SITE}/"]), {f"{SITE}/"}
    while waiting:
        address = waiting.popleft()
        answer = await visitor.get(address)
        yield address, answer
        if not answer.headers.get("content-type", "").startswith("text/html"):
            continue
        for element in elements_of(answer.text):
            found = urljoin(address, element.attributes.get("href", "")).split("#")[0]
            if element.name == "a" and found.startswith(f"{SITE}/") and found not in seen and len(seen) < MAX_PAGES:
                seen.add(found)
                waiting.append(found)

"""Reads the HTML of a page as a browser does, and says what is in it."""

from collections.abc import Iterator
from html.parser import HTMLParser
from typing import NamedTuple


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

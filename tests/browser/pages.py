"""Which pages there are, and where each is in the file of `content`."""

from collections.abc import Callable, Mapping
from typing import Final

from tests.browser.serving import Served

PAGES: Final[Mapping[str, Callable[[Served], str]]] = {
    "overview": lambda _: "",
    "queues": lambda _: "queues",
    "instances": lambda _: "instances",
}
"""The address of each page relative to the root, by a name for it."""

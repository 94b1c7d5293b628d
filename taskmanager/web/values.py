"""Makes texts of arguments and results: as JSON that a person reads, or a remark why there is nothing to read.

What the application hides or seals stays hidden, also if the function that formats its arguments fails.
"""

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from taskmanager.console.documents import parsed
from taskmanager.console.figures import cut
from taskmanager.console.figures import size as file_size
from taskmanager.model.escaping import escaped
from taskmanager.store.sql.task_views import Part
from taskmanager.web.site import FormatArguments

MAX_SHOWN_CHARS: Final = 8_000
MAX_ITEMS: Final = 100
HIDDEN: Final = "hidden on this dashboard"
UNREADABLE: Final = "this is no JSON that can be read"
NOT_STORED: Final = "not stored: they cannot be written as JSON"


class Shown(NamedTuple):
    """Texts with their names, and a remark about what is not there. `is_hidden`: nobody may see the value itself."""

    items: tuple[tuple[str, str], ...] = ()
    remark: str = ""
    is_hidden: bool = False


def arguments(
    task_name: str, args: Part | None, kwargs: Part | None, format_arguments: FormatArguments | None, *, is_hidden: bool
) -> Shown:
    """Return what a page shows of the arguments of a task."""
    if is_hidden:
        return Shown(remark=HIDDEN, is_hidden=True)
    if args is None or kwargs is None:
        return Shown(remark=NOT_STORED)
    size = args.size + kwargs.size
    if not (args.text.startswith("[") and kwargs.text.startswith("{")):
        return _sealed(size)
    positional, named = (parsed(each.text) if each.is_whole else None for each in (args, kwargs))
    if not isinstance(positional, list) or not isinstance(named, dict):
        is_whole = args.is_whole and kwargs.is_whole
        if format_arguments is not None:
            why = "they are no JSON that can be read" if is_whole else f"{file_size(size)} are too much to be formatted"
            return Shown(remark=f"not shown: {why}", is_hidden=True)
        remark = UNREADABLE if is_whole else f"the beginning of {file_size(size)}"
        return Shown(tuple(_some((("positional", args.text), ("named", kwargs.text)))), remark)
    if format_arguments is not None and (found := _formatted(format_arguments, task_name, positional, named)):
        return found
    each = [(str(number), value) for number, value in enumerate(positional, 1)] + list(named.items())
    if not each:
        return Shown(remark="none")
    items = tuple((escaped(name), cut(readable(value), MAX_SHOWN_CHARS)) for name, value in each[:MAX_ITEMS])
    is_cut = sum(len(text) for _, text in items) > MAX_SHOWN_CHARS
    remark = f"the first {MAX_ITEMS} of {len(each):,}" if len(each) > MAX_ITEMS else ""
    return Shown(tuple(_some(items)), f"the beginning of {file_size(size)}" if is_cut else remark)


def result(stored: Part | None, *, is_hidden: bool) -> Shown:
    """Return what a page shows of the result of a task that has ended well."""
    if is_hidden:
        return Shown(remark=HIDDEN, is_hidden=True)
    if stored is None:
        return Shown(remark="not stored")
    if not stored.text.startswith("{"):
        return _sealed(stored.size)
    remark = f"the beginning of {file_size(stored.size)}"
    found = parsed(stored.text) if stored.is_whole else None
    if not isinstance(found, dict):
        beginning = stored.text.removeprefix('{"ok":')[:MAX_SHOWN_CHARS]
        return Shown((("", beginning),), UNREADABLE if stored.is_whole else remark)
    text = readable(found.get("ok", found))
    return Shown((("", cut(text, MAX_SHOWN_CHARS)),), remark if len(text) > MAX_SHOWN_CHARS else "")


def readable(value: Any) -> str:
    """Return a value as JSON, indented if it does not fit in a line."""
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= 60 else json.dumps(value, ensure_ascii=False, indent=2)


def _sealed(size: int) -> Shown:
    return Shown(remark=f"sealed by the application ({file_size(size)})", is_hidden=True)


def _formatted(format_arguments: FormatArguments, task_name: str, args: Any, kwargs: Any) -> Shown | None:
    """Return what the application makes of the arguments, or None if it leaves them to us."""
    try:
        text = format_arguments(task_name, args, kwargs)
    except Exception as exc:  # noqa: BLE001  # a function of the application
        return Shown(remark=f"not shown: format_arguments raised {type(exc).__name__}", is_hidden=True)
    if text is None:
        return None
    if not isinstance(text, str):
        return Shown(remark=f"not shown: format_arguments returned {type(text).__name__}, no text", is_hidden=True)
    remark = f"the beginning of {len(text):,} characters" if len(text) > MAX_SHOWN_CHARS else ""
    return Shown((("", cut(text, MAX_SHOWN_CHARS)),), remark, is_hidden=True)


def _some(items: tuple[tuple[str, str], ...]) -> Iterator[tuple[str, str]]:
    """Yield items until the page has enough of them."""
    left = MAX_SHOWN_CHARS
    for name, text in items:
        if left <= 0:
            return
        yield name, cut(text, left)
        left -= len(text)

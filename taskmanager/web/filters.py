"""Reads the filter of a list of tasks from an address, and writes it into addresses and sentences.

A value without a meaning is a fault, with a sentence of its own, and a list with a fault shows no task. A filter that
is misspelt must not find more tasks than the one that was meant.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import urlencode

from taskmanager.console.figures import clock, cut, iso
from taskmanager.model.clock import LAST_US, SECOND_US, span_us, to_us
from taskmanager.model.escaping import escaped
from taskmanager.model.nearest import did_you_mean
from taskmanager.model.states import TaskStatus
from taskmanager.store.sql.rows import Undecodable
from taskmanager.store.sql.search import Search
from taskmanager.store.sql.windows import Cursor

MAX_CHARS: Final = 1_000
"""How long a value may be. No name of the library is longer, and nobody types more."""
MAX_VALUES: Final = 20
"""How many tags there may be."""
SHOWN_CHARS: Final = 60
"""How much of a wrong value its sentence repeats."""
NAMES: Final = ("status", "task", "queue", "tag", "error", "since", "text", "before")
_UNITS: Final = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week"}
_MANY: Final = frozenset({"status", "tag"})
_EXACT: Final = frozenset({"task", "queue", "tag", "error"})
"""Names of the application may begin or end with a space."""


class Filter(NamedTuple):
    """Which tasks a list shows; what is empty is any.

    `since` stands as it was given, and `since_us` is what it means. The list begins behind the place `before`. There is
    one sentence in `faults` for each value that says nothing, and one in `remarks` for what was left aside.
    """

    statuses: tuple[TaskStatus, ...] = ()
    task: str = ""
    queue: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    error: str = ""
    since: str = ""
    since_us: int | None = None
    text: str = ""
    before: Cursor | None = None
    faults: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def is_everything(self) -> bool:
        """Return whether nothing narrows the list down."""
        return self._replace(before=None, faults=(), remarks=()) == Filter()

    def search(self, *, looks_in_arguments: bool = True) -> Search:
        """Return the search for these tasks. The place where the list begins is no part of it."""
        return Search(
            self.statuses,
            self.task or None,
            self.queue or None,
            self.error or None,
            self.tags,
            self.since_us,
            text=self.text or None,
            looks_in_arguments=looks_in_arguments,
        )

    def query(self, *, before: Cursor | None = None, is_lasting: bool = False) -> str:
        """Return the filter as a query without the `?`. If it `is_lasting`, "the last hour" becomes an instant."""
        since = iso(self.since_us) if is_lasting and self.since_us is not None else self.since
        pairs = [("status", each.value) for each in self.statuses]
        pairs += [("task", self.task), ("queue", self.queue)]
        pairs += [("tag", f"{name}:{value}") for name, value in self.tags]
        pairs += [("error", self.error), ("since", since), ("text", self.text)]
        pairs += [] if before is None else [("before", cursor_text(before))]
        return urlencode([(name, value) for name, value in pairs if value])


def read_filter(pairs: Iterable[tuple[str, str]], now_us: int) -> Filter:
    """Return the filter that these pairs of an address ask for. This never raises."""
    reading = _Reading()
    for name, value in pairs:
        reading.take(name, value)
    return Filter(
        statuses=reading.statuses(),
        task=reading.one("task"),
        queue=reading.one("queue"),
        tags=reading.tags(),
        error=reading.one("error"),
        since=reading.one("since"),
        since_us=reading.since(now_us),
        text=reading.one("text"),
        before=reading.before(),
        faults=tuple(reading.faults),
        remarks=tuple(reading.remarks),
    )


class _Reading:
    """The values of one address, and what is wrong with them."""

    def __init__(self) -> None:
        self._values: dict[str, list[str]] = {name: [] for name in NAMES}
        self.faults: list[str] = []
        self.remarks: list[str] = []

    def take(self, name: str, value: str) -> None:
        """Note one pair."""
        if name not in self._values:
            if name and len(self.remarks) < MAX_VALUES:
                meant = did_you_mean(name, NAMES) if len(name) <= MAX_CHARS else ""
                self.remarks.append(f"There is no filter {_shown(name)}, so it was left aside{meant or '.'}")
            return
        given = self._values[name]
        value = value if name in _EXACT else value.strip()
        if not value.strip() or value in given:
            return
        if len(value) > MAX_CHARS or not _is_text(value):
            self._fault(f"{name} is not text of at most {MAX_CHARS:,} characters")
        elif given and name not in _MANY:
            self._fault(f"there are two values for {name}, {_shown(given[0])} and {_shown(value)}; give one")
        elif len(given) >= MAX_VALUES:
            self._fault(f"there are more than {MAX_VALUES} values for {name}")
        else:
            given.append(value)

    def one(self, name: str) -> str:
        """Return the value of this name, or an empty text."""
        return next(iter(self._values[name]), "")

    def statuses(self) -> tuple[TaskStatus, ...]:
        """Return the statuses, in the order of a life."""
        members = TaskStatus.__members__
        for each in self._values["status"]:
            if each.upper() not in members:
                self._fault(f"status {_shown(each)} is none of {', '.join(TaskStatus)}")
        asked = {members[each.upper()] for each in self._values["status"] if each.upper() in members}
        return tuple(each for each in TaskStatus if each in asked)

    def tags(self) -> tuple[tuple[str, str], ...]:
        """Return the tags with their values."""
        found: dict[str, str] = {}
        for each in self._values["tag"]:
            name, sign, value = each.partition(":" if ":" in each else "=")
            if not (name and sign):
                self._fault(f"tag {_shown(each)} has no value; write NAME:VALUE, as in customer:42")
            elif found.setdefault(name, value) != value:
                self._fault(f"no task has two values of the tag {_shown(name)}; give one")
        return tuple(found.items())

    def since(self, now_us: int) -> int | None:
        """Return the instant since when. A span ends at the last full second, so that looks of one second are alike."""
        text = self.one("since")
        if not text:
            return None
        span = span_us(text)
        if span is not None:
            return max(0, now_us - now_us % SECOND_US - span)
        instant = _instant(text)
        if instant is None:
            self._fault(f"since {_shown(text)} is no time; write 15m, 1h or 7d, or an instant as 2026-11-30T05:00Z")
        return instant

    def before(self) -> Cursor | None:
        """Return the place where the list begins."""
        text = self.one("before")
        place = cursor_of(text)
        if text and place is None:
            self._fault(f"before {_shown(text)} is no place in a list; follow the links to older tasks")
        return place

    def _fault(self, sentence: str) -> None:
        self.faults.append(f"{sentence[:1].upper()}{sentence[1:]}.")


def _instant(text: str) -> int | None:
    """Return what an instant in ISO 8601 means; without a zone it is UTC. A `+` may have become a space on the way."""
    try:
        found = datetime.fromisoformat(re.sub(r" (\d\d:?\d\d)$", r"+\1", text) if "T" in text else text)
    except ValueError:
        return None
    return max(0, to_us(found if found.tzinfo is not None else found.replace(tzinfo=UTC)))


def cursor_text(place: Cursor) -> str:
    """Return a place as text for an address. An id that is not UTF-8 is written as its bytes."""
    sent_at, task_id = place
    return f"{sent_at}.~{task_id.raw.hex()}" if isinstance(task_id, Undecodable) else f"{sent_at}.{task_id}"


def cursor_of(text: str) -> Cursor | None:
    """Return the place that a text of an address means, or None."""
    match = re.fullmatch(r"([0-9]{1,18})\.(.*)", text, re.DOTALL)
    if match is None or int(match[1]) > LAST_US or not _is_text(text):
        return None
    raw = re.fullmatch(r"~((?:[0-9a-f]{2})+)", match[2])
    return int(match[1]), match[2] if raw is None else Undecodable(bytes.fromhex(raw[1]))


def told(asked: Filter, statuses: Sequence[TaskStatus] | None = None, *, is_one: bool = False) -> str:
    """Return the filter in words, for what follows a number: `failed tasks of app:send in queue mail`."""
    names = [each.value.lower() for each in (asked.statuses if statuses is None else statuses)]
    words = [*([" or ".join(names)] if names else []), "task" if is_one else "tasks"]
    words += [f"of {asked.task}"] if asked.task else []
    words += [f"in queue {asked.queue}"] if asked.queue else []
    words += [f"with the tag {' and '.join(f'{name}:{value}' for name, value in asked.tags)}"] if asked.tags else []
    words += [f"with the error {asked.error}"] if asked.error else []
    if asked.since_us is not None:
        when = f"in the {span_told(asked.since)}" if span_us(asked.since) else f"since {clock(asked.since_us)} UTC"
        words.append(f"that changed {when}")
    words += [f"with the text {_shown(asked.text)}"] if asked.text else []
    return escaped(" ".join(words))


def span_told(since: str) -> str:
    """Return a span that leads to now in words: `last hour`, `last 15 minutes`."""
    text = since.strip().lower()
    number, unit = text[:-1].strip(), _UNITS[text[-1]]
    return f"last {unit}" if number == "1" else f"last {number} {unit}s"


def _shown(value: str) -> str:
    return f"'{escaped(cut(value, SHOWN_CHARS))}'"


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True

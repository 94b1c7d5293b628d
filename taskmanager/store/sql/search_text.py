"""Looks for a text that a person has typed in what a task says of itself: plain text, upper and lower case alike.

SQLite compares the case of ASCII letters only. So it looks for the text with any sign in the place of other letters,
and what it finds is compared again here. Arguments, tags and errors are JSON, where quotes and newlines are escaped:
the text is looked for as it is, and as JSON writes it.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from taskmanager.store.sql.session import Session

LOOKED_CHARS: Final = 4_096
"""How much of each column is looked at."""
_PATTERN_CHARS: Final = 500
"""SQLite refuses patterns of 50,000 bytes. Of a longer text, the beginning is looked for, and then all of it."""
_PLAIN: Final = ("t.id", "t.task_name")
_ARGUMENTS: Final = ("t.args", "t.kwargs")
_BEHIND: Final = ("t.tags", "t.failed_reason", "iif(t.error_code IS NULL, NULL, t.result)")
"""These stand behind what may be large in a row, so they are read last. The message begins the result of a failure."""


class TextSearch:
    """One text, to be looked for in rows `t`."""

    def __init__(self, text: str, *, in_arguments: bool) -> None:
        columns = [*_PLAIN, *(_ARGUMENTS if in_arguments else ()), *_BEHIND]
        self._columns = [f"substr({each}, 1, {LOOKED_CHARS})" for each in columns]
        self._needles = list(dict.fromkeys([text, *(_as_json(text, is_ascii) for is_ascii in (False, True))]))
        self._is_exact = text.isascii() and "\0" not in text and len(text) <= _PATTERN_CHARS

    def condition(self) -> str:
        """Return the condition that holds for every row with this text, and for some without it."""
        tests = [f"{column} LIKE :text_{n} ESCAPE '\\'" for column in self._columns for n in range(len(self._needles))]
        return f"({' OR '.join(tests)})"

    def given(self) -> dict[str, Any]:
        """Return the parameters of the condition."""
        return {f"text_{number}": _pattern(needle) for number, needle in enumerate(self._needles)}

    def confirmed(self, connection: Session, rowids: Sequence[int | str]) -> frozenset[int | str]:
        """Return those of the rows found that have the text."""
        if self._is_exact:
            return frozenset(rowids)
        query = f"""
            SELECT t.rowid, {", ".join(self._columns)}
            FROM json_each(?) AS wanted CROSS JOIN taskmanager_tasks AS t ON t.rowid = wanted.value
        """
        needles = [needle.casefold() for needle in self._needles]
        found = connection.execute(query, (json.dumps(list(rowids)),)).fetchall()
        return frozenset(
            rowid for rowid, *texts in found if any(n in text.casefold() for text in texts if text for n in needles)
        )


def _as_json(text: str, is_ascii: bool) -> str:
    return json.dumps(text, ensure_ascii=is_ascii)[1:-1]


def _pattern(text: str) -> str:
    """Return the pattern of LIKE for a text. It finds all that contain the text in any case."""
    signs = []
    for sign in text[:_PATTERN_CHARS].partition("\0")[0]:
        if not sign.isascii():
            signs.append("_" if sign.lower() != sign.upper() or "\ud800" <= sign <= "\udfff" else sign)
        else:
            signs.append(f"\\{sign}" if sign in "%_\\" else sign)
    return f"%{''.join(signs)}%"

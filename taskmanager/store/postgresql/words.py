"""Puts SQL that is written as SQLite reads it into PostgreSQL's words.

The SQL of `store.sql` is written once, within what both databases understand. What only their words tell apart is
translated here: placeholders, functions, hints for the planner. Text in quotes stays as it is, and so does everything
that no rule knows. A translated statement is always executed with values, if only none, since its `%` are doubled.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, NamedTuple

from taskmanager.store.sql.queries import CARRIES

_TOKEN: Final = re.compile(
    r"""
    (?P<space>(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*)  # comments count as space
    (?P<text>
        '(?:[^']|'')*' | "(?:[^"]|"")*"
        | :\w+ | \w+(?:\.\w+)* | \S | \Z
    )
    """,
    re.VERBOSE | re.DOTALL,
)


class _Word(NamedTuple):
    """One word or sign, or a text in quotes, with the space before it."""

    space: str
    text: str

    def is_any(self, *words: str) -> bool:
        """Whether it is one of these words, which are upper case."""
        return self.text.upper() in words


class _Group(NamedTuple):
    """What stands in parentheses."""

    space: str
    inside: "list[_Word | _Group]"
    end_space: str

    def is_any(self, *words: str) -> bool:
        """Whether it is one of these words, which no group is."""
        return False

    @property
    def is_query(self) -> bool:
        """Whether it is a query."""
        return bool(self.inside) and self.inside[0].is_any("SELECT", "WITH")

    @property
    def arguments(self) -> "list[list[_Word | _Group]]":
        """The parts between the commas."""
        parts: list[list[_Word | _Group]] = [[]]
        for each in self.inside:
            if each.is_any(","):
                parts.append([])
            else:
                parts[-1].append(each)
        return parts


_Item = _Word | _Group
_Items = Sequence[_Item]
_Found = tuple[str, int] | None
"""The words of PostgreSQL, and for how many items they stand."""


@cache
def translated(sql: str) -> str:
    """Return a statement, or a part of one, in the words of PostgreSQL."""
    # One operator says it, and an index answers that. Tags that no text of the database can hold are those of no task.
    asked = sql.replace(CARRIES, " CAST(t.tags AS jsonb) @> taskmanager_json(:tags) ")
    # In texts too: psycopg looks for placeholders everywhere.
    tokens = [_Word(found["space"], found["text"]) for found in _TOKEN.finditer(asked.replace("%", "%%"))]
    items, rest = _parsed(tokens, 0)
    assert rest == len(tokens), f"parentheses that do not fit: {sql}"
    return _said(items)


def _parsed(tokens: Sequence[_Word], start: int) -> tuple[list[_Item], int]:
    """Return the items up to a closing parenthesis, or the end, and the place of that."""
    items: list[_Item] = []
    while start < len(tokens) and tokens[start].text != ")":
        if tokens[start].text == "(":
            inside, end = _parsed(tokens, start + 1)
            items.append(_Group(tokens[start].space, inside, tokens[end].space))
            start = end + 1
        else:
            items.append(tokens[start])
            start += 1
    return items, start


def _said(items: _Items) -> str:
    """Translate items, each by the first rule that knows it."""
    said, place = "", 0
    while place < len(items):
        left = items[place:]
        found = next((found for rule in _RULES if (found := rule(left)) is not None), None)
        text, count = found or (_as_it_is(items[place]), 1)
        said += (items[place].space if text else "") + text
        place += count
    return said


def _as_it_is(item: _Item) -> str:
    """Translate an item that no rule knows."""
    return f"({_said(item.inside)}{item.end_space})" if isinstance(item, _Group) else item.text


def _are(items: _Items, *words: str) -> bool:
    """Whether the items begin with these words."""
    return len(items) >= len(words) and all(item.is_any(word) for item, word in zip(items, words, strict=False))


def _call(items: _Items, name: str) -> _Group | None:
    """Return the arguments if the items begin with a call of this function."""
    if len(items) < 2 or not items[0].is_any(name) or not isinstance(items[1], _Group):
        return None
    return items[1]


def _text_of(items: _Items) -> str:
    return _said(items).strip()


# Placeholders are those of psycopg.
def _placeholder(items: _Items) -> _Found:
    first = items[0]
    if isinstance(first, _Group) or first.text[:1] not in ("?", ":") or first.text == ":":
        return None
    return ("%s" if first.text == "?" else f"%({first.text[1:]})s"), 1


# PostgreSQL chooses indexes and the order of joins itself, and names no way to skip what a constraint refuses: a
# statement fails there as a whole.
def _hint(items: _Items) -> _Found:
    if _are(items, "INDEXED", "BY"):
        return "", 3
    if _are(items, "UPDATE", "OR", "IGNORE"):
        return "UPDATE", 3
    if _are(items, "CROSS", "JOIN"):
        following = next((each for each in items[2:] if each.is_any("ON", "JOIN", "WHERE", "ORDER", "LIMIT")), None)
        return ("JOIN", 2) if following is not None and following.is_any("ON") else None
    return None


# Of a list PostgreSQL reads what a LIMIT needs. Of comparisons it may first read all rows of each, through one index.
def _list(items: _Items) -> _Found:
    group = items[0]
    if not isinstance(group, _Group) or any(isinstance(each, _Group) for each in group.inside):
        return None
    words = [each.text for each in group.inside if isinstance(each, _Word)]
    columns, signs, texts, between = (words[first::4] for first in range(4))
    if len(words) % 4 != 3 or len(texts) < 3 or len(set(columns)) > 1:
        return None
    if {*signs} != {"="} or {*between} != {"OR"} or {text[0] for text in texts} != {"'"}:
        return None
    return f"({columns[0]} IN ({', '.join(texts)}))", 1


# Every row of a table of ours has an id.
def _rowid(items: _Items) -> _Found:
    if isinstance(items[0], _Word) and (found := re.fullmatch(r"(\w+\.)?rowid", items[0].text)):
        return f"{found[1] or ''}id", 1
    return None


# The end of a recursive query is where its last term finds nothing. PostgreSQL knows no LIMIT there.
def _recursion(items: _Items) -> _Found:
    if not (_are(items, "AS") and len(items) > 1 and isinstance(items[1], _Group)):
        return None
    inside = items[1].inside
    if len(inside) < 2 or not inside[-2].is_any("LIMIT") or not any(each.is_any("UNION") for each in inside):
        return None
    return f"AS ({_said(inside[:-2])})", 2


# NULL equals NULL here. With NULL itself, and what is true or false, both databases understand IS.
def _is(items: _Items) -> _Found:
    if not _are(items, "IS"):
        return None
    negated = _are(items, "IS", "NOT")
    behind = items[2:] if negated else items[1:]
    if not behind or behind[0].is_any("NULL", "TRUE", "FALSE", "DISTINCT"):
        return None
    return ("IS DISTINCT FROM", 2) if negated else ("IS NOT DISTINCT FROM", 1)


# A column of the schema compares the case of letters, and LIKE of SQLite does not.
def _pattern(items: _Items) -> _Found:
    if _are(items, "LIKE"):
        return "ILIKE", 1
    if not _are(items, "GLOB"):
        return None
    count = 3 if len(items) > 2 and isinstance(items[2], _Group) else 2  # a call, or a placeholder
    pattern = _text_of(items[1:count])
    for sign, instead in _GLOB_AS_LIKE:
        pattern = f"replace({pattern}, {sign}, {instead})"
    return f"LIKE {pattern}", count


_GLOB_AS_LIKE: Final = (
    ("'\\'", "'\\\\'"), ("'%%'", "'\\%%'"), ("'_'", "'\\_'"), ("'[*]'", "chr(1)"), ("'[?]'", "chr(2)"),
    ("'*'", "'%%'"), ("'?'", "'_'"), ("'[[]'", "'['"), ("chr(1)", "'*'"), ("chr(2)", "'?'"),
)  # fmt: skip
"""How a pattern becomes one of LIKE, in this order. A wildcard in brackets stands for itself."""


# Values that come as an array in JSON. An array is one condition of an index for the planner, and no join. Values that
# are texts have the order of their bytes, like the columns.
def _values_in(items: _Items) -> _Found:
    negated = _are(items, "NOT", "IN")
    at = 1 if negated else 0
    if not _are(items[at:], "IN") or len(items) < at + 2 or not isinstance(group := items[at + 1], _Group):
        return None
    if (selected := _selected_values(group.inside)) is None:
        return None
    return f"{'<> ALL' if negated else '= ANY'} (ARRAY(SELECT {selected}))", at + 2


def _values_of(items: _Items) -> _Found:
    """Translate such a query where it is no condition."""
    end = next((place for place, item in enumerate(items) if item.is_any("UNION", "")), len(items))
    if (selected := _selected_values(items[:end])) is None:
        return None
    return f"SELECT {selected} AS value", end


def _selected_values(items: _Items) -> str | None:
    """Return the values of `SELECT value FROM json_each(X)`, if that is what it says."""
    if len(items) < 4 or not _are(items, "SELECT"):
        return None
    cast = _call(items[1:], "CAST")
    behind = 3 if cast else 2
    if len(items) != behind + 3 or not _are(items[behind:], "FROM"):
        return None
    each = _call(items[behind + 1 :], "JSON_EACH")
    if each is None:
        return None
    elements = _elements(each)
    if cast is None:
        return f'{elements} COLLATE "C"' if items[1].is_any("VALUE") else None
    return f"CAST({elements} AS bigint)" if _text_of(cast.inside).upper() == "VALUE AS BIGINT" else None


def _elements(array: _Group) -> str:
    return f"jsonb_array_elements_text(({_text_of(array.inside)})::jsonb)"


def _table_of_values(items: _Items) -> _Found:
    """Translate `json_each(X) AS v`. All values are text, and the keys count from 1: they only give an order."""
    if (array := _call(items, "JSON_EACH")) is None:
        return None
    if _are(items[2:], "AS"):
        name, count = _text_of(items[3:4]), 4
    else:
        name, count = "each_value", 2
    return f"{_elements(array)} WITH ORDINALITY AS {name} (value, key)", count


# Before version 16 each query that stands as a table needs a name.
def _unnamed(items: _Items) -> _Found:
    if len(items) < 2 or not items[0].is_any("FROM", "JOIN") or not isinstance(table := items[1], _Group):
        return None
    if not table.is_query or _are(items[2:], "AS"):
        return None
    return f"{_as_it_is(items[0])}{table.space}{_as_it_is(table)} AS unnamed", 2


def _packed(items: _Items) -> _Found:
    """Translate `json_group_array`, also with a filter. Of no rows it is an empty array."""
    if (group := _call(items, "JSON_GROUP_ARRAY")) is None:
        return None
    filtered, count = _filtered(items)
    return f"coalesce(json_agg({_text_of(group.inside)}){filtered}, '[]'::json)::text", count


# The sum of large integers would be a decimal number.
def _sum(items: _Items) -> _Found:
    if (group := _call(items, "SUM")) is None:
        return None
    filtered, count = _filtered(items)
    return f"(sum({_text_of(group.inside)}){filtered})::bigint", count


def _filtered(items: _Items) -> tuple[str, int]:
    """Return the filter behind an aggregate, and for how many items both stand."""
    return (f" {_text_of(items[2:4])}", 4) if _call(items[2:], "FILTER") else ("", 2)


def _cast(items: _Items) -> _Found:
    """Translate the names of types. Where a text is measured as a BLOB, its bytes are counted."""
    if (measured := _call(items, "LENGTH")) is not None:
        cast = _call(measured.inside, "CAST")
        is_blob = cast is not None and len(measured.inside) == 2 and _are(cast.inside[-2:], "AS", "BLOB")
        return (f"octet_length({_text_of(cast.inside[:-2])})", 2) if cast is not None and is_blob else None
    if _are(items, "AS", "INTEGER"):
        return "AS bigint", 2
    return None


def _function(items: _Items) -> _Found:
    """Translate a function that has another name, or none."""
    if len(items) < 2 or not isinstance(items[0], _Word) or not isinstance(items[1], _Group):
        return None
    how = _FUNCTIONS.get(items[0].text.lower())
    said = None if how is None else how(*map(_text_of, items[1].arguments))
    return None if said is None else (said, 2)


def _extreme(name: str) -> Callable[..., str | None]:
    """Return how the least or greatest of its arguments is said. Of one argument it is an aggregate."""
    return lambda *values: None if len(values) == 1 else f"{name}({', '.join(values)})"


def _part(text: str, start: str, *count: str) -> str | None:
    """Translate `substr`. Places in a text are integers of four bytes, and a value is one of eight."""
    if start.startswith("-") and not count:
        return f"right({text}, {_place_in_text(start[1:].strip())})"
    return f"substr({', '.join((text, *map(_place_in_text, (start, *count))))})"


def _place_in_text(value: str) -> str:
    return value if value.isdigit() else f"({value})::integer"


def _member(document: str, path: str) -> str:
    """Return how a member is read. It is text, whatever it is in the document."""
    names = re.findall(r"\w+", path)
    return f"(({document})::jsonb #>> '{{{','.join(names)}}}')"


def _padded(form: str, number: str) -> str | None:
    width = re.fullmatch(r"'%%0(\d+)d'", form)
    return None if width is None else f"lpad(({number})::text, {width[1]}, '0')"


_FUNCTIONS: Final[dict[str, Callable[..., str | None]]] = {
    "iif": lambda condition, this, that: f"CASE WHEN {condition} THEN {this} ELSE {that} END",
    "min": _extreme("least"),
    "max": _extreme("greatest"),
    "instr": lambda text, part: f"strpos({text}, {part})",
    "substr": _part,
    "printf": _padded,
    "json_array": lambda *values: f"json_build_array({', '.join(values)})",
    "json_extract": _member,
    # A function of the schema makes a text in JSON of what is none. No JSON that we ask about is a mere text.
    "json_valid": lambda text: f"(jsonb_typeof(taskmanager_json({text})) <> 'string')",
}
_RULES: Final[tuple[Callable[[_Items], _Found], ...]] = (
    _placeholder, _hint, _list, _rowid, _recursion, _is, _pattern, _values_in, _values_of, _table_of_values, _unnamed,
    _packed, _sum, _cast, _function,
)  # fmt: skip

"""The numbered migrations, `migrations/NNNN_name.sql`, and what they make: tables, indexes, views, functions, triggers.

What a migration makes is read from its SQL. So the migrations use few forms of statements, and a test knows them all.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

from taskmanager.store.sql.scripts import scripts_of

_OUTSIDE: Final = "-- outside a transaction"
_STATEMENT: Final = re.compile(r"(?s)(?:--[^\n]*|'(?:[^']|'')*'|(\$\w*\$).*?\1|[^;])+;")
_COMMENTS: Final = re.compile(r"--[^\n]*")
_TAKES_AWAY: Final = re.compile(r"(?i)\s*(DROP|ALTER\s+TABLE\s+\S+\s+(DROP|RENAME))\b")
_DROPS_INDEX: Final = re.compile(r"(?i)\s*DROP\s+INDEX\b")
_MAKES: Final = re.compile(
    r"\s*CREATE\s+(?:OR\s+REPLACE\s+)?(?:UNIQUE\s+)?(TABLE|INDEX|VIEW|FUNCTION|TRIGGER)\s+"
    r"(?:CONCURRENTLY\s+)?(?:IF\s+NOT\s+EXISTS\s+)?(\w+)"
)
_ALTERS: Final = re.compile(r"\s*ALTER\s+TABLE\s+(\w+)\s+(ADD|DROP)\s+(CONSTRAINT|COLUMN)\s+(\w+)")
_DROPS: Final = re.compile(
    r"\s*DROP\s+(TABLE|INDEX|VIEW|FUNCTION|TRIGGER)\s+(?:CONCURRENTLY\s+)?(?:IF\s+EXISTS\s+)?(\w+)"
)
_TABLE_OF: Final = re.compile(r"\sON\s+(taskmanager_\w+)")
_NO_COLUMN: Final = frozenset({"CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN"})


class Migration(NamedTuple):
    """One step of the schema."""

    version: int
    name: str
    script: str

    @property
    def takes_away(self) -> bool:
        """Whether it drops or renames something that an older instance may be using."""
        return any(_TAKES_AWAY.match(_bare(each)) for each in statements(self.script))

    @property
    def can_wait(self) -> bool:
        """Whether it only drops indexes, so that the schema works without it."""
        return all(_DROPS_INDEX.match(_bare(each)) for each in statements(self.script))

    @property
    def is_outside(self) -> bool:
        """Whether each of its statements stands alone, as those must that say CONCURRENTLY. They may be repeated."""
        return self.script.startswith(_OUTSIDE)


class Part(NamedTuple):
    """Something that the migrations have made. Only a table has columns here.

    `table` is that of an index, a trigger or a constraint, and else the part itself.
    """

    kind: str
    name: str
    table: str
    statements: tuple[str, ...]
    columns: frozenset[str] = frozenset()


@cache
def migrations() -> list[Migration]:
    """Return all steps that this version of the library knows, in order."""
    return [Migration._make(each) for each in scripts_of("taskmanager.store.postgresql")]


def least_version(steps: Sequence[Migration]) -> int:
    """Return the version that a schema must have for a library with these steps to use it."""
    return max(step.version for step in steps if not step.can_wait)


def statements(script: str) -> Iterator[str]:
    """Yield the statements of a script, each with the comments before it."""
    for found in _STATEMENT.finditer(script):
        yield found[0].strip()


def parts_of(steps: Sequence[Migration]) -> dict[str, Part]:
    """Return what a schema has after these steps, in the order in which it was made."""
    return _parts_of(tuple(steps))


@cache
def _parts_of(steps: tuple[Migration, ...]) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for step in steps:
        for statement in statements(step.script):
            _note(parts, statement)
    return parts


def _note(parts: dict[str, Part], statement: str) -> None:
    bare = _bare(statement)
    if made := _MAKES.match(bare):
        kind, name = made[1].lower(), made[2]
        table = _TABLE_OF.search(bare)
        columns = frozenset(_columns(bare)) if kind == "table" else frozenset()
        parts[name] = Part(kind, name, table[1] if table else name, (statement,), columns)
    elif altered := _ALTERS.match(bare):
        table_name, how, kind, name = altered.groups()
        if kind == "COLUMN":
            part = parts[table_name]
            columns = part.columns | {name} if how == "ADD" else part.columns - {name}
            parts[table_name] = part._replace(statements=(*part.statements, statement), columns=columns)
        elif how == "ADD":
            parts[name] = Part("constraint", name, table_name, (statement,))
        else:
            del parts[name]
    elif dropped := _DROPS.match(bare):
        for name in [each.name for each in parts.values() if dropped[2] in (each.name, each.table)]:
            del parts[name]
    else:
        raise AssertionError(f"no migration may say: {statement}")


def _columns(bare: str) -> Iterator[str]:
    """Yield the columns that a CREATE TABLE names: the first word behind each comma that no inner parenthesis holds."""
    depth, is_next = 0, False
    for word in re.findall(r"[(),]|\w+|'[^']*'", bare):
        if is_next and word not in _NO_COLUMN:
            yield word
        depth += {"(": 1, ")": -1}.get(word, 0)
        if depth == 0 and word == ")":
            return
        is_next = depth == 1 and word in "(,"


def _bare(statement: str) -> str:
    return _COMMENTS.sub("", statement)

"""The audit: which promises of requirements.md have no test. `python -m tests.requirements`, or `make audit`.

Tests are read, not imported: an id counts where it stands in `@pytest.mark.req(...)` or in a `pytestmark`.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

TESTS: Final = Path(__file__).resolve().parent
LINE: Final = re.compile(r"^- (?P<id>(?P<section>[A-Z]{2})-s?\d+) (?:\[(?P<mark>[^\]]+)\] )?(?P<text>.+)$")


class Requirement(NamedTuple):
    """One line of requirements.md."""

    id: str
    section: str
    mark: str | None  # why no test is asked for now
    text: str


def requirements() -> tuple[Requirement, ...]:
    """All lines, in order. A line that looks like one and cannot be read, or an id given twice, is an error."""
    found = []
    for line in (TESTS / "requirements.md").read_text(encoding="utf-8").splitlines():
        match = LINE.match(line)
        if match:
            found.append(Requirement(match["id"], match["section"], match["mark"], match["text"]))
        elif line.startswith("- "):
            raise ValueError(f"cannot read {line!r}")
    ids = [one.id for one in found]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    if twice:
        raise ValueError(f"given twice: {', '.join(twice)}")
    return tuple(found)


def marked_ids(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every id in a call of `pytest.mark.req`, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.req"):
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value, argument.lineno


def tested() -> dict[str, list[str]]:
    """Where each id is tested, as path:line."""
    places: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        for name, line in marked_ids(ast.parse(path.read_text(encoding="utf-8"))):
            places.setdefault(name, []).append(f"{path.relative_to(TESTS.parent).as_posix()}:{line}")
    return places


def main(arguments: list[str]) -> int:
    """Print the audit. With `--strict`, 1 when a promise has no test or a test names what is no promise."""
    known, places = requirements(), tested()
    missing = [one for one in known if one.id not in places and one.mark is None]
    unknown = sorted(places.keys() - {one.id for one in known})
    for one in missing:
        print(f"no test  {one.id:7} {one.text}")
    for name in unknown:
        print(f"unknown  {name:7} {', '.join(places[name])}")
    print(f"\n{'':8}{'tested':>8}{'no test':>8}{'docs':>8}{'replaced':>9}{'later':>8}")
    for section in dict.fromkeys(one.section for one in known):
        lines = [one for one in known if one.section == section]
        open_marks = [one.mark.split(":")[0] for one in lines if one.mark and one.id not in places]
        counts = [open_marks.count(mark) for mark in ("docs", "replaced", "later")]
        done = sum(one.id in places for one in lines)
        without = sum(one.section == section for one in missing)
        print(f"{section:8}{done:8}{without:8}{counts[0]:8}{counts[1]:9}{counts[2]:8}")
    print(f"\n{len(missing)} of {len(known)} have no test" + (f", {len(unknown)} unknown ids" if unknown else ""))
    return int(bool("--strict" in arguments and (missing or unknown)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

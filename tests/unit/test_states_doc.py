"""The picture of a task's life in the reference is the table in the code, line by line."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskmanager.model.states import TRANSITIONS, TaskStatus

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"


def life_of_a_task() -> str:
    """The section of the reference."""
    text = REFERENCE.read_text(encoding="utf-8")
    found = re.search(r"^## The life of a task$(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def moves() -> Iterator[tuple[str, str, str]]:
    """The rows of the table; several statuses in the first column are as many moves."""
    rows = [line.strip("|").split("|") for line in life_of_a_task().splitlines() if line.startswith("|")]
    for sources, target, reason in rows[2:]:
        for source in sources.split(","):
            yield source.strip(), target.strip(), reason.strip()


def test_the_reference_lists_exactly_the_legal_moves() -> None:
    """Both directions, reasons included, and no move twice."""
    assert sorted(moves()) == sorted((move.source.value, move.target.value, move.reason) for move in TRANSITIONS)


@pytest.mark.parametrize("status", [status.value for status in TaskStatus])
def test_the_diagram_of_the_reference_shows_every_status(status: str) -> None:
    """A status that is not drawn is one that nobody finds."""
    diagram = life_of_a_task().split("```")[1]
    assert re.search(rf"\b{status}\b", diagram)

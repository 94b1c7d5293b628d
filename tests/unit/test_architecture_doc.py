"""The page about the inside names what is there: files, functions and phases that a reader finds."""

import ast
import re
from pathlib import Path

import pytest

from taskmanager.engine.phases import MOVES, Phase

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMES = set(re.findall(r"`([^`\n]+)`", PAGE))


def test_every_file_that_the_page_names_exists() -> None:
    """A module that was moved leaves its old name in prose, where no tool looks."""
    paths = [name for name in NAMES if "/" in name or name.endswith(".py")]
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists() and not (ROOT / "taskmanager" / path).exists()] == []


def test_every_class_and_function_that_the_page_names_exists() -> None:
    """`Class.method` is a method of that class; a bare name is a class or a function at the top of some module."""
    defined: set[str] = set()
    for path in (ROOT / "taskmanager").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                defined.add(node.name)
                inside = node.body if isinstance(node, ast.ClassDef) else []
                defined.update(
                    f"{node.name}.{each.name}"
                    for each in inside
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                )
    named = {name for name in NAMES if re.fullmatch(r"[A-Za-z_]+(\.[a-z_]+)?", name) and not name.endswith(".py")}
    assert len(named) > 10
    assert named - defined == set()


def test_the_page_has_every_phase_with_its_moves() -> None:
    """A phase without a line is one that nobody finds. What is printed is the table by which tasks move."""
    rows = re.findall(r"^\| ([A-Z]+) \|.*\| ([A-Z, ]+) \|$", PAGE, re.MULTILINE)
    assert rows == [(phase.name, ", ".join(to.name for to in MOVES[phase])) for phase in Phase]


@pytest.mark.parametrize("room", ["engine", "web"])
def test_list_of_modules_is_in_the_order_of_their_imports(room: str) -> None:
    """Whoever reads the modules in the order of the docstring meets nothing that comes later."""
    folder = ROOT / "taskmanager" / room
    told = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    listed = [name for line in re.findall(r"^ {4}[A-Z][^:]*: +(.*)$", told, re.MULTILINE) for name in line.split()]
    assert sorted(listed) == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    for number, name in enumerate(listed):
        body = ast.parse((folder / f"{name}.py").read_text(encoding="utf-8")).body
        froms = [node for node in body if isinstance(node, ast.ImportFrom)]
        needed = {str(node.module).rpartition(".")[2] for node in froms if f"taskmanager.{room}." in f"{node.module}."}
        needed |= {each.name for node in froms if node.module == f"taskmanager.{room}" for each in node.names}
        assert needed - {room} <= set(listed[:number]), name

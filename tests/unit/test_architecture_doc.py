"""The page about the inside names what is there: files, functions and phases that a reader finds."""

import ast
import re
from pathlib import Path

from taskmanager.engine.words.phases import MOVES, Phase

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROOMS = sorted((ROOT / "taskmanager" / "engine").glob("*/__init__.py"))
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


def test_the_page_has_every_room_of_the_engine() -> None:
    """With what the room says of itself."""
    rows = re.findall(r"^\| `engine/(\w+)/` \| (.+) \|$", PAGE, re.MULTILINE)
    said = {folder.parent.name: ast.get_docstring(ast.parse(folder.read_text(encoding="utf-8"))) for folder in ROOMS}
    assert dict(rows) == said
    assert len(rows) == len(said)


def test_list_of_modules_is_in_the_order_of_their_imports() -> None:
    """Whoever reads the modules in the order of the docstring meets nothing that comes later. That of the engine is
    looked at in `test_tidy`.
    """
    folder = ROOT / "taskmanager" / "web"
    told = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    listed = [name for line in re.findall(r"^ {4}[A-Z][^:]*: +(.*)$", told, re.MULTILINE) for name in line.split()]
    assert sorted(listed) == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    for number, name in enumerate(listed):
        body = ast.parse((folder / f"{name}.py").read_text(encoding="utf-8")).body
        froms = [node for node in body if isinstance(node, ast.ImportFrom)]
        needed = {str(node.module).rpartition(".")[2] for node in froms if "taskmanager.web." in f"{node.module}."}
        needed |= {each.name for node in froms if node.module == "taskmanager.web" for each in node.names}
        assert needed - {"web"} <= set(listed[:number]), name

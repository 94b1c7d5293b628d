"""The package as an index would take it and a stranger would install it: built, checked, and run in an empty place."""

import ast
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from packaging.requirements import Requirement

import taskmanager
from tests.acceptance.test_readme import blocks

pytest.importorskip("hatchling")
pytest.importorskip("hatch_fancy_pypi_readme")
pytest.importorskip("twine")

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PATIENCE_S: Final = 60.0
RELATIVE_LINK: Final = re.compile(r"\]\((?!https?://|#|mailto:)[^)]*\)")


class Built(NamedTuple):
    """What was built, and what the wheel says of itself."""

    wheel: Path
    sdist: Path
    about: Message


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The wheel and the source distribution, made from the checkout without the network."""
    folder = tmp_path_factory.mktemp("dist")
    run(ROOT, sys.executable, "-m", "hatchling", "build", "-d", str(folder))
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        about = Parser().parsestr(archive.read(name).decode())
    return Built(wheel, sdist, about)


def run(folder: Path, *command: str | Path) -> str:
    """What it prints; nothing of this environment's Python reaches it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_index_would_take_the_package(built: Built) -> None:
    """`twine check --strict`: the page renders, and nothing that an index wants is missing."""
    said = run(ROOT, sys.executable, "-m", "twine", "--no-color", "check", "--strict", built.wheel, built.sdist)
    assert said.count("PASSED") == 2


def test_the_page_of_the_package_has_no_link_that_leads_nowhere(built: Built) -> None:
    """Relative links are for the checkout. Without a home their words stay; with one they are absolute."""
    page = built.about.get_payload()
    assert isinstance(page, str)
    assert RELATIVE_LINK.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert RELATIVE_LINK.search(page) is None
    home = PROJECT.get("urls", {}).get("Source")
    assert (home is None) or home in page
    for block in blocks():
        if block.page.name == "README.md":
            assert block.text in page, "a program is no link"


def test_one_version_and_one_python_are_named_everywhere(built: Built) -> None:
    """In the metadata, in the module, and at the top of the changelog."""
    changes = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {built.about["Version"], taskmanager.__version__, changes[0]} == {PROJECT["version"]}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    supported = re.findall(r"3\.\d+", next(line for line in makefile.splitlines() if line.startswith("SUPPORTED")))
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(built.about.get_all("Classifier", [])))
    assert named == supported
    assert built.about["Requires-Python"] == f">={supported[0]}"


def test_the_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    """Every module, the SQL of the schema and the mark of its types; tests and documents are in the other archive."""
    ours = {path.relative_to(ROOT).as_posix() for path in (ROOT / "taskmanager").rglob("*") if path.is_file()}
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        licences = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
    assert names == {name for name in ours if "__pycache__" not in name}
    assert {"taskmanager/py.typed", "taskmanager/store/sqlite/migrations/0001_tables.sql"} <= names
    web = {f"taskmanager/web/{name}" for name in ("templates/base.html", "static/dashboard.css", "static/VENDORED.md")}
    assert web <= names, "the dashboard needs no build step"
    assert len(licences) == 1
    with tarfile.open(built.sdist) as source:
        held = {name.split("/", 1)[1] for name in source.getnames() if "/" in name}
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "Makefile"} <= held
    assert {"tests/conftest.py", "docs/index.md", "examples/reports/app.py", "benchmarks/latency.py"} <= held
    assert not [name for name in held if name.endswith((".pyc", ".db", ".log")) or name.startswith(".venv")]


def needed(name: str, seen: set[str]) -> Iterator[metadata.Distribution]:
    """The distributions that the core of a distribution needs here, each once; extras are for others."""
    for text in metadata.requires(name) or []:
        wanted = Requirement(text)
        key = wanted.name.lower().replace("_", "-")
        if key not in seen and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            seen.add(key)
            yield metadata.distribution(wanted.name)
            yield from needed(wanted.name, seen)


@pytest.fixture(scope="module")
def stranger(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it declares to need, and not with what else is installed here."""
    place = tmp_path_factory.mktemp("stranger") / "venv"
    venv.create(place, symlinks=os.name == "posix")
    scheme = "Scripts" if os.name == "nt" else "bin"
    python = place / scheme / Path(sys.executable).name
    packages = Path(run(place, python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    for each in needed("taskmanager", set()):
        for top in {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            (packages / top).symlink_to(Path(str(each.locate_file(top))))
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps"]
    run(place, *pip, "--disable-pip-version-check", built.wheel)
    return place / scheme


def test_a_stranger_runs_the_first_program_of_the_readme(stranger: Path, tmp_path: Path) -> None:
    """In an empty directory: what they paste works, and the command finds its task."""
    first = next(block for block in blocks() if block.page.name == "README.md" and block.language == "python")
    ast.parse(first.text)
    (tmp_path / "app.py").write_text(first.text, encoding="utf-8")
    python = stranger / Path(sys.executable).name
    where = run(tmp_path, python, "-c", "import taskmanager; print(taskmanager.__file__)")
    assert Path(where.strip()).is_relative_to(stranger.parent)
    assert run(tmp_path, python, "-W", "error", "app.py") == "5\n"
    assert run(tmp_path, stranger / "taskmanager", "--version") == f"taskmanager {PROJECT['version']}\n"
    assert "app:add" in run(tmp_path, stranger / "taskmanager", "list")
    assert run(tmp_path, stranger / "taskmanager", "doctor")


def test_every_module_can_be_imported_with_what_the_wheel_needs(stranger: Path, tmp_path: Path) -> None:
    """A dependency that is used and not declared would be found by a user. What extras are for is left out."""
    program = (
        "import importlib, pkgutil, taskmanager\n"
        "extras = 'taskmanager.__main__', 'taskmanager.integrations.', 'taskmanager.web', "
        "'taskmanager.store.postgresql.'\n"
        "for found in pkgutil.walk_packages(taskmanager.__path__, 'taskmanager.'):\n"
        "    if not found.name.startswith(extras):\n"
        "        importlib.import_module(found.name)\n"
        "print('done')\n"
    )
    assert run(tmp_path, stranger / Path(sys.executable).name, "-W", "error", "-c", program) == "done\n"

"""Every block of code in README.md and docs/ is run as it stands there, so that what a reader pastes works.

What a fence says after its language:

- ```` ```python ````: a program, run in a directory of its own.
- ```` ```python continues ````: goes on with the block before it; both are one program.
- ```` ```python file=jobs.py ````: a module that the programs of the page can import, run as a program too.
- ```` ```python pytest ````: a file of tests, or with `file=conftest.py` of fixtures: run by pytest with each plugin.
- ```` ```python anyio ````: what the page says to add to `conftest.py` for the plugin of anyio.
- ```` ```text output ````: exactly what the program before it prints.
- ```` ```pyi ````: signatures; each is written in the source like that.
- ```` ```sh ````: commands that exist. With `beside`, they run beside the programs of the page.
- ```` ```ini ````, ```` ```yaml ````: services, whose commands exist.
- ```` ```sql ````: statements that a new database accepts; a word names those that change something. With `postgresql`,
  a server does, and no file.

A program that imports nothing of its page runs alone: without the modules of the page, and with nothing beside it.
One that names the server `SERVER`, itself or by such a module, gets one, with a schema of its own.
"""

import ast
import asyncio
import configparser
import inspect
import os
import re
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import click
import pytest

import taskmanager
from taskmanager import TaskManager, testing
from taskmanager.cli.commands import cli
from taskmanager.task import Submitter

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")))
LINKING: Final = (*PAGES, *sorted((ROOT / "examples").rglob("*.md")))
LANGUAGES: Final = frozenset({"python", "pyi", "sh", "text", "sql", "dockerfile", "yaml", "ini", "nginx", "caddyfile"})
COMMANDS: Final = frozenset(
    {"make", "taskmanager", "pip", "python", "sqlite3", "ls", "fastapi", "gunicorn", "uvicorn", "docker"}
)
SERVER: Final = "postgresql://postgres:secret@localhost/postgres"
SCHEMA: Final = "?schema=jobs"
PROGRAM_TIMEOUT_S: Final = 60
README_PROGRAM_LINES: Final = 15
README_LINES: Final = 130


class Block(NamedTuple):
    """One fenced block."""

    page: Path
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def file(self) -> str | None:
        return next((word.removeprefix("file=") for word in self.words if word.startswith("file=")), None)


class Program(NamedTuple):
    """Blocks that are run as one, and what they print, if the page says so."""

    name: str
    place: str
    source: str
    output: str | None


@cache
def blocks() -> tuple[Block, ...]:
    """All fenced blocks of all pages, in order."""
    found = []
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").splitlines()
        start: int | None = None
        for number, line in enumerate(lines):
            if line.startswith("```") and start is None:
                start = number
            elif line.startswith("```") and start is not None:
                language, *words = lines[start][3:].split()
                text = "\n".join(lines[start + 1 : number]) + "\n"
                found.append(Block(page, start + 1, language, tuple(words), text))
                start = None
        assert start is None, f"{page.name}: the block of line {start} is not closed"
    return tuple(found)


def programs() -> Iterator[tuple[Path, Program]]:
    """The programs of all pages: blocks that go on are joined to the one before."""
    current: tuple[Path, Program] | None = None
    for block in blocks():
        if block.language == "text" and "output" in block.words and current is not None:
            current = (current[0], current[1]._replace(output=(current[1].output or "") + block.text))
        elif block.language == "python" and "continues" in block.words:
            assert current is not None, f"{block.place} continues nothing"
            current = (current[0], current[1]._replace(source=current[1].source + "\n\n" + block.text))
        elif block.language == "python" and not {"pytest", "anyio"} & {*block.words}:
            if current is not None:
                yield current
            current = (block.page, Program(block.file or "example.py", block.place, block.text, None))
    if current is not None:
        yield current


def modules_of(page: Path) -> dict[str, str]:
    """The modules that the programs of a page can import."""
    return {
        block.file: block.text
        for block in blocks()
        if block.page == page and block.file is not None and "pytest" not in block.words
    }


def environment() -> dict[str, str]:
    """Of a program on a page. What one of them has compiled, the others need not compile again."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT)}


def is_imported(file: str, source: str) -> bool:
    """Whether a program imports the module of that file."""
    return re.search(rf"^(?:from|import) {re.escape(file.removesuffix('.py'))}\b", source, re.MULTILINE) is not None


def files_of(page: Path, program: Program) -> dict[str, str]:
    """A program with the modules of its page: all if it imports one, because they import each other, else none."""
    modules = {name: text for name, text in modules_of(page).items() if name != program.name}
    needed = modules if any(is_imported(name, program.source) for name in modules) else {}
    return {**needed, program.name: program.source}


def to_be_run() -> Iterator[tuple[Path, Program]]:
    """The programs of all pages. A module that says nothing is run where a program of its page imports it."""
    every = [*programs()]
    for page, program in every:
        others = (other.source for its_page, other in every if its_page == page and other is not program)
        if program.output is not None or not any(is_imported(program.name, source) for source in others):
            yield page, program


@contextmanager
def running_beside(page: Path, folder: Path) -> Iterator[None]:
    """Run the commands of ours that the page says to start in another terminal, meanwhile."""
    said = [block.text for block in blocks() if block.page == page and "beside" in block.words]
    with ExitStack() as stack:
        for line in "".join(said).splitlines():
            command = [sys.executable, "-m", *line.split()]
            process = stack.enter_context(
                subprocess.Popen(command, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True)
            )
            stack.callback(process.communicate)
            stack.callback(process.terminate)
            assert process.stderr is not None
            next(line for line in process.stderr if "running" in line)
        yield


@pytest.mark.parametrize(("page", "program"), [pytest.param(*each, id=each[1].place) for each in to_be_run()])
def test_a_program_runs_as_pasted_and_prints_what_the_page_says(
    page: Path, program: Program, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A fresh process, a fresh directory, warnings are errors."""
    if "from fastapi" in program.source:
        pytest.importorskip("fastapi")
    files = files_of(page, program)
    if SERVER in "".join(files.values()):
        address, _, schema = request.getfixturevalue("schema_url").partition("?")
        files = {name: text.replace(SCHEMA, f"?{schema}").replace(SERVER, address) for name, text in files.items()}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-W", "error", program.name]
    with running_beside(page, tmp_path) if len(files) > 1 else nullcontext():
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S,
            check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    if program.output is not None:
        assert done.stdout == program.output


def pytest_files_of(page: Path, *, for_anyio: bool) -> dict[str, str]:
    """The files of tests on a page, for the plugin that they are written for, or changed as it says for the other."""
    found, more = {}, ""
    for block in blocks():
        if block.page == page and "pytest" in block.words:
            found[block.file or f"test_line_{block.line}.py"] = block.text
        elif block.page == page and "anyio" in block.words:
            more = block.text
    if not for_anyio:
        return found
    changes = {"pytest.mark.asyncio": "pytest.mark.anyio", "pytest_asyncio": "pytest"}
    for old, new in changes.items():
        found = {name: text.replace(old, new) for name, text in found.items()}
    return {**found, "conftest.py": f"{found['conftest.py']}\n\n{more}"}


PLUGINS: Final = {
    "pytest-asyncio, strict as by default": (False, []),
    "pytest-asyncio, auto": (False, ["-o", "asyncio_mode=auto"]),
    "anyio alone": (True, ["-p", "no:asyncio"]),
    "anyio beside pytest-asyncio": (True, []),
}


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if pytest_files_of(page, for_anyio=False)], ids=lambda page: page.name
)
def test_the_tests_on_a_page_pass_with_each_plugin(page: Path, plugin: str, tmp_path: Path) -> None:
    """In a process and a directory of their own, without anything of this suite; every test of them is run."""
    pytest.importorskip("fastapi")
    pytest.importorskip("pytest_asyncio")
    for_anyio, arguments = PLUGINS[plugin]
    files = pytest_files_of(page, for_anyio=for_anyio)
    for name, text in {**modules_of(page), **files}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    # pytest-asyncio warns of its own defaults, of which the page uses none.
    warnings = ["-W", "error", "-W", "ignore::pytest.PytestDeprecationWarning"]
    command = [sys.executable, "-m", "pytest", "-q", *warnings, "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), *arguments, str(tmp_path)],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S, check=False,
    )  # fmt: skip
    count = sum(len(re.findall(r"^(?:async )?def test_", text, re.MULTILINE)) for text in files.values())
    assert re.search(rf"^{count} passed in ", done.stdout, re.MULTILINE), done.stdout + done.stderr


def test_the_first_program_of_the_readme_is_short() -> None:
    """It is read before anything else."""
    first = next(block for block in blocks() if block.page.name == "README.md" and block.language == "python")
    assert len([line for line in first.text.splitlines() if line.strip()]) <= README_PROGRAM_LINES


def test_the_readme_can_be_read_in_ten_minutes() -> None:
    """What a stranger needs first; the rest is a page."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


@cache
def _installed_above(block: Block) -> frozenset[str]:
    """What a reader of the page has installed by then: the library, and what the lines above say."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    above = "\n".join(block.page.read_text(encoding="utf-8").splitlines()[: block.line])
    words = [word for line in re.findall(r"pip install ([^`\n]+)", above) for word in line.split()]
    wanted = [*project["dependencies"], *words]
    for word in words:
        extra = re.fullmatch(r"'\.\[(\w+)\]'", word)
        wanted += project["optional-dependencies"][extra[1]] if extra else []
    return frozenset(re.split(r"[^\w-]", each)[0].replace("-", "_") for each in wanted)


def test_everything_that_a_program_imports_is_installed_by_a_line_above_it() -> None:
    """A reader has what the page told them to install, and not what stands in the environment of its authors."""
    faults = []
    for block in blocks():
        if block.language != "python":
            continue
        names = []
        for node in ast.walk(ast.parse(block.text)):
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        known = {"taskmanager", *(name.removesuffix(".py") for name in modules_of(block.page))}
        tops = {name.split(".")[0] for name in names} - known - sys.stdlib_module_names
        tops |= {"httpx"} if "fastapi.testclient" in names else set()
        faults += [f"{block.place}: {name}" for name in tops - _installed_above(block)]
    assert faults == []


def test_every_block_says_what_it_is() -> None:
    """A fence without a language would be run by nobody."""
    assert {block.place: block.language for block in blocks() if block.language not in LANGUAGES} == {}


def _make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def _unknown_command(line: str) -> str | None:
    """What is wrong with a line of a shell block."""
    words = line.split()
    if words[0] not in COMMANDS:
        return f"{words[0]!r} is no command the pages may use"
    if words[0] == "make" and words[1] not in _make_targets():
        return f"the Makefile has no {words[1]!r}"
    if words[0] == "taskmanager" and not words[1].startswith("-"):
        assert isinstance(cli, click.Group)
        if words[1] not in cli.list_commands(click.Context(cli)):
            return f"taskmanager has no command {words[1]!r}"
    return None


def test_every_shell_command_exists() -> None:
    """Make targets, commands of ours and their names; what they do is tested where they are made."""
    faults = []
    for block in blocks():
        if block.language == "sh":
            commands = [line for line in block.text.splitlines() if line.strip() and not line.startswith("#")]
            faults += [f"{block.place}: {fault}" for line in commands if (fault := _unknown_command(line))]
    assert faults == []


def _sections(text: str) -> dict[str, str]:
    """The keys of a YAML block with their values, each key behind those above it: `services.web.command`."""
    found, above = dict[str, str](), list[str]()
    for line in text.splitlines():
        depth, rest = divmod(len(line) - len(line.lstrip(" ")), 2)
        assert not rest, line
        if not line.lstrip().startswith("- "):
            key, colon, value = line.strip().partition(":")
            assert colon, line
            above = [*above[:depth], key]
            assert len(above) == depth + 1, line
        else:
            value = line.strip()[2:]
        found[".".join(above)] = value.strip()
    return found


def _services() -> Iterator[tuple[str, str]]:
    """The command of each service in units of systemd and files of Docker Compose, and its place."""
    for block in blocks():
        if block.language == "ini":
            unit = configparser.ConfigParser(interpolation=None)
            unit.read_string(block.text)
            assert {"Unit", "Service", "Install"} <= set(unit.sections()), block.place
            yield unit["Service"]["ExecStart"].rpartition("/bin/")[2], block.place
        elif block.language == "yaml":
            keys = _sections(block.text)
            for name in {key.split(".")[1] for key in keys if key.startswith("services.")}:
                assert keys[f"services.{name}.volumes"].split(":")[0] in {key.split(".")[-1] for key in keys}
                yield keys.get(f"services.{name}.command", "python"), block.place


def test_every_service_on_the_pages_runs_a_command_that_exists() -> None:
    """With options that it has: a unit file is pasted, and its mistakes show at the next boot."""
    services = list(_services())
    assert sum(command.startswith("taskmanager run ") for command, _ in services) > 1
    for command, place in services:
        assert _unknown_command(command) is None, place
        if command.startswith("taskmanager "):
            assert isinstance(cli, click.Group)
            name, *arguments = command.split()[1:]
            found = cli.get_command(click.Context(cli), name)
            assert found is not None
            found.make_context(name, arguments)


def test_commands_named_in_running_text_exist() -> None:
    """`make test` in a sentence is as much a promise as in a block."""
    faults = []
    for page in PAGES:
        for command in re.findall(r"`((?:make|taskmanager) [a-z-]+)[^`]*`", page.read_text(encoding="utf-8")):
            fault = _unknown_command(command)
            if fault:
                faults.append(f"{page.name}: {fault}")
    assert faults == []


@pytest.mark.req("HB-36")
def test_every_statement_in_sql_runs_on_a_new_database(tmp_path: Path) -> None:
    """The SQL that is said to be safe is at least valid, and names columns that exist."""
    database = tmp_path / "tasks.db"

    async def make() -> None:
        async with TaskManager(database):
            pass

    asyncio.run(make())
    connection = sqlite3.connect(database)
    for block in blocks():
        if block.language == "sql" and "postgresql" not in block.words:
            for statement in filter(str.strip, block.text.split(";")):
                names = set(re.findall(r":([a-z_]+)", statement))
                connection.execute(statement, dict.fromkeys(names, ""))
    connection.close()


def _change(word: str) -> str:
    return next(block.text for block in blocks() if block.language == "sql" and word in block.words)


def _execute(database: Path, script: str, **values: str) -> None:
    with sqlite3.connect(database) as connection:
        for statement in filter(str.strip, script.split(";")):
            connection.execute(statement, values)
    connection.close()


@pytest.mark.req("HB-36", "HB-52")
def test_the_sql_that_changes_something_does_what_the_page_says(tmp_path: Path) -> None:
    """Beside a running manager: cancel, retry, rename; then delete what is old."""
    database = tmp_path / "tasks.db"
    manager = TaskManager(database, store_poll=0.02)
    fails = True

    @manager.task(persist=True, name="job")
    async def job() -> None:
        if fails:
            raise RuntimeError("once")

    async def main() -> None:
        nonlocal fails
        async with manager:
            failed, waiting = job.enqueue(), job.with_options(delay=3600).enqueue()
            assert (await failed.result()).is_err()
            await manager.flush()
            _execute(database, _change("cancel"), task_id=waiting.task_id)
            assert (await waiting.result()).err_value.error_code == "TASK_CANCELLED"
            fails = False
            _execute(database, _change("retry"), task_id=failed.task_id)
            await manager.handle(failed.task_id)
            sql, parameters = manager.insert_statement(job)
            with sqlite3.connect(database) as connection:
                connection.execute(sql, ["former" if value == "job" else value for value in parameters])
            connection.close()
            _execute(database, _change("free"), instance_id="nobody")
            _execute(database, _change("rename"), old_name="former", new_name="job")
            renamed = str(parameters[0])
            assert (await manager.handle(renamed).result()).is_ok()
            _execute(database, "UPDATE taskmanager_tasks SET completed_at = 1 WHERE status = 'COMPLETED'")
            _execute(database, _change("purge"))
            assert [info.status for info in await manager.list()] == [taskmanager.TaskStatus.CANCELLED]
            _execute(database, _change("heartbeats"))

    asyncio.run(main())


def test_the_sql_that_changes_something_leaves_workflows_whole(tmp_path: Path) -> None:
    """A task that ran again beside its workflow, or was deleted under it, would leave a node that contradicts it."""
    database = tmp_path / "tasks.db"
    manager = TaskManager(database, store_poll=0.02)

    @manager.task(persist=True)
    async def job() -> None:
        raise RuntimeError("always")

    async def main() -> None:
        async with manager:
            graph = taskmanager.Workflow("graph")
            graph.add(job)
            handle = await manager.start_workflow(graph)
            assert (await handle.result()).is_err()
            (node,) = await handle.nodes()
            _execute(database, "UPDATE taskmanager_tasks SET failed_at = 1")
            _execute(database, _change("retry"), task_id=str(node.task_id))
            _execute(database, _change("purge"))
            assert [info.status for info in await manager.list()] == [taskmanager.TaskStatus.FAILED]

    asyncio.run(main())


# The reference.


def _signatures(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Every function and annotated field below classes and modules: its dotted name, and how it is written."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, _signature(node)
        elif isinstance(node, ast.ClassDef):
            yield node.name, "class"
            yield from ((f"{node.name}.{name}", text) for name, text in _signatures(node))
        elif isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target), ast.unparse(node)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """As a reader sees it: what a decorator makes of it, constants by their value, no quotes around annotations."""
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    text = f"{kind} ({ast.unparse(node.args)})" + ("" if node.returns is None else f" -> {ast.unparse(node.returns)}")
    if any(ast.unparse(each) == "asynccontextmanager" for each in node.decorator_list):
        text = text.removeprefix("async ").replace("-> AsyncIterator[", "-> AbstractAsyncContextManager[")
    text = text.replace("DEFAULT_RECOVERY", "RecoveryConfig()").replace("DEFAULT_QUEUE", "default")
    return text.replace("'", "")


def _written_in_the_source() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in (ROOT / "taskmanager").rglob("*.py"):
        if {"store", "cli"} & {*path.relative_to(ROOT).parts}:
            continue
        for name, text in _signatures(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(name, set()).add(text)
    return found


def test_every_signature_in_the_pages_is_written_so_in_the_source() -> None:
    """A reference that differs from the code in a default or a name is worse than none."""
    source = _written_in_the_source()
    faults = []
    for block in blocks():
        if block.language == "pyi":
            for name, text in _signatures(ast.parse(block.text)):
                if text not in source.get(name, set()):
                    faults.append(f"{block.place}: {name}: {text}; the source has {sorted(source.get(name, set()))}")
    assert faults == []


def _overloads(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, str]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _overloads(node, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef) and "overload" in map(ast.unparse, node.decorator_list):
            yield f"{owner}{node.name}", _signature(node)


def test_the_reference_has_every_overload() -> None:
    """A function whose second form is left out looks as if it took no options."""
    written = {each for block in blocks() if block.language == "pyi" for each in _signatures(ast.parse(block.text))}
    modules = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "taskmanager").rglob("*.py")]
    public = {each for tree in modules for each in _overloads(tree) if each[0].split(".")[0] in taskmanager.__all__}
    assert public - written == set()


def test_a_module_that_others_import_is_named_above_its_block() -> None:
    """The name in the fence is not shown; who reads the page must know how to call the file."""
    faults = []
    for block in blocks():
        if block.file is not None:
            above = block.page.read_text(encoding="utf-8").splitlines()[: block.line - 1]
            paragraph = next(line for line in reversed(above) if line.strip())
            if f"`{block.file}`" not in paragraph:
                faults.append(block.place)
    assert faults == []


def test_the_reference_has_every_public_name() -> None:
    """In the headings or in the signatures of reference.md."""
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    names = [*taskmanager.__all__, *testing.__all__]
    assert [name for name in names if not re.search(rf"\b{name}\b", reference)] == []


def _asked_inside() -> set[str]:
    """What a manager is asked by its own handles and tasks, and a task by its manager."""
    inside = {name for name in vars(Submitter) if not name.startswith("_")}
    return {f"TaskManager.{name}" for name in inside} | {"TaskCall.bound", "Task.unbound"}


@pytest.mark.parametrize("owner", ["TaskManager", "TaskHandle", "TaskCall", "Task", "TaskContext", "TaskResult"])
def test_the_reference_has_every_public_method(owner: str) -> None:
    """Everything without an underscore that users are meant to call."""
    written = {name for block in blocks() if block.language == "pyi" for name, _ in _signatures(ast.parse(block.text))}
    members = [name for name, value in vars(getattr(taskmanager, owner)).items() if _is_method(value)]
    missing = {f"{owner}.{name}" for name in members if not name.startswith("_")} - written - _asked_inside()
    assert missing == set()


def _is_method(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod)


# The duties.


def _said(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


REQUEUE, STORAGE, RETRIES, DEPLOYMENT = (
    "docs/restarts.md",
    "docs/storage.md",
    "docs/retries.md",
    "docs/deployment.md",
)


@pytest.mark.parametrize(
    ("page", "phrases"),
    [
        pytest.param(REQUEUE, ["requeue_pending", "requeue_on_interrupt", "## Limits"], marks=pytest.mark.req("PR-03")),
        pytest.param(REQUEUE, ["once and many times are the same"], marks=pytest.mark.req("PR-28")),
        pytest.param(REQUEUE, ["ON CONFLICT (id) DO UPDATE"], marks=pytest.mark.req("PR-29")),
        pytest.param(REQUEUE, ["get the e-mail twice"], marks=pytest.mark.req("PR-30")),
        pytest.param(REQUEUE, ["The whole function counts"], marks=pytest.mark.req("PR-31")),
        pytest.param(REQUEUE, ["no task may ever be lost"], marks=pytest.mark.req("PR-55")),
        pytest.param(REQUEUE, ["A retry after a crash may repeat half-done work"], marks=pytest.mark.req("HB-25")),
        pytest.param(DEPLOYMENT, ["SIGTERM before SIGKILL"], marks=pytest.mark.req("PR-56")),
        pytest.param(DEPLOYMENT, ["10 s", "30 s", "`drain_timeout` + 2 s"], marks=pytest.mark.req("PR-57", "PR-58")),
        pytest.param(DEPLOYMENT, ["INTERRUPTED", "grace period is too short"], marks=pytest.mark.req("PR-59")),
        pytest.param(STORAGE, ["are not filled in for older rows"], marks=pytest.mark.req("DS-041")),
        pytest.param(STORAGE, ["Who may write the file may run tasks"], marks=pytest.mark.req("DS-108")),
        pytest.param(STORAGE, ["any registered task", "every result and traceback"], marks=pytest.mark.req("DS-109")),
        pytest.param(STORAGE, ["Nothing authenticates"], marks=pytest.mark.req("DS-110")),
        pytest.param(STORAGE, ["resolve only against the registry"], marks=pytest.mark.req("DS-111", "DS-112")),
        pytest.param(STORAGE, ["0600"], marks=pytest.mark.req("DS-113")),
    ],
)
def test_a_duty_of_the_documentation_is_met(page: str, phrases: list[str]) -> None:
    """What users have to be told is told, in the words that a reader would look for."""
    assert [phrase for phrase in phrases if phrase not in _said(page)] == []


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _leads_somewhere(file: Path, anchor: str) -> bool:
    return file.exists() and (not anchor or anchor in _anchors(file))


def test_every_link_between_the_pages_leads_somewhere() -> None:
    """Files and headings that are linked exist."""
    faults = []
    for page in LINKING:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if target.startswith(("http://", "https://")):
                continue
            path, _, anchor = target.partition("#")
            if not _leads_somewhere(page if not path else (page.parent / path).resolve(), anchor):
                faults.append(f"{page.relative_to(ROOT).as_posix()}: {target}")
    assert faults == []


def test_every_page_that_the_source_names_exists() -> None:
    """A message or a docstring that sends a reader to a page is a link, too."""
    faults, count = [], 0
    for folder in ("taskmanager", "tests", "benchmarks", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name, anchor in re.findall(r"\bdocs/([\w-]+\.md)(?:#([\w-]+))?", path.read_text(encoding="utf-8")):
                count += 1
                if not _leads_somewhere(ROOT / "docs" / name, anchor):
                    faults.append(f"{path.relative_to(ROOT).as_posix()}: docs/{name}")
    assert count > 0
    assert faults == []


def test_the_index_has_every_page_once() -> None:
    """A page that is linked from nowhere is read by nobody."""
    linked = re.findall(r"^- \[[^]]+\]\(([^)#]+\.md)\)", (ROOT / "docs" / "index.md").read_text("utf-8"), re.MULTILINE)
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert sorted(name for name in linked if "/" not in name) == sorted(pages)


def test_the_readme_names_the_version_of_python_that_the_package_asks_for() -> None:
    """The first thing that goes wrong at an installation."""
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    assert f"Python {asked.removeprefix('>=')}" in _said("README.md")

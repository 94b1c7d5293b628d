"""The rules of the house, read from the source: who may import what, how long things may get, what nobody may call.

Each rule is a function that yields one sentence per fault, and one test that wants none. The tables of exceptions
only shrink: an entry that is no longer needed, or allows more than is used, is a fault too.
"""

import ast
import gc
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.reaching import Reaching

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = "taskmanager"
TEXT_SUFFIXES: Final = frozenset(
    {".py", ".pyi", ".md", ".toml", ".sql", ".yml", ".yaml", ".json", ".txt", ".cfg", ".sh", ""}
)

# --- the tables -------------------------------------------------------------------------------------------------------

# From the bottom up: a unit imports only from itself and from those above it in this list.
LAYERS: Final = (
    "model", "codec", "rules", "store", "engine", "duties", "console",
    "stop", "lifecycle", "current_instance",
    # A task gives handles, the registry holds tasks.
    "handle", "calling", "task", "steps", "workflow", "workflow_graph", "workflow_handle", "registry", "hosting",
    "background", "manager",
    "testing", "integrations", "web", "__init__", "cli", "__main__",
)  # fmt: skip

DEPENDENCIES: Final = re.compile(r"^dependencies = \[\n(.*?)^\]", re.DOTALL | re.MULTILINE)
DEPENDENCY: Final = re.compile(r'((?:^ +# .*\n)+) +"(\w+)', re.MULTILINE)


def places_of_dependencies() -> dict[str, tuple[str, ...]]:
    """Where each dependency is imported, as the reason for it in pyproject.toml says. A folder ends in "/"."""
    text = DEPENDENCIES.findall((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[0]
    reasons = ((name, re.sub(r"\s+# ", " ", reason).strip("# ")) for reason, name in DEPENDENCY.findall(text))
    return {name: tuple(each.strip() for each in reason.split(":")[0].split(",")) for name, reason in reasons}


# Who may import a third-party package. A prefix ending in "/" is a folder. What is not here is not allowed anywhere.
THIRD_PARTY: Final[Mapping[str, tuple[str, ...]]] = {
    **places_of_dependencies(),
    "fastapi": ("integrations/",),
    "pydantic": ("integrations/",),
    "starlette": ("integrations/", "web/"),
    "jinja2": ("web/",),
    "markupsafe": ("web/",),
    "uvicorn": ("cli/web.py",),
    "psycopg": ("store/postgresql/",),
}

# Names a signature of the contract needs, imported under `if TYPE_CHECKING` only.
TYPING_ONLY: Final = frozenset({("manager.py", "aiosqlite"), ("manager.py", "rich.console")})

# Standard library of a newer Python than the one that reads this.
NEWER_STDLIB: Final = frozenset({"annotationlib"})

# Modules that are optional at run time, or heavy, so that they are imported inside functions by those who may.
HEAVY: Final = ("rich", "click", "psutil", "cronsim", "anyio", "concurrent.futures.process")
# What `import taskmanager` may load beyond what asyncio and sqlite3 load. Make it shorter.
IMPORTED: Final = (
    "taskmanager", "taskmanager.calling", "taskmanager.codec", "taskmanager.codec.annotations", "taskmanager.manager",
    "taskmanager.model", "taskmanager.model.call_options", "taskmanager.model.checks", "taskmanager.model.clock",
    "taskmanager.model.config", "taskmanager.model.context", "taskmanager.model.dataclass",
    "taskmanager.model.errors", "taskmanager.model.escaping", "taskmanager.model.known_words",
    "taskmanager.model.logger", "taskmanager.model.result", "taskmanager.model.states", "taskmanager.rules",
    "taskmanager.rules.retry", "taskmanager.task",
    "__future__", "copy", "dataclasses", "typing_extensions",
)  # fmt: skip
# What a start without schedules, child processes and a console does not load either.
NOT_STARTED: Final = (
    *HEAVY, "calendar", "hashlib", "importlib.resources", "random", "shutil", "tempfile", "zipfile",
    "taskmanager.background", "taskmanager.codec.report", "taskmanager.duties.reports", "taskmanager.duties.schedule",
    "taskmanager.duties.schedule_book", "taskmanager.duties.schedule_firing", "taskmanager.duties.schedules",
    "taskmanager.engine.run.calls", "taskmanager.engine.run.child_link", "taskmanager.engine.tell.events",
    "taskmanager.engine.tell.ears", "taskmanager.engine.tell.listeners", "taskmanager.engine.people.records",
    "taskmanager.codec.views", "taskmanager.hosting", "taskmanager.rules.events",
    "taskmanager.model.report", "taskmanager.rules.cron", "taskmanager.store.memory",
    "taskmanager.store.statistics",
)  # fmt: skip

MAX_MODULE_LINES: Final = 450
MAX_FUNCTION_LINES: Final = 40  # without the docstring

# What is longer, and by how much exactly. Lower a number when the code gets shorter; do not add to these lightly.
LONG_MODULES: Final[Mapping[str, int]] = {
    "taskmanager/manager.py": 621,  # the public contract: signatures and docstrings of one-line delegations
}
LONG_FUNCTIONS: Final[Mapping[str, int]] = {}

# Where user code is run, in each lane: it may raise anything, and what it raised is a value from there on.
CATCHES_BASE_EXCEPTION: Final = frozenset(
    {
        "taskmanager/engine/words/attempt.py",  # a cancellation is thrown into the coroutine it drives, at once
        "taskmanager/engine/run/child.py",  # the process lane: SystemExit ends the task, not the child
        "taskmanager/engine/run/child_program.py",  # arguments and modules of the application are loaded there
        "taskmanager/engine/run/execution.py",  # one attempt
        "taskmanager/engine/tell/ears.py",  # functions of the application listen
        "taskmanager/engine/run/lanes.py",  # the thread lane: SystemExit ends the task, not the thread
        "taskmanager/engine/words/outcome.py",  # the text of an exception is made by its class
        "taskmanager/engine/words/definition.py",  # codecs and classes of the application store and read values
        "taskmanager/engine/run/settle.py",  # an error may hold a mapping of the application
        "taskmanager/store/sqlite/connection.py",  # work in the thread of a connection: raised where it is awaited
        "taskmanager/store/postgresql/connection.py",  # as there
        "taskmanager/model/logger.py",  # filters and handlers of the application: a record is lost, nothing else
    }
)

# Time and chance are injected. Dotted prefixes and the files that may use them.
INJECTED: Final[Mapping[str, frozenset[str]]] = {
    "time.time": frozenset({"taskmanager/model/clock.py", "taskmanager/model/ids.py"}),
    "time.time_ns": frozenset({"taskmanager/model/clock.py", "taskmanager/model/ids.py"}),
    "time.monotonic": frozenset({"taskmanager/model/clock.py"}),
    "time.monotonic_ns": frozenset({"taskmanager/model/clock.py"}),
    "time.clock_gettime": frozenset({"taskmanager/model/clock.py"}),
    "datetime.datetime.now": frozenset(),
    "datetime.datetime.utcnow": frozenset(),
    "datetime.date.today": frozenset(),
    "uuid.uuid1": frozenset(),
    "uuid.uuid4": frozenset(),
    "random.*": frozenset({"taskmanager/model/ids.py"}),
}
# A fork must find every connection on record, or its child would open a file whose locks it believes to hold.
CONNECTS: Final[Mapping[str, frozenset[str]]] = {
    "sqlite3.connect": frozenset(),
    "aiosqlite.connect": frozenset(),
}
# The generator the engine is given is made here and nowhere else; `random.Random` as a type is free.
MAKES_A_GENERATOR: Final = frozenset({"taskmanager/manager.py", "taskmanager/testing/"})

# Where no part may reach through another.
NO_REACHING: Final = ("engine/", "duties/", "console/", "cli/", "lifecycle.py", "stop.py")

NAMELESS_MODULES: Final = frozenset({"utils", "util", "helpers", "helper", "common", "base", "misc", "mixins"})

# Where a task goes on, and where one that is read from a row begins.
ASSIGNS_PHASE: Final = frozenset(
    {
        ("engine/choose/dispatch.py", "Dispatcher.move"),
        ("engine/choose/dispatch.py", "Dispatcher._count"),
        ("engine/words/live_task.py", "LiveTask.__init__"),  # where it is born
        ("engine/words/live_task.py", "LiveTask.from_row"),
    }
)

# One word per thing: what another word says already, each with the word to use. How often it still stands in the
# package, the tests and the documents. The numbers only shrink: a tenth more than there is has to be lowered.
BANNED_WORDS: Final[Mapping[str, tuple[str, str, int]]] = {
    "stuck": (r"(?i)stuck", "abandoned", 62),
    "leftover": (r"(?i)leftover", "abandoned", 4),
    "outliving": (r"(?i)outliv", "abandoned", 46),
    "spilled": (r"(?i)spill", "free", 21),
    "put away": (r"(?i)put away", "free", 1),
    "elsewhere": (r"(?i)elsewhere", "free, or the place", 41),
    "backlog": (r"(?i)backlog", "free rows", 35),
    "owed": (r"(?i)\bowed\b", "needs_look", 2),
    "Sight": (r"Sight\b", "InstanceView, QueueView", 0),
    "Word": (r"\b[A-Z]\w+Word\b", "QueueView", 0),
    "Picture": (r"Picture\b", "Overview", 0),
    "Glance": (r"\bGlance\b", "Overview", 0),
    "Own": (r"\bOwn\b", "InstanceView", 6),
    "SelfPortrait": (r"SelfPortrait\b", "InstanceView", 0),
}

# A test is found by the module and the rule in its name, and read in a list of failures beside its file.
MAX_TEST_NAME: Final = 72
# Files with names that are longer, and how many.
LONG_TEST_NAMES: Final[Mapping[str, int]] = {
    "tests/unit/test_engine_between.py": 1,
    "tests/unit/test_engine_calls.py": 1,
    "tests/unit/test_engine_dispatch.py": 2,
    "tests/unit/test_engine_live_task.py": 1,
    "tests/unit/test_engine_mishaps.py": 1,
    "tests/unit/test_engine_instance_neighbours.py": 2,
    "tests/unit/test_engine_races.py": 2,
    "tests/unit/test_engine_settle.py": 1,
    "tests/unit/test_engine_stop_races.py": 4,
    "tests/unit/test_engine_survival.py": 3,
    "tests/unit/test_engine_window.py": 11,
    "tests/unit/test_engine_writer.py": 2,
}
# A name that begins like a riddle names its subject last; say the subject first.
RIDDLE: Final = re.compile(r"test_(?:who|whoever|what|whatever)_")
RIDDLES: Final[Mapping[str, int]] = {
    "tests/unit/test_engine_calls.py": 2,
    "tests/unit/test_engine_claiming.py": 1,
    "tests/unit/test_engine_dispatch.py": 1,
    "tests/unit/test_engine_instance.py": 1,
    "tests/unit/test_engine_settle.py": 2,
    "tests/unit/test_engine_sharing.py": 1,
    "tests/unit/test_engine_actions.py": 2,
    "tests/unit/test_engine_survival.py": 3,
    "tests/unit/test_engine_window.py": 2,
    "tests/unit/test_engine_writer.py": 2,
    "tests/unit/test_engine_writes_pared.py": 2,
}
# Parts of a file's name that say how its author felt, and not what is tested.
MOODS: Final = frozenset({"bad", "between", "mishaps", "poison", "ways", "window", "impatient", "patient"})
MOODY_FILES: Final[frozenset[str]] = frozenset(
    {
        "tests/unit/test_engine_between.py",
        "tests/unit/test_engine_mishaps.py",
        "tests/unit/test_engine_window.py",
    }
)

# Tests whose subject is real time: a child process lives while they wait.
REAL_TIME: Final = ("tests/crash/", "tests/acceptance/", "tests/postgresql/")

# Directories on the machine of whoever builds this say nothing to a reader.
BUILD_PATHS: Final = re.compile(r"(?<![\w.])/(?:work|root|tmp/venv|home/[a-z]+|Users/[A-Za-z]+)/")


# --- reading the source -----------------------------------------------------------------------------------------------


class Module(NamedTuple):
    """One parsed file."""

    path: str  # from the root of the repository, with slashes
    source: str
    tree: ast.Module

    @property
    def inside(self) -> str:
        """The path from the package's folder."""
        return self.path.removeprefix(f"{PACKAGE}/")

    @property
    def dotted(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class Import(NamedTuple):
    """One imported module, as written."""

    name: str
    line: int
    is_typing_only: bool
    is_deferred: bool  # inside a function


class Function(NamedTuple):
    """A function and the qualified name it is known by here."""

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    owner: str | None  # the class it is a method of
    is_nested: bool  # inside another function


@pytest.fixture(scope="module", autouse=True)
def trees_are_forgotten() -> Iterator[None]:
    """A million nodes would slow every garbage collection down, here and in all tests that follow."""
    gc.disable()
    yield
    for cached in (modules, nodes, functions, imports):
        cached.cache_clear()
    gc.enable()


@cache
def modules(folder: str) -> tuple[Module, ...]:
    """Every Python file under `folder`, parsed."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        found.append(Module(path.relative_to(ROOT).as_posix(), source, ast.parse(source)))
    return tuple(found)


@cache
def imports(module: Module) -> tuple[Import, ...]:
    """All imports of a module. `from a.b import c` names `a.b.c` when that is a module of ours, else `a.b`."""
    return tuple(_imports(module.tree))


@cache
def our_modules() -> frozenset[str]:
    """The dotted names of the package's modules."""
    return frozenset(module.dotted for module in modules(PACKAGE))


def _imports(tree: ast.Module) -> Iterator[Import]:
    stack: list[tuple[ast.AST, bool, bool]] = [(tree, False, False)]
    while stack:
        node, typing_only, deferred = stack.pop()
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, typing_only, deferred) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield Import(full if full in our_modules() else node.module, node.lineno, typing_only, deferred)
        elif isinstance(node, ast.If) and _asks_for_typing(node.test):
            stack.extend((child, True, deferred) for child in node.body)
            stack.extend((child, typing_only, deferred) for child in node.orelse)
        else:
            inside = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            stack.extend((child, typing_only, inside) for child in ast.iter_child_nodes(node))


def _asks_for_typing(test: ast.expr) -> bool:
    """Whether it is `TYPE_CHECKING`, or `typing.TYPE_CHECKING`."""
    return "TYPE_CHECKING" in (getattr(test, "id", None), getattr(test, "attr", None))


@cache
def nodes(module: Module) -> tuple[ast.AST, ...]:
    """Everything in the tree of a module: several checks look through all of it."""
    return tuple(ast.walk(module.tree))


@cache
def functions(module: Module) -> tuple[Function, ...]:
    """All functions, with methods and nested functions under a dotted name."""
    return tuple(_functions(module.tree))


def _functions(tree: ast.Module) -> Iterator[Function]:
    stack: list[tuple[ast.AST, str, str | None, bool]] = [(tree, "", None, False)]
    while stack:
        node, prefix, owner, nested = stack.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield Function(prefix + child.name, child, owner, nested)
                stack.append((child, f"{prefix}{child.name}.", None, True))
            elif isinstance(child, ast.ClassDef):
                stack.append((child, f"{prefix}{child.name}.", child.name, nested))
            else:
                stack.append((child, prefix, owner, nested))


def unit_of(dotted: str) -> str:
    """The layer a module of ours belongs to."""
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def is_allowed(path: str, places: tuple[str, ...] | frozenset[str]) -> bool:
    """Whether `path` is one of `places`, or in one that ends with a slash; the empty place is everywhere."""
    return any(not place or path == place or (place.endswith("/") and path.startswith(place)) for place in places)


def dotted_name(node: ast.expr, aliases: Mapping[str, str]) -> str | None:
    """`time.time` for `time.time`, `t.time` or `time` however it was imported; None for what is no plain name."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = dotted_name(node.value, aliases)
        return owner and f"{owner}.{node.attr}"
    return None


def aliases_of(module: Module) -> dict[str, str]:
    """What each imported name of a module stands for."""
    names: dict[str, str] = {}
    for node in nodes(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return names


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, without the docstring."""
    total = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is not None:
        total -= (first.end_lineno or first.lineno) - first.lineno + 1
    return total


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Every comment with its line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def repository_files() -> Iterator[Path]:
    """The text files git knows or would take; all text files below the root where there is no git."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=False, text=True,
    )  # fmt: skip
    if listing.returncode == 0 and listing.stdout:
        paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        paths = [path for path in ROOT.rglob("*") if not any(part[0] == "." for part in path.relative_to(ROOT).parts)]
    yield from (path for path in paths if path.is_file() and path.suffix in TEXT_SUFFIXES)


def report(faults: Iterator[str]) -> None:
    """Fail with all faults at once, each on a line of its own."""
    found = sorted(set(faults))
    assert not found, "\n" + "\n".join(found)


# --- who imports what -------------------------------------------------------------------------------------------------


def layer_faults() -> Iterator[str]:
    for module in modules(PACKAGE):
        own = unit_of(module.dotted)
        if own not in LAYERS:
            yield f"{module.path}: {own!r} is in no layer; LAYERS says where new code may go"
            continue
        for item in imports(module):
            if item.name.split(".")[0] != PACKAGE or item.is_typing_only:
                continue
            other = unit_of(item.name)
            if other in LAYERS and LAYERS.index(other) > LAYERS.index(own):
                yield f"{module.path}:{item.line}: {own} imports {item.name}, which stands above it"


def compiled_faults() -> Iterator[str]:
    for module in modules(PACKAGE):
        if module.inside != "model/dataclass.py" and "dataclasses.dataclass" in aliases_of(module).values():
            yield f"{module.path}: takes dataclass from the standard library; take it from model.dataclass"
        for node in (each for each in ast.walk(module.tree) if isinstance(each, ast.ClassDef)):
            is_dataclass = any(ast.unparse(each).startswith("dataclass(") for each in node.decorator_list)
            if is_dataclass and ast.get_docstring(node) is None:
                yield f"{module.path}:{node.lineno}: has no docstring, so its signature is compiled to be one"


def typing_only_faults() -> Iterator[str]:
    """`if TYPE_CHECKING` is for names of the same or a lower layer, and for what the contract's signatures need."""
    for module in modules(PACKAGE):
        own = unit_of(module.dotted)
        for item in imports(module):
            if not item.is_typing_only:
                continue
            if item.name.split(".")[0] == PACKAGE:
                other = unit_of(item.name)
                if own in LAYERS and other in LAYERS and LAYERS.index(other) > LAYERS.index(own):
                    yield f"{module.path}:{item.line}: {own} knows {item.name} by type, which stands above it"


def third_party_faults() -> Iterator[str]:
    for module in modules(PACKAGE):
        for item in imports(module):
            top = item.name.split(".")[0]
            if top == PACKAGE or top in sys.stdlib_module_names | NEWER_STDLIB:
                continue
            if item.is_typing_only and (module.inside, item.name) in TYPING_ONLY:
                continue
            if not is_allowed(module.inside, THIRD_PARTY.get(top, ())):
                yield f"{module.path}:{item.line}: {top} is not allowed here"


def dependency_faults() -> Iterator[str]:
    """Dependencies without a place, and places without an import. The other way round is in `third_party_faults`."""
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    places = places_of_dependencies()
    for name in {re.split(r"\W", each)[0] for each in asked} ^ places.keys():
        yield f"{name}: its reason in pyproject.toml must begin with where it is imported"
    for name, found in places.items():
        importing = [
            module.inside
            for module in modules(PACKAGE)
            if any(item.name.split(".")[0] == name and not item.is_typing_only for item in imports(module))
        ]
        for place in found:
            if not any(is_allowed(each, (place,)) for each in importing):
                yield f"{name}: nothing in {place} imports it, as its reason in pyproject.toml says"


def cycle_faults() -> Iterator[str]:
    """Import cycles among our modules. Imports inside functions and for type checkers close no cycle at import."""
    graph = {
        module.dotted: {
            item.name
            for item in imports(module)
            if item.name.split(".")[0] == PACKAGE and not item.is_typing_only and not item.is_deferred
        }
        for module in modules(PACKAGE)
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> Iterator[str]:
        if name in trail:
            yield "import cycle: " + " -> ".join((*trail[trail.index(name) :], name))
        elif name not in done:
            for other in sorted(graph.get(name, ())):
                yield from visit(other, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        yield from visit(name, ())


def engine_map() -> list[str]:
    """The modules of the engine, "run.lanes", in the order of the map in its docstring. Its own have no room."""
    text = (ROOT / PACKAGE / "engine" / "__init__.py").read_text(encoding="utf-8")
    rooms = re.findall(r"^    (\w+)/: +([a-z_ ]+)$", text, re.MULTILINE)
    return [name if room == "engine" else f"{room}.{name}" for room, names in rooms for name in names.split()]


def engine_map_faults() -> Iterator[str]:
    folder, order = f"{PACKAGE}.engine", engine_map()
    inside = [module for module in modules(PACKAGE) if module.dotted.startswith(f"{folder}.")]
    found = {module.dotted: module for module in inside if not module.path.endswith("/__init__.py")}
    names = {dotted.removeprefix(f"{folder}.") for dotted in found}
    yield from (f"{name} is not on the map of the engine" for name in sorted(names - set(order)))
    yield from (f"{name} is on the map of the engine, and no module" for name in order if name not in names)
    yield from (f"{name} is on the map of the engine twice" for name in sorted(names) if order.count(name) > 1)
    for dotted, module in found.items():
        name = dotted.removeprefix(f"{folder}.")
        for item in imports(module):
            other = item.name.removeprefix(f"{folder}.")
            is_known = name in order and other in order and not item.is_typing_only
            if is_known and order.index(other) > order.index(name):
                yield f"{module.path}:{item.line}: {name} knows {other}, which stands behind it on the map"


def test_a_folder_imports_only_from_the_layers_below_it() -> None:
    """The order makes the lower layers testable alone; one import upwards and nothing is."""
    report(layer_faults())


def test_the_map_of_the_engine_is_whole_and_its_order_is_kept() -> None:
    """Fifty modules can be read, room by room, in an order in which each is made of what is known by then."""
    report(engine_map_faults())


def test_types_too_come_from_the_same_or_a_lower_layer() -> None:
    """A lower layer that needs an upper one's type has its words in the wrong place."""
    report(typing_only_faults())


def test_each_library_is_used_only_where_its_job_is() -> None:
    """A library that is used in one place can be replaced in one place."""
    report(third_party_faults())


def test_each_dependency_is_where_its_reason_says() -> None:
    """A reason that nobody checks becomes untrue: somebody else must be able to see what a dependency is for."""
    report(dependency_faults())


def test_dataclasses_are_made_without_compiling() -> None:
    """Twenty classes that are compiled were a third of the import."""
    report(compiled_faults())


def test_no_module_imports_itself_in_a_circle() -> None:
    """A cycle works until somebody imports the other end first."""
    report(cycle_faults())


def test_importing_the_package_loads_little() -> None:
    """Every process pays for the import, also the one that only enqueues, or only reads what is declared."""
    program = f"import asyncio, sqlite3, sys; before = set(sys.modules); from {PACKAGE} import TaskManager, task\n"
    loaded = after_running(f"{program}print(*(set(sys.modules) - before))")
    assert loaded.difference(IMPORTED) == loaded.intersection(HEAVY) == set()


def test_start_without_lanes_loads_nothing_heavy(tmp_path: Path) -> None:
    """It may be what a command of a user waits for."""
    program = f"""
import asyncio, sys
from {PACKAGE} import TaskManager

manager = TaskManager({str(tmp_path / "tasks.db")!r})

@manager.task(persist=True)
async def add(one: int, two: int = 2) -> int:
    return one + two

async def main() -> None:
    async with manager:
        assert await add.enqueue(1) == 3

asyncio.run(main())
print(*sys.modules)
"""
    after_running(program)  # makes the file
    assert after_running(program).intersection(NOT_STARTED) == set()


def after_running(program: str) -> set[str]:
    """Return the words that a program prints, in a process of its own."""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=False, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return set(run.stdout.split())


# --- who knows whose parts --------------------------------------------------------------------------------------------


def test_no_part_reaches_through_another() -> None:
    """Who calls `engine.writer.mark` knows two parts; both can be changed only together with it."""
    reaching = Reaching({module.path: module.tree for module in modules(PACKAGE)})
    searched = [module for module in modules(PACKAGE) if module.inside.startswith(NO_REACHING)]
    report(fault for module in searched for fault in reaching.faults(module.path, module.tree))


def test_reaching_is_told_from_annotations() -> None:
    """The check of the check: what another module defines, behind a part, called or assigned to."""
    writer = "class Writer:\n    is_open = True\n    unsaved: dict[str, int]\n    def mark(self) -> None: ...\n"
    engine = "class Engine:\n    names: dict\n    def __init__(self) -> None:\n        self.writer = Writer()\n"
    user = """
class User:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
    def own(self) -> None:
        self._engine.stop()
        self._engine.names.get("a")
    def reaching(self, engine: "Engine | None") -> None:
        self._engine.writer.mark()
        engine.writer.is_open = False
        known = self._engine
        known.writer.unsaved.get("a")
        for each in self.all():
            each.writer.mark()
"""
    trees = {name: ast.parse(text) for name, text in {"w": writer, "e": engine, "u": user}.items()}
    assert [fault.split(": ")[1] for fault in Reaching(trees).faults("u", trees["u"])] == [
        "self._engine.writer.mark",
        "engine.writer.is_open",
        "known.writer.unsaved.get",
        "each.writer.mark",
    ]
    assert list(Reaching(trees).faults("e", ast.parse("class E:\n    def a(self):\n        self.writer.mark()"))) == []


# --- sizes ------------------------------------------------------------------------------------------------------------


def size_faults(sizes: Mapping[str, int], limit: int, allowed: Mapping[str, int], what: str = "lines") -> Iterator[str]:
    for name, lines in sizes.items():
        if lines > allowed.get(name, limit):
            yield f"{name}: {lines} {what}, allowed are {allowed.get(name, limit)}"
    for name, lines in allowed.items():
        actual = sizes.get(name, 0)
        if lines <= limit or actual < lines:
            yield f"{name}: the exception says {lines}, it has {actual}; lower or remove the entry"


def test_modules_are_short_enough_to_read() -> None:
    """One job per file fits; a file that does not has two."""
    sizes = {module.path: len(module.source.splitlines()) for module in modules(PACKAGE)}
    report(size_faults(sizes, MAX_MODULE_LINES, LONG_MODULES))


def test_functions_fit_on_a_screen() -> None:
    """The docstring does not count, the signature does."""
    sizes = {
        f"{module.path}::{function.name}": body_lines(function.node)
        for module in modules(PACKAGE)
        for function in functions(module)
    }
    report(size_faults(sizes, MAX_FUNCTION_LINES, LONG_FUNCTIONS))


def test_an_exception_that_is_no_longer_needed_is_a_fault() -> None:
    """The check of the checks: stale, too generous, exact."""
    assert list(size_faults({"a": 50}, 40, {"a": 50})) == []
    assert len(list(size_faults({"a": 49}, 40, {"a": 50}))) == 1
    assert len(list(size_faults({"a": 51}, 40, {"a": 50}))) == 1
    assert len(list(size_faults({}, 40, {"a": 50}))) == 1


# --- what nobody may do -----------------------------------------------------------------------------------------------


def catches(handler: ast.ExceptHandler) -> frozenset[str]:
    """The names in an `except` clause; a bare one catches BaseException."""
    if handler.type is None:
        return frozenset({"BaseException"})
    items = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return frozenset(ast.unparse(item) for item in items)


def does_nothing(body: list[ast.stmt]) -> bool:
    return all(
        isinstance(line, ast.Pass | ast.Continue)
        or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and line.value.value is ...)
        for line in body
    )


def raises_again(handler: ast.ExceptHandler) -> bool:
    """Whether it only cleans up: its last statement is a bare `raise`."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def swallowing_faults() -> Iterator[str]:
    for module in modules(PACKAGE):
        for node in nodes(module):
            if isinstance(node, ast.ExceptHandler):
                caught = catches(node)
                is_caught = "BaseException" in caught and not raises_again(node)
                if is_caught and module.path not in CATCHES_BASE_EXCEPTION:
                    yield f"{module.path}:{node.lineno}: BaseException is caught only where user code runs"
                if caught & {"Exception", "BaseException"} and does_nothing(node.body):
                    yield f"{module.path}:{node.lineno}: swallows every exception"
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
                named = {ast.unparse(argument) for argument in node.args}
                if named & {"Exception", "BaseException"}:
                    yield f"{module.path}:{node.lineno}: suppresses every exception"


def stale_catch_faults() -> Iterator[str]:
    users = {
        module.path
        for module in modules(PACKAGE)
        for node in nodes(module)
        if isinstance(node, ast.ExceptHandler) and "BaseException" in catches(node) and not raises_again(node)
    }
    yield from (f"{path}: no longer catches BaseException; remove it" for path in CATCHES_BASE_EXCEPTION - users)


def injected_faults() -> Iterator[str]:
    for module in modules(PACKAGE):
        aliases = aliases_of(module)
        for node in nodes(module):
            if not isinstance(node, ast.Call):
                continue
            name = dotted_name(node.func, aliases)
            if name is None:
                continue
            if name in ("random.Random", "random.SystemRandom"):
                if not is_allowed(module.path, MAKES_A_GENERATOR):
                    yield f"{module.path}:{node.lineno}: {name}() here; the generator is injected"
                continue
            key = "random.*" if name.startswith("random.") else name
            if key in INJECTED and module.path not in INJECTED[key]:
                yield f"{module.path}:{node.lineno}: {name}() here; time and chance are injected"
            if name in CONNECTS and module.path not in CONNECTS[name]:
                yield f"{module.path}:{node.lineno}: {name}() here; use store.sqlite.files.open_existing"


def phase_faults() -> Iterator[str]:
    for module in modules(PACKAGE):
        for function in functions(module):
            for node in own_nodes(function.node):
                names = [each.attr for each in _targets(node) if isinstance(each, ast.Attribute)]
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr"):
                    names += [each.value for each in node.args if isinstance(each, ast.Constant)]
                if "phase" in names and (module.inside, function.name) not in ASSIGNS_PHASE:
                    yield f"{module.path}:{node.lineno}: {function.name} assigns a phase; use Dispatcher.move"


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement assigns to, deletes, or lets a loop or a `with` assign to."""
    if isinstance(node, ast.expr | ast.stmt | ast.withitem | ast.comprehension):
        for each in ast.iter_child_nodes(node):
            if isinstance(each, ast.Attribute | ast.Tuple | ast.List | ast.Starred) and not isinstance(
                each.ctx, ast.Load
            ):
                yield from (found for found in ast.walk(each) if isinstance(found, ast.Attribute))


def print_faults() -> Iterator[str]:
    for module in modules(PACKAGE):
        if module.inside.startswith(("cli/", "console/")):
            continue
        for node in nodes(module):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                yield f"{module.path}:{node.lineno}: print; use logging"


def sleep_faults() -> Iterator[str]:
    """Sleeps of a constant time directly in a test.

    Functions defined in a test are task bodies, whose sleep is the subject. A sleep of zero yields to the loop and is
    fine.
    """
    for module in modules("tests"):
        if module.path.startswith(REAL_TIME) or "sleep" not in module.source:
            continue
        aliases = aliases_of(module)
        for function in functions(module):
            if function.is_nested or not function.node.name.startswith("test_"):
                continue
            for node in own_nodes(function.node):
                if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
                    continue
                name = dotted_name(node.func, aliases)
                if name in ("time.sleep", "asyncio.sleep", "anyio.sleep") and node.args[0].value:
                    yield f"{module.path}:{node.lineno}: {function.name} sleeps; wait for an event instead"


def own_nodes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function without those of the functions, lambdas and classes defined in it."""
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        yield node
        stack.extend(ast.iter_child_nodes(node))


def test_no_exception_disappears() -> None:
    """A swallowed exception is a task that never ends, and nobody knows why. Cancellation is a BaseException."""
    report(swallowing_faults())
    report(stale_catch_faults())


def test_time_and_chance_are_injected() -> None:
    """What reads the clock itself cannot be tested without waiting, nor simulated from a seed."""
    report(injected_faults())


def test_only_one_place_moves_a_task() -> None:
    """A phase that is set elsewhere passes by the table of moves, and by the counts that depend on the phase."""
    report(phase_faults())
    known = {(module.inside, function.name) for module in modules(PACKAGE) for function in functions(module)}
    report(f"{path}: there is no {name} any more" for path, name in ASSIGNS_PHASE - known)


def test_only_the_command_line_prints() -> None:
    """A library that prints spoils its host's output."""
    report(print_faults())


def test_module_names_say_what_is_in_them() -> None:
    """`utils` is where things go that nobody thought about."""
    places = (*modules(PACKAGE), *modules("tests"), *modules("benchmarks"))
    report(
        f"{module.path}: a name that says nothing" for module in places if Path(module.path).stem in NAMELESS_MODULES
    )


def test_tests_do_not_sleep() -> None:
    """A sleep is too short on a slow machine and too long on every other."""
    report(sleep_faults())


# --- words ------------------------------------------------------------------------------------------------------------


def is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list)


def docstring_faults() -> Iterator[str]:
    """Modules, public classes, and public functions at the top of a module.

    Public methods too where the class is public and the module is part of the face; below it a well-named method
    whose class says what it is for needs no sentence of its own.
    """
    face = {"registry", "task", "handle", "manager", "testing", "integrations", "__init__"}
    for module in modules(PACKAGE):
        if ast.get_docstring(module.tree) is None:
            yield f"{module.path}: no docstring that says what its one job is"
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node):
                yield f"{module.path}:{node.lineno}: class {node.name} has no docstring"
        for function in functions(module):
            node = function.node
            if (
                function.is_nested
                or is_overload(node)
                or any(part.startswith("_") for part in function.name.split("."))
            ):
                continue
            is_public = function.owner is None or unit_of(module.dotted) in face
            if is_public and ast.get_docstring(node) is None:
                yield f"{module.path}:{node.lineno}: {function.name} has no docstring"


IGNORE: Final = re.compile(
    r"#\s*(?:noqa|type:\s*ignore|pyright:\s*ignore)(?P<code>[:\[][A-Za-z0-9, :\-]*\]?)?(?P<rest>.*)"
)


def ignore_faults() -> Iterator[str]:
    """`# noqa: S608  # identifiers only`: the code of the rule, then the reason in a comment of its own.

    A test that ignores a type passes a wrong one on purpose, which is reason enough.
    """
    for module in (*modules(PACKAGE), *modules("tests"), *modules("benchmarks")):
        is_test = module.path.startswith("tests/")
        for line, comment in comments(module.source):
            match = IGNORE.match(comment)
            if match is None or (is_test and "noqa" not in comment):
                continue
            if not match["code"]:
                yield f"{module.path}:{line}: which rule is ignored?"
            elif not re.search(r"#\s*(?!noqa|type:|pyright:)\w+", match["rest"]):
                yield f"{module.path}:{line}: why is it ignored? Say so after a second #"


def build_path_faults() -> Iterator[str]:
    for path in repository_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            found = BUILD_PATHS.search(line)
            if found:
                yield f"{path.relative_to(ROOT).as_posix()}:{number}: {found[0]} is a place on somebody's machine"


def test_everything_public_says_what_it_is_for() -> None:
    """The first line of a module is its one job; the docstring of a public name is its reference page."""
    report(docstring_faults())


def test_every_ignored_rule_has_its_reason() -> None:
    """An ignore without a reason is copied; one with a reason is questioned."""
    report(ignore_faults())


def test_no_path_of_a_build_machine_is_in_the_repository() -> None:
    """Such a path works for one person."""
    report(build_path_faults())


def worded_files() -> Iterator[Path]:
    """The package, the tests without this file, which has to name the words, and the documents."""
    for path in repository_files():
        place = path.relative_to(ROOT).as_posix()
        if place != "tests/test_tidy.py" and place.startswith((f"{PACKAGE}/", "tests/", "docs/", "README.md")):
            yield path


def banned_word_faults() -> Iterator[str]:
    places: dict[str, Counter[str]] = {word: Counter() for word in BANNED_WORDS}
    for path in worded_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        for word, (pattern, _, _) in BANNED_WORDS.items():
            places[word][path.relative_to(ROOT).as_posix()] += len(re.findall(pattern, text))
    for word, (_, better, allowed) in BANNED_WORDS.items():
        count = places[word].total()
        if count > allowed:
            most = ", ".join(f"{place} ({number})" for place, number in places[word].most_common(5))
            yield f"{word!r} stands in {count} places, allowed are {allowed}; say {better}. Most: {most}"
        elif count < allowed - allowed // 10:
            yield f"{word!r} stands in {count} places; lower the {allowed} in BANNED_WORDS to that"


def names_of_tests() -> Iterator[tuple[str, str]]:
    """The path of each file of tests, with the name of each test in it."""
    for module in modules("tests"):
        for function in functions(module):
            if function.node.name.startswith("test_") and not function.is_nested:
                yield module.path, function.node.name


def moody_faults() -> Iterator[str]:
    named = {module.path for module in modules("tests") if MOODS & {*Path(module.path).stem.split("_")}}
    yield from (f"{path}: name it by the module or the rule that it tests" for path in named - MOODY_FILES)
    yield from (f"{path}: no longer there, or well named; remove it from MOODY_FILES" for path in MOODY_FILES - named)


def test_there_is_one_word_per_thing() -> None:
    """A second word for the same thing makes a reader look for the difference."""
    report(banned_word_faults())


def test_the_name_of_a_test_is_short_enough_to_read() -> None:
    """Module and rule; the reason has its place in the docstring."""
    sizes = Counter(path for path, name in names_of_tests() if len(name) > MAX_TEST_NAME)
    report(size_faults(sizes, 0, LONG_TEST_NAMES, f"names over {MAX_TEST_NAME}"))


def test_the_name_of_a_test_begins_with_its_subject() -> None:
    """`test_a_stray_is_judged`, not `test_what_is_a_stray_is_judged`: who looks for strays finds the first one."""
    riddles = Counter(path for path, name in names_of_tests() if RIDDLE.match(name))
    report(size_faults(riddles, 0, RIDDLES, "names that begin like a riddle"))


def test_a_file_of_tests_is_named_by_what_it_tests() -> None:
    """Who looks for the test of a rule knows the rule, and not the mood."""
    report(moody_faults())


def merge_faults() -> Iterator[str]:
    marks = tuple(f"{mark * 7} " for mark in "<>")
    for path in repository_files():
        if any(line.startswith(marks) for line in path.read_text(encoding="utf-8").splitlines()):
            yield f"{path.relative_to(ROOT)}: the marks of a merge are still there"


def test_no_merge_is_left_half_done() -> None:
    """Both sides of a conflict in one page are shown to every reader."""
    report(merge_faults())

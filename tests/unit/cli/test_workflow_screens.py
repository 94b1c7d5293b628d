"""The screens and documents of workflows, compared byte for byte with what is stored beside the tests."""

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from taskmanager.model.ids import child_workflow_id, node_task_id
from tests.unit.cli import rich_file, workflow_file
from tests.unit.cli.test_golden_screens import answer, compare, frozen
from tests.unit.command_line import taskmanager

SHOWN: Final = ("import-7", "release-2026-03", "00000063", "release-2026-02")


@pytest.fixture
def graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a file with workflows."""
    database = tmp_path / "tasks.db"
    rich_file.write_empty(database)
    workflow_file.write(database)
    monkeypatch.chdir(tmp_path)
    frozen(monkeypatch)
    return tmp_path


@pytest.fixture
def busy(graphs: Path) -> Iterator[Path]:
    """The same beside a bit of everything else, with the instances that run it."""
    for path in graphs.iterdir():
        path.unlink()
    rich_file.write(graphs / "tasks.db")
    workflow_file.write(graphs / "tasks.db", 20)
    with rich_file.living(graphs / "tasks.db"):
        yield graphs


SCREENS: Final = {
    "status": (["status"], 0),
    "watch": (["watch"], 0),
    "list": (["list", "--status", "RUNNING", "--status", "FAILED"], 0),
    "doctor": (["doctor"], 1),
    "held": (["show", node_task_id("release-2026-03", 2)], 0),
    "failed": (["show", node_task_id(rich_file.task_id(0x63), 0)], 0),
}


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("columns", [50, 80, 120])
@pytest.mark.parametrize("name", SCREENS)
def test_screens_that_name_workflows_are_as_they_were(name: str, columns: int) -> None:
    """How far each has come, what is paused, and of which workflow a task is."""
    arguments, code = SCREENS[name]
    compare(f"workflows-{name}-{columns}.txt", answer(*arguments, columns=columns, code=code))


@pytest.mark.usefixtures("busy")
def test_documents_name_the_workflow_of_a_task() -> None:
    """In a list, alone, and among those that run."""
    listed = json.loads(answer("list", "--task", "app.imports:parse", "--json"))
    assert [(each["workflow_id"], each["node_id"]) for each in listed] == [("import-7", "app.imports:parse:1")]
    shown = json.loads(answer("show", node_task_id("release-2026-03", 2), "--json"))
    assert (shown["workflow_id"], shown["node_id"]) == ("release-2026-03", "upload-bob")
    seen = json.loads(answer("status", "--json"))
    assert seen["workflow_count"] == len(seen["workflows"]) == 2
    assert "upload-cyd" in {each["node_id"] for each in seen["running"]}


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("columns", [50, 80, 120])
def test_screens_of_workflows_are_as_they_were(columns: int) -> None:
    """The list, and one after the other: running with a fan-out of a thousand, paused, failed, completed."""
    pages = [answer("workflows", columns=columns)]
    pages += [answer("workflow", "show", each, columns=columns) for each in SHOWN]
    assert max(len(line) for page in pages for line in page.splitlines()) <= columns
    compare(f"workflows-{columns}.txt", f"\n{'-' * columns}\n".join(pages))


@pytest.mark.usefixtures("graphs")
def test_document_of_workflows_is_as_it_was() -> None:
    """Every key, in its order, and every value."""
    pages = [answer("workflows", "--json"), answer("workflow", "show", "release-2026-03", "--json")]
    compare("workflows.json", re.sub(r'(?<="definition_key": ")\w+', "a-key", "".join(pages)))


@pytest.mark.usefixtures("graphs")
def test_document_of_a_workflow_has_all_nodes_and_children() -> None:
    """No node is left out where a screen folds a thousand, and a child stands in its node."""
    found = json.loads(answer("workflow", "show", "import-7", "--json"))
    by_id: dict[str, Any] = {node["node_id"]: node for node in found["nodes"]}
    assert len(by_id) == found["node_count"] == workflow_file.COLUMNS + 5
    child = by_id["clean"]["sub_workflow"]
    assert (child["name"], [node["node_id"] for node in child["nodes"]]) == ("clean", ["split", "wash"])
    assert by_id["app.imports:parse:1"]["dependencies"] == [0]
    assert by_id["app.imports:parse:1"]["attempt_count"] == 3


@pytest.mark.usefixtures("graphs")
def test_workflows_are_listed_by_status_name_and_number() -> None:
    """Each filter alone; a word that is no status is refused."""
    listed = {
        options: [each["workflow_id"] for each in json.loads(answer("workflows", *options, "--json"))]
        for options in (("--status", "paused"), ("--name", "import"), ("--limit", "1"), ("--name", "nobody"))
    }
    assert listed == {
        ("--status", "paused"): ["release-2026-03"],
        ("--name", "import"): ["import-7", rich_file.task_id(0x63)],
        ("--limit", "1"): ["import-7"],
        ("--name", "nobody"): [],
    }
    assert answer("workflows", "--name", "nobody") == "no such workflows\n"
    assert taskmanager("workflows", "--status", "odd").code == 2


@pytest.mark.usefixtures("graphs")
def test_workflow_is_meant_by_an_end_of_its_id_that_no_other_has() -> None:
    """As a task is; what is ambiguous is refused with the ids, what is nobody's with the command that lists them."""
    ran = taskmanager("workflow", "show", "release-2026-0")
    assert ran.code == 1
    assert "is ambiguous: release-2026-02, release-2026-03" in ran.err
    ran = taskmanager("workflow", "cancel", "nobody")
    assert ran.code == 1
    assert "there is no workflow 'nobody'; `taskmanager workflows` shows the ids" in ran.err
    assert json.loads(answer("workflow", "show", "import", "--json"))["workflow_id"] == "import-7"


def test_file_without_workflows_says_so(tmp_path: Path) -> None:
    """An empty list is an answer."""
    rich_file.write_empty(tmp_path / "tasks.db")
    assert taskmanager("workflows", "--db", tmp_path / "tasks.db").out == "no workflows\n"


@pytest.mark.usefixtures("graphs")
def test_sealed_error_of_a_node_is_told_by_its_code() -> None:
    """A codec hides the message; the code stands in the row of the task."""
    with closing(sqlite3.connect("tasks.db")) as connection, connection:
        connection.execute("UPDATE taskmanager_workflow_tasks SET error = 'c2VhbGVk' WHERE status = 'FAILED'")
    assert "│    UNHANDLED_EXCEPTION\n" in answer("workflow", "show", "release-2026-03")


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("enqueued_at = 253402300799999999, start_count = 1", "waits for an event"),
        ("start_count = 2, next_retry_at = NULL", "2 attempts, due in 40s"),
        ("start_count = 0, next_retry_at = NULL", "due in 40s"),
        (f"enqueued_at = {rich_file.NOW - 3_000_000}", "waits for 3s"),
    ],
)
def test_node_says_what_its_task_waits_for(change: str, said: str) -> None:
    """A retry, a delay or a sleep, an event, or a slot."""
    task_id = node_task_id(child_workflow_id("import-7", workflow_file.COLUMNS + 3), 1)
    with closing(sqlite3.connect("tasks.db")) as connection, connection:
        connection.execute(f"UPDATE taskmanager_tasks SET {change} WHERE id = ?", (task_id,))
    line = next(line for line in answer("workflow", "show", "import-7").splitlines() if "wash" in line)
    assert line.endswith(f"  {said}")

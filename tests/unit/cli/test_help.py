"""Help, completion, `$TASKMANAGER_DB`, and the page of the command line: they name what there is."""

import re
from pathlib import Path

import click
import pytest

from taskmanager.cli.commands import SECTIONS, cli
from tests.unit.cli.documents import (
    AnswerDocument,
    BackupDocument,
    CheckDocument,
    DiagnosisDocument,
    RecordDocument,
    RecoveryDocument,
)
from tests.unit.command_line import taskmanager


def test_the_help_names_commands_that_exist() -> None:
    """It imports none of them, so it has a line for each by heart."""
    context = click.Context(cli)
    assert isinstance(cli, click.Group)
    for entry in (entry for entries in SECTIONS.values() for entry in entries):
        command = cli.get_command(context, entry.name)
        assert command is not None
        assert command.name == entry.name
        assert command.help
        assert 10 < len(entry.line) <= 70


def test_help_fits_eighty_columns() -> None:
    """Where a terminal breaks a line, a list of examples is none any more."""
    context = click.Context(cli)
    assert isinstance(cli, click.Group)
    for entry in (entry for entries in SECTIONS.values() for entry in entries):
        command = cli.get_command(context, entry.name)
        below = list(command.commands) if isinstance(command, click.Group) else []
        for words in ([], [entry.name], *([entry.name, name] for name in below)):
            shown = taskmanager(*words, "--help")
            assert (shown.code, [line for line in shown.out.splitlines() if len(line) > 80]) == (0, []), words


def test_every_command_on_a_file_takes_db_and_json() -> None:
    """Whoever knows one knows all. `web` prints no answer, and `copy` is about two files."""
    context = click.Context(cli)
    assert isinstance(cli, click.Group)
    for title, entries in SECTIONS.items():
        for entry in entries:
            command = cli.get_command(context, entry.name)
            assert command is not None
            commands = command.commands.values() if isinstance(command, click.Group) else [command]
            options = [{name for each in single.params for name in each.opts} for single in commands]
            wanted = {"web": {"--db"}, "copy": {"--json"}}.get(entry.name, {"--db", "--json"})
            assert title == "Try it, run it" or all(names >= wanted for names in options), entry.name


def test_the_file_is_named_by_the_environment(
    written: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`--db` first, then `$TASKMANAGER_DB`, then tasks.db in the current directory."""
    monkeypatch.setenv("TASKMANAGER_DB", str(written[0]))
    assert len(taskmanager("list", "--json").document(list[RecordDocument])) == 4
    assert "no-such.db" in taskmanager("list", "--db", "no-such.db").err
    monkeypatch.delenv("TASKMANAGER_DB")
    monkeypatch.chdir(tmp_path)
    assert "there is no file tasks.db; name the application's database with --db" in taskmanager("list").err
    assert list(tmp_path.iterdir()) == []


def test_the_page_of_the_command_line_names_every_command_and_its_documents() -> None:
    """A command that is not there is not found; exit codes and JSON shapes are a promise."""
    page = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text(encoding="utf-8")
    for entries in SECTIONS.values():
        for entry in entries:
            assert re.search(rf"`{entry.name}\b", page), entry.name
    for document in (AnswerDocument, BackupDocument, CheckDocument, DiagnosisDocument, RecoveryDocument):
        for field in document.__struct_fields__:
            assert f"`{field}`" in page, f"{document.__name__}.{field}"


def test_the_shell_completes_commands_and_statuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/command-line.md sets it up."""
    monkeypatch.setenv("_TASKMANAGER_COMPLETE", "bash_complete")
    for words, number, expected in (
        ("taskmanager re", "1", {"retry", "resume", "recover"}),
        ("taskmanager list --status FA", "3", {"FAILED"}),
        ("taskmanager show --js", "2", {"--json"}),
    ):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", number)
        assert {line.partition(",")[2] for line in taskmanager().out.splitlines()} == expected

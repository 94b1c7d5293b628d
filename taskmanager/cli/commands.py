"""The `taskmanager` command: which commands there are, and what went wrong as one line and an exit code.

0: done. 1: not found, refused or unreadable. 2: the command line itself is wrong. 130: Ctrl-C.
"""

import contextlib
import importlib
import os
import sys
from typing import Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from taskmanager import __version__
from taskmanager.model.errors import TaskManagerError, error_line
from taskmanager.model.escaping import escaped
from taskmanager.model.nearest import did_you_mean

USAGE_EXIT: Final = 2
CTRL_C_EXIT: Final = 130

EPILOG: Final = """\b
Examples:
  taskmanager demo                     half a minute with this Python's files
  taskmanager run app.jobs:manager     run a manager with no application
  taskmanager list --status FAILED     what went wrong lately
  taskmanager show 4c1f3a              one task, by the end of its id
  taskmanager retry 4c1f3a             run it again
  taskmanager web                      all of it in the browser

--db PATH, or $TASKMANAGER_DB, names the file (default tasks.db), or a server: postgresql://user@host/database. The
commands need only that, whether the application is running or not. Every command has its own --help;
docs/command-line.md has the rest.
Exit codes: 0 done, 1 not found or refused, 2 wrong usage, 130 Ctrl-C.
"""


class Entry(NamedTuple):
    """One command: where it is, and its line in the help, so that the help imports none of them."""

    name: str
    place: str
    """`module:attribute` below `taskmanager.cli`."""
    line: str


SECTIONS: Final[dict[str, tuple[Entry, ...]]] = {
    "Try it, run it": (
        Entry("demo", "demo:demo", "Watch a program survive its own restart, on your own files."),
        Entry("run", "run:run", "Run the TaskManager of a module until told to stop."),
    ),
    "Look": (
        Entry("status", "status:status", "Instances, queues, throughput, failures and storage on one screen."),
        Entry("watch", "status:watch", "The same, live, with the progress of running tasks. q quits."),
        Entry("web", "web:web", "All of it in the browser, also while the application is down."),
        Entry("list", "tasks:list_tasks", "List tasks, newest first."),
        Entry("show", "tasks:show", "One task: its record, every attempt, its log, what happens next."),
        Entry("workflows", "workflows:workflows", "List workflows, newest first."),
    ),
    "Act": (
        Entry("retry", "tasks:retry", "Run tasks that have ended again, with their stored arguments."),
        Entry("cancel", "tasks:cancel", "Cancel tasks that have not ended."),
        Entry("send", "events:send", "Send an event to a task that waits for it."),
        Entry("pause", "queues:pause", "Start nothing more from a queue until it is resumed."),
        Entry("resume", "queues:resume", "Start tasks from a paused queue again."),
        Entry("workflow", "workflows:workflow", "Show the graph of one; pause, resume, cancel or retry it."),
        Entry("schedules", "queues:schedules", "List schedules; pause, resume or run one."),
    ),
    "Operate": (
        Entry("doctor", "doctor:doctor", "Check the database and its surroundings, and say what to do."),
        Entry("backup", "upkeep:backup", "Copy the file into a new one, also while it is in use."),
        Entry("migrate", "upkeep:migrate", "Bring the schema up to date, or print its SQL for a DBA."),
        Entry("copy", "copy:copy_command", "Copy everything to another file, or to a server and back."),
        Entry("recover", "upkeep:recover", "Give back the tasks of instances that have died."),
        Entry("purge", "upkeep:purge", "Delete the records of tasks that have ended."),
    ),
}  # fmt: skip
"""A new command is a function in a module beside this one, and a line here."""

_ENTRIES: Final = {entry.name: entry for entries in SECTIONS.values() for entry in entries}


class LazyGroup(click.Group):
    """Imports a command when it is asked for: `--help` and shell completion are quick, whatever the others need."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the help."""
        return list(_ENTRIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, imported now."""
        entry = _ENTRIES.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.place.partition(":")
        command: click.Command = getattr(importlib.import_module(f"taskmanager.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. For an unknown name, suggest the one that may be meant."""
        if args[0] not in _ENTRIES and not ctx.resilient_parsing:
            raise click.UsageError(f"there is no command {args[0]!r}{did_you_mean(args[0], _ENTRIES)}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return what the shell offers. The names of commands come from the table, so that no command is imported."""
        names = [CompletionItem(each.name, help=each.line) for each in _ENTRIES.values()]
        fitting = [item for item in names if item.value.startswith(incomplete)]
        return fitting + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what `--help` lists."""
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(entry.name, entry.line) for entry in entries], col_max=12)


@click.group(
    name="taskmanager",
    cls=LazyGroup,
    epilog=EPILOG,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", prog_name="taskmanager", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Background tasks in one SQLite file, or in PostgreSQL: look at them, act on them, run them."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(USAGE_EXIT)


def main() -> None:
    """Run the command that was asked for; always ends the process."""
    try:
        # Not standalone: click would print two lines of usage above an error, and end a Ctrl-C with 1.
        code = cli.main(prog_name="taskmanager", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.UsageError as exc:
        sys.exit(_complain(_what_is_wrong(exc), USAGE_EXIT))
    except click.ClickException as exc:
        sys.exit(_complain(exc.format_message(), exc.exit_code))
    except (click.Abort, KeyboardInterrupt):
        sys.exit(CTRL_C_EXIT)
    except TaskManagerError as exc:
        sys.exit(_print(error_line(exc), 1))
    except BrokenPipeError:  # whoever read has seen enough (`| head`)
        _give_up_stdout()
        sys.exit(1)
    except OSError as exc:
        if exc.filename is not None:  # not of a stream
            raise
        _give_up_stdout()
        sys.exit(_complain(f"stdout cannot be written: {exc.strerror}", 1))
    sys.exit(code if isinstance(code, int) else 0)


def _what_is_wrong(exc: click.UsageError) -> str:
    where = "taskmanager" if exc.ctx is None else exc.ctx.command_path
    message = (
        exc.format_message()
        .replace("a valid integer range", "a whole number")
        .replace("a valid float range", "a number")
    )
    if isinstance(exc, click.NoSuchOption) and exc.ctx is not None and exc.ctx.parent is None:
        message += " Options stand behind the command, as in `taskmanager list --db PATH`."
    return f"{message}  ({where} --help says more)"


def _give_up_stdout() -> None:
    """Send stdout to nowhere, so that what is still buffered does not fail again at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _complain(message: str, code: int) -> int:
    return _print(f"taskmanager: {escaped(' '.join(message.split()))}", code)


def _print(line: str, code: int) -> int:
    with contextlib.suppress(OSError):  # the exit code still says it
        click.echo(line, err=True)
    return code

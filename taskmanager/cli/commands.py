"""The `taskmanager` command: puts the groups of commands together, and turns what went wrong into an exit code.

0: done. 1: not found, refused or unreadable. 2: the command line itself is wrong. 130: Ctrl-C.
"""

import sys

import click

from taskmanager import __version__
from taskmanager.cli.demo import demo
from taskmanager.cli.run import run
from taskmanager.model.errors import TaskManagerError

USAGE_EXIT = 2
CTRL_C_EXIT = 130

EPILOG = """
\b
Examples:
  taskmanager demo                     five minutes with your own Python's files
  taskmanager demo ~/photos            ... or with any directory
  taskmanager run app.jobs:manager     run a manager without an application around it

Every command has its own --help. Exit codes: 0 done, 1 not found or refused, 2 wrong usage, 130 Ctrl-C.
"""


@click.group(
    name="taskmanager",
    epilog=EPILOG,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", prog_name="taskmanager", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Background tasks in one SQLite file: try them, run them."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(USAGE_EXIT)


# A new group of commands is a module here with its commands, and a line in this list.
for _command in (demo, run):
    cli.add_command(_command)


def main() -> None:
    """The entry point; always ends the process."""
    try:
        # Not standalone: click would print two lines of usage above an error, and end a Ctrl-C with 1.
        code = cli.main(prog_name="taskmanager", standalone_mode=False)
    except click.UsageError as exc:
        where = "taskmanager" if exc.ctx is None else exc.ctx.command_path
        sys.exit(_complain(f"{exc.format_message()}  ({where} --help says more)", USAGE_EXIT))
    except click.ClickException as exc:
        sys.exit(_complain(exc.format_message(), exc.exit_code))
    except click.Abort:
        sys.exit(CTRL_C_EXIT)
    except TaskManagerError as exc:
        sys.exit(_complain(str(exc), 1))
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str, code: int) -> int:
    click.echo(f"taskmanager: {' '.join(message.split())}", err=True)
    return code

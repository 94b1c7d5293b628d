"""A question before much is changed: asked on stderr, answered on stdin, taken as no unless it is a clear yes."""

import sys

import click


def yes_option(command: click.decorators.FC) -> click.decorators.FC:
    """`--yes`, as the parameter `yes: bool`."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)


def confirm(question: str) -> None:
    """Return when somebody says yes. Raises `click.ClickException` (exit code 1) otherwise."""
    click.echo(f"{question} [y/N] ", err=True, nl=False)
    answer = sys.stdin.readline() if sys.stdin is not None else ""
    if not answer:
        click.echo(err=True)
        raise click.ClickException("nobody answered, so nothing was changed; give --yes")
    if answer.strip().lower() not in ("y", "yes"):
        raise click.ClickException("nothing was changed")

"""`taskmanager run MODULE:MANAGER`: hosts a manager that has no application around it."""

import asyncio
import importlib
import logging
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType, ModuleType

import click

from taskmanager.manager import TaskManager

CTRL_C_EXIT = 130

EPILOG = """
\b
Examples:
  taskmanager run app.jobs:manager
  taskmanager run app.jobs:manager --log-level warning

Ctrl-C or SIGTERM stops it: running tasks get the manager's drain_timeout, persisted work goes on at the next
start. A second one cuts that short.
"""


@click.command(epilog=EPILOG)
@click.argument("target", metavar="MODULE:MANAGER")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    show_default=True,
    help="What is logged to stderr, unless the module has set up logging itself.",
)
def run(target: str, log_level: str) -> int:
    """Run the TaskManager of a module until told to stop.

    MODULE is imported, with the current directory on the import path as with `python -m`; MANAGER is its name there.
    """
    manager = load_manager(target)
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("taskmanager").info("running %s (%r); Ctrl-C stops it", target, manager)
    return host(manager)


def load_manager(target: str) -> TaskManager:
    """The manager that `target` names. Raises `click.ClickException` saying which part of the name is wrong."""
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise click.UsageError(f"{target!r} names no manager; write MODULE:MANAGER, as in app.jobs:manager")
    found: object = _import(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            raise click.ClickException(f"module {module_name!r} has no {path!r}{_suggestion(module_name)}")
        found = getattr(found, part)
    if not isinstance(found, TaskManager):
        raise click.ClickException(
            f"{target} is no TaskManager but of type {type(found).__name__}{_suggestion(module_name)}"
        )
    return found


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and f"{name}.".startswith(f"{exc.name}."):
            raise click.ClickException(f"there is no module {exc.name!r} in {here} or on the import path") from exc
        _print_own_frames(exc)
        raise click.ClickException(f"{name} needs the module {exc.name!r}, which is not installed") from exc
    except Exception as exc:
        _print_own_frames(exc)
        raise click.ClickException(f"importing {name} failed: {type(exc).__name__}: {exc}") from exc


def _print_own_frames(exc: Exception) -> None:
    """The traceback from where the user's own code begins: where it failed is what they need."""
    frames = exc.__traceback__
    while frames is not None and (
        frames.tb_frame.f_code.co_filename in (__file__, importlib.__file__)
        or frames.tb_frame.f_globals.get("__name__", "").startswith("importlib.")
    ):
        frames = frames.tb_next
    traceback.print_exception(type(exc), exc, frames)


def _suggestion(module_name: str) -> str:
    managers = [name for name, value in vars(sys.modules[module_name]).items() if isinstance(value, TaskManager)]
    return f"; did you mean {module_name}:{managers[0]}?" if managers else ""


def host(manager: TaskManager) -> int:
    """Run until a signal asks to stop; the exit code says whether that was Ctrl-C."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    async def wait() -> None:
        if sys.platform != "win32":
            # The loop hears of signals through its wake-up descriptor, whatever the handler is: this only listens in.
            signal.signal(signal.SIGINT, note)
        await asyncio.Event().wait()

    manager.run(wait)
    return CTRL_C_EXIT if seen else 0

"""`taskmanager run MODULE:MANAGER`: hosts a manager that has no application around it."""

import asyncio
import importlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import click

from taskmanager.cli.database import json_option
from taskmanager.cli.output import as_document
from taskmanager.console.figures import iso
from taskmanager.engine.engine import Engine
from taskmanager.hosting import CTRL_C_EXIT, hosted, waiting_in
from taskmanager.manager import TaskManager
from taskmanager.model.clock import SECOND_US, SystemClock
from taskmanager.model.errors import StoreUnavailable, TaskManagerError, error_line
from taskmanager.model.states import TERMINAL, TaskStatus
from taskmanager.model.wording import counted

EPILOG = """
\b
Examples:
  taskmanager run app.jobs:manager
  taskmanager run app.jobs:manager --log-level warning
  taskmanager run app.jobs:manager --json >ended.json

Ctrl-C or SIGTERM stops it: running tasks get the manager's drain_timeout, and persisted tasks carry on at the next
start. A second signal cuts that short. With --json, one document is printed to stdout at the end, with the signal and
the outcome of the tasks; whatever your code prints goes to stderr.
"""


class Ended(NamedTuple):
    """How it went. `engine` is the start that was hosted; None when there was none."""

    signals: list[signal.Signals]
    engine: Engine | None
    is_saved: bool

    @property
    def code(self) -> int:
        """The exit code: whether it was Ctrl-C, and whether all could be written."""
        if not self.is_saved:
            return 1
        return CTRL_C_EXIT if signal.SIGINT in self.signals[:1] else 0


@click.command(epilog=EPILOG)
@click.argument("target", metavar="MODULE:MANAGER")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    show_default=True,
    help="What is logged to stderr, unless the module has set up logging itself.",
)
@json_option
def run(target: str, log_level: str, as_json: bool) -> int:
    """Run the TaskManager of a module until told to stop.

    MODULE is imported with the current directory on the import path, as by `python -m`; MANAGER is its name in there.
    """
    stdout = _keep_stdout() if as_json else None
    manager = load_manager(target)
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    log = logging.getLogger("taskmanager")
    file = manager._settings.database or "no file"  # noqa: SLF001  # the command is a part of the package
    ended = host(manager, lambda: log.info("running %s on %s; Ctrl-C stops it", target, file))
    after = f" after {ended.signals[0].name}" if ended.signals else ""
    waiting = waiting_in(manager._settings.database)  # noqa: SLF001  # as above
    log.info(
        "%s has stopped%s%s", target, after, f"; {counted(waiting, 'task')} left for the next start" if waiting else ""
    )
    if stdout is not None and ended.engine is not None:
        with os.fdopen(stdout, "wb") as answer:
            answer.write(as_document(_account(ended, ended.engine)))
    return ended.code


def _keep_stdout() -> int:
    """For the document alone: whatever else writes there from now on, children too, writes to stderr."""
    kept = os.dup(1)
    os.dup2(2, 1)
    return kept


def _account(ended: Ended, engine: Engine) -> dict[str, Any]:
    """What `--json` says. Counts are of tasks that this instance had, `waiting_count` is of the whole file."""
    now, tally = SystemClock().now_us(), engine.settlement.tally
    return {
        "instance_id": engine.identity.instance_id,
        "signal": ended.signals[0].name if ended.signals else None,
        "started_at": iso(engine.identity.started_at),
        "ended_at": iso(now),
        "duration_s": (now - engine.identity.started_at) / SECOND_US,
        **{f"{status.lower()}_count": tally[status.value] for status in TaskStatus if status in TERMINAL},
        "retry_count": tally["retry"],
        "requeued_count": tally["requeued"],
        "still_running_count": len(engine.runner.abandoned),
        "waiting_count": waiting_in(engine.settings.database),
        "is_saved": ended.is_saved,
    }


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
        if _is_ours(exc):
            raise SystemExit(f"{error_line(exc)} ({_place_of(exc)})") from exc
        _print_own_frames(exc)
        raise click.ClickException(f"importing {name} failed: {type(exc).__name__}: {exc}") from exc


def _is_ours(exc: Exception) -> bool:
    """Whether the library refused a declaration of the module: the line that it stands in says all."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(exc.__traceback__)]
    return isinstance(exc, TaskManagerError | TypeError) and frames[-1].startswith("taskmanager.")


def _place_of(exc: Exception) -> str:
    """The last line of the user's that led to it."""
    frames = traceback.walk_tb(exc.__traceback__)
    *_, (frame, line) = (
        each for each in frames if not each[0].f_globals.get("__name__", "").startswith("taskmanager.")
    )
    return f"{frame.f_code.co_filename}, line {line}"


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


def host(manager: TaskManager, has_started: Callable[[], None]) -> Ended:
    """Run until a signal asks to stop. A start that fails is its one line, so nothing is said before it."""
    seen: list[signal.Signals] = []
    engines: list[Engine | None] = []

    async def wait() -> None:
        engines.append(manager._engine())  # noqa: SLF001  # the command is a part of the package
        has_started()
        await asyncio.Event().wait()

    is_saved = True
    patience_s = manager._settings.drain_timeout_s  # noqa: SLF001  # as above
    try:
        hosted(manager, manager._cut_short, wait, seen, patience_s, is_worker=True)  # noqa: SLF001  # as above
    except KeyboardInterrupt:  # on Windows
        seen.append(signal.SIGINT)
    except StoreUnavailable as exc:
        logging.getLogger("taskmanager").error("%s", error_line(exc))
        is_saved = False
    return Ended(seen, engines[0] if engines else None, is_saved)

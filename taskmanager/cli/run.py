"""`taskmanager run MODULE:MANAGER`: hosts a manager that has no application around it."""

import importlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import click

from taskmanager.cli.options import as_document, json_option
from taskmanager.console.figures import iso
from taskmanager.duties.reports import report_of
from taskmanager.engine.engine import Engine
from taskmanager.engine.intake.intake import Door
from taskmanager.hosting import CTRL_C_EXIT, hosted, waiting_in
from taskmanager.manager import TaskManager
from taskmanager.model.clock import SECOND_US
from taskmanager.model.config import queue_name_fault
from taskmanager.model.errors import StoreUnavailable, TaskManagerError, error_line
from taskmanager.model.report import InstanceReport
from taskmanager.model.states import TERMINAL, TaskStatus
from taskmanager.model.wording import counted

EPILOG = """
\b
Examples:
  taskmanager run app.jobs:manager
  taskmanager run app.jobs:manager --queue mail --queue reports
  taskmanager run app.jobs:manager --log-level warning
  taskmanager run app.jobs:manager --json >ended.json

Ctrl-C or SIGTERM stops it: running tasks get the manager's drain_timeout, and persisted tasks carry on at the next
start. A second signal cuts that short. With --json, one document is printed to stdout at the end, with the signal and
the outcome of the tasks; whatever your code prints goes to stderr.
"""


class Ended(NamedTuple):
    """How a run ended: its signals, the report at its end (None without a start), and whether all is saved."""

    signals: list[signal.Signals]
    report: InstanceReport | None
    is_saved: bool


@click.command(epilog=EPILOG)
@click.argument("target", metavar="MODULE:MANAGER")
@click.option(
    "--queue",
    "queues",
    metavar="NAME",
    multiple=True,
    help="Run only the tasks of this queue; may be given more than once. Without it, of every queue.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    show_default=True,
    help="What is logged to stderr, unless the module has set up logging itself.",
)
@json_option
def run(target: str, queues: tuple[str, ...], log_level: str, as_json: bool) -> int:
    """Run the TaskManager of a module until told to stop, as a worker.

    MODULE is imported with the current directory on the import path, as by `python -m`; MANAGER is its name in there.
    The worker runs every queue, or those of --queue, whatever the manager says about run_queues.
    """
    if fault := next(filter(None, map(queue_name_fault, queues)), None):
        raise click.UsageError(f"--queue: {fault}")
    stdout = os.dup(1) if as_json else None  # for the document alone
    if as_json:
        os.dup2(2, 1)  # whatever else writes there from now on, children too, writes to stderr
    manager = load_manager(target)
    settings = manager._settings  # noqa: SLF001  # the command is a part of the package
    manager._settings = replace(settings, run_queues=frozenset(queues) or None)  # noqa: SLF001  # as above
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    log = logging.getLogger("taskmanager")
    if manager.status().state == Door.STOPPED.value:
        text = "importing %s has run its manager already; put what the program does below `if __name__ == '__main__':`"
        log.warning(text, target.partition(":")[0])
    place = settings.place
    runs = f"queue {', '.join(sorted(set(queues)))} of {target}" if queues else target
    ended = host(manager, lambda: log.info("running %s on %s; Ctrl-C stops it", runs, place or "no file"))
    after = f" after {ended.signals[0].name}" if ended.signals else ""
    waiting = waiting_in(place)
    left = f"; {counted(waiting, 'task')} left for the next start" if waiting else ""
    log.info("%s has stopped%s%s", target, after, left)
    if stdout is not None and ended.report is not None:
        with os.fdopen(stdout, "wb") as answer:
            answer.write(as_document(_account(ended, ended.report, waiting)))
    stopped_code = CTRL_C_EXIT if signal.SIGINT in ended.signals[:1] else 0
    return stopped_code if ended.is_saved else 1


def _account(ended: Ended, report: InstanceReport, waiting: int | None) -> dict[str, Any]:
    """Return the document of `--json`. It counts tasks of this instance; `waiting_count` is of the whole file."""
    tally = report.tally
    return {
        "instance_id": report.instance_id,
        "signal": ended.signals[0].name if ended.signals else None,
        "started_at": iso(report.started_at),
        "ended_at": iso(report.taken_at),
        "duration_s": (report.taken_at - report.started_at) / SECOND_US,
        **{f"{status.lower()}_count": tally.get(status.value, 0) for status in TaskStatus if status in TERMINAL},
        "retry_count": tally.get("retry", 0),
        "requeued_count": tally.get("requeued", 0),
        "still_running_count": report.abandoned_count,
        "waiting_count": waiting,
        "is_saved": ended.is_saved,
    }


def load_manager(target: str) -> TaskManager:
    """Return the manager of that name. Raise `click.ClickException`, which says which part of the name is wrong."""
    found = load(target, "manager", "MODULE:MANAGER, as in app.jobs:manager")
    if not isinstance(found, TaskManager):
        kind, module_name = type(found).__name__, target.partition(":")[0]
        raise click.ClickException(f"{target} is no TaskManager but of type {kind}{_suggestion(module_name)}")
    return found


def load(target: str, kind: str, example: str) -> object:
    """Return what has that name in a module, which is imported. `kind` and `example` say what is wanted."""
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise click.UsageError(f"{target!r} names no {kind}; write {example}")
    if module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").replace("/", ".")
        raise click.UsageError(f"{module_name!r} is the name of a file; write that of its module, {dotted}:{path}")
    found: object = _import(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            suggestion = _suggestion(module_name) if kind == "manager" else ""
            raise click.ClickException(f"module {module_name!r} has no {path!r}{suggestion}")
        found = getattr(found, part)
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
        frames = [(frame, line) for frame, line in traceback.walk_tb(exc.__traceback__)]
        own = [each for each in frames if not each[0].f_globals.get("__name__", "").startswith("taskmanager.")]
        # Where the library has refused a declaration of the module, the line that it stands in says all.
        if isinstance(exc, TaskManagerError | TypeError) and frames[-1] not in own:
            frame, line = own[-1]
            raise SystemExit(f"{error_line(exc)} ({frame.f_code.co_filename}, line {line})") from exc
        _print_own_frames(exc)
        raise click.ClickException(f"importing {name} failed: {type(exc).__name__}: {exc}") from exc


def _print_own_frames(exc: Exception) -> None:
    """Print the traceback from where the user's own code begins."""
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
    """Run until a signal asks to stop. `has_started` is called after the start, and not if the start fails."""
    seen: list[signal.Signals] = []
    engine: Engine | None = None

    @asynccontextmanager
    async def noted() -> AsyncIterator[None]:
        nonlocal engine
        async with manager:
            engine = manager._engine()  # noqa: SLF001  # the command is a part of the package
            has_started()
            yield

    is_saved = True
    patience_s = manager._settings.drain_timeout_s  # noqa: SLF001  # as above
    try:
        hosted(noted(), manager._instance.cut_short, None, seen, patience_s)  # noqa: SLF001  # as above
    except KeyboardInterrupt:  # on Windows
        seen.append(signal.SIGINT)
    except StoreUnavailable as exc:
        logging.getLogger("taskmanager").error("%s", error_line(exc))
        is_saved = False
    return Ended(seen, None if engine is None else report_of(engine, max_queues=None, max_tasks=0), is_saved)

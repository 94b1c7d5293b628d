"""What the library logs, and what it leaves to the application: no handler, nothing printed, ids on every record."""

import asyncio
import gc
import io
import json
import logging
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from taskmanager import TaskError, TaskManager, TaskResult, current_task
from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.outcome import extra_of
from taskmanager.model.logger import DISABLED, logger

pytestmark = pytest.mark.anyio
LOGGER = logging.getLogger("taskmanager")


@pytest.fixture
def formatted() -> Iterator[io.StringIO]:
    """What an application gets whose format names the fields."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(levelname)s|%(task_name)s|%(task_id)s|%(message)s"))
    level = LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel("DEBUG")
    yield text
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)


@pytest.fixture
def levels_asked_anew() -> Iterator[None]:
    """Let no later test meet a level that `logging` remembers: it keeps its answers until a level is set by method."""
    yield
    logging.root.manager._clear_cache()  # type: ignore[attr-defined]


async def test_every_record_says_which_task_it_is_about(tmp_path: Path, formatted: io.StringIO) -> None:
    """One ERROR with the traceback for a final failure, a WARNING for a retry, the rest is quieter."""
    manager = TaskManager(tmp_path / "tasks.db", drain_timeout=0.0)
    began = asyncio.Event()

    @manager.task(name="fails", retries=1, retry_delay=0.0)
    async def fails() -> None:
        raise ValueError("no")

    @manager.task(name="waits")
    async def waits() -> None:
        began.set()
        await asyncio.sleep(3600)

    async with manager:
        failed, interrupted = fails.enqueue(), waits.enqueue()
        await failed.result()
        await began.wait()
    lines = formatted.getvalue().splitlines()
    records = [line.split("|", 3) for line in lines if line.count("|") >= 3]
    about = {(level, name, task_id) for level, name, task_id, _ in records if name != "None"}
    assert about == {
        ("WARNING", "fails", failed.task_id),
        ("ERROR", "fails", failed.task_id),
        ("WARNING", "waits", interrupted.task_id),
    }
    assert [level for level, *_ in records].count("ERROR") == 1
    assert lines.count("  ValueError: no") == 1
    assert all(task_id == "None" for _, name, task_id, _ in records if name == "None")


async def test_every_record_of_a_task_carries_its_tags(caplog: pytest.LogCaptureFixture) -> None:
    """Those about it, and those that come up while its code runs. Whoever groups by tenant finds the tenant there."""
    manager = TaskManager(None, drain_timeout=0.0)
    began = asyncio.Event()

    @manager.task(name="fails", retries=1, retry_delay=0.0)
    async def fails() -> None:
        logger.info("inside")
        raise ValueError("no")

    @manager.task(name="waits")
    async def waits() -> None:
        began.set()
        await asyncio.Event().wait()

    caplog.set_level("DEBUG", "taskmanager")
    tags = {"tenant": "a\nb", "user": "1"}
    async with manager:
        failed = fails.with_options(tags=tags).enqueue()
        waits.with_options(tags=tags).enqueue()
        untagged = waits.enqueue()
        assert (await failed.result()).is_err()
        await began.wait()
    found = {(each.levelname, vars(each)["task_id"]): vars(each)["tags"] for each in caplog.records}
    about = [value for (_, task_id), value in found.items() if task_id not in (None, untagged.task_id)]
    assert len(about) == 4
    assert all(value == tags for value in about)
    assert found["WARNING", untagged.task_id] == {}
    assert all(value is None for (_, task_id), value in found.items() if task_id is None)


async def test_tags_that_cannot_be_read_keep_no_record_back() -> None:
    """Another program has written them."""
    live = LiveTask(engine_definition(), "id", 0)
    live.tags_text = "{not json"
    assert extra_of(live) == {"task_id": "id", "task_name": "odd", "tags": {}}


def engine_definition() -> Definition:
    binding = TaskManager(None).task(name="odd")(asyncio.sleep).binding
    assert binding is not None
    return binding.definition


async def test_no_text_of_others_begins_a_line_of_the_log(tmp_path: Path, formatted: io.StringIO) -> None:
    """An error that holds the input of a stranger can neither forge a record nor reach the terminal of its reader."""
    forged = "no\r\nCRITICAL|root|None|all is lost\x1b[2J\u202e\u2028"
    manager = TaskManager(tmp_path / "tasks.db")

    @manager.task(name="fails", retries=1, retry_delay=0.0)
    async def fails() -> None:
        raise ValueError(forged)

    @manager.task(name="crashes", executor="thread")
    def crashes() -> None:
        current_task().log(forged)
        LOGGER.warning("from within")
        raise RuntimeError(forged)

    async with manager:
        for handle in (fails.enqueue(), crashes.enqueue()):
            assert (await handle.result()).is_err()
    logger.error("%s and %r: %d of %s", ValueError(forged), "a\nb", 3, {forged: 1})
    text = formatted.getvalue()
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    assert "all is lost\\x1b[2J\\u202e\\u2028" in text
    assert "WARNING|crashes|" in text
    assert all(line.startswith(("  ", "INFO|", "DEBUG|", "WARNING|", "ERROR|")) for line in text.splitlines())
    assert all(line.strip() for line in text.splitlines())  # a traceback adds no empty line at its end


class Collector(logging.Handler):
    """What a program gets that groups errors by their exception, as Sentry does."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def collected() -> Iterator[list[logging.LogRecord]]:
    collector = Collector()
    LOGGER.addHandler(collector)
    yield collector.records
    LOGGER.removeHandler(collector)


def child_fails() -> None:
    """For the process lane, which imports it."""
    raise FileNotFoundError("report.txt")


async def test_a_final_failure_carries_its_exception(
    tmp_path: Path, formatted: io.StringIO, collected: list[logging.LogRecord]
) -> None:
    """Tools that group errors see the exception and where it was raised, from the frames of the application on; it is
    printed once. What raised nothing has its code.
    """
    manager = TaskManager(tmp_path / "tasks.db")

    @manager.task(name="async")
    async def fails() -> None:
        raise ValueError("async")

    @manager.task(name="thread")
    def blocks() -> None:
        raise KeyError("thread")

    @manager.task(name="returns")
    async def returns() -> TaskResult[None]:
        return TaskResult(err=TaskError("TOO_SLOW", "come back tomorrow"))

    in_child = manager.task(name="process", executor="process")(child_fails)
    async with manager:
        for task in (fails, blocks, returns, in_child):
            assert (await task.enqueue().result()).is_err()
    seen = []
    for record in collected:
        kind, _, frames = record.exc_info or (None, None, None)
        seen.append((record.__dict__["error_code"], kind, frames and frames.tb_frame.f_code.co_name))
        assert record.filename == "outcome.py"
    assert seen == [
        ("UNHANDLED_EXCEPTION", ValueError, "fails"),
        ("UNHANDLED_EXCEPTION", KeyError, "blocks"),
        ("TOO_SLOW", None, None),
        ("UNHANDLED_EXCEPTION", FileNotFoundError, None),
    ]
    assert collected[2].getMessage().endswith("failed after 1 attempt with TOO_SLOW: come back tomorrow")
    assert formatted.getvalue().count("Traceback") == 3
    assert "in child_fails" in formatted.getvalue()


class Connection:
    """What a task opens."""


async def test_an_exception_in_the_log_keeps_nothing_of_the_task_alive(
    tmp_path: Path, formatted: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its frames hold the objects of the function, such as a connection. They go when the record has gone."""
    monkeypatch.setattr(LOGGER, "propagate", False)  # pytest collects records
    manager = TaskManager(tmp_path / "tasks.db")
    held: list[weakref.ref[Connection]] = []

    @manager.task
    async def fails() -> None:
        connection = Connection()
        held.append(weakref.ref(connection))
        raise ValueError("no")

    gc.disable()
    try:
        async with manager:
            await fails.enqueue().result()
            assert held[0]() is None
    finally:
        gc.enable()
    assert "ValueError: no" in formatted.getvalue()


async def test_a_record_logged_inside_a_task_is_about_it(tmp_path: Path, formatted: io.StringIO) -> None:
    """What the library has to say while a task runs belongs to that task."""
    manager = TaskManager(None)

    @manager.task(name="talks")
    async def talks() -> None:
        LOGGER.warning("hello")

    async with manager:
        handle = talks.enqueue()
        await handle
    assert f"WARNING|talks|{handle.task_id}|hello" in formatted.getvalue()


def test_no_handler_is_installed_and_nothing_is_printed(tmp_path: Path) -> None:
    """A library that prints spoils its host's output."""
    program = """
import asyncio, logging
from taskmanager import TaskManager, current_task
from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.outcome import extra_of
from taskmanager.model.logger import DISABLED, logger
manager = TaskManager("tasks.db")

@manager.task
async def job() -> None: ...

async def main() -> None:
    async with manager:
        await job.enqueue()

asyncio.run(main())
assert logging.getLogger("taskmanager").handlers == []
assert logging.getLogger().handlers == []
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, check=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")


_CONFIGURES: Final = """
import asyncio, json, logging, logging.config, subprocess, sys, warnings
from taskmanager import TaskManager

manager = TaskManager("tasks.db")

async def main():
    if MOMENT == "before the start":
        CONFIGURE
    async with manager:
        if MOMENT == "while it runs":
            CONFIGURE
        while not manager.status().failing_duties:
            await asyncio.sleep(0.05)
        said, doctor = dict(manager.status().failing_duties), [sys.executable, "-m", "taskmanager", "doctor"]
        while b"!!  duties" not in (await asyncio.to_thread(subprocess.run, doctor, capture_output=True)).stdout:
            await asyncio.sleep(0.05)
        logging.getLogger("taskmanager").disabled = False
        assert not manager.status().failing_duties
    print(json.dumps(said))

asyncio.run(main())
"""
_INI: Final = """
[loggers]
keys=root
[handlers]
keys=console
[formatters]
keys=
[logger_root]
handlers=console
[handler_console]
class=StreamHandler
args=()
"""


@pytest.mark.parametrize("moment", ["before the start", "while it runs"])
@pytest.mark.parametrize(
    "configure",
    [
        "logging.config.dictConfig({'version': 1, 'root': {'level': 'INFO'}})",
        "logging.config.dictConfig({'version': 1}); warnings.simplefilter('error')",
        "logging.config.fileConfig('logging.ini')",
    ],
)
def test_a_logger_that_logging_config_has_disabled_is_seen(tmp_path: Path, configure: str, moment: str) -> None:
    """Promises are kept by a record that nobody reads then. A warning, `failing_duties` and `doctor` say so, and what
    to write instead; a filter that makes errors of warnings ends neither the start nor a duty.
    """
    (tmp_path / "logging.ini").write_text(_INI)
    (tmp_path / "program.py").write_text(_CONFIGURES.replace("CONFIGURE", configure).replace("MOMENT", repr(moment)))
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"log": DISABLED}
    assert done.stderr.count(f"RuntimeWarning: {DISABLED}") == 1


@pytest.mark.usefixtures("levels_asked_anew")
@pytest.mark.parametrize("way", ["a level", "the level of the root", "a NullHandler", "logging.disable"])
def test_a_logger_that_was_silenced_on_purpose_is_not_reported(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wants to read nothing needs no advice, also where `logging.config` has disabled the logger besides."""
    monkeypatch.setattr(LOGGER, "disabled", True)
    with pytest.warns(RuntimeWarning, match="disable_existing_loggers"):
        logger.look()
    assert logger.trouble == DISABLED
    LOGGER.disabled = False
    logger.look()
    if way == "a level":
        monkeypatch.setattr(LOGGER, "level", logging.CRITICAL + 1)
    elif way == "the level of the root":
        monkeypatch.setattr(LOGGER, "level", logging.NOTSET)
        monkeypatch.setattr(logging.root, "level", logging.CRITICAL + 1)
    elif way == "a NullHandler":
        monkeypatch.setattr(LOGGER, "handlers", [logging.NullHandler()])
    else:
        monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    for is_disabled in (False, True):
        LOGGER.disabled = is_disabled
        logger.look()
        logger.error("nobody reads this")
        assert logger.trouble is None


def test_each_time_the_logger_is_disabled_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the next record is lost, too: what happens between two rounds of a duty is seen at once."""
    for _ in range(2):
        monkeypatch.setattr(LOGGER, "disabled", True)
        with warnings.catch_warnings(record=True, action="always") as warned:
            logger.error("lost")
            logger.error("lost")
            logger.look()
        assert len(warned) == 1
        LOGGER.disabled = False
        logger.look()


async def test_results_that_are_not_kept_are_one_warning_per_function(caplog: pytest.LogCaptureFixture) -> None:
    """It names the function and says what to do; a thousand such results are no thousand lines."""
    manager = TaskManager(None)

    @manager.task(name="opaque")
    async def opaque() -> object:
        return object()

    @manager.task(name="number")
    async def number() -> float:
        return float("nan")

    async with manager:
        await asyncio.gather(*(each.enqueue() for each in (opaque, number) * 3))
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line.partition(" (logged once): ")[0] for line in warned] == [
        "a result of task opaque is not kept",
        "a result of task number is not kept",
    ]
    assert "pass None or a text in its place" in warned[1]

"""Code of the application that is called beside its tasks, and raises: it stops nothing of the engine, and is told."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from taskmanager import TaskFailed, TaskManager
from taskmanager.model.logger import Log, logger
from taskmanager.testing import isolated

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

LOGGER = logging.getLogger("taskmanager")


class Odd(BaseException):
    """What nobody expects: no `Exception` at all."""


@contextmanager
def hostile_logging(raises: Callable[[], BaseException], where: str) -> Iterator[None]:
    """Every record of the library is refused by a filter, a handler or the factory of records."""

    def refuse(*_: object, **__: object) -> logging.LogRecord:
        raise raises()

    class Refusing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            refuse()

    handler, level, factory = Refusing(), LOGGER.level, logging.getLogRecordFactory()
    LOGGER.setLevel("DEBUG")
    if where == "filter":
        LOGGER.addFilter(refuse)
    elif where == "handler":
        LOGGER.addHandler(handler)
    else:
        logging.setLogRecordFactory(refuse)
    try:
        yield
    finally:
        logging.setLogRecordFactory(factory)
        LOGGER.removeFilter(refuse)
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)
        logger.lost_count, logger.fault = 0, None


@pytest.mark.parametrize("where", ["filter", "handler", "factory"])
@pytest.mark.parametrize("raises", [ZeroDivisionError, Odd, asyncio.CancelledError])
async def test_logging_that_raises_stops_nothing(
    raises: type[BaseException], where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records are written in the middle of a dispatch, a commit, a look at the clock: none of these may break off."""
    manager = TaskManager("never-opened.db")

    @manager.task(persist=True, retries=2, retry_delay=1.0)
    async def fails() -> None:
        raise ValueError("no")

    @manager.task(persist=True)
    async def works(item: int) -> int:
        return item

    with hostile_logging(raises, where):
        async with isolated(manager) as world:
            failing, late = (
                fails.enqueue(),
                works.with_options(good_until=world.now + timedelta(seconds=5), delay=60).enqueue(0),
            )
            await world.advance(120)
            with pytest.raises(TaskFailed):
                await failing
            assert (await late.result()).is_err()
            assert await works.enqueue(7) == 7
            fault = manager.status().failing_duties["log"]
            assert raises.__name__ in fault
    assert capsys.readouterr().err.count("could not be logged") == 1, "once, however many records are lost"


def test_what_ends_the_process_is_let_through() -> None:
    """A signal handler that calls `sys.exit()` may come in the middle of a record."""
    for raises in (SystemExit, KeyboardInterrupt):
        with hostile_logging(raises, "filter"), pytest.raises(raises):
            logger.warning("x")


def test_a_record_names_the_line_that_logged_it(caplog: pytest.LogCaptureFixture) -> None:
    """Through however many hands it goes; and what was lost is forgotten with the next one that gets through."""
    log = Log(LOGGER)
    log.fault = "ValueError"
    log.warning("hello %s", "there", extra={"task_id": "t1"})
    (record,) = caplog.records
    assert (record.funcName, record.getMessage()) == ("test_a_record_names_the_line_that_logged_it", "hello there")
    assert (record.pathname, record.__dict__["task_id"]) == (__file__, "t1")
    assert log.fault is None

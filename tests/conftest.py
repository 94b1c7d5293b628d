"""What every test shares: asyncio is the backend of `@pytest.mark.anyio`, and Hypothesis repeats itself in CI."""

import gc
import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from taskmanager.model.logger import logger

# A shared machine is slow in bursts; a deadline per example would fail for that and for nothing else.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("brief", settings.get_profile("default"), max_examples=25)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A shell script that starts the suite in the background has it ignore Ctrl-C, and so would every program it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What was collected stays to the end. The garbage collector need not go through it after each test again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def anyio_backend() -> str:
    """The only event loop this library runs on."""
    return "asyncio"


@pytest.fixture(autouse=True)
def no_record_is_lost() -> Iterator[None]:
    """A mistake in the words of a record of ours raises nothing, so it is looked for after each test."""
    logger.lost_count, logger.fault = 0, None
    yield
    assert logger.lost_count == 0, logger.fault


class _ForbiddenMoves(logging.Handler):
    """What was said of moves that no table allows: the engine survives them, so that a test may too."""

    def __init__(self) -> None:
        super().__init__(logging.CRITICAL)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "cannot go from" in record.getMessage():
            self.told.append(record.getMessage())


@pytest.fixture(autouse=True)
def no_move_is_forbidden(request: pytest.FixtureRequest) -> Iterator[None]:
    """A task that goes where no move leads is a mistake of ours, also where nothing else of the test shows it."""
    handler = _ForbiddenMoves()
    tasks = logging.getLogger("taskmanager")
    tasks.addHandler(handler)
    yield
    tasks.removeHandler(handler)
    assert not handler.told or request.module.__name__.endswith("test_engine_phases"), handler.told

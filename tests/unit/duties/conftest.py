"""Started scenes for the tests of duties."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.unit.duties.scene import Scene


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Makes started scenes, and ends them."""
    async with AsyncExitStack() as stack:

        async def start(**options: Any) -> Scene:
            scene = Scene(tmp_path, **options)
            await stack.enter_async_context(scene.manager)
            # The time in which this process could run is the loop's own; here all of it passes when the test says so.
            scene.engine.stall.running_s = scene.clock.elapsed_s
            stack.callback(lambda: [lock.drop() for lock in scene.locks])
            return scene

        yield start

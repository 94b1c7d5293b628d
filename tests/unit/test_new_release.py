"""Tasks that an older release has stored, and the functions of a newer one."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from taskmanager import Subclasses, TaskInfo, TaskManager, TaskStatus

pytestmark = pytest.mark.anyio


class Colour(Enum):
    RED = "r"
    BLUE = "b"


class FewerColours(Enum):
    RED = "r"


@dataclass
class Point:
    x: int
    y: int


@dataclass
class PointWithNew:
    x: int
    y: int
    z: int


@dataclass
class PointWithDefault:
    x: int
    z: int = 0


async def one(x: int) -> None: ...


async def two(x: int, y: int) -> None: ...


async def colour(it: Colour) -> None: ...


async def point(it: Point) -> None: ...


async def one_of_another_name(z: int) -> None: ...


async def one_more_needed(x: int, new: str) -> None: ...


async def one_more_with_default(x: int, new: str = "") -> None: ...


async def one_as_text(x: str) -> None: ...


async def one_of_either(x: int | str) -> None: ...


async def fewer_colours(it: FewerColours) -> None: ...


async def point_with_new(it: PointWithNew) -> None: ...


async def point_with_default(it: PointWithDefault) -> None: ...


def one_in_a_thread(x: int) -> None: ...


Function = Callable[..., Any]
UNFIT: dict[str, tuple[Function, Function, tuple[Any, ...], dict[str, Any], str]] = {
    "a parameter was added": (one, one_more_needed, (1,), {}, "missing 1 required positional argument: 'new'"),
    "a parameter was removed": (two, one, (1, 2), {}, "takes 1 positional argument but 2 were given"),
    "a named one was removed": (two, one, (1,), {"y": 2}, "unexpected keyword argument 'y'"),
    "a named one was renamed": (one, one_of_another_name, (), {"x": 1}, "unexpected keyword argument 'x'"),
    "a type was changed": (one, one_as_text, (1,), {}, "'x' does not fit"),
    "a member was removed": (colour, fewer_colours, (Colour.BLUE,), {}, "'it' does not fit"),
    "a field was added": (point, point_with_new, (Point(1, 2),), {}, "'it' does not fit"),
}
FIT: dict[str, tuple[Function, Function, tuple[Any, ...], dict[str, Any]]] = {
    "a default": (one, one_more_with_default, (1,), {}),
    "a wider type": (one, one_of_either, (1,), {}),
    "another lane": (one, one_in_a_thread, (1,), {}),
    "a positional one was renamed": (one, one_of_another_name, (1,), {}),
    "a field with a default, and one less": (point, point_with_default, (Point(1, 2),), {}),
}


def release(path: Path, functions: dict[str, Function]) -> TaskManager:
    """The program with these functions under the names of the others; it maps every ValueError and retries some."""
    manager = TaskManager(path, requeue_pending=True, exception_mapper={ValueError: Subclasses("BAD_VALUE")})
    for name, function in functions.items():
        manager.task(name=name, queue_name="held")(function)
    return manager


async def stored(path: Path) -> None:
    """What the old release leaves behind: one task of each kind."""
    calls = {name: each[:4] for name, each in UNFIT.items()} | FIT
    async with release(path, {name: old for name, (old, *_) in calls.items()}) as manager:
        await manager.pause("held")
        for name, (_, _, args, kwargs) in calls.items():
            manager.enqueue(name, *args, **kwargs)


async def by_name(manager: TaskManager) -> dict[str, TaskInfo]:
    await asyncio.gather(*(manager.handle(info.task_id).result(timeout=60) for info in await manager.list()))
    found = [await manager.get(info.task_id) for info in await manager.list()]
    return {info.task_name: info for info in found if info is not None}


async def test_arguments_that_no_longer_fit_are_a_failure_that_can_be_repaired(tmp_path: Path) -> None:
    """Nothing is lost: the task says what does not fit, keeps its arguments, and runs once a release takes them.

    No mapper is asked: no function has raised.
    """
    path = tmp_path / "tasks.db"
    await stored(path)
    new = {name: each[1] for name, each in UNFIT.items()} | {name: each[1] for name, each in FIT.items()}
    async with release(path, new) as manager:
        await manager.resume("held")
        found = await by_name(manager)
        assert [name for name in FIT if found[name].status is not TaskStatus.COMPLETED] == []
        for name, (*_, words) in UNFIT.items():
            info = found[name]
            assert (info.status, info.error_code) == (TaskStatus.FAILED, "UNHANDLED_EXCEPTION")
            assert info.args is not None
            assert words in str(info.failed_reason)
            assert "Traceback" not in str(info.failed_reason)

    repaired = {name: each[0] for name, each in UNFIT.items()}
    async with release(path, repaired) as manager:
        for name in UNFIT:
            assert await manager.retry(found[name].task_id)
        again = await by_name(manager)
        assert {again[name].status for name in UNFIT} == {TaskStatus.COMPLETED}

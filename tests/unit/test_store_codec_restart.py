"""Values through the whole way: a call, the file, a restart, the function, its result, the file, another manager."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskmanager import TaskError, TaskFailed, TaskManager, TaskResult, TaskStatus
from taskmanager.codec.equality import difference
from taskmanager.codec.values import Codec
from tests.unit.arriving_values import ARRIVES

pytestmark = pytest.mark.anyio


class Backwards:
    """A codec as an application would give for encryption."""

    def encode(self, data: bytes, /) -> bytes:
        return b"\xff" + data[::-1]

    def decode(self, data: bytes, /) -> bytes:
        assert data.startswith(b"\xff")
        return data[:0:-1]


def new_manager(folder: Path, got: dict[int, Any], codec: Codec | None) -> TaskManager:
    """The same program at each start: a function for every type that can be stored, which gives back what it gets."""
    manager = TaskManager(folder / "tasks.db", requeue_pending=True, codec=codec, synchronous="normal")

    def define(number: int, annotation: Any) -> None:
        async def work(item: Any) -> Any:
            got[number] = item
            return item

        work.__annotations__ |= {"item": annotation, "return": annotation}
        manager.task(name=f"work {number}", queue_name="held")(work)

    for number, (annotation, _) in enumerate(ARRIVES):
        define(number, annotation)
    return manager


def faults(got: Callable[[int], Any]) -> list[str]:
    """Which values came out differently, and how."""
    found = []
    for number, (annotation, value) in enumerate(ARRIVES):
        problem = difference(value, got(number))
        if problem is not None or got(number) != value:
            found.append(f"{annotation}: {value!r} became {got(number)!r} ({problem})")
    return found


@pytest.mark.req("PR-17", "PR-42", "DS-006", "DS-007", "DS-017")
@pytest.mark.parametrize("codec", [None, Backwards()], ids=["plain", "encrypted"])
async def test_every_storable_value_survives_restarts(tmp_path: Path, codec: Codec | None) -> None:
    """Arguments and results are equal in value and type, whoever reads them, and in which process of the program."""
    got: dict[int, Any] = {}
    async with new_manager(tmp_path, got, codec) as first:
        await first.pause("held")
        calls = [first.get_task(f"work {number}") for number in range(len(ARRIVES))]
        handles = [
            call.enqueue(value) if number % 2 else call.enqueue(item=value)
            for number, (call, (_, value)) in enumerate(zip(calls, ARRIVES, strict=True))
        ]
        ids = [handle.task_id for handle in handles]
        await handles[-1].saved()
    assert not got

    async with new_manager(tmp_path, got, codec) as second:
        await second.resume("held")
        here = {number: await second.handle(task_id) for number, task_id in enumerate(ids)}
    assert faults(got.__getitem__) == []
    assert faults(here.__getitem__) == []

    async with new_manager(tmp_path, {}, codec) as third:
        elsewhere = {number: await third.handle(task_id) for number, task_id in enumerate(ids)}
        records = [await third.get(task_id) for task_id in ids]
    assert faults(elsewhere.__getitem__) == []
    results = [record.result for record in records if record is not None and record.result is not None]
    assert faults(lambda number: results[number].ok_value) == []


async def test_a_program_that_does_not_know_the_function_reads_the_record(tmp_path: Path) -> None:
    """Without the types the result is the plain JSON of it."""
    got: dict[int, Any] = {}
    async with new_manager(tmp_path, got, None) as manager:
        ids = [manager.enqueue(f"work {number}", value).task_id for number, (_, value) in enumerate(ARRIVES)]
        await manager.join()
    async with TaskManager(tmp_path / "tasks.db") as stranger:
        records = [await stranger.get(record.task_id) for record in await stranger.list(limit=2 * len(ids))]
    assert {record.task_id for record in records if record is not None} == set(ids)
    for record in records:
        assert record is not None
        assert record.status is TaskStatus.COMPLETED
        assert record.result is not None
        assert record.result.is_ok()


@pytest.mark.parametrize("codec", [None, Backwards()], ids=["plain", "encrypted"])
async def test_an_error_survives_a_restart(tmp_path: Path, codec: Codec | None) -> None:
    """Code, message and data, as the task gave them; what is no UTF-8 is escaped."""

    def new() -> TaskManager:
        manager = TaskManager(tmp_path / "tasks.db", requeue_pending=True, codec=codec)

        @manager.task(name="refuse")
        async def refuse(what: str) -> TaskResult[int]:
            return TaskResult(err=TaskError("REFUSED", f"no {what} caf\udce9", {"what": what, "n": [1, None, 2.5]}))

        return manager

    async with new() as first:
        handle = first.enqueue("refuse", "é")
        wanted = (await handle.result()).err_value
        await first.flush()
    async with new() as second:
        with pytest.raises(TaskFailed, match="REFUSED") as caught:
            await second.handle(handle.task_id)
        info = await second.get(handle.task_id, include_attempts=True)
    assert (caught.value.error.error_code, caught.value.error.data) == (wanted.error_code, wanted.data)
    assert caught.value.error.message == "no é caf\\udce9"
    assert info is not None
    assert info.attempts is not None
    assert [attempt.error_code for attempt in info.attempts] == [info.error_code] == ["REFUSED"]

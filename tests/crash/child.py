"""The program that is killed: one manager on one file, told by one JSON argument what to enqueue and when to end.

    python -m tests.crash.child '{"db": ..., "host": "run", "enqueue": [["safe", "label", 5, {"delay": 1}]], ...}'

`host`: "run" (under `manager.run`), "plain" (`asyncio.run` and `async with`), "handler" (the same with a handler of its
own for SIGTERM). `until`: "signal", "join", "empty" (no live row in the file), "results", or "exit". `pause`: see
`pauses`. `hears`: a listener writes into the journal. The product cannot pause for this: the store does, wrapped here.
"""

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from taskmanager import NotPersisted, QueueConfig, RecoveryConfig, StoreUnavailable, TaskEvent, TaskManager, TaskStatus
from tests.crash import pauses
from tests.crash.jobs import VARIANTS, note
from tests.crash.kinds import hasten

LIVE = (TaskStatus.PENDING, TaskStatus.CLAIMED, TaskStatus.RUNNING)
RECOVERY = RecoveryConfig()


def make_manager(config: dict[str, Any]) -> TaskManager:
    """The manager of this run, with the task variants the run knows."""
    hasten(config["db"])
    manager = TaskManager(
        config["db"],
        recovery=replace(RECOVERY, crash_budget=config.get("crash_budget", RECOVERY.crash_budget)),
        queues=[
            QueueConfig("narrow", max_concurrency=1),
            QueueConfig("shared", max_concurrency=2, scope="file"),
        ],
        store_poll=0.05,
        **config.get("manager", {}),
    )
    unknown = set(config.get("unknown", ()))
    for name, (function, options) in VARIANTS.items():
        if name not in unknown and not (options.get("requeue_on_interrupt") and "persist" not in options):
            manager.task(name=name, **options)(function)
    if manager_persists(config):
        function, options = VARIANTS["inherit_safe"]
        manager.task(name="inherit_safe", **options)(function)
    if config.get("hears"):
        manager.on()(hear)
    if pause := config.get("pause"):
        pauses.install(manager, pause)
    return manager


def hear(event: TaskEvent) -> None:
    """Tell the journal what a listener is told."""
    note(f"told {event.kind}", json.loads(event.task.args or "[]")[0], event.task.task_id, event.task.start_count)


def manager_persists(config: dict[str, Any]) -> bool:
    """Whether tasks that say nothing are kept; without it, asking for a requeue is only a warning."""
    return bool(config.get("manager", {}).get("requeue_pending"))


async def main(manager: TaskManager, config: dict[str, Any]) -> None:
    """Enqueue what is asked for, tell when it is saved, and end as asked."""
    handles = []
    for name, label, seconds, options in config.get("enqueue", ()):
        call = manager.get_task(name).with_options(**options)
        handles.append((label, call.enqueue(label, seconds)))
    note("enqueued")
    if config.get("saved", True):
        await all_saved(handles, is_told=not config.get("bulk"))
    note("ready")
    until = config.get("until", "signal")
    if until == "signal":
        await asyncio.Event().wait()
    elif until == "empty":
        # Other processes work on the file too, so there is nothing here to wait for but the file.
        while await has_live(manager):  # noqa: ASYNC110  # the store has no event for it
            await asyncio.sleep(0.02)
    elif until == "join":
        await manager.join(timeout=60)
    elif until == "results":
        for label, handle in handles:
            result = await handle.result()
            note(f"result {result.ok_value if result.is_ok() else result.err_value.error_code}", label, handle.task_id)


async def has_live(manager: TaskManager) -> bool:
    """Whether any task has not ended, by one look: between two of them a task may go back."""
    counts = await manager.counts()
    return any(counts[each] for each in LIVE)


async def all_saved(handles: list[tuple[str, Any]], *, is_told: bool) -> None:
    """Wait until the file has them all; memory-only ones never get there."""
    for label, handle in handles:
        with suppress(NotPersisted):
            await handle.saved()
            if is_told:
                note("saved", label, handle.task_id)


@contextmanager
def loop_watch(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Notes the longest time the loop did not turn."""
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        while True:
            before = loop.time()
            await asyncio.sleep(0.01)
            longest_s = max(longest_s, loop.time() - before - 0.01)

    task = loop.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
        note("main ended", label=f"{longest_s:.3f}")


async def under_plain(manager: TaskManager, config: dict[str, Any], own_handler: bool) -> None:
    """As an application without `manager.run` does it."""
    work = asyncio.current_task()
    assert work is not None
    if own_handler:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    async with manager:
        try:
            await main(manager, config)
        except asyncio.CancelledError:
            if not own_handler:
                raise


def start(config: dict[str, Any]) -> None:
    """Run once, as `host` says."""
    manager = make_manager(config)
    host = config.get("host", "run")
    if host == "run":

        async def work() -> None:
            with loop_watch(asyncio.get_running_loop()):
                await main(manager, config)

        manager.run(work)
    else:
        asyncio.run(under_plain(manager, config, host == "handler"))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    try:
        start(json.loads(sys.argv[1]))
    except StoreUnavailable as exc:
        note(f"unavailable {exc}")
        raise SystemExit(1) from exc
    note("exit")

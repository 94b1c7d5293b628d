"""The functions the child program runs: each leaves one line at its start and one at its finish in the journal.

The process lane imports this module by name, so it holds the functions and nothing that runs by itself.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from taskmanager import RetryPolicy, current_task

JOURNAL = "TASKMANAGER_TEST_JOURNAL"
SLEEP_S = "TASKMANAGER_TEST_SLEEP_S"
"""Overrides how long the functions take, so that a second start need not take as long as the first."""

STEPS = 20


def note(event: str, label: str = "", task_id: str = "", attempt: int = 0) -> None:
    """Append one line, on the disk before this returns. One write of a short line is whole under O_APPEND."""
    line = json.dumps({"event": event, "label": label, "task_id": task_id, "attempt": attempt, "pid": os.getpid()})
    descriptor = os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _note_here(event: str, label: str) -> None:
    task = current_task()
    note(event, label, task.task_id, task.attempt)


def _seconds(wanted: float) -> float:
    return float(os.environ.get(SLEEP_S) or wanted)


async def steady(label: str, seconds: float) -> str:
    """An async task that can be cancelled."""
    _note_here("start", label)
    await asyncio.sleep(_seconds(seconds))
    _note_here("finish", label)
    return label


async def stubborn(label: str, seconds: float) -> str:
    """An async task that does not let itself be cancelled before its time."""
    _note_here("start", label)
    end = time.monotonic() + _seconds(seconds)
    while (left := end - time.monotonic()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            _note_here("ignored", label)
    _note_here("finish", label)
    return label


def plain(label: str, seconds: float) -> str:
    """For the thread lane and the process lane."""
    _note_here("start", label)
    time.sleep(_seconds(seconds))
    _note_here("finish", label)
    return label


async def steps(label: str, seconds: float) -> str:
    """Works for so many seconds in which its process can run, however many pass in which it cannot."""
    _note_here("start", label)
    for _ in range(STEPS):
        await asyncio.sleep(_seconds(seconds) / STEPS)
    _note_here("finish", label)
    return label


def plain_steps(label: str, seconds: float) -> str:
    """The same in a thread."""
    _note_here("start", label)
    for _ in range(STEPS):
        time.sleep(_seconds(seconds) / STEPS)
    _note_here("finish", label)
    return label


def dies(label: str, seconds: float) -> str:
    """Ends its process: by itself where `seconds` is positive, by SIGKILL where it is not."""
    _note_here("start", label)
    if seconds > 0:
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)
    return label


async def dies_on_loop(label: str, seconds: float) -> str:
    """Ends the whole application at every attempt."""
    _note_here("start", label)
    os.kill(os.getpid(), signal.SIGKILL)
    return label


def enqueues(label: str, seconds: float) -> str:
    """Tries to enqueue from a child of the process lane; gives the name of what that raised."""
    from taskmanager import TaskManager

    manager = TaskManager(None)
    try:
        manager.task(plain).enqueue(label, seconds)
    except Exception as exc:
        return type(exc).__name__
    return "nothing"


_ON_CRASH = RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"], jitter=False)

VARIANTS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "safe": (steady, {"persist": True, "requeue_on_interrupt": True}),
    "once": (steady, {"persist": True}),
    "crash_retry": (steady, {"persist": True, "retry_policy": _ON_CRASH}),
    "memory": (steady, {"persist": False}),
    "inherit": (steady, {}),
    "inherit_safe": (steady, {"requeue_on_interrupt": True}),
    "thread_safe": (plain, {"persist": True, "requeue_on_interrupt": True, "executor": "thread"}),
    "thread_once": (plain, {"persist": True, "executor": "thread"}),
    "timed": (steps, {"persist": True, "timeout": 4.0}),
    "thread_timed": (plain_steps, {"persist": True, "executor": "thread", "timeout": 4.0}),
    "process_safe": (plain, {"persist": True, "requeue_on_interrupt": True, "executor": "process"}),
    "process_once": (plain, {"persist": True, "executor": "process"}),
    "process_timeout": (plain, {"persist": True, "executor": "process", "timeout": 0.5}),
    "process_dies": (dies, {"persist": True, "executor": "process"}),
    "process_enqueues": (enqueues, {"persist": True, "executor": "process"}),
    "stubborn_safe": (stubborn, {"persist": True, "requeue_on_interrupt": True}),
    "stubborn_once": (stubborn, {"persist": True}),
    "poison": (dies_on_loop, {"persist": True, "requeue_on_interrupt": True}),
}
"""Name of the task → its function and options. Without `persist`, `requeue_pending` of the manager decides."""

"""Task ids: time-ordered UUIDs (version 7), and the derived id (version 8) of a task with an idempotency key; chance.

The ids of one process are strictly increasing: milliseconds, 26 bits that are random per process, and a counter that
starts at a random place. Random keys would halve SQLite's insert rate, and `uuid4` costs several times as much.
"""

import os
from itertools import count
from time import time_ns
from typing import Final


class _Sequence:
    """Makes the ids of one process, in increasing order. Any thread may use it.

    It has no lock, which would cost a third of the id: each step is one call that the interpreter does not interrupt.
    """

    __slots__ = ("_count", "_process", "_stamp", "ahead_ms")

    def __init__(self) -> None:
        seed = int.from_bytes(os.urandom(10), "big")
        self._process = "7%03x-%04x-" % ((seed >> 48) & 0xFFF, 0x8000 | ((seed >> 60) & 0x3FFF))
        # The top bit stays clear, so that counting up never reaches a 13th digit.
        self._count = count(seed & 0x7FFFFFFFFFFF).__next__
        self.ahead_ms = 0
        self._stamp = 0, ""
        """A millisecond, and how the ids of it begin."""

    def next(self) -> str:
        ms = time_ns() // 1_000_000 + self.ahead_ms
        latest, prefix = self._stamp
        if ms > latest:  # else a clock that was stepped back would put new ids before older ones
            prefix = f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-{self._process}"
            self._stamp = ms, prefix
        return prefix + "%012x" % self._count()  # half of what a format with a width costs


_sequence = _Sequence()


def new_task_id() -> str:
    """Return a UUIDv7 of 36 characters, greater than every id that this process made before. Safe from any thread."""
    return _sequence.next()


def set_ids_ahead(ahead_us: int) -> None:
    """Let new ids tell the time of a clock that is so far ahead of that of this machine: the one of the database.

    It holds for all ids of this process. Those that were made before stay smaller, also if that clock is behind.
    """
    _sequence.ahead_ms = ahead_us // 1_000


def keyed_task_id(task_name: str, key: str) -> str:
    """Return the id that every process gives this task name with this key: a UUIDv8 of their SHA-256."""
    return _derived_id(f"{len(task_name)}:{task_name}:{key}")


def failure_task_id(task_id: str, sent_at: int, start_count: int) -> str:
    """Return the id of what the failure of a task enqueues: the same whoever writes it, and another one after a retry.

    `sent_at` tells the tasks of an idempotency key apart whose records were purged in between.
    """
    return _derived_id(f"on_failure:{sent_at}:{start_count}:{task_id}")


def node_task_id(workflow_id: str, task_index: int) -> str:
    """Return the id of the task of a node: the same whoever enqueues it, and in every run of its workflow."""
    return _derived_id(f"node:{task_index}:{workflow_id}")


def child_workflow_id(workflow_id: str, task_index: int) -> str:
    """Return the id of the child workflow that stands in a node."""
    return _derived_id(f"child:{task_index}:{workflow_id}")


def _derived_id(text: str) -> str:
    import hashlib  # a process that makes no such id need not load OpenSSL

    number = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16], "big")
    number = (number & ~(0xF << 76)) | (0x8 << 76)
    number = (number & ~(0x3 << 62)) | (0x2 << 62)
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def random_01() -> float:
    """Return a number in [0, 1), by the generator that a simulation seeds. To load it would cost each start 1 ms."""
    from random import random

    return random()


INSTANCE_ID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
"""Matches ids of instances, and little else that may stand in the name of a file."""


def new_instance_id() -> str:
    """Return the id of one start of a manager: a UUIDv7, so that instances sort by their start."""
    return new_task_id()


def _reseed_after_fork() -> None:
    """Begin anew in a forked child: it must not make its parent's ids, nor keep a lock that a thread held there."""
    global _sequence
    _sequence = _Sequence()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reseed_after_fork)

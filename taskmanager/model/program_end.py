"""What is done at the end of the program, whichever way that ends in order."""

import atexit
import os
import sys
from collections.abc import Callable
from typing import Final

_registered: Final[dict[Callable[[], None], int]] = {}
"""In which process each function is known to `multiprocessing`."""


def at_child_end(function: Callable[[], None]) -> None:
    """Call `function`, an exit hook, at the end of this process too if it is a child of `multiprocessing`.

    Such a child that was forked, or that a fork server has made, runs no exit hooks, but the finalizers that were
    registered since it began. One that was spawned would run both.
    """
    process, util = (sys.modules.get(f"multiprocessing.{name}") for name in ("process", "util"))
    if process is None or util is None or process.parent_process() is None:
        return
    if _registered.get(function) != os.getpid():
        _registered[function] = os.getpid()
        util.Finalize(None, _once, (function,), exitpriority=0)


def _once(function: Callable[[], None]) -> None:
    atexit.unregister(function)
    function()

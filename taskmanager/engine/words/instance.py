"""One start of one manager: who it is, and who else is there."""

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from taskmanager.model.ids import new_instance_id
from taskmanager.store.presence import Presence
from taskmanager.store.protocol import InstanceRow

CHECK_S: Final = 0.25
"""How often it is looked whether the other instances live."""
EARLY_S: Final = 0.1
"""A look that is so much early is in time: the loop wakes in a rhythm, and not to the millisecond."""


def new_identity(instance_name: str | None, now: int, live_tasks: str | None = None) -> InstanceRow:
    """Return the row of a new instance: a random id, the facts of this process, and what it says of itself."""
    return InstanceRow(
        new_instance_id(),
        instance_name,
        socket.gethostname(),
        os.getpid(),
        _process_name(),
        _boot_id(),
        started_at=now,
        stopped_at=None,
        live_tasks=live_tasks,
        updated_at=now,
    )


def _process_name() -> str:
    """The name that multiprocessing gave this process; where nobody loaded it, it gave none."""
    process = sys.modules.get("multiprocessing.process")
    return "MainProcess" if process is None else str(process.current_process().name)


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return None


_ROLE_KEY: Final = '"run_queues":'
"""In the text that an instance writes of itself where it does not run every queue."""


class Neighbours:
    """The other instances on the store: who is there, and who has died since it was last looked.

    In a store in memory, where there is no `presence`, nobody else can be. A look asks nothing of the database.
    """

    def __init__(self, presence: Presence | None, my_id: str) -> None:
        self._presence = presence
        self._my_id = my_id
        self.living: set[str] = set()
        self.dead: set[str] = set()
        """Those whose rows nobody has taken away yet."""
        self.leave_work = False
        """Whether any of them does not run every queue, so that others must run its tasks."""
        self._next_check_s = 0.0

    def __repr__(self) -> str:
        return f"<Neighbours {len(self.living)} living, {len(self.dead)} dead>"

    def registered(self, rows: Sequence[InstanceRow]) -> None:
        """These rows are in the store."""
        others = {row.instance_id: row for row in rows if row.instance_id != self._my_id}
        self.living = others.keys() - self.dead
        self.dead &= others.keys()
        self.leave_work = any(_ROLE_KEY in (others[each].live_tasks or "") for each in self.living)

    def find_dead(self, now_s: float) -> bool:
        """Whether one has died since the last look, in the time of the loop. Each death is found once."""
        if self._presence is None or now_s < self._next_check_s:
            return False
        self._next_check_s = now_s + CHECK_S - EARLY_S
        known, known_dead = self.living | self.dead, self.dead
        # One whose proof is missing looks dead until it has put it back.
        self.dead = {each for each in known if self._presence.is_dead(each)}
        self.living = known - self.dead
        return not self.dead <= known_dead

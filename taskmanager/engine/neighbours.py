"""The other instances on the file: who is there, and who has died since it was last looked.

Dead means that the lock can be taken (see instance.py), which costs a system call each and asks nothing of the store.
"""

from pathlib import Path
from typing import Final

from taskmanager.engine.instance import is_dead

CHECK_S: Final = 0.25
"""How often it is looked whether the other instances live."""
EARLY_S: Final = 0.1
"""A look that is so much early is in time: the loop wakes in a rhythm, and not to the millisecond."""


class Neighbours:
    """Of one instance. Without a database nobody else can be there."""

    def __init__(self, database: Path | None, my_id: str) -> None:
        self._database = database
        self._my_id = my_id
        self.living: set[str] = set()
        self.dead: set[str] = set()
        """Those whose rows nobody has taken away yet."""
        self._next_check_s = 0.0

    def __repr__(self) -> str:
        return f"<Neighbours {len(self.living)} living, {len(self.dead)} dead>"

    def registered(self, instance_ids: set[str]) -> None:
        """These have a row in the store."""
        others = instance_ids - {self._my_id}
        self.living = others - self.dead
        self.dead &= others

    def find_dead(self, now_s: float) -> bool:
        """Whether one has died since the last look, in the time of the loop. Each death is found once."""
        if self._database is None or now_s < self._next_check_s:
            return False
        self._next_check_s = now_s + CHECK_S - EARLY_S
        # One whose lock file was removed looks dead until it has put it back.
        self.living |= {each for each in self.dead if not is_dead(self._database, each)}
        found = {each for each in self.living if is_dead(self._database, each)}
        self.living -= found
        self.dead -= self.living
        self.dead |= found
        return bool(found)

"""Gives back rows that name this instance as their owner but are unknown to it. Nobody runs them.

Such a row comes from an older copy of the file that was put in its place, or from a person who wrote it by hand. No
death would free it, because its owner lives. It is judged like a row of a dead instance. A task that is here in any way
is left alone: it is in memory, or it has ended and is not saved yet, or its run was given up and its code has not
ended. So is a row of a claim whose answer was lost: the claimer asks for it again.
"""

from collections.abc import Sequence
from typing import Final

from taskmanager.duties.recovery import PAGE, Recovery
from taskmanager.engine.engine import Engine
from taskmanager.model.logger import logger
from taskmanager.model.states import LIVE
from taskmanager.model.wording import counted
from taskmanager.rules.recovery import Crash

LOST: Final = "its owner has lost it"


class Strays:
    """Finds and recovers the strays of one instance."""

    def __init__(self, engine: Engine, recovery: Recovery) -> None:
        self._store, self._identity, self._live = engine.store, engine.identity, engine.live
        self._runner, self._writer, self._life = engine.runner, engine.writer, engine.life
        self._claiming = engine.claiming
        self._recovery = recovery

    async def recover(self) -> int:
        """Look once at all rows of this instance. Return how many were moved. Raises `StoreError`.

        At first only ids are read, without holding up claims: nearly always every id is known.
        """
        moved, after = 0, ""
        me = self._identity.instance_id
        while task_ids := await self._store.fetch_owned_ids(me, limit=PAGE, after=after):
            after = task_ids[-1]
            if unknown := self._unknown(task_ids):
                moved += await self._recover(unknown)
        if moved:
            self._life.has_freed = True
            self._life.wants_claim.set()
            text = "%s given back that named this instance in the file only, as after a lost answer or a restored copy"
            logger.warning(text, counted(moved, "task"))
        return moved

    async def _recover(self, task_ids: Sequence[str]) -> int:
        """Look again while no claim is under way. A row that a commit changes meanwhile fails its precondition."""
        async with self._claiming:
            rows = (await self._store.fetch_ids(task_ids)).values()
            mine = [row for row in rows if row.claimed_by_worker_id == self._identity.instance_id]
            if self._life.unanswered_claim_at is not None:  # the claimer asks for its rows again: none of them has run
                mine = [row for row in mine if row.claimed_at != self._life.unanswered_claim_at]
            unknown = set(self._unknown([row.task_id for row in mine if row.status in LIVE]))
            strays = [row for row in mine if row.task_id in unknown]
            return await self._recovery.recover(strays, lambda row: Crash(True, row.task_id, LOST))

    def _unknown(self, task_ids: Sequence[str]) -> list[str]:
        runner = self._runner
        executing = {*runner.running, *(attempt.live.task_id for attempt in runner.abandoned)}
        unsaved = self._writer.unsaved_ended
        return [each for each in task_ids if not (each in self._live or each in unsaved or each in executing)]

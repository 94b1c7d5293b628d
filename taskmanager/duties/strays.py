"""Gives back rows that name this instance and that it knows nothing of: nobody runs them, and no death would free them.

An older copy of the file was put in its place, the answer of a claim was lost, somebody wrote the row by hand. Such a
row is judged like one of a dead instance. What is here in any way is left alone: in memory, ended and not yet saved,
or code of a run that was given up and has not ended.
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
    """Of one instance."""

    def __init__(self, engine: Engine, recovery: Recovery) -> None:
        self._engine = engine
        self._recovery = recovery

    async def recover(self) -> int:
        """One look at all rows of this instance; how many were moved. Raises `StoreError`.

        Only ids are read at first: nearly always every one of them is known, and nobody is kept waiting for that.
        """
        engine, moved, after = self._engine, 0, ""
        me = engine.identity.instance_id
        while task_ids := await engine.store.fetch_owned_ids(me, limit=PAGE, after=after):
            after = task_ids[-1]
            if unknown := self._unknown(task_ids):
                moved += await self._recover(unknown)
        if moved:
            engine.has_put_away = True
            engine.wants_claim.set()
            text = "%s given back that named this instance in the file only, as after a lost answer or a restored copy"
            logger.warning(text, counted(moved, "task"))
        return moved

    async def _recover(self, task_ids: Sequence[str]) -> int:
        """Look again while no claim is under way. What a commit under way changes is no more as it was read."""
        engine = self._engine
        async with engine.claiming:
            rows = (await engine.store.fetch_ids(task_ids)).values()
            mine = [row for row in rows if row.claimed_by_worker_id == engine.identity.instance_id]
            unknown = set(self._unknown([row.task_id for row in mine if row.status in LIVE]))
            strays = [row for row in mine if row.task_id in unknown]
            return await self._recovery.recover(strays, lambda row: Crash(True, row.task_id, LOST))

    def _unknown(self, task_ids: Sequence[str]) -> list[str]:
        engine, runner = self._engine, self._engine.runner
        executing = {*runner.running, *(attempt.live.task_id for attempt in runner.abandoned)}
        unsaved = engine.writer.unsaved_ended
        return [each for each in task_ids if not (each in engine.live or each in unsaved or each in executing)]

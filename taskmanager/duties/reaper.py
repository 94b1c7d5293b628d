"""Looks every `check_interval_ms` for work that nobody does, and gives it back.

Its owner may be dead. That is certain (its lock can be taken) and acted on at once. Or it is silent, which is judged by
observation: a heartbeat whose value has not changed for the threshold, on this observer's own clock, while this
observer could run and its own beats got through; and for what runs, a lock file that shows no sign of life either. A
clock that jumps, a machine that slept, a file that was locked for minutes or a disk that is slow makes nobody silent.

Strays name this instance as their owner, and it does not know them. They come from an older copy of the file that was
put in its place, or from a person who wrote them by hand. No death would free them, because their owner lives. They are
judged like the rows of a dead instance. A task that is here in any way is left alone: it is in memory, or it has ended
and is not saved yet, or its run was given up and its code has not ended. So is a row of a claim whose answer was lost:
the claimer asks for it again.

Free rows may wait past their `good_until`: for a later moment, behind a backlog, or for a function that nobody knows.
They expire all the same, and whoever waits for the task is told.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from taskmanager.duties.heartbeat import Heartbeat
from taskmanager.duties.recovery import PAGE, Recovery
from taskmanager.engine.engine import Engine
from taskmanager.model.checks import check_threshold
from taskmanager.model.clock import MINUTE_US
from taskmanager.model.dataclass import dataclass
from taskmanager.model.logger import logger
from taskmanager.model.record import TaskInfo
from taskmanager.model.states import LIVE, TaskStatus
from taskmanager.model.wording import counted
from taskmanager.rules.recovery import Crash

WELL_TIMES: Final = 3
"""An observer with troubles now and then calls somebody silent after this many thresholds of time without any."""
EXPIRY_INTERVAL_S: Final = 5.0
LOST: Final = "its owner has lost it"


@dataclass(slots=True)
class Observation:
    """What one observer has seen of one heartbeat."""

    value: tuple[int, int | None]
    """The newest beat, and the newest other sign of life."""
    since_s: float
    """Since when neither has changed and the observer had no trouble."""
    well_s: float = 0.0
    """For how long neither has changed, without the time in which the observer had trouble."""

    def silent_s(self, now_s: float) -> float:
        """For how long it counts as silent. Troubles must not keep the dead for ever, however often they come."""
        return max(now_s - self.since_s, self.well_s / WELL_TIMES)


class Reaper:
    """The observer of one instance."""

    def __init__(self, engine: Engine, recovery: Recovery, heartbeat: Heartbeat) -> None:
        self._store, self._identity, self._stall = engine.store, engine.identity, engine.stall
        self._writer, self._settings, self._life = engine.writer, engine.settings, engine.life
        self._live, self._runner, self._wall_clock = engine.live, engine.runner, engine.wall_clock
        self._claiming, self._free_rows = engine.claiming, engine.free_rows
        self._presence, self._recovery = engine.presence, recovery
        self._heartbeat = heartbeat
        self._seen: dict[tuple[str, str], Observation] = {}
        self._troubles_seen = 0
        self._swept_s = 0.0

    async def run_once(self) -> int:
        """Sweep once: workflows, dead instances, strays of this one, silent instances. Return how many tasks moved."""
        return await self._free_rows.answer_of(self._sweep())

    async def _sweep(self) -> int:
        config = self._settings.recovery
        moved = await self.recover_workflows(config.crashed_worker_recovery_grace_ms)
        moved += await self._recovery.run_once() + await self.recover_strays()
        silent_claimers, silent_runners = await self._silent()
        if silent_claimers and config.auto_requeue_stale_claimed:
            moved += await self._take_over(silent_claimers, is_running=False)
        if silent_runners and config.auto_fail_stale_running:
            moved += await self._take_over(silent_runners, is_running=True)
        if moved:
            self._life.wants_claim.set()
        return moved

    async def _silent(self) -> tuple[dict[str, float], dict[str, float]]:
        """The instances whose claimer, and whose runner, has been silent for its threshold, and for how many
        seconds.
        """
        config = self._settings.recovery
        # Time in which this observer was stopped too says nothing: whoever stopped it has stopped the others as well.
        now_s = self._stall.running_s()
        beats = await self._store.heartbeats()
        self._count_time(now_s)
        thresholds_s = {
            "claimer": config.claimed_stale_threshold_ms / 1000,
            "runner": config.running_stale_threshold_ms / 1000,
        }
        silent: dict[str, dict[str, float]] = {"claimer": {}, "runner": {}}
        for sender, role, sent_at in beats:
            if sender == self._identity.instance_id or role not in thresholds_s:
                continue
            value = sent_at, self._sign_of_life(sender) if role == "runner" else None
            seen = self._seen.get((sender, role))
            if seen is None or seen.value != value:
                self._seen[sender, role] = Observation(value, now_s)
            elif seen.silent_s(now_s) > thresholds_s[role]:
                silent[role][sender] = seen.silent_s(now_s)
        known = {(sender, role) for sender, role, _ in beats}
        self._seen = {key: seen for key, seen in self._seen.items() if key in known}
        return silent["claimer"], silent["runner"]

    def _sign_of_life(self, sender: str) -> int | None:
        return None if self._presence is None else self._presence.sign_of_life(sender)

    def _count_time(self, now_s: float) -> None:
        """Count the time since the last sweep as silence of others, unless this observer could not write either.

        If a beat of its own has failed since then, the file may have been locked for everybody all that time, and this
        observer be the first to get through again.
        """
        before, self._troubles_seen = self._troubles_seen, self._heartbeat.trouble_count
        had_trouble = self._troubles_seen != before or not self._heartbeat.is_well
        for seen in self._seen.values():
            if had_trouble or self._writer.degraded_since is not None:
                seen.since_s = now_s
            else:
                seen.well_s += now_s - max(seen.since_s, self._swept_s)
        self._swept_s = now_s

    async def _take_over(self, silent_s: Mapping[str, float], *, is_running: bool) -> int:
        """Give back what runs, or what waits, in instances that have been silent for so long. Return how many.

        A row whose outcome was on its way (finalizing) has the longer of two thresholds to be patient for.
        """
        limit_s = self._settings.recovery.finalizing_stale_threshold_ms / 1000
        late = {owner for owner, each_s in silent_s.items() if each_s > limit_s}
        owners, after = list(silent_s), ""
        moved = 0 if is_running else sum([await self._recovery.free_waiting(owner) for owner in owners])
        while rows := await self._store.fetch_owned(owners, limit=PAGE, after=after, is_running=is_running):
            after = rows[-1].task_id
            if is_running:
                rows = [row for row in rows if row.finalizing_at is None or row.claimed_by_worker_id in late]
            moved += await self._recovery.recover(
                [row for row in rows if is_running == (row.status == TaskStatus.RUNNING)]
            )
        if moved:
            text = "took over %s of instances that have been silent too long: %s"
            logger.warning(text, counted(moved, "task"), owners)
        return moved

    # Rows that name this instance, which does not know them.

    async def recover_strays(self) -> int:
        """Look once at all rows of this instance. Return how many were moved. Raises `StoreError`.

        At first only ids are read, without holding up claims: nearly always every id is known.
        """
        moved, after = 0, ""
        me = self._identity.instance_id
        while task_ids := await self._store.fetch_owned_ids(me, limit=PAGE, after=after):
            after = task_ids[-1]
            if unknown := self._unknown(task_ids):
                moved += await self._recover_unknown(unknown)
        if moved:
            self._life.freed_count += moved
            self._life.wants_claim.set()
            text = "%s given back that named this instance in the file only, as after a lost answer or a restored copy"
            logger.warning(text, counted(moved, "task"))
        return moved

    async def _recover_unknown(self, task_ids: Sequence[str]) -> int:
        """Look again while no claim is under way. A row that a commit changes meanwhile fails its precondition."""
        async with self._claiming:
            rows = (await self._store.fetch_ids(task_ids)).values()
            mine = [row for row in rows if row.claimed_by_worker_id == self._identity.instance_id]
            if claim := self._life.unanswered_claim:  # the claimer asks for its rows: none has run
                mine = [row for row in mine if row.claimed_at != claim[0].now]
            unknown = set(self._unknown([row.task_id for row in mine if row.status in LIVE]))
            strays = [row for row in mine if row.task_id in unknown]
            return await self._recovery.recover(strays, lambda row: Crash(True, row.task_id, LOST))

    def _unknown(self, task_ids: Sequence[str]) -> list[str]:
        runner = self._runner
        executing = {*runner.running, *(attempt.live.task_id for attempt in runner.abandoned)}
        unsaved = self._writer.unsaved_ended
        return [each for each in task_ids if not (each in self._live or each in unsaved or each in executing)]

    # Rows that nobody holds, and that must not start any more.

    async def expire(self) -> int:
        """End free rows past their `good_until`, each only if it still waits there; how many ended. For a while after a
        step of the wall clock nothing is ended. What is in memory expires there, on time.
        """
        ended = 0
        now_us = self._wall_clock.now_us()
        if self._wall_clock.holds_expiry or self._writer.degraded_since is not None:
            return 0
        while rows := await self._store.fetch_expired(now_us, limit=PAGE):
            count = await self._recovery.recover(rows)
            ended += count
            if not count or len(rows) < PAGE:
                break
        if ended:
            logger.info("%s expired in the store", counted(ended, "task"))
            self._life.wants_claim.set()  # the store tells of the writes of others, and not of ours
        return ended

    # What people ask for.

    async def recover_workflows(self, grace_ms: int) -> int:
        """Put right what others have left half done in workflows. Return how many nodes that was."""
        moved = await self._recovery.recover_workflows(grace_ms)
        if moved:  # the store tells of the writes of others, and not of ours
            for task_id in await self._store.fetch_cancel_requests(self._identity.instance_id):
                if (live := self._live.get(task_id)) is not None:
                    self._life.cancel(live)
            self._life.wants_claim.set()
        return moved

    async def stale_tasks(self, threshold_minutes: float) -> tuple[TaskInfo, ...]:
        """Return the stale tasks, as users see them."""
        from taskmanager.codec.views import summary_info  # seldom asked for

        check_threshold(threshold_minutes, "stale_threshold_minutes")
        rows = await self._recovery.stale(threshold_minutes * MINUTE_US)
        return tuple(summary_info(row, is_saved=True) for row in rows)

    async def recover_stale(self, threshold_ms: float, *, is_running: bool) -> int:
        """Give back the stale tasks that run, or those that wait in their owner's memory. Return how many."""
        check_threshold(threshold_ms, "stale_threshold_ms")
        found = await self._recovery.stale(threshold_ms * 1_000)
        rows = [row for row in found if (row.status == TaskStatus.RUNNING) == is_running]
        moved = await self._recovery.recover_stale(rows)
        self._life.wants_claim.set()
        return moved

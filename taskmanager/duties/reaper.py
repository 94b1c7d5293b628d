"""Looks every `check_interval_ms` for work whose owner is dead or silent, and gives it back.

Dead is certain (its lock can be taken) and acted on at once. Silent is judged by observation: a heartbeat whose
value has not changed for the threshold, on this observer's own clock, while this observer could run and its own beats
got through; and for what runs, a lock file that shows no sign of life either. A clock that jumps, a machine that slept,
a file that was locked for minutes or a disk that is slow makes nobody silent.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from taskmanager.duties.heartbeat import Heartbeat
from taskmanager.duties.recovery import PAGE, Recovery
from taskmanager.duties.strays import Strays
from taskmanager.engine.engine import Engine
from taskmanager.engine.instance import sign_of_life
from taskmanager.model.logger import logger
from taskmanager.model.record import TaskRow
from taskmanager.model.states import TaskStatus
from taskmanager.model.wording import counted

WELL_TIMES: Final = 3
"""An observer with troubles now and then calls somebody silent after this many thresholds of time without any."""


class Observation:
    """The last value seen of one heartbeat, with what else shows life; since when both have been the same, without a
    trouble of the observer; and how long in all, where the time up to a trouble does not count.
    """

    __slots__ = ("since_s", "value", "well_s")

    def __init__(self, value: tuple[int, int | None], since_s: float) -> None:
        self.value = value
        self.since_s = since_s
        self.well_s = 0.0

    def silent_s(self, now_s: float) -> float:
        """For how long it counts as silent. Troubles must not keep the dead for ever, however often they come."""
        return max(now_s - self.since_s, self.well_s / WELL_TIMES)


class Reaper:
    """The observer of one instance."""

    def __init__(self, engine: Engine, recovery: Recovery, strays: Strays, heartbeat: Heartbeat) -> None:
        self._store, self._identity, self._stall = engine.store, engine.identity, engine.stall
        self._writer, self._settings, self._life = engine.writer, engine.settings, engine.life
        self._recovery = recovery
        self._strays = strays
        self._heartbeat = heartbeat
        self._seen: dict[tuple[str, str], Observation] = {}
        self._troubles_seen = 0
        self._swept_s = 0.0

    async def run_once(self) -> int:
        """Sweep once: dead instances, then strays of this one, then silent instances. Return how many tasks moved."""
        config = self._settings.recovery
        moved = await self.recover_dead() + await self._strays.recover()
        silent_claimers, silent_runners = await self._silent()
        if silent_claimers and config.auto_requeue_stale_claimed:
            freed = sum([await self._recovery.free_waiting(owner) for owner in silent_claimers])
            moved += await self._take_over(silent_claimers, lambda row: row.status != TaskStatus.RUNNING, freed)
        if silent_runners and config.auto_fail_stale_running:
            moved += await self._take_over(silent_runners, lambda row: self._is_stuck(row, silent_runners))
        if moved:
            self._life.wants_claim.set()
        return moved

    async def recover_dead(self, at_once: int | None = None) -> int:
        """Recover what dead instances left, as far as the two switches of the configuration let it be touched."""
        config = self._settings.recovery
        if not (config.auto_requeue_stale_claimed or config.auto_fail_stale_running):
            return 0
        return await self._recovery.run_once(
            waiting=config.auto_requeue_stale_claimed, running=config.auto_fail_stale_running, at_once=at_once
        )

    def _is_stuck(self, row: TaskRow, silent_s: Mapping[str, float]) -> bool:
        """A row whose outcome was on its way (finalizing) has the longer of two thresholds to be patient for."""
        if row.status != TaskStatus.RUNNING:
            return False
        limit_s = self._settings.recovery.finalizing_stale_threshold_ms / 1000
        return row.finalizing_at is None or silent_s.get(row.claimed_by_worker_id or "", 0.0) > limit_s

    async def _silent(self) -> tuple[dict[str, float], dict[str, float]]:
        """The instances whose claimer, and whose runner, has been silent for its threshold, and for how many
        seconds.
        """
        config = self._settings.recovery
        # Time in which this observer was stopped too says nothing: whoever stopped it has stopped the others as well.
        now_s = self._stall.running_s()
        beats = await self._store.heartbeats()
        self._count_time(now_s, is_well=not self._had_trouble() and self._writer.degraded_since is None)
        thresholds_s = {
            "claimer": config.claimed_stale_threshold_ms / 1000,
            "runner": config.running_stale_threshold_ms / 1000,
        }
        silent: dict[str, dict[str, float]] = {"claimer": {}, "runner": {}}
        for sender, role, sent_at in beats:
            if sender == self._identity.instance_id or role not in thresholds_s:
                continue
            sign = sign_of_life(self._settings.database, sender) if role == "runner" else None
            value = sent_at, sign
            seen = self._seen.get((sender, role))
            if seen is None or seen.value != value:
                self._seen[sender, role] = Observation(value, now_s)
            elif seen.silent_s(now_s) > thresholds_s[role]:
                silent[role][sender] = seen.silent_s(now_s)
        self._forget({(sender, role) for sender, role, _ in beats})
        return silent["claimer"], silent["runner"]

    def _count_time(self, now_s: float, *, is_well: bool) -> None:
        """Nothing can be said of others by one who cannot write himself: such time is no silence of theirs."""
        for seen in self._seen.values():
            if is_well:
                seen.well_s += now_s - max(seen.since_s, self._swept_s)
            else:
                seen.since_s = now_s
        self._swept_s = now_s

    def _had_trouble(self) -> bool:
        """Whether its own beats do not get through, or did not for a while since the last sweep: the file may have been
        locked all that time, and this observer be the first to get through again.
        """
        before, self._troubles_seen = self._troubles_seen, self._heartbeat.trouble_count
        return self._troubles_seen != before or not self._heartbeat.is_well

    def _forget(self, known: set[tuple[str, str]]) -> None:
        for key in set(self._seen) - known:
            del self._seen[key]

    async def _take_over(self, owners: Iterable[str], is_wanted: Callable[[TaskRow], bool], moved: int = 0) -> int:
        store, owners, after = self._store, list(owners), ""
        while rows := await store.fetch_owned(owners, limit=PAGE, after=after):
            after = rows[-1].task_id
            moved += await self._recovery.recover([row for row in rows if is_wanted(row)])
        if moved:
            text = "took over %s of instances that have been silent too long: %s"
            logger.warning(text, counted(moved, "task"), owners)
        return moved

"""Says every interval that this instance lives: a daemon thread with a connection of its own.

A thread, because a blocked event loop must not look like a crash. Its beats are of two roles: *claimer* covers
what waits here, *runner* what runs here, until its outcome is committed. When the loop stays blocked longer than a
running task may be silent, the claimer's beat stops, so that waiting work is taken over, and the runner's goes on.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Final

from taskmanager.duties.visibility import Visibility
from taskmanager.engine.engine import Engine
from taskmanager.model.errors import StoreError, StoreUnavailable
from taskmanager.model.gil import at_work
from taskmanager.model.logger import logger
from taskmanager.model.wording import MORE_THREADS
from taskmanager.store.protocol import Beat, Beater

LOOP_PROBE_S: Final = 0.5
BLOCKED_AFTER_S: Final = 2.0
"""A loop of which nothing is heard for this long is reported as blocked."""
UNSEEN_BEAT_S: Final = 1.0
"""How often it beats for what runs while the others cannot see the proof that this instance lives."""
SLOW_WRITE_S: Final = 1.0
"""A beat that takes this long meets what others may not get through at all."""


class Rest:
    """A wait that no step of the wall clock makes longer, until `stop` is set and `end` says so.

    The time-out of an `Event` is measured by the wall clock where the C library has no `sem_clockwait`: musl, macOS,
    and interpreters built for an old glibc. Set back by an hour there, it would keep every heartbeat of the machine
    silent for an hour, and what runs would run again elsewhere. The time-out of a socket is elapsed time everywhere.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._pair: tuple[socket.socket, socket.socket] | None = None
        with suppress(OSError):  # out of descriptors: the event alone must do
            self._pair = socket.socketpair()

    def wait(self, for_s: float) -> bool:
        """Rest so long, or until `end` is called. Return whether `stop` is set."""
        if not self._stop.is_set() and not self._has_waited(for_s):
            self._stop.wait(for_s)
        return self._stop.is_set()

    def _has_waited(self, for_s: float) -> bool:
        if self._pair is None:
            return False
        try:
            self._pair[0].settimeout(for_s)
            return bool(self._pair[0].recv(1))
        except TimeoutError:
            return True
        except OSError:  # the program has closed every descriptor it found
            return False

    def end(self) -> None:
        """Wake the thread that rests, so that it looks at `stop`."""
        if self._pair is not None:
            with suppress(OSError):
                self._pair[1].send(b".")

    def close(self) -> None:
        """Give its descriptors back."""
        for each in self._pair or ():
            with suppress(OSError):
                each.close()


class Heartbeat:
    """The heartbeat of one instance. Started after the instance is registered, stopped last."""

    def __init__(self, engine: Engine, visibility: Visibility) -> None:
        self._store, self._clock, self._identity = engine.store, engine.clock, engine.identity
        self._inbox, self._stall, self._runner = engine.inbox, engine.stall, engine.runner
        self._failing_duties = engine.failing_duties
        self._stop = threading.Event()
        self._rest: Rest | None = None
        self._thread: threading.Thread | None = None
        self._presence, self._visibility = engine.presence, visibility
        self._loop_thread = threading.current_thread()
        self._heard_s = self._rested_s = self._clock.elapsed_s()
        config = engine.settings.recovery
        self._max_silence_s = config.running_stale_threshold_ms / 1000
        self._intervals_s = {
            "claimer": config.claimer_heartbeat_interval_ms / 1000,
            "runner": config.runner_heartbeat_interval_ms / 1000,
        }
        self._due_s = dict.fromkeys(self._intervals_s, self._heard_s)
        self._beaten_s = self._heard_s
        self._beats_seen = 0
        self._blocked_since_s: float | None = None
        self.outlives_loop = False
        """Whether it beats on when the loop is closed: for threads that nobody can end."""
        self.failed_count = 0
        """Beats in a row that could not be written."""
        self.trouble_count = 0
        """All that could not be written so far. While it grows, the silence of others says nothing."""
        self._writing_since_s: float | None = None

    def start(self, on_loop_closed: Callable[[], bool]) -> None:
        """Beat once now, then every interval, until `stop` or the end of the thread whose loop this is about.

        That need not be the main thread, which may end before it. `on_loop_closed` is called in the thread of the
        heartbeat until it returns True, and may ask it to outlive the loop.
        """
        self._heard_s = self._rested_s = self._clock.elapsed_s()  # a start may have waited for the file
        thread = threading.Thread(target=self._run, args=(on_loop_closed,), name="taskmanager-heartbeat", daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:
            raise StoreUnavailable(f"the heartbeat cannot start ({exc}); {MORE_THREADS}") from exc
        self._thread = thread

    def stop(self, patience_s: float = 2.0) -> None:
        """Stop beating."""
        self._stop.set()
        if self._rest is not None:
            self._rest.end()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(patience_s)

    def _run(self, on_loop_closed: Callable[[], bool]) -> None:
        beater = self._store.open_beater()
        if beater is None:
            return
        self._rest = Rest(self._stop)
        with closing(beater), closing(self._rest):
            while self._goes_on(beater, on_loop_closed):
                if self._rest.wait(LOOP_PROBE_S):
                    return

    def _goes_on(self, beater: Beater, on_loop_closed: Callable[[], bool]) -> bool:
        """Do one round. Return whether there is a next one: none once `on_loop_closed` has returned True."""
        with at_work():
            is_open = self._survives(beater)
        if is_open:
            return self._loop_thread.is_alive() or self.outlives_loop or self._inbox.is_loop_closed()
        try:
            is_told = on_loop_closed()
        except Exception:
            logger.critical("what a manager that was never stopped holds could not be written", exc_info=True)
            is_told = True
        return not is_told or self.outlives_loop

    def _survives(self, beater: Beater) -> bool:
        """Do one round, as `pulse`. A bug of ours must not end the heartbeat: others would take over what runs here."""
        try:
            is_open = self.pulse(beater)
        except Exception as exc:
            if "heartbeat" not in self._failing_duties:
                logger.critical("the heartbeat failed unexpectedly, and tries again", exc_info=True)
            self._failing_duties["heartbeat"] = f"{type(exc).__name__}: {exc}"
            self.failed_count += 1
            self.trouble_count += 1
            return True
        self._failing_duties.pop("heartbeat", None)
        return is_open

    def pulse(self, beater: Beater) -> bool:
        """Beat what is due, and listen to the loop; it is called every `LOOP_PROBE_S`. Return False when the loop is
        closed for good.
        """
        now_s = self._clock.elapsed_s()
        self._excuse(now_s - self._rested_s - LOOP_PROBE_S, now_s)
        self._hurry(is_seen=self._presence is None or (self._presence.put_back() and not self._visibility.is_stale()))
        beater.let_go()
        due = [role for role, at in self._due_s.items() if at <= now_s]
        is_blocked = now_s - self._heard_s > self._max_silence_s
        if due and self._beat(beater, [role for role in due if role != "claimer" or not is_blocked]):
            self._due_s.update((role, now_s + self._intervals_s[role]) for role in due)
            self._beaten_s = now_s
            self._visibility.beaten()
        written_s = self._clock.elapsed_s()
        self._excuse(written_s - now_s, written_s)
        is_open = self._hear_loop() or (self.outlives_loop and self._runner.threads.is_executing)
        self._rested_s = self._clock.elapsed_s()
        return is_open

    def _hurry(self, *, is_seen: bool) -> None:
        """Let the next beat be due soon where only beats show that this instance lives."""
        if not is_seen:
            self._due_s["runner"] = min(self._due_s["runner"], self._beaten_s + UNSEEN_BEAT_S)

    def _excuse(self, late_s: float, now_s: float) -> None:
        """Do not count a rest or a beat that took too long as silence of the loop.

        The process was stopped, so the loop could not beat; or the disk was slow, so nobody listened.
        """
        if late_s > BLOCKED_AFTER_S:
            self._heard_s = min(self._heard_s + late_s, now_s)

    @property
    def is_well(self) -> bool:
        """Whether its beats get through: the reaper trusts no observation made while they do not, or take long."""
        began_s = self._writing_since_s
        return not self.failed_count and (began_s is None or self._clock.elapsed_s() - began_s < SLOW_WRITE_S)

    def _beat(self, beater: Beater, roles: list[str]) -> bool:
        """Write one beat for all these roles. Return False if that failed: it is tried again soon, and harms no task.

        Before it the runner gives another sign of life. What runs here goes on while others keep this instance from the
        database, and must not run a second time. What waits here may well be taken over then.
        """
        who = self._identity
        now = self._clock.now_us()
        self._writing_since_s = self._clock.elapsed_s()
        try:
            if "runner" in roles and self._presence is not None:
                self._presence.show_life()
            beater.beat([Beat(who.instance_id, role, now, who.hostname, who.pid) for role in roles])
        except StoreError as exc:
            self.failed_count += 1
            self.trouble_count += 1
            logger.debug("a heartbeat could not be written: %s", exc)
            return False
        finally:
            self._writing_since_s = None
        self.failed_count = 0
        return True

    # Is the loop alive?

    def _hear_loop(self) -> bool:
        """Listen to the beats of the loop itself. Return False if it is closed for good."""
        if self._inbox.is_loop_closed():
            return False
        now_s, beats = self._clock.elapsed_s(), self._stall.beat_count
        if beats != self._beats_seen or not self._stall.is_beating:
            self._beats_seen, self._heard_s = beats, now_s
            if self._blocked_since_s is not None:
                blocked_s, self._blocked_since_s = now_s - self._blocked_since_s, None
                logger.warning("the event loop goes on after being blocked for %.1f s", blocked_s)
        silent_s = now_s - self._heard_s
        if silent_s > BLOCKED_AFTER_S and self._blocked_since_s is None:
            self._blocked_since_s = self._heard_s
            logger.warning(
                "the event loop has been blocked for %.1f s; running: %s", silent_s, self._running_names() or "no task"
            )
        return True

    def _running_names(self) -> str:
        running = list(self._runner.running.values())
        return ", ".join(sorted({attempt.live.definition.name for attempt in running})[:5])

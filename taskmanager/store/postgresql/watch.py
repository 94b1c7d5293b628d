"""The third connection of an instance, in a thread of its own: it proves that the instance lives, and hears of others.

Its session holds the advisory lock of the instance, looks once a second who else holds one, listens for notices, and
sends those of its own instance. It never writes a row.

A lost session is made anew. Until then the others see a free lock, so the instance must beat every second (`put_back`)
by whatever connection it has. All that was observed of the others is forgotten with the session that has observed it.
That covers a start of the server and a failover as well: no session survives the one, and none is kept on a standby,
which alone would survive the other.
"""

import asyncio
import itertools
import math
import os
import selectors
import threading
import weakref
from collections.abc import Awaitable, Callable, Collection
from contextlib import closing, suppress
from functools import partial
from logging import INFO, WARNING
from typing import Final

import psycopg

from taskmanager.model.clock import Clock
from taskmanager.model.errors import StoreUnavailable
from taskmanager.model.gil import LendingUntil, at_work
from taskmanager.model.logger import logger
from taskmanager.model.wording import MORE_THREADS
from taskmanager.store.postgresql.bell import Bell
from taskmanager.store.postgresql.lives import MIN_GRACE_S, SILENCE_S, Beats, Lives, lock_number
from taskmanager.store.postgresql.notices import Notices
from taskmanager.store.postgresql.watch_session import WatchSession
from taskmanager.store.presence import UNSEEN_S

LOOK_S: Final = 1.0
"""How often the locks of the others are looked at."""
TELL_S: Final = 0.005
"""The least time between two notices. The commits in between share one."""
DOUBT_S: Final = 5.0
"""A notice may be lost: after so long without one, something may have changed all the same."""
FIRST_PAUSE_S: Final = 0.1
LAST_PAUSE_S: Final = 2.0
"""The pause before a lost session is made anew, doubled from the first to the last. One that has lived for longer than
the last begins with the first again.
"""
LONG_S: Final = 10.0
"""How long the session may be away before somebody should know."""
END_S: Final = 1.0
"""How long a stop waits for the thread. One that waits for the server then is cut off."""
_WHAT: Final = "the session that shows that this instance lives"

_watches: "weakref.WeakSet[Watch]" = weakref.WeakSet()


class Watch:
    """The `Presence` of one instance on a server, and its ear and mouth for notices.

    `conninfo` leads past a pooler if there is a way. Behind a transaction pooler no session is the instance's own
    (`is_pooled`). Then it holds no lock and hears nothing: its row says so, its heartbeats show that it lives, and it
    polls. It sees the locks of the others, and tells them what it has written.
    """

    def __init__(
        self,
        conninfo: str,
        schema: str,
        instance_id: str,
        clock: Clock,
        *,
        grace_s: float = MIN_GRACE_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._conninfo, self._schema, self._clock = conninfo, schema, clock
        self._instance_id, self._number = instance_id, lock_number(instance_id)
        self._lives, self._beats = Lives(grace_s, silence_s), Beats()
        self._notices = Notices(schema)
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._session: WatchSession | None = None
        self._holds_lock = False
        self._seen_s: tuple[float, float] | None = None
        self._change_numbers = itertools.count(1)
        self._change_count = self._news_count = 0
        self._heard_s = self._look_at_s = self._tell_at_s = clock.elapsed_s()
        self._tell_starter: Callable[[Exception | None], object] | None = None
        self._wakes_thread: Bell | None = None
        self._wakes_loop: Bell | None = None
        self._warn_at_s = math.inf
        self.is_pooled = False
        """Whether a pooler was found on the way."""
        self.is_known_without_lock = False
        """Whether the row of the instance says that it can hold no lock."""
        self.lost_count = 0
        """How often the session was lost."""
        self.look_count = 0
        """How often it was looked at the others."""
        _watches.add(self)

    def __repr__(self) -> str:
        state = "holds its lock" if self._holds_lock else "is away" if self.is_detached else "has no lock"
        return f"<Watch {self._instance_id} {state}, {self._lives!r}>"

    # The proof of this instance. See `Presence`.

    async def take(self) -> None:
        """Take the lock. Where somebody holds its number already, the instance beats until the lock is free."""
        loop = asyncio.get_running_loop()
        first: asyncio.Future[Exception | None] = loop.create_future()
        self._tell_starter = partial(_tell, loop, first)
        self._stop.clear()
        try:
            self._wakes_thread, self._wakes_loop = Bell(), Bell()
            self._thread = threading.Thread(target=self._run, name="taskmanager-watch", daemon=True)
            self._thread.start()
        except (OSError, RuntimeError) as exc:
            raise StoreUnavailable(f"{_WHAT} cannot start ({exc}); {MORE_THREADS}") from exc
        try:
            fault = await LendingUntil().until(first)
        except BaseException:  # cancelled: whoever does not start needs no proof
            self.drop()
            raise
        if fault is not None:
            self.drop()
            raise StoreUnavailable(f"{_WHAT} failed, and can be tried again: {fault}") from fault

    def put_back(self) -> bool:
        """Return whether the others see the lock, or know that there can be none. The thread puts it back by itself."""
        return self._holds_lock or (self.is_pooled and self.is_known_without_lock)

    @property
    def is_detached(self) -> bool:
        """Whether the session is away, and the lock with it."""
        return self._session is None

    @property
    def unseen_after_s(self) -> float:
        """Behind a pooler only heartbeats are seen, which are seldom, and the others are as patient."""
        return self._lives.silence_s / 2 if self.is_pooled else UNSEEN_S

    @property
    def seen_s(self) -> tuple[float, float] | None:
        """From when until when one unbroken session held the lock: until it was heard of last."""
        return self._seen_s

    def show_life(self) -> None:
        """The lock does that."""

    def drop(self) -> None:
        """End the session, and with it the lock, when what waits was told. Nobody watches its descriptor any more."""
        self._stop.set()
        self._wake()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join(END_S)
            if thread.is_alive():
                self.begin_anew()  # it waits for a server that does not answer
                thread.join(END_S)

    let_go = drop

    def is_dead(self, instance_id: str) -> bool:
        """Return whether its lock was free and its heart silent for the whole grace, as this session has seen."""
        return self._lives.is_dead(instance_id, self._clock.elapsed_s())

    def is_missing(self, instance_id: str) -> bool:
        """The grace of `is_dead` takes care of that."""
        return False

    def sign_of_life(self, instance_id: str) -> int | None:
        """There is none but the heartbeats."""
        return None

    async def clear_away(self, is_registered: Callable[[str], Awaitable[bool]]) -> None:
        """A lock goes with its session, and leaves nothing."""

    def begin_anew(self) -> None:
        """Make the session anew, and observe the others from the beginning: the store has found another server."""
        session = self._session
        if session is not None:
            session.cut_off()

    def look_soon(self) -> None:
        """Look at the locks at once."""
        self._look_at_s = self._clock.elapsed_s()
        self._wake()

    # Notices

    def tell(self, task_ids: Collection[str], what: str) -> None:
        """Tell the others soon that these were committed. From any thread; nothing is waited for."""
        if self._notices.add(task_ids, what) and self._session is not None:
            self._wake()

    def changes(self) -> int:
        """Return a number that differs after others may have written.

        That is so after each notice, whenever no session listens, and when there was no notice for `DOUBT_S`.
        """
        if self._session is None or self.is_pooled or self._clock.elapsed_s() - self._heard_s >= DOUBT_S:
            self._count_change()
        return self._change_count

    def doubt(self) -> None:
        """Let the next `changes` differ: something was not looked for."""
        self._heard_s = -math.inf

    def news(self) -> int:
        """Return a number that differs with that of `changes`, unless nothing but tasks was written."""
        return self._news_count

    def mark(self) -> int:
        """Return a number that differs after each notice of others."""
        return self._change_count

    def watch(self) -> int | None:
        """Return a descriptor that can be read after the next notice; None while no session listens.

        It is the same one each time, and closes with `drop`.
        """
        bell = self._wakes_loop
        if bell is None or self._session is None or self.is_pooled:
            return None
        bell.hush()
        return bell.fileno()

    def _count_change(self, *, is_news: bool = True) -> None:
        number = next(self._change_numbers)  # two threads that add one may add it once
        if is_news:  # one that is lost is not made up for by all that tell of tasks
            self._news_count, self._heard_s = number, self._clock.elapsed_s()
        self._change_count = number

    def _rouse(self, *, is_news: bool = True) -> None:
        """Let the loop look at the store."""
        self._count_change(is_news=is_news)
        if self._wakes_loop is not None:
            self._wakes_loop.ring()

    def _wake(self) -> None:
        bell = self._wakes_thread
        if bell is not None:
            bell.ring()

    # All that follows runs in the thread.

    def _run(self) -> None:
        bells = self._wakes_thread, self._wakes_loop
        assert bells[0] is not None
        try:
            self._keep(bells[0])
        finally:
            self._wakes_thread = self._wakes_loop = None
            for bell in bells:
                if bell is not None:
                    bell.close()

    def _keep(self, bell: Bell) -> None:
        """Have a session, until the end."""
        pause_s = FIRST_PAUSE_S
        while not self._stop.is_set():
            began_s = self._clock.elapsed_s()
            try:
                with closing(WatchSession(self._conninfo, self._schema)) as session:
                    self._attach(session)
                    self._serve(session, bell)
            except Exception as exc:  # noqa: BLE001  # without this thread the instance has no proof that it lives
                self._was_lost(exc)
            finally:
                self._detach()
            if self._clock.elapsed_s() - began_s >= LAST_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            self._rest(bell, pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)

    def _attach(self, session: WatchSession) -> None:
        if session.is_pooled and not self.is_pooled:
            logger.warning(
                "a pooler in transaction mode stands before the server: this instance runs by heartbeats and polling, "
                "so that others find its crash late, and it their tasks. Add direct=host:port to the URL, the address "
                "of the server itself, for the one session that must be its own"
            )
        self.is_pooled = session.is_pooled
        self._take_lock(session)
        self._session = session
        self._look_at_s = self._clock.elapsed_s()
        self._told(None)
        if self.lost_count:
            logger.info("%s is there again", _WHAT)
            self._rouse()  # what was said meanwhile is lost

    def _detach(self) -> None:
        self._holds_lock = False
        self._session = None
        self._lives.begin()

    def _was_lost(self, exc: Exception) -> None:
        self._told(exc)
        is_odd = not isinstance(exc, psycopg.Error | OSError)
        if self._session is not None or is_odd:
            self.lost_count += 1
            self._warn_at_s = self._clock.elapsed_s() + LONG_S
            # That is mended in a moment; or the server is away, which the store says.
            logger.log(WARNING if is_odd else INFO, "%s was lost, and is made anew: %s", _WHAT, exc, exc_info=is_odd)
            self._rouse()
        elif self._clock.elapsed_s() >= self._warn_at_s:
            self._warn_at_s = math.inf
            logger.warning("%s could not be made anew so far, which is tried again and again: %s", _WHAT, exc)

    def _told(self, fault: Exception | None) -> None:
        """Tell the starter how the first attempt has gone. One that failed is the last one."""
        tell, self._tell_starter = self._tell_starter, None
        if tell is not None:
            if fault is not None:
                self._stop.set()
            tell(fault)

    def _rest(self, bell: Bell, pause_s: float) -> None:
        """Wait, unless it is to end."""
        with selectors.DefaultSelector() as selector:
            selector.register(bell, selectors.EVENT_READ)
            if not self._stop.is_set() and selector.select(pause_s):
                bell.hush()

    def _serve(self, session: WatchSession, bell: Bell) -> None:
        """Look, listen and tell, until the end; `psycopg.Error` where the session ends."""
        with selectors.DefaultSelector() as selector:
            selector.register(bell, selectors.EVENT_READ)
            selector.register(session, selectors.EVENT_READ)
            while not self._stop.is_set():
                now_s = self._clock.elapsed_s()
                if now_s >= self._look_at_s:
                    self._try(session, self._look)
                if self._notices and now_s >= self._tell_at_s:
                    self._try(session, self._say)
                heard_count, news_count = session.take_heard()
                if heard_count:
                    self._rouse(is_news=news_count > 0)
                due_s = min(self._look_at_s, self._tell_at_s) if self._notices else self._look_at_s
                for key, _ in selector.select(max(due_s - self._clock.elapsed_s(), 0.0)):
                    if key.fileobj is bell:
                        bell.hush()
                    else:
                        session.receive()
        if self._notices:
            self._say(session)

    def _try(self, session: WatchSession, work: Callable[[WatchSession], None]) -> None:
        """Do it. What the server refuses, because a table is locked or its queue is full, ends no session."""
        try:
            with at_work():
                work(session)
        except psycopg.Error as exc:
            if session.is_over:
                raise
            logger.debug("the other instances could not be looked at, or not be told something: %s", exc)
        if self._holds_lock and self._seen_s is not None:  # the server has answered to its session
            self._seen_s = self._seen_s[0], self._clock.elapsed_s()

    def _take_lock(self, session: WatchSession) -> None:
        if session.is_pooled or not session.take_lock(self._number):
            return
        now_s = self._clock.elapsed_s()
        self._holds_lock, self._seen_s = True, (now_s, now_s)

    def _look(self, session: WatchSession) -> None:
        self._look_at_s = self._clock.elapsed_s() + LOOK_S
        if not self._holds_lock:
            self._take_lock(session)
        seen = session.look(self._beats.newest_id)
        beating = self._beats.look(seen.latest, seen.newest_id)
        if self._lives.look(self._clock.elapsed_s(), seen.held, beating, seen.without_lock):
            self._rouse()
        self.look_count += 1

    def _say(self, session: WatchSession) -> None:
        self._tell_at_s = self._clock.elapsed_s() + TELL_S
        said = self._notices.take()
        try:
            session.say(said)
        except psycopg.Error:  # the lock of all who notify is held for long, say, by one that waits for a standby
            self._notices.put_back()
            self._tell_at_s = self._clock.elapsed_s() + LOOK_S
            raise

    def close_inherited(self) -> None:
        """Forget the session and the thread of the parent process."""
        session, self._session = self._session, None
        self._thread = self._wakes_thread = self._wakes_loop = None
        self._holds_lock = False
        if session is not None:
            session.close_inherited()


def _close_in_child() -> None:
    for each in list(_watches):
        each.close_inherited()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def _tell(loop: asyncio.AbstractEventLoop, first: "asyncio.Future[Exception | None]", fault: Exception | None) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_settle, first, fault)


def _settle(first: "asyncio.Future[Exception | None]", fault: Exception | None) -> None:
    if not first.done():
        first.set_result(fault)

"""How a task waits between its steps: for a time, for an event, or before another try.

Where the task's own coroutine waits, the task goes to sleep. The attempt ends by a `CancelledError`, and one commit
makes the row PENDING and free, with the record of the wait and the time at which it is due. Memory keeps nothing of it.
Waking is a claim like any other, and the code comes to the same wait again, which is over then.

In `gather`, or in another asyncio task, other code may be under way. There it waits in place: the task is RUNNING, and
its slot is lent. The task's own coroutine does the same while other calls are under way: to sleep would cancel them.

Whatever comes first counts: an event that is stored, or the record that the time was up. So that record yields to an
event in the transaction that would store it (`RECEIVE` in the statements), and its wait asks which one it was.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, NamedTuple, NoReturn

from taskmanager.codec.results import ResultCodec
from taskmanager.codec.safe import safe_text
from taskmanager.engine.steps.records import StepRecords, patiently
from taskmanager.engine.words.attempt import Attempt, StopReason
from taskmanager.engine.words.timers import RECHECK_S, Recheck
from taskmanager.engine.words.waiters import resolve
from taskmanager.model.clock import LAST_US, SECOND_US
from taskmanager.model.errors import ArgumentError
from taskmanager.model.states import BuiltInTaskCode
from taskmanager.model.steps import Identity, StepRow, StoredEvent
from taskmanager.rules.steps import meaning_of, mismatch

SLEEP: Final = "sleep"


class Wait(NamedTuple):
    """One call of `sleep` or `wait_for`. `timeout_s` None is for ever; a sleep waits for the event without a name."""

    identity: Identity
    name: str
    waits_for: str
    timeout_s: float | None
    results: ResultCodec


class StepWaits:
    """The waits of one attempt."""

    is_alone: Callable[[], bool]
    """Whether no other call of the attempt is under way."""

    def __init__(
        self,
        attempt: Attempt,
        records: StepRecords,
        fetch_event: Callable[[str, str, Identity, int], Awaitable[StoredEvent | None]],
    ) -> None:
        self._attempt, self._records, self._fetch_event = attempt, records, fetch_event
        self._listening: list[asyncio.Future[None]] = []
        self._in_place: dict[Identity, StepRow] = {}
        self._receiving = asyncio.Lock()
        self._asleep: StepRow | None = None
        """The record for which the task goes to sleep."""
        self._received: dict[str, int] = {}
        """The last event of each name that was received here. It may be on its way to the store."""
        self._taken_back: asyncio.Future[None] | None = None
        """Done when the last record that was taken back is so in the store."""

    def __repr__(self) -> str:
        return f"<StepWaits of {self._attempt!r}, {len(self._in_place)} in place>"

    @property
    def due_at(self) -> list[int]:
        """When each of the waits in place is due."""
        return [row.due_at for row in self._in_place.values() if row.due_at is not None]

    def hear(self) -> None:
        """An event may have come: look again."""
        listening, self._listening = self._listening, []
        resolve(listening, None)

    async def run(self, wait: Wait) -> Any:
        """Wait, or return or raise what this wait has come to before."""
        await self._records.load()
        row = self._records.rows.get(wait.identity)
        meaning = meaning_of(wait.name, None, row, wait.waits_for)
        if row is not None and meaning == "mismatch":
            self._records.fail(BuiltInTaskCode.STEP_MISMATCH, mismatch(row, wait.name))
        if row is not None and meaning != "run":
            if row.event_id is None or row.is_final:
                return self._end(wait, row)
            # It got its event from the store in place of a timeout, and the process died before anybody looked at that.
            async with self._receiving:
                with self._taken_back_if_cancelled(wait, row):
                    return await self._take(wait, row, StoredEvent(row.event_id, row.result or "", True))
        if row is None or row.waits_for is None:
            row = self._begun(wait)
        return await (self._receive(wait, row) if wait.waits_for else self._sleep(row))

    def _begun(self, wait: Wait) -> StepRow:
        self._records.check_room(wait.name)
        self._records.gets_on()
        now = self._attempt.now_us()
        due = None if wait.timeout_s is None else min(LAST_US, now + int(wait.timeout_s * SECOND_US))
        row = StepRow(self._attempt.task_id, *wait.identity, wait.name, None, now, None, 1, None, None, None, 0)
        return row._replace(waits_for=wait.waits_for, due_at=due)

    async def _sleep(self, row: StepRow) -> None:
        await self.pause(row)
        await self._records.add(row._replace(ended_at=self._attempt.now_us(), wakes_at=None))

    def end_asleep(self) -> None:
        """Let the end of the attempt carry the record, though it may be written: in that commit it looks for events."""
        if self._asleep is not None and not self._attempt.is_over:
            self._records.put(self._asleep._replace())  # another one than that which is on its way

    # Events.

    async def _receive(self, wait: Wait, row: StepRow) -> Any:
        """Return the next event of this name, or raise `TimeoutError`. Events come first, and in their order."""
        while True:
            news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._listening.append(news)
            async with self._receiving:  # one at a time: two waits must not find the same event
                event = await self._next_event(wait)
                with self._taken_back_if_cancelled(wait, row):
                    if event is None and self._left_s(row) == 0:
                        return await self._time_out(wait, row)
                    if event is not None:
                        return await self._take(wait, row, event)
            await self.pause(row, news)

    async def _next_event(self, wait: Wait) -> StoredEvent | None:
        if self._taken_back is not None:  # until then the store may take its event for received
            await asyncio.wait([self._taken_back])
        after = self._received.get(wait.waits_for, 0)
        return await patiently(self._fetch_event, self._attempt.task_id, wait.waits_for, wait.identity, after)

    @contextlib.contextmanager
    def _taken_back_if_cancelled(self, wait: Wait, row: StepRow) -> Iterator[None]:
        """Take the record of an outcome back if the code cancels its wait meanwhile, and goes on: nobody has seen it.

        The record may be in the store already, so the wait is written anew, without an outcome. Its event is for the
        next wait of that name. Where the attempt is stopped the record stays, and the next run returns what it says.
        """
        before = self._received.get(wait.waits_for, 0)
        try:
            yield
        except asyncio.CancelledError:
            if self._attempt.stop_reason is None and not self._attempt.is_over:
                begun = row._replace(wakes_at=None, event_id=None, result=None, error_code=None, error_message=None)
                self._received[wait.waits_for] = before
                self._taken_back = self._records.add(begun._replace(ended_at=None, is_final=0))
                self.hear()
            raise

    async def _take(self, wait: Wait, row: StepRow, event: StoredEvent) -> Any:
        """Record that this event is received, and return its value. One that does not fit is received, too."""
        text, value = self._readable(wait, event.value), None
        self._records.count_chars(text)
        row = row._replace(
            ended_at=self._attempt.now_us(), wakes_at=None, result=event.value, event_id=event.event_id,
            error_code=None, error_message=None, is_final=1,
        )  # fmt: skip
        try:
            value = wait.results.decode(text).unwrap()
        except Exception as exc:  # noqa: BLE001  # the application's
            words = f"{wait.name}: the event does not fit its type: {exc.__cause__ or exc}"
            code = BuiltInTaskCode.UNHANDLED_EXCEPTION.value
            row = row._replace(error_code=code, error_message=safe_text(words))
        self._received[wait.waits_for] = event.event_id
        await self._records.add(row)
        return value if row.error_code is None else self._end(wait, row)

    def _readable(self, wait: Wait, text: str) -> str:
        """Return the JSON behind a stored value. If only a codec keeps it from being read, the task fails."""
        try:
            return wait.results.opened(text)
        except Exception as exc:  # noqa: BLE001  # the application's
            self._records.fail(BuiltInTaskCode.RESULT_NOT_AVAILABLE, f"{wait.name}: the event cannot be read: {exc}")

    async def _time_out(self, wait: Wait, row: StepRow) -> Any:
        """Record that the time is up, unless an event was stored before that."""
        code, words = BuiltInTaskCode.TASK_TIMEOUT.value, f"{wait.name}: no such event has come in time"
        row = row._replace(
            ended_at=self._attempt.now_us(), wakes_at=None, error_code=code, error_message=words, is_final=1
        )
        await self._records.add(row)
        event = await self._next_event(wait)
        if event is not None and event.is_received:
            return await self._take(wait, row, event)
        return self._end(wait, row)

    def _end(self, wait: Wait, row: StepRow) -> Any:
        """Return what is recorded of a wait that is over, or raise it."""
        self._records.rows[row.identity] = row._replace(result=None)
        if row.error_code == BuiltInTaskCode.TASK_TIMEOUT:
            raise TimeoutError(row.error_message)
        if row.error_code is not None:
            raise ArgumentError(row.error_message)
        if row.result is None:
            return None
        try:
            return wait.results.decode(row.result).unwrap()
        except Exception as exc:  # noqa: BLE001  # the application's
            words = f"what is recorded of {wait.name} cannot be read: {exc}"
            self._records.fail(BuiltInTaskCode.RESULT_NOT_AVAILABLE, words)

    # Time.

    async def pause(self, row: StepRow, news: "asyncio.Future[None] | None" = None) -> None:
        """Wait until the record is due, or for news: asleep, if the coroutine of the task itself waits here."""
        attempt, news = self._attempt, news or asyncio.get_running_loop().create_future()
        may_sleep = asyncio.current_task() is attempt.task and attempt.live.definition.requeue_on_interrupt
        while self._left_s(row) != 0 and not news.done():
            if may_sleep and self.is_alone():
                self._fall_asleep(row)
            if self._records.rows.get(row.identity) != row:
                self._records.rows[row.identity] = row
                self._records.note(row)
            attempt.begin_wait()
            try:
                await self._wait_in_place(row, news, may_sleep=may_sleep)
            finally:
                await attempt.end_wait()

    async def _wait_in_place(self, row: StepRow, news: "asyncio.Future[None]", *, may_sleep: bool) -> None:
        self._in_place[row.identity] = row
        try:
            while (left_s := self._left_s(row)) != 0 and not (news.done() or (may_sleep and self.is_alone())):
                if may_sleep or left_s is not None:
                    await Recheck(min(left_s or RECHECK_S, RECHECK_S)).wait(news)
                else:
                    await asyncio.wait([news])
        finally:
            del self._in_place[row.identity]

    def _left_s(self, row: StepRow) -> float | None:
        """Return the seconds until the record is due, which may be none. None: it never is."""
        return None if row.due_at is None else max(0, row.due_at - self._attempt.now_us()) / SECOND_US

    def _fall_asleep(self, row: StepRow) -> NoReturn:
        """End the attempt here. The record goes with the end of it, or ahead of that if its clean-up takes long."""
        attempt = self._attempt
        if attempt.stop_reason is None:
            attempt.wakes_at = LAST_US if row.due_at is None else row.due_at
            self._asleep = row._replace(wakes_at=attempt.wakes_at)
            self._records.note(self._asleep)
            attempt.stop_reason = StopReason.SLEEP
        raise asyncio.CancelledError

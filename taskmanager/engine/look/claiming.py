"""Takes free rows from the store.

Functions are looked up before the claim, so a row of an unknown function is never touched. Memory takes only as many
rows as it has room for; the rest stays free, and costs nothing until there is room again.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import Context
from itertools import groupby, islice
from typing import Final, NamedTuple

from taskmanager.engine.choose.queue_state import QueueState, SharedLimit
from taskmanager.engine.engine import Engine
from taskmanager.engine.look.sharing import Fairness
from taskmanager.engine.words.definition import timeout_of
from taskmanager.engine.words.live_task import LiveTask
from taskmanager.engine.words.outcome import log_failed
from taskmanager.engine.words.phases import ACCEPTED, LEFT
from taskmanager.model.clock import SECOND_US
from taskmanager.model.logger import logger
from taskmanager.model.record import TaskRow, UnreadableRow, expected_of
from taskmanager.model.states import BuiltInTaskCode, Lane, TaskStatus
from taskmanager.model.wording import counted
from taskmanager.rules.claims import Room, Starting
from taskmanager.store.protocol import ClaimRequest, FreeQueue

CLAIM_PAGE: Final = 1_000
"""Rows per claim: bounds how long one claim holds the store, and the loop that takes its rows in."""
FIRST_PAGE: Final = 200
"""Rows per queue that are claimed before the start returns: the best of all, more than start at once by default."""
BEST_PRIORITY: Final = 1
WAKE_LATER_S: Final = 0.001
"""A look that is a little too early finds nothing due, and is made again."""
NO_COUNT: Final = 1
"""The free rows of each function are counted up to here. To count 10,000 for each of 20 functions takes 16 ms."""


class Turn(NamedTuple):
    """A queue with due rows, their functions, and whether its claim may start what it takes."""

    queue: QueueState
    names: list[str]
    may_start: bool


class Claimer:
    """Keeps the memory of one engine filled from the store."""

    def __init__(self, engine: Engine, give_up: Callable[[LiveTask], None]) -> None:
        self._store, self._clock, self._identity = engine.store, engine.clock, engine.identity
        self._intake, self._live, self._dispatcher = engine.intake, engine.live, engine.dispatcher
        self._window, self._settlement, self._runner = engine.window, engine.settlement, engine.runner
        self._writer, self._follower, self._row_codec = engine.writer, engine.follower, engine.row_codec
        self._definitions, self._life, self._claiming = engine.definitions, engine.life, engine.claiming
        self._keys, self._neighbours, self._settings = engine.keys, engine.neighbours, engine.settings
        self._free_rows, self._give_up = engine.free_rows, give_up
        self._fairness = Fairness(engine)
        self._reported_unknown: set[str] = set()
        self._next_due_at: int | None = None
        self._last_claim_at = 0
        self._may_start = False
        """Whether the claim of this turn may start rows: no better ones can wait in another queue."""

    def __repr__(self) -> str:
        work = "at work" if self._claiming.locked() else "idle"
        return f"<Claimer {work}, next row due at {self._next_due_at}>"

    def is_due(self, now_us: int) -> bool:
        """Whether a free row that was not due at the last claim is so now."""
        return self._next_due_at is not None and self._next_due_at <= now_us

    def due_in_s(self) -> float:
        """Return the seconds until the next free row is due. Infinite if none is to come, or all that come are due."""
        due_us = 0 if self._next_due_at is None else self._next_due_at - self._clock.now_us()
        return due_us / SECOND_US + WAKE_LATER_S if due_us > 0 else float("inf")

    def share(self) -> None:
        """Free what was claimed for later, because another instance works on the file now and may start it first."""
        for live in self._window.surplus():
            live.status, live.claimed_at = TaskStatus.PENDING, None
            self._life.free_row(live)

    async def claim(self) -> bool:
        """Fill memory from the store, as far as there is room now: during a start with the best tasks only. Return
        whether anything was claimed.

        What starts meanwhile makes room for the next look: a backlog must not keep that from hearing of pauses, cancels
        and deaths.
        """
        if self._settings.only_enqueues or self._dispatcher.is_unseen:
            return False
        async with self._claiming:
            has_claimed = await self._claim_due()
            if has_claimed and self._life.is_up:
                self._expect(await self._store.free_queues(NO_COUNT))  # behind the rows that were due may be others
            return has_claimed

    def _expect(self, free: list[FreeQueue]) -> None:
        """Note when the next of these rows is due. What was left for want of room is asked for when there is some."""
        now = self._clock.now_us()
        coming = [
            each.next_due_at
            for each in free
            if each.is_readable
            and each.task_name in self._definitions
            and self._settings.runs(each.queue_name)
            and (each.next_due_at > now or not self._dispatcher.queue(each.queue_name).has_backlog)
        ]
        self._next_due_at = min(coming, default=None)

    async def _claim_due(self) -> bool:
        """Do one round over the queues. Return whether anything was claimed."""
        for queue in list(self._dispatcher.backlogs):
            queue.leave_nothing()  # set again below, or by what is freed from here on
        free = await self._store.free_queues(NO_COUNT)
        if odd := [each for each in free if not each.is_readable]:
            await self._end_unreadable(odd)
            free = [each for each in free if each.is_readable]
        free = [each for each in free if self._settings.runs(each.queue_name)]
        known = [each for each in free if each.task_name in self._definitions]
        unknown = [each for each in free if each.task_name not in self._definitions]
        await self._report_unknown({each.task_name for each in unknown} - self._reported_unknown)
        now = self._clock.now_us()
        self._next_due_at = min((each.next_due_at for each in known if each.next_due_at > now), default=None)
        self._fairness.unknown_here = [each for each in unknown if each.next_due_at <= now]
        claimed = 0
        in_turn = self._in_turn(each for each in known if each.next_due_at <= now)
        for is_shared, turns in groupby(in_turn, lambda turn: turn.queue.shared_limit is not None):
            while part := list(islice(turns, self._store.most_claimed_together if is_shared else 1)):
                self._may_start = len(part) == 1 and part[0].may_start
                claimed += await (self._fill_shared(part) if is_shared else self._fill(part[0].queue, part[0].names))
        return claimed > 0

    def _in_turn(self, due: Iterable[FreeQueue]) -> Iterator[Turn]:
        """Yield the queues with their functions, the best first; of those that are equal, the one that waits longest.

        Where another queue of the same priority is still to come, its rows may be better. Both are claimed then, and
        the dispatcher compares them.
        """
        names_by_queue: dict[str, list[str]] = {}
        for each in sorted(due, key=lambda each: each.next_due_at):
            names_by_queue.setdefault(each.queue_name, []).append(each.task_name)
        queues = [self._dispatcher.queue(name) for name in names_by_queue]
        queues.sort(key=lambda queue: queue.config.priority)
        for number, queue in enumerate(queues, 1):
            is_alone = number == len(queues) or queues[number].config.priority > queue.config.priority
            yield Turn(queue, names_by_queue[queue.config.name], is_alone)

    async def _fill(self, queue: QueueState, names: list[str]) -> int:
        """Claim for one queue, and note if rows are left because there is no room. Return how many were claimed."""
        name, room = queue.config.name, self._window.room_in(queue)
        if not self._life.is_up:
            room = min(room, FIRST_PAGE)
        claimed, best_left = await self._claim_up_to(room, name, names, None)
        if claimed < room:
            return claimed
        if self._life.is_up:
            better_than = queue.worst_priority()
            room = self._window.room_in(queue, for_better=True)
            better, last = await self._claim_up_to(room, name, names, better_than)
            claimed += better
            if better_than is None and better < room:
                return claimed
            best_left = max(best_left, last if better >= room or better_than is None else better_than)
            claimed += await self._claim_woken(queue, names)
        queue.leave(best_left)
        if self._window.is_low(queue, self._live):  # what filled memory has ended, and nobody else would ask again
            self._life.wants_claim.set()
        return claimed

    async def _claim_woken(self, queue: QueueState, names: list[str]) -> int:
        """Claim what was woken, and waits in front of what memory is full of. Return how many."""
        room = min(self._window.room_in(queue, for_better=True), CLAIM_PAGE)
        if room <= 0 or self._life.is_stopping:
            return 0
        return len(await self._claim(self._request(names, queue.config.name, room)._replace(has_slept=True)))

    async def _claim_up_to(
        self, room: int, queue_name: str, names: list[str], better_than: int | None
    ) -> tuple[int, int]:
        """Claim page by page. Return how many were claimed, and the priority of the last one.

        Fewer than `room` means that no more are left. No row that is left is better than the last one.
        """
        claimed, last = 0, BEST_PRIORITY
        while claimed < room and not self._life.is_stopping:
            limit = min(room - claimed, CLAIM_PAGE)
            rows = await self._claim(self._request(names, queue_name, limit)._replace(better_than=better_than))
            claimed += len(rows)
            last = rows[-1].priority if rows else last
            if len(rows) < limit:
                break
        return claimed, last

    async def _fill_shared(self, turns: Iterable[Turn]) -> int:
        """Claim for queues whose limits hold for all instances: no more than can start here at once.

        The answer does not tell whether rows are left. So some are assumed, until a look finds none.
        """
        shared: list[tuple[SharedLimit, QueueState, list[str]]] = []
        for queue, names, _ in turns:
            limit = queue.shared_limit
            assert limit is not None
            queue.leave_some()
            is_left = self._is_closed(queue) or limit.is_left_to_others
            limit.is_owed = is_left or await self._fairness.yields(queue, names, self._neighbours.living)
            if not limit.is_owed:
                limit.short_lanes.clear()
                shared.append((limit, queue, names))
        return sum([await self._claim_shared(lane, shared) for lane in self._dispatcher.lanes])

    async def _claim_shared(self, lane: Lane, queues: Sequence[tuple[SharedLimit, QueueState, list[str]]]) -> int:
        """Claim for the functions of one lane: for all these queues no more than it has slots, the best queue first."""
        asked: list[tuple[ClaimRequest, SharedLimit, int]] = []
        free = self._dispatcher.lanes[lane].free
        most = min(free, CLAIM_PAGE)
        for shared, queue, names in queues:
            if self._is_closed(queue):  # since its turn began
                shared.is_owed = True
                continue
            known = [name for name in names if self._definitions[name].lane == lane]
            room = free - shared.waiting_in(lane, self._live)
            if known and room <= 0:
                shared.short_lanes.add(lane)
            elif known:
                stuck = shared.count(self._live, self._runner.attempts_in(queue.config.name))
                request = self._request(known, queue.config.name, min(room, CLAIM_PAGE))._replace(
                    file_limit=max(0, shared.limit - stuck),
                    lenders=shared.lenders(self._live),
                    borrowed=shared.borrowed,
                    most=most,
                )
                asked.append((request, shared, room))
        rows = await self._claim(*(request._replace(now=asked[-1][0].now) for request, *_ in asked)) if asked else []
        got = Counter(row.queue_name for row in rows)
        for request, shared, room in asked:
            most -= got[request.queue_name]
            if got[request.queue_name] >= room or (most <= 0 and len(rows) >= free):
                shared.short_lanes.add(lane)
            elif most <= 0:
                self._life.wants_claim.set()
        return len(rows)

    def _is_closed(self, queue: QueueState) -> bool:
        return queue.is_paused or self._life.is_stopping

    async def take_over(self, queue_name: str, due_at: int) -> list[TaskRow]:
        """Start tasks that wait at other instances and were due at that instant, as many as there are slots for."""
        async with self._claiming:
            if self._dispatcher.suspect is not None:  # it may have started since its caller looked
                return []
            self._may_start = True
            request = self._request(list(self._definitions), queue_name, CLAIM_PAGE)
            if request.starting is None:
                return []
            limit = min(request.starting.limit, sum(room.slot_count for room in request.starting.rooms))
            # The clock may have been set back since its caller looked.
            due_at = min(due_at, request.now - round(self._settings.store_poll_s * SECOND_US))
            return await self._claim(request._replace(limit=limit, others_due_at=due_at))

    # One claim.

    def _request(self, names: list[str], queue_name: str, limit: int) -> ClaimRequest:
        """A claim with a token of its own, which starts what it takes as far as there are slots."""
        now = self._clock.now_us()
        if self._last_claim_at - SECOND_US < now <= self._last_claim_at:  # by a clock that was set back, another second
            now = self._last_claim_at + 1
        self._last_claim_at = now
        starting = self._starting(names, queue_name, limit) if self._may_start else None
        return ClaimRequest(self._identity.instance_id, names, queue_name, limit, now, starting=starting)

    def _starting(self, names: list[str], queue_name: str, limit: int) -> Starting | None:
        """The slots in which a claim may start rows: those that no task here waits for. None where there are none.

        A claim that starts nothing need not wait for the disk.
        """
        dispatcher, queue = self._dispatcher, self._dispatcher.queue(queue_name)
        if not self._life.is_up or self._life.is_stopping or queue.is_paused:
            return None
        if dispatcher.is_unseen or self._writer.degraded_since is not None:
            return None
        by_lane: dict[Lane, set[str]] = {}
        for each in map(self._definitions.__getitem__, names):
            if each.requeue_on_interrupt or not dispatcher.holds_unsafe:
                by_lane.setdefault(each.lane, set()).add(each.name)
        found = ((names_of, dispatcher.spare_slots(lane)) for lane, names_of in by_lane.items())
        rooms = tuple(Room(frozenset(names_of), slot_count) for names_of, slot_count in found if slot_count > 0)
        # The file grants the places of a shared limit: what is claimed there has one.
        most = limit if queue.shared_limit is not None else min(limit, queue.slots.free)
        who = self._identity
        return Starting(most, rooms, who.pid, who.hostname, who.process_name) if rooms and most > 0 else None

    def _run(self, live: LiveTask) -> None:
        """Run a task that its claim has started. If it cannot run now, it waits like any other: that start counts."""
        may_run = self._life.is_up and not self._life.is_stopping and not self._intake.is_forked
        if may_run and not self._runner.is_executing(live.task_id) and self._dispatcher.start_claimed(live):
            self._settlement.begin_claimed(live)
            self._life.run(live)
            return
        self._settlement.wait_unstarted(live)
        self._writer.mark(live)
        self._life.enter(live)

    async def _claim(self, *requests: ClaimRequest) -> list[TaskRow]:
        """Claim with one token, and take in the rows. If the answer is lost, the claim is remembered."""
        self._life.unanswered_claim = requests
        rows = await self._store.claim(*requests)
        self._life.unanswered_claim = ()
        self._take_in(requests, rows)
        return rows

    async def ask_again(self) -> None:
        """Take in what a claim has taken whose answer was lost. What it has started runs under its count."""
        if not self._life.unanswered_claim:
            return
        async with self._claiming:
            if not (requests := self._life.unanswered_claim):
                return
            rows = await self._store.fetch_claim(requests[0].owner, requests[0].now)
            self._life.unanswered_claim = ()
            self._take_in(requests, [row for row in rows if not self._is_taken_in(row)])

    def _is_taken_in(self, row: TaskRow) -> bool:
        here = self._live.get(row.task_id) or self._writer.unsaved_ended.get(row.task_id)
        return here is not None and (here.owner, here.claimed_at) == (row.claimed_by_worker_id, row.claimed_at)

    def _take_in(self, requests: Sequence[ClaimRequest], rows: Sequence[TaskRow]) -> None:
        by_queue: defaultdict[str, list[TaskRow]] = defaultdict(list)
        for row in self._readable(rows):
            by_queue[row.queue_name].append(row)
        for request in requests:
            lent = 0
            shared = self._dispatcher.queue(request.queue_name).shared_limit
            if shared is not None:
                # What was committed before the claim is known here by now: memory says what the claim has seen.
                shared.count(self._live, self._runner.attempts_in(request.queue_name))
                lent = max(0, shared.held_of(request.lenders) - shared.borrowed)
            for number, row in enumerate(by_queue[request.queue_name]):
                self._take(row, is_granted=number >= lent)

    async def _end_unreadable(self, odd: list[FreeQueue]) -> None:
        """End the rows of which not even the function or the queue can be read. No instance could ever run them."""
        for each in odd:
            me, now_us = self._identity.instance_id, self._clock.now_us()
            request = ClaimRequest(me, [each.task_name], each.queue_name, CLAIM_PAGE, now_us)
            self._readable(await self._store.claim(request))

    def _readable(self, rows: Sequence[TaskRow]) -> Sequence[TaskRow]:
        """Return the claimed rows that can run. The others have ended: log that, and tell their waiters."""
        ended = [row for row in rows if isinstance(row, UnreadableRow)]
        for row in ended:
            log_failed(row)
            self._free_rows.note_failure(row)
            self._life.freed.pop(row.task_id, None)
            self._free_rows.note_end(row, self._row_codec.decode_result(row))
            if row.is_workflow_task:
                self._free_rows.look()
        return [row for row in rows if not isinstance(row, UnreadableRow)] if ended else rows

    def _take(self, row: TaskRow, *, is_granted: bool = True) -> None:
        if self._is_overtaken(row):
            return
        shared = self._dispatcher.queue(row.queue_name).shared_limit
        if shared is not None:
            shared.hold(row.task_id, is_granted=is_granted)
        here = self._live.get(row.task_id)
        if here is not None and not here.is_awaiting_store:
            # It was taken from us as if we were dead, and is free again.
            self._give_up(here)
            here = None
        freed = self._life.freed.pop(row.task_id, None)
        live = freed if here is None else here
        known = expected_of(row) if live is None else live.saving.committed
        if live is None:
            definition = self._definitions[row.task_name].as_persisted()
            live = LiveTask.from_row(row, definition, timeout_of(row.task_options))
            live.context = Context()
        else:
            asked_at = None if live.is_unconfirmed and live.is_cancel_of_call else live.cancel_requested_at
            if live.is_unconfirmed:  # the key was enqueued again here a moment before its row was claimed
                live.is_duplicate, live.is_unconfirmed = True, False
            if here is not None:  # it is counted in its queue, and its row may be in another one
                self._dispatcher.move(live, LEFT)
            live.adopt(row)
            # Its row may have been claimed before the request came to it.
            live.cancel_requested_at = live.cancel_requested_at or asked_at
        self._live[live.task_id] = live
        self._dispatcher.move(live, ACCEPTED)
        live.due = 0.0
        self._keys.claimed(live)
        self._follower.came_here(live)
        if (listeners := self._life.listeners) is not None:
            listeners.claimed(live, known)
        if live.cancel_requested_at is not None and not self._life.is_stopping:
            self._life.cancel_waiting(live, BuiltInTaskCode.TASK_CANCELLED, "cancelled before it started")
        elif live.status is TaskStatus.RUNNING:
            self._run(live)
        else:
            self._life.enter(live)

    def _is_overtaken(self, row: TaskRow) -> bool:
        """Whether the row comes from an older copy of the file while its task is here.

        Then the task here goes on, and is written over the row. Else it would be started a second time.
        """
        live = self._live.get(row.task_id) or self._writer.unsaved_ended.get(row.task_id)
        if live is None or live.is_awaiting_store or not live.has_overtaken(row):
            return False
        live.saving.committed = expected_of(row)
        live.start_count = max(live.start_count, row.start_count)  # the count of a row never goes back
        self._writer.mark(live)
        return True

    async def _report_unknown(self, names: set[str]) -> None:
        """Log how many tasks wait of these functions, which nobody has registered here: once for each function."""
        for each in await self._store.free_queues() if names else ():
            if each.task_name in names - self._reported_unknown - self._definitions.keys():
                self._reported_unknown.add(each.task_name)
                logger.warning(
                    "%s of the unknown function %r in the store, where that stays until the function is registered",
                    counted(each.count, "task"),
                    each.task_name,
                    extra={"task_name": each.task_name},
                )

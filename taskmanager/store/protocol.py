"""What the engine asks of a store. Every write repeats its precondition; losing is a normal answer, not an error.

Reading and deciding happen above: cancel, retry, recovery and release are `commit` with the precondition of the row
that was read. Only `claim` is a verb of its own, because many instances do it at once and it must be one statement.

Errors: `StoreUnavailable` when the store cannot be reached or written now (locked, full, read-only, gone) and the same
call may succeed later; `StoreError` when it never will.
"""

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from taskmanager.model.clock import LAST_US
from taskmanager.model.record import AttemptRow, TaskRow, Write
from taskmanager.model.schedule import ScheduleDeclaration, ScheduleFire, ScheduleRow
from taskmanager.model.states import TaskStatus
from taskmanager.model.steps import EventRow, Identity, SendReport, StepRow, StoredEvent
from taskmanager.rules.claims import Starting
from taskmanager.store.upkeep_protocol import UpkeepStore
from taskmanager.store.watch_protocol import WatchedStore
from taskmanager.store.workflow_protocol import Advance, WorkflowStore

if TYPE_CHECKING:
    from taskmanager.model.report import WorkerState
    from taskmanager.store.statistics import StoreOverview

FREE_COUNT_CAP: Final = 10_000
"""Free rows of one function in one queue are counted up to here."""
MAX_FREE: Final = 1_000
"""So many functions in queues are told apart where people look; a hundred thousand of them take two seconds."""
DELETE_PAUSE_S: Final = 0.02
"""The pause between two calls that delete. Whoever waits for SQLite's lock looks every 10 ms, so it is free once."""


class InstanceRow(NamedTuple):
    """One start of one manager, as other instances and people see it. `stopped_at` is None while it lives, or died."""

    instance_id: str
    instance_name: str | None
    hostname: str
    pid: int
    process_name: str
    boot_id: str | None
    started_at: int
    stopped_at: int | None
    live_tasks: str | None
    updated_at: int


class News(NamedTuple):
    """What others have written that one instance must hear of: who there is, which queues are paused, and which of its
    live rows have a cancel request.
    """

    instances: list[InstanceRow]
    paused: frozenset[str]
    cancel_requests: list[str]


class CommitReport(NamedTuple):
    """What became of one batch. Whatever is in neither field won.

    `lost`: ids whose precondition did not hold, with the row as it stands now (None: there is no row).
    `rejected`: ids of rows that no retry will make storable, with the reason; the rest of the batch was stored.
    `advance`: what has followed in workflows, because tasks of theirs have ended.
    """

    lost: Mapping[str, TaskRow | None]
    rejected: Mapping[str, str]
    advance: Advance = Advance()


class ClaimRequest(NamedTuple):
    """Which free rows to take: of these functions, in one queue, due at `now`, at most `limit`, best first.

    Best is (priority, enqueued_at, id). `better_than`: only of a smaller number; `has_slept`: only what was snoozed.
    With `file_limit`, a claim takes a place: the CLAIMED and RUNNING rows of the queue, whoever owns them, are counted
    in the same transaction, and only so many are taken that they come to no more than that. Beside it, the places of
    `lenders` may be used, RUNNING tasks of the owner that wait for others, except for `borrowed` that are in use.

    With `most`, it and the requests before it in the same claim take no more than so many together.

    With `starting`, the claim starts rows that are plain: without a crash, a `good_until` and a cancel request. `now`
    is its token, which stands in `claimed_at` of all that it takes, and in `started_at` of what it starts.

    With `others_due_at`, rows are taken that wait in the memory of other instances and were due at that instant: every
    second plain one of the best, and only those that are started.
    """

    owner: str
    task_names: Collection[str]
    queue_name: str
    limit: int
    now: int
    better_than: int | None = None
    has_slept: bool = False
    file_limit: int | None = None
    lenders: Collection[str] = ()
    borrowed: int = 0
    most: int | None = None
    starting: Starting | None = None
    others_due_at: int | None = None

    def after(self, count: int) -> "ClaimRequest":
        """What is asked for when the requests before it have taken so many."""
        return self if self.most is None else self._replace(limit=min(self.limit, self.most - count))


class FreeQueue(NamedTuple):
    """Free rows of one function in one queue: how many up to the cap, and when the earliest is due.

    Not `is_readable`: one of the two names cannot be read, so that whoever claims them ends them.
    """

    task_name: str
    queue_name: str
    count: int  # type: ignore[assignment]  # the method of tuple is not missed
    next_due_at: int
    is_readable: bool = True


class WaitingLevel(NamedTuple):
    """What waits in the memory of instances, in one queue, with one priority: when the earliest is due."""

    queue_name: str
    priority: int
    next_due_at: int


class TaskFilter(NamedTuple):
    """What `fetch_many` looks for; None is any. `before`: only older records than one of that `sent_at` and id.

    `tags` are names with their values, all of which a task must carry. `since`, in microseconds UTC, is compared with
    the last change of a task, which is its end if it has ended.
    """

    status: TaskStatus | None = None
    task_name: str | None = None
    queue_name: str | None = None
    limit: int = 100
    before: tuple[int, str] | None = None
    task_id: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    error_code: str | None = None
    since: int | None = None


class Beat(NamedTuple):
    """One sign of life: `role` is "claimer" (covers what waits) or "runner" (covers what runs)."""

    sender_id: str
    role: str
    sent_at: int
    hostname: str
    pid: int


class Beater(Protocol):
    """A connection of its own for the heartbeat's thread; synchronous, used by that thread only."""

    def beat(self, beats: Sequence[Beat]) -> None:
        """Write these in one transaction. Raises `StoreUnavailable`."""
        ...

    def let_go(self) -> None:
        """Release the connection where it leads to a file that nobody else can find any more."""
        ...

    def close(self) -> None:
        """Release the connection."""
        ...


class Store(WorkflowStore, UpkeepStore, WatchedStore, Protocol):
    """One place where the promise lives. All methods are called from one event loop, `commit` by one coroutine."""

    async def open(self) -> None:
        """Create or migrate the schema. Raises `StoreError` (corrupt, newer schema) or `StoreUnavailable`."""
        ...

    async def close(self) -> None:
        """Release everything; calling it twice is fine."""
        ...

    def work_inline(self) -> None:
        """Work in the calling thread from here on, because the loop that awaited this store is gone.

        Only the calls of a stop work then: `commit`, `release`, `forget_instances` and `close`. Raises
        `StoreUnavailable` if the file that was opened is not there any more.
        """
        ...

    def end(self) -> None:
        """Close what is open, because the loop that used this store is gone. Rows stay as they are."""
        ...

    async def commit(self, writes: Sequence[Write]) -> CommitReport:
        """All `writes` in one transaction, each with its precondition; a row that cannot be stored spoils no other.

        An insert (`expected` None) whose id exists is lost, except that the terminal row of a memory-only task
        (no `persist` in its options) replaces an earlier terminal memory-only row of the same id.
        """
        ...

    @property
    def works_in_thread(self) -> bool:
        """Whether commits are made in a thread, so that one can be begun while the loop is blocked."""
        ...

    def begin_commit(
        self, writes: Sequence[Write], loop: asyncio.AbstractEventLoop
    ) -> Coroutine[Any, Any, CommitReport]:
        """Begin a commit, from any thread. What is returned is awaited in `loop`, and gives what `commit` gives.

        Raises `StoreUnavailable` if it cannot be begun now. Only where `works_in_thread`.
        """
        ...

    async def claim(self, *requests: ClaimRequest) -> list[TaskRow]:
        """PENDING and free → CLAIMED by `owner`, or RUNNING, in one transaction; the rows as they are now, best first.

        A row that cannot be read never runs, so it is FAILED here: an `UnreadableRow` among the others. Requests
        that come together have the same token and different queues.
        """
        ...

    @property
    def most_claimed_together(self) -> int:
        """For how many queues with a limit one claim asks at most. On a server the places of each are locks."""
        ...

    async def fetch_claim(self, owner: str, claimed_at: int) -> list[TaskRow]:
        """Return the live rows that `owner` has claimed at that instant, best first: what a lost answer has said.

        It runs behind every `claim` that this store was asked for before.
        """
        ...

    async def release(self, owner: str, now: int, unanswered: int | None = None) -> int:
        """Every waiting row of `owner` (PENDING, CLAIMED) becomes free; how many.

        So do the rows that a claim at the instant `unanswered` has started, with their start count: none of them runs.
        """
        ...

    async def free_waiting(self, owner: str, now: int, limit: int, per_queue: int | None = None) -> int:
        """Free at most `limit` waiting rows of a dead `owner`, and return how many.

        All but those that do not run any more: somebody asked to cancel them, or their `good_until` has passed. With
        `per_queue`, only the first ones of each queue are freed, in the order of a claim.
        """
        ...

    async def latest_stamp(self, until: int = LAST_US) -> int:
        """Return the last instant up to `until` of a heartbeat, an instance or a sent task, or 0 if there is none."""
        ...

    async def make_due(self, now: int) -> int:
        """Free rows that were due when they were last written, and are not at `now`, are due then; those that pause
        before another attempt have as long to wait as they had. How many.

        Only a wall clock that was stepped back makes such rows. What waits for its own moment waits on.
        """
        ...

    async def free_queues(self, count_cap: int = FREE_COUNT_CAP) -> list[FreeQueue]:
        """What waits in the store unowned, per function and queue; costs by the number of those pairs, not of rows."""
        ...

    async def waiting_levels(self, limit: int) -> list[WaitingLevel]:
        """What waits at instances, by queue and priority, at most so many levels; costs by the number of those."""
        ...

    async def fetch_taken(self, task_ids: Sequence[str], owner: str) -> dict[str, TaskRow]:
        """Those of these rows that another instance than `owner` has had last."""
        ...

    async def best_waiting(self, task_names: Collection[str], queue_name: str, now: int) -> str | None:
        """The function of the row that a claim for all of these functions would take first; None when there is none."""
        ...

    async def fetch(self, task_id: str) -> TaskRow | None:
        """One row."""
        ...

    async def fetch_attempts(self, task_id: str) -> list[AttemptRow]:
        """Its attempts, oldest first."""
        ...

    async def fetch_steps(self, task_id: str) -> list[StepRow]:
        """The records of its steps, in the order in which they were first written."""
        ...

    async def send_event(self, event: EventRow) -> SendReport:
        """Store an event for a live task, once for each key, and make the task due if it sleeps until that comes."""
        ...

    async def fetch_event(self, task_id: str, name: str, of: Identity, after: int = 0) -> StoredEvent | None:
        """The event of this name behind `after` that this wait has received, or else the oldest that none has."""
        ...

    async def fetch_ids(self, task_ids: Sequence[str]) -> dict[str, TaskRow]:
        """The rows of these ids that exist."""
        ...

    async def fetch_many(self, wanted: TaskFilter) -> list[TaskRow]:
        """Newest first by (sent_at, id), without their `PAYLOAD`: None in the place of what may be large."""
        ...

    async def find_ids(self, wanted: TaskFilter, statuses: Collection[TaskStatus]) -> list[str]:
        """The ids of all tasks with one of these statuses that fit, oldest first. `limit` does not count here."""
        ...

    async def first_unfinished(self, sender: str, tags: Mapping[str, str], since: int = 0) -> int | None:
        """When the first live task was sent, at `since` or later, of those with these tags that name this sender."""
        ...

    async def fetch_owned(
        self, owners: Collection[str], *, limit: int, after: str = "", is_running: bool = False
    ) -> list[TaskRow]:
        """Return the live rows of `owners` after `after`, by id: all, or only those that are RUNNING."""
        ...

    async def fetch_owned_ids(self, owner: str, *, limit: int, after: str = "") -> list[str]:
        """The ids of those of one owner; costs next to nothing however large the rows are."""
        ...

    async def fetch_orphans(
        self, live_owners: Collection[str], *, limit: int, after: str = "", is_summary: bool = False
    ) -> list[TaskRow]:
        """Return the live rows after `after` of no owner in `live_owners`, by id; with `is_summary` no `PAYLOAD`."""
        ...

    async def fetch_expired(self, now: int, *, limit: int) -> list[TaskRow]:
        """Free rows whose `good_until` has passed, the longest past first."""
        ...

    async def fetch_cancel_requests(self, owner: str) -> list[str]:
        """Ids of live rows of `owner` with a cancel request."""
        ...

    async def request_cancel(self, task_ids: Collection[str], now: int) -> frozenset[str]:
        """Set `cancel_requested_at` of the live rows among these, once, and return their ids."""
        ...

    async def counts(self) -> dict[TaskStatus, int]:
        """Rows by status, zeros included."""
        ...

    async def purge(self, wanted: TaskFilter, older_than: int | None, limit: int) -> int:
        """Delete terminal rows that fit, with their attempts, whose end is before `older_than`; how many went, 0 when
        none is left. Without a filter also workflows that have ended, whole: tasks of a workflow go only with it.

        At most `limit`, and no more than is done in some milliseconds: callers repeat it, pausing for `DELETE_PAUSE_S`
        in between. The same holds for the other verbs that delete.
        """
        ...

    async def save_instance(self, row: InstanceRow) -> None:
        """Insert or replace the row of one instance."""
        ...

    async def instances(self) -> list[InstanceRow]:
        """All instances known to the store, oldest start first."""
        ...

    async def news(self, instance_id: str) -> News:
        """Return what `instances`, `paused_queues` and `fetch_cancel_requests` find, in one way to the store."""
        ...

    async def forget_instances(self, instance_ids: Collection[str]) -> None:
        """Delete their rows."""
        ...

    def open_beater(self) -> Beater | None:
        """A beater for the calling thread; None where nobody else could see its beats."""
        ...

    async def heartbeats(self) -> list[tuple[str, str, int]]:
        """The latest beat of every sender and role: (sender, role, sent_at)."""
        ...

    async def save_worker_state(self, state: "WorkerState") -> None:
        """Append one snapshot."""
        ...

    async def upkeep(self, *, is_idle: bool) -> None:
        """What a store does for itself now and then: moving its log into the file. `is_idle`: nothing waits for it."""
        ...

    async def set_paused(self, queue_name: str, paused: bool, now: int) -> None:
        """Pause or resume a queue for every instance."""
        ...

    async def paused_queues(self) -> frozenset[str]:
        """The queues that are paused."""
        ...

    async def declare_schedules(self, declared: Sequence[ScheduleDeclaration], owner: str, now: int) -> frozenset[str]:
        """Let `owner` own what nobody who is there owns, or owns with another definition and an earlier start.

        One transaction; the names that are its own by this call. See `ScheduleDeclaration.onto`.
        """
        ...

    async def fire_schedules(self, fires: Sequence[ScheduleFire]) -> frozenset[str]:
        """Move schedules on and insert the tasks of their fires, free, in one transaction; the names that lost.

        A task whose id exists was run before: the schedule moves on without it. Every name at most once.
        """
        ...

    async def schedules(
        self, names: Collection[str] | None = None, *, limit: int | None = None, changed_since: int | None = None
    ) -> list[ScheduleRow]:
        """All of them, or these, or those written at that instant or later, by their next fire; without one last."""
        ...

    async def busy_schedules(self, names: Collection[str]) -> frozenset[str]:
        """Those of them with a run that has not ended, wherever it is and whatever it waits for.

        A free row of another task than the schedule runs now does not count: a release that renamed the task has left
        it behind, and it may wait for ever for somebody who knows that.
        """
        ...

    async def set_schedule_paused(self, name: str, paused: bool, now: int) -> bool:
        """Pause, or go on from now: the next fire is computed anew. False when there is no such schedule."""
        ...

    def overview(self, now: int, *, counts_all: bool) -> "StoreOverview":
        """Return what the console shows. This is the one call that blocks, and any thread may make it.

        It takes some milliseconds; with `counts_all` half a second for each million rows that wait or have failed.

        A file is read through a connection of its own. Raises `StoreError` within a second when it cannot be read.
        """
        ...

"""The steps that one attempt calls: what each call means, the run of its function, and its record.

A step is recorded in the next write of its task, as attempts are, and whoever awaits it goes on when that is committed.
So a recorded step is never run again, and one that was under way when the process died is. A step that was cancelled
has no outcome, and neither has one that a stop has ended.

Steps are numbered in the order of their calls in the coroutine of the task. Calls in another asyncio task have no such
order, so they need a key. An attempt has ended when the steps that it has called have: `end` cancels them and waits.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import FunctionType
from typing import Any, Final, NoReturn

from taskmanager.codec.annotations import is_async, named_function
from taskmanager.codec.arguments import ArgumentCodec
from taskmanager.codec.results import ResultCodec
from taskmanager.engine.attempt import Attempt
from taskmanager.engine.definition import Definition
from taskmanager.engine.lanes import ProcessLane, ThreadLane
from taskmanager.engine.live_task import LiveTask
from taskmanager.engine.loops import outlast
from taskmanager.engine.outcome import (
    Outcome,
    as_cause,
    comes_from_stop,
    extra_of,
    failure_of,
)
from taskmanager.engine.step_lanes import Call, Refused, StepLanes
from taskmanager.engine.writes import StepsDue
from taskmanager.model.errors import (
    ConfigurationError,
    NotInTask,
    NotPersisted,
    StepFailed,
    StoreError,
    StoreUnavailable,
)
from taskmanager.model.logger import logger
from taskmanager.model.result import TaskError, TaskResult
from taskmanager.model.states import BuiltInTaskCode, Lane
from taskmanager.model.steps import PATCH, STEP, Identity, StepContext, StepRow
from taskmanager.rules.steps import MAX_RECORDED_CHARS, MAX_RECORDS, StepOptions, meaning_of, unasked

PAGE: Final = "docs/steps.md"
READ_AGAIN_S: Final = 0.25
"""The pause before the records are read again from a store that cannot be read now."""

Codecs = tuple[ArgumentCodec | None, ResultCodec]
"""What encodes the arguments of a function, if they are compared, and its result."""


class StepCalls:
    """The steps of one attempt."""

    def __init__(
        self,
        attempt: Attempt,
        fetch: Callable[[str], Awaitable[list[StepRow]]],
        mark: Callable[[LiveTask], None],
        random_01: Callable[[], float],
        threads: ThreadLane,
        processes: ProcessLane,
        codecs: "dict[tuple[str, object], Codecs]",
    ) -> None:
        live = attempt.live
        if not live.is_persisted:
            raise NotPersisted(f"task {attempt.task_name} calls a step, and is memory-only; give it persist=True")
        self._attempt, self._live, self._definition = attempt, live, live.definition
        self._known_codecs = codecs
        self._fetch, self._mark, self._random_01 = fetch, mark, random_01
        self._lanes = StepLanes(attempt, threads, processes, self._tell_idle)
        self._records: dict[Identity, StepRow] = {}
        """Those of earlier runs. Of what has been returned in this run, without the value."""
        self._loading: asyncio.Task[None] | None = None
        self._asked: set[Identity] = set()
        self._count = 0
        """How many numbers are given."""
        self._new_count = self._chars = 0
        self._failed: list[tuple[StepRow, object]] = []
        """Errors that nothing was called after yet, and the asyncio tasks that they were raised in."""
        self._running: dict[object, asyncio.Task[Any] | None] = {}
        self._idle: asyncio.Future[None] | None = None
        self._fault: TaskError | None = None
        """Why the task fails, whatever its code makes of the exception."""
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<StepCalls of {self._attempt!r}, {len(self._asked)} called>"

    # The call: it gives the number, and nothing of it waits.

    def call(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: StepOptions,
        definition: Definition | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Call a step. With a `definition`, it is the function of that task, in its lane.

        Raises `ConfigurationError` without a key where one is needed, or if the key was used before.
        """
        name = options.name or named_function(fn).__qualname__
        self._check_place(name)
        arguments, results = self._codecs(fn, name)
        identity = self._identify(name, options.key)
        number = None if options.key is not None else identity[1]
        context = StepContext(f"{self._live.task_id}:{options.key or number}", number, name)
        lane: Lane = definition.lane if definition is not None else "async" if is_async(fn) else "thread"
        digest = None if options.key is not None or arguments is None else _digest(arguments, args, kwargs)
        went_on = self._go_on()
        call = Call(identity, context, fn, args, kwargs, options, lane, definition, digest, results, went_on)
        return self._run(call)

    def patched(self, version: str) -> Coroutine[Any, Any, bool]:
        """Ask for a version of the code."""
        self._check_place("patched")
        return self._patched(version, frozenset(self._asked))

    def _check_place(self, name: str) -> None:
        attempt, lane = self._attempt, self._definition.lane
        if lane != "async":
            raise ConfigurationError(
                f"task {attempt.task_name} runs in the {lane} lane, and calls {name} as a step; make the task async "
                "def, and give the blocking function to step()"
            )
        if attempt.is_surrounded and not attempt.is_in_lane:
            raise ConfigurationError(f"a middleware calls {name} as a step; only the function of a task may call steps")
        if self._is_closed or attempt.is_over or attempt.task is None:
            raise NotInTask(f"{name} is called as a step, and the attempt of task {attempt.task_name} has ended")
        with contextlib.suppress(RuntimeError):
            if asyncio.get_running_loop() is attempt.task.get_loop():
                return
        raise ConfigurationError(f"{name} is called as a step in another thread; call it in the event loop of the task")

    def _identify(self, name: str, key: str | None) -> Identity:
        if key is not None:
            identity = (STEP, 0, key)
            if identity in self._asked:
                raise ConfigurationError(
                    f"step {name}: the key {key!r} was used before in this run; give each call its own"
                )
        elif asyncio.current_task() is self._attempt.task:
            self._count += 1
            identity = (STEP, self._count, "")
        else:
            raise ConfigurationError(
                f"step {name} is called in another asyncio task than that of its task, where steps have no order; name "
                f"the call: step.with_options(key=...)({name}, ...)"
            )
        self._asked.add(identity)
        return identity

    def _go_on(self) -> "Sequence[asyncio.Future[None]]":
        """The code goes on after the errors that it has seen: those are final."""
        if not self._failed:
            return ()
        caller = asyncio.current_task()
        is_own = caller is self._attempt.task
        # A branch beside the one in which it was raised knows nothing of it.
        seen = [row for row, raised_in in self._failed if is_own or raised_in is caller]
        self._failed = [each for each in self._failed if each[0] not in seen]
        return [self._add(row._replace(is_final=1)) for row in seen]

    def _codecs(self, fn: Callable[..., Any], name: str) -> Codecs:
        """Return what encodes the arguments and the result of a function, made once for those of a module."""
        is_of_module = isinstance(fn, FunctionType) and fn.__closure__ is None and "<" not in fn.__qualname__
        place = self._definition.name, fn
        found = self._known_codecs.get(place) if is_of_module else None
        if found is None:
            found = self._new_codecs(fn, f"{self._definition.name}, step {name}")
            if is_of_module:
                self._known_codecs[place] = found
        return found

    def _new_codecs(self, fn: Callable[..., Any], subject: str) -> Codecs:
        results, arguments = self._definition.results, None
        if not results.is_sealed:  # a digest would let a reader of the file guess what the codec hides
            with contextlib.suppress(ConfigurationError, ValueError, TypeError):  # such as those of a function in C
                arguments = ArgumentCodec(fn, task_name=subject)
        try:
            return arguments, results.of_step(fn, task_name=subject)
        except ConfigurationError:
            if is_async(fn):
                raise
            return arguments, results.of_step(None, task_name=subject)

    # The run.

    async def _run(self, call: Call) -> Any:
        if self._attempt.stop_reason is not None:  # what runs now is clean-up, which is no part of the order
            raise asyncio.CancelledError
        place = object()
        self._running[place] = asyncio.current_task()
        try:
            await self._load()
            record = self._records.get(call.identity)
            meaning = meaning_of(call.context.name, call.digest, record)
            if meaning == "run" or record is None:
                return await self._do(call, record)
            if meaning == "mismatch":
                self._fail(BuiltInTaskCode.STEP_MISMATCH, _mismatch(call, record))
            return self._replay(call, record)
        except StepFailed as exc:
            raise exc.with_traceback(None)  # noqa: B904  # it is the same one, without the frames of this module
        finally:
            del self._running[place]
            self._tell_idle()

    def _replay(self, call: Call, record: StepRow) -> Any:
        """Return what is recorded, or raise it."""
        self._records[record.identity] = record._replace(result=None)
        results = call.results
        try:
            found: TaskResult[Any] = results.decode(record.result or "")
        except Exception as exc:  # noqa: BLE001  # the application's
            words = f"what is recorded of step {record.name} cannot be read"
            self._fail(BuiltInTaskCode.RESULT_NOT_AVAILABLE, self._definition.why_not(exc, words))
        if found.is_ok():
            return found.ok_value
        raise StepFailed(found.err_value)

    async def _do(self, call: Call, record: StepRow | None) -> Any:
        """Run the function, again if its retries say so, and record what it has come to."""
        self._check_room(call, record)
        for saved in call.must_be_saved:
            await saved
        row, value = await self._tried(call, self._begun(call, record))
        return await self._keep(call, row, value)

    async def _tried(self, call: Call, row: StepRow) -> tuple[StepRow, Any]:
        """Run the function until it returns. Raises `StepFailed` when it has no retry left."""
        retry = call.options.retry
        while True:
            row = row._replace(attempts=row.attempts + 1)
            try:
                value = await self._lanes.run(call)
                return row._replace(error_code=None, error_message=None), value
            except Exception as exc:
                if self._attempt.stop_reason is not None or comes_from_stop(exc):
                    raise
                error = exc.error if type(exc) is Refused else self._error_of(exc)
                row = row._replace(error_code=str(error.error_code), error_message=error.message)
                delay_s = retry.next_delay_s(error.error_code, row.attempts - 1, self._random_01())
                if delay_s is None:
                    await self._give_up(row, error, exc)
                self._add(row)
            await self._pause(call, delay_s)

    def _begun(self, call: Call, record: StepRow | None) -> StepRow:
        """Return the record of a step that begins, or of one whose tries go on."""
        name = call.context.name
        if record is not None and record.ended_at is None and record.name == name:
            return record._replace(digest=call.digest)
        now = self._attempt.now_us()
        return StepRow(self._live.task_id, *call.identity, name, call.digest, now, None, 0, None, None, None, 0)

    async def _pause(self, call: Call, delay_s: float) -> None:
        """Wait before the next try, without the slot. A try does not run beside the thread of the one before."""
        self._attempt.begin_wait()
        try:
            await asyncio.sleep(delay_s)
            if call.thread is not None and not call.thread.done():
                await asyncio.wait([call.thread])
        finally:
            await self._attempt.end_wait()

    def _error_of(self, exc: Exception) -> TaskError:
        return failure_of(self._definition, exc).error or TaskError(BuiltInTaskCode.UNHANDLED_EXCEPTION)

    # The record.

    async def _keep(self, call: Call, row: StepRow, value: Any) -> Any:
        """Record the value, and return it when that is committed."""
        results = call.results
        try:
            text = results.encode_ok(value)
        except Exception as exc:  # noqa: BLE001  # the application's
            why = self._definition.why_not(exc, f"the result of step {row.name} cannot be stored")
            await self._give_up(row, TaskError(BuiltInTaskCode.RESULT_NOT_AVAILABLE, why), exc)
        self._chars += len(text)
        if self._chars > MAX_RECORDED_CHARS:
            self._fail(
                BuiltInTaskCode.STEP_LIMIT, f"its steps have returned more than {MAX_RECORDED_CHARS:_} characters"
            )
        # The task gets on: it is not what killed the process, and has its retries again.
        self._live.retry_count = self._live.crash_count = 0
        try:
            await self._add(row._replace(ended_at=self._attempt.now_us(), result=text))
        except StoreError as exc:
            await self._give_up(row, TaskError(BuiltInTaskCode.RESULT_NOT_AVAILABLE, str(exc)), exc)
        return value

    async def _give_up(self, row: StepRow, error: TaskError, cause: Exception) -> NoReturn:
        """Record the error, and raise it when that is committed."""
        code, message = str(error.error_code), error.message
        text = self._definition.stored_error(error)
        row = row._replace(ended_at=self._attempt.now_us(), result=text, error_code=code, error_message=message)
        await self._add(row)
        self._failed.append((row, asyncio.current_task()))
        raise StepFailed(error) from (None if type(cause) is Refused else as_cause(cause))

    def _add(self, row: StepRow) -> "asyncio.Future[None]":
        """Write this record with the task; what is returned is done when it is committed."""
        if self._attempt.is_over:  # given up: the task is another run's now
            raise asyncio.CancelledError
        due = self._live.steps_due
        if due is None:
            due = self._live.steps_due = StepsDue()
        due.add(row)
        self._live.updated_at = self._attempt.now_us()
        self._mark(self._live)
        return due.saved(row)

    def _check_room(self, call: Call, record: StepRow | None) -> None:
        if record is None:
            self._new_count += 1
        if len(self._records) + self._new_count > MAX_RECORDS:
            self._fail(BuiltInTaskCode.STEP_LIMIT, f"it calls more than {MAX_RECORDS:_} steps, at {call.context.name}")

    def _fail(self, code: BuiltInTaskCode, what: str) -> NoReturn:
        """Let the task fail, and keep its records."""
        words = f"task {self._definition.name}: {what}; see {PAGE}"
        self._fault = self._fault or TaskError(code, words)
        raise StepFailed(self._fault)

    # What earlier runs have recorded.

    async def _load(self) -> None:
        """Read the records of earlier runs, once. A task that has started once has none."""
        if self._live.start_count > 1:
            if self._loading is None:
                self._loading = asyncio.get_running_loop().create_task(self._read())
            await asyncio.shield(self._loading)
        if self._fault is not None:
            raise StepFailed(self._fault)

    async def _read(self) -> None:
        rows: Sequence[StepRow] | None = None
        while rows is None:
            try:
                rows = await self._fetch(self._live.task_id)
            except StoreUnavailable:
                await asyncio.sleep(READ_AGAIN_S)
        due = self._live.steps_due
        unsaved = () if due is None else due.rows.values()
        self._records = {row.identity: row for row in (*rows, *unsaved)} | self._records
        self._chars += sum(len(row.result or "") for row in self._records.values())

    async def _patched(self, version: str, asked: frozenset[Identity]) -> bool:
        await self._load()
        identity = (PATCH, 0, version)
        record = self._records.get(identity)
        if record is None:
            is_new, now = not unasked(self._records.values(), asked), self._attempt.now_us()
            answer = "true" if is_new else "false"
            record = StepRow(self._live.task_id, *identity, version, None, now, now, 1, answer, None, None, 1)
            self._records[identity] = record
            await self._add(record)
        return record.result == "true"

    # The end.

    async def end(self, outcome: Outcome) -> Outcome:
        """Cancel the steps that still run, wait until they have ended, and return what the attempt has come to."""
        own, self._is_closed = self._attempt.task, True
        for task in dict.fromkeys(self._running.values()):
            if task is not None and task is not own:
                task.cancel()
        while self._lanes.busy or any(each is not own for each in self._running.values()):
            self._idle = asyncio.get_running_loop().create_future()
            await outlast(self._idle)
        if self._fault is not None and outcome.kind != "stopped":
            return Outcome("failed", error=self._fault, reason=self._fault.message)
        if outcome.kind == "snoozed" and self._asked:
            words = (
                f"task {self._definition.name} has called a step and snoozes: the next run gets what this one has seen"
            )
            error = TaskError(BuiltInTaskCode.STEP_SNOOZE, f"{words}; see {PAGE}")
            return Outcome("failed", error=error, reason=error.message)
        if outcome.kind == "ok" and (left := unasked(self._records.values(), self._asked)):
            names = ", ".join(f"{row.key or row.number} ({row.name})" for row in left[:10])
            text = "task %s (%s) has returned without asking for recorded steps: %s%s; see %s"
            logger.warning(
                text, self._definition.name, self._live.task_id, names, ", ..." if len(left) > 10 else "", PAGE,
                extra=extra_of(self._live),
            )  # fmt: skip
        return outcome

    def _tell_idle(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)


def _digest(arguments: ArgumentCodec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return what tells these arguments from others, or None where they cannot be encoded."""
    try:
        return arguments.digest(*arguments.encode(args, kwargs))
    except Exception:  # noqa: BLE001  # the call says what is wrong with them, or nothing is
        return None


def _mismatch(call: Call, record: StepRow) -> str:
    which = record.key or record.number
    if record.name == call.context.name:
        return f"step {which} was recorded as {record.name} and is called with other arguments"
    return f"step {which} was recorded as {record.name} and is called as {call.context.name}"

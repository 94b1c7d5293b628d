"""The steps that one attempt calls: what each call means, the run of its function, and its record.

A step is recorded in the next write of its task, as attempts are, and whoever awaits it goes on when that is committed.
So a recorded step is never run again, and one that was under way when the process died is. A step that was cancelled
has no outcome, and neither has one that a stop has ended.

Steps are numbered in the order of their calls in the coroutine of the task. Calls in another asyncio task have no such
order, so they need a key. An attempt has ended when the steps that it has called have: `end` cancels them and waits.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine
from types import FunctionType
from typing import Any, NoReturn, TypeVar

from taskmanager.codec.annotations import is_async, named_function
from taskmanager.codec.arguments import ArgumentCodec
from taskmanager.codec.results import ResultCodec
from taskmanager.engine.run.lanes import ProcessLane, ThreadLane
from taskmanager.engine.steps.lanes import Call, Refused, StepLanes
from taskmanager.engine.steps.records import PAGE, StepRecords
from taskmanager.engine.steps.waits import StepWaits, Wait
from taskmanager.engine.words.attempt import Attempt, StopReason
from taskmanager.engine.words.definition import Definition
from taskmanager.engine.words.loops import outlast
from taskmanager.engine.words.outcome import (
    Outcome,
    as_cause,
    comes_from_signal,
    comes_from_stop,
    extra_of,
    failure_of,
)
from taskmanager.model.clock import SECOND_US
from taskmanager.model.errors import ConfigurationError, NotInTask, NotPersisted, StepFailed, StoreError
from taskmanager.model.logger import logger
from taskmanager.model.result import TaskError, TaskResult
from taskmanager.model.states import BuiltInTaskCode, Lane
from taskmanager.model.steps import PATCH, STEP, Identity, StepContext, StepRow
from taskmanager.rules.steps import StepOptions, meaning_of, mismatch, unasked

C = TypeVar("C", Call, Wait)
Codecs = tuple[ArgumentCodec | None, ResultCodec]
"""What encodes the arguments of a function, if they are compared, and its result."""


class StepCalls:
    """The steps of one attempt."""

    def __init__(
        self,
        attempt: Attempt,
        records: StepRecords,
        waits: StepWaits,
        random_01: Callable[[], float],
        threads: ThreadLane,
        processes: ProcessLane,
        codecs: "dict[tuple[str, object], Codecs]",
    ) -> None:
        live = attempt.live
        if not live.is_persisted:
            raise NotPersisted(f"task {attempt.task_name} calls a step, and is memory-only; give it persist=True")
        self._attempt, self._live, self._definition = attempt, live, live.definition
        self._records, self._waits = records, waits
        waits.is_alone = self._is_alone
        self._known_codecs, self._random_01 = codecs, random_01
        self._lanes = StepLanes(attempt, threads, processes, self._tell_idle)
        self._asked: set[Identity] = set()
        self._count = 0
        """How many numbers are given."""
        self._running: dict[tuple[str, object], asyncio.Task[Any] | None] = {}
        """The calls that have not ended, by their names and what tells them apart, and who has made them."""
        self._idle: asyncio.Future[None] | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<StepCalls of {self._attempt!r}, {len(self._asked)} called>"

    @property
    def running_names(self) -> tuple[str, ...]:
        """The names of the calls that have not ended, each once."""
        return tuple(dict.fromkeys(name for name, _ in tuple(self._running)))  # any thread may ask

    @property
    def is_away(self) -> bool:
        """Whether a step waits for its thread or child process."""
        return self._lanes.away_count > 0

    @property
    def has_threads(self) -> bool:
        """Whether a thread of a step runs, also one that has been given up."""
        return bool(self._lanes.busy)

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
        went_on = self._records.go_on()
        call = Call(identity, context, fn, args, kwargs, options, lane, definition, digest, results, went_on)
        return self._named(self._inside(self._run, call, call.context.name), call.context.name)

    def wait(
        self, name: str, waits_for: str, kind: Any, timeout_s: float | None, key: str | None
    ) -> Coroutine[Any, Any, Any]:
        """Call a sleep, or a wait for an event of that type. Raises `ConfigurationError` as `call` does."""
        self._check_place(name)
        if not self._definition.requeue_on_interrupt:
            raise ConfigurationError(
                f"task {self._definition.name} calls {name}, and its code may run only once; to go on after that means "
                "to run the code between its steps again, so give it requeue_on_interrupt=True"
            )
        results = self._definition.results_of(kind, task_name=f"{self._definition.name}, {name}")
        results.check_type()
        call = Wait(self._identify(name, key), name, waits_for, timeout_s, results)
        self._records.go_on()
        return self._named(self._inside(self._waits.run, call, call.name), call.name)

    @property
    def threads(self) -> Collection["asyncio.Future[Any]"]:
        """What is done when the threads of its steps have ended."""
        return self._lanes.busy

    @property
    def due_at(self) -> list[int]:
        """When each of its waits in place is due."""
        return self._waits.due_at

    def hear(self) -> None:
        """An event may have come for a wait of this task."""
        self._waits.hear()

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

    def _named(self, work: Any, name: str) -> Coroutine[Any, Any, Any]:
        """Give the coroutine a name for the warning of Python that nobody has awaited it."""
        work.__qualname__ = f"step {name} of task {self._definition.name}"
        named: Coroutine[Any, Any, Any] = work
        return named

    async def _inside(self, run: Callable[[C], Awaitable[Any]], call: C, name: str) -> Any:
        """Run one call. The attempt does not end before it has."""
        # What runs after a stop is clean-up, which is no part of the order. An attempt that has ended runs nothing.
        if self._attempt.stop_reason is not None or self._is_closed:
            raise asyncio.CancelledError
        place = name, object()
        self._running[place] = asyncio.current_task()
        try:
            return await run(call)
        except StepFailed as exc:
            raise exc.with_traceback(None)  # noqa: B904  # it is the same one, without the frames of this module
        finally:
            del self._running[place]
            self._tell_idle()

    async def _run(self, call: Call) -> Any:
        await self._records.load()
        record = self._records.rows.get(call.identity)
        meaning = meaning_of(call.context.name, call.digest, record)
        if meaning == "run" or record is None:
            return await self._do(call, record)
        if meaning == "mismatch":
            self._records.fail(BuiltInTaskCode.STEP_MISMATCH, mismatch(record, call.context.name))
        return self._replay(call, record)

    def _replay(self, call: Call, record: StepRow) -> Any:
        """Return what is recorded, or raise it."""
        self._records.rows[record.identity] = record._replace(result=None)
        results = call.results
        try:
            found: TaskResult[Any] = results.decode(record.result or "")
        except Exception as exc:  # noqa: BLE001  # the application's
            words = f"what is recorded of step {record.name} cannot be read"
            self._records.fail(BuiltInTaskCode.RESULT_NOT_AVAILABLE, self._definition.why_not(exc, words))
        if found.is_ok():
            return found.ok_value
        raise StepFailed(found.err_value)

    async def _do(self, call: Call, record: StepRow | None) -> Any:
        """Run the function, again if its retries say so, and record what it has come to."""
        if record is None:
            self._records.check_room(call.context.name)
        for saved in call.must_be_saved:
            await saved
        row, value = await self._tried(call, self._begun(call, record))
        return await self._keep(call, row, value)

    async def _tried(self, call: Call, row: StepRow) -> tuple[StepRow, Any]:
        """Run the function until it returns. Raises `StepFailed` when it has no retry left."""
        retry = call.options.retry
        while True:
            if row.due_at is not None:
                await self._pause(call, row)
            row = row._replace(attempts=row.attempts + 1, due_at=None, wakes_at=None)
            try:
                value = await self._lanes.run(call)
                return row._replace(error_code=None, error_message=None), value
            except (Exception, SystemExit, KeyboardInterrupt) as exc:  # a branch that raises these would break the loop
                if comes_from_stop(exc) or comes_from_signal(exc):
                    raise
                if self._attempt.stop_reason is not None:
                    if isinstance(exc, Exception):
                        raise
                    raise asyncio.CancelledError from exc
                error = exc.error if type(exc) is Refused else self._error_of(exc)
                row = row._replace(error_code=str(error.error_code), error_message=error.message)
                delay_s = retry.next_delay_s(error.error_code, row.attempts - 1, self._random_01())
                if delay_s is None:
                    await self._give_up(row, error, exc)
                row = row._replace(due_at=self._attempt.now_us() + int(delay_s * SECOND_US))

    def _begun(self, call: Call, record: StepRow | None) -> StepRow:
        """Return the record of a step that begins, or of one whose tries go on."""
        name = call.context.name
        if record is not None and record.ended_at is None and record.name == name:
            return record._replace(digest=call.digest)
        now = self._attempt.now_us()
        return StepRow(self._live.task_id, *call.identity, name, call.digest, now, None, 0, None, None, None, 0)

    async def _pause(self, call: Call, row: StepRow) -> None:
        """Wait before the next try, without the slot. A try does not run beside the thread of the one before."""
        await self._waits.pause(row)
        if call.thread is not None and not call.thread.done():
            self._attempt.begin_wait()
            try:
                await asyncio.wait([call.thread])
            finally:
                await self._attempt.end_wait()

    def _error_of(self, exc: BaseException) -> TaskError:
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
        self._records.count_chars(text)
        self._records.gets_on()
        try:
            await self._records.add(row._replace(ended_at=self._attempt.now_us(), result=text))
        except StoreError as exc:
            await self._give_up(row, TaskError(BuiltInTaskCode.RESULT_NOT_AVAILABLE, str(exc)), exc)
        return value

    async def _give_up(self, row: StepRow, error: TaskError, cause: BaseException) -> NoReturn:
        """Record the error, and raise it when that is committed."""
        code, message = str(error.error_code), error.message
        text = self._definition.stored_error(error)
        row = row._replace(ended_at=self._attempt.now_us(), result=text, error_code=code, error_message=message)
        await self._records.add(row)
        self._records.failed(row)
        raise StepFailed(error) from (None if type(cause) is Refused else as_cause(cause))

    async def _patched(self, version: str, asked: frozenset[Identity]) -> bool:
        await self._records.load()
        identity = (PATCH, 0, version)
        record = self._records.rows.get(identity)
        if record is None:
            is_new, now = not unasked(self._records.rows.values(), asked), self._attempt.now_us()
            answer = "true" if is_new else "false"
            record = StepRow(self._live.task_id, *identity, version, None, now, now, 1, answer, None, None, 1)
            self._records.rows[identity] = record
            await self._records.add(record)
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
        if self._attempt.stop_reason is StopReason.SLEEP:  # whatever its code has made of that
            self._waits.end_asleep()
            return Outcome("suspended")
        if (fault := self._records.fault) is not None and outcome.kind != "stopped":
            return Outcome("failed", error=fault, reason=fault.message)
        if outcome.kind == "snoozed" and self._asked:
            words = (
                f"task {self._definition.name} has called a step and snoozes: the next run gets what this one has seen"
            )
            error = TaskError(BuiltInTaskCode.STEP_SNOOZE, f"{words}; see {PAGE}")
            return Outcome("failed", error=error, reason=error.message)
        if outcome.kind == "ok" and (left := unasked(self._records.rows.values(), self._asked)):
            names = ", ".join(f"{row.key or row.number} ({row.name})" for row in left[:10])
            text = "task %s (%s) has returned without asking for recorded steps: %s%s; see %s"
            logger.warning(
                text, self._definition.name, self._live.task_id, names, ", ..." if len(left) > 10 else "", PAGE,
                extra=extra_of(self._live),
            )  # fmt: skip
        return outcome

    def _is_alone(self) -> bool:
        """Return whether nothing of the attempt is under way but one call."""
        return len(self._running) < 2 and not self._lanes.busy

    def _tell_idle(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)


def _digest(arguments: ArgumentCodec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return what tells these arguments from others, or None where they cannot be encoded."""
    try:
        arguments.encode(args, kwargs)
        return arguments.digest(args, kwargs)
    except Exception:  # noqa: BLE001  # the call says what is wrong with them, or nothing is
        return None

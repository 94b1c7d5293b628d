"""Tasks on a terminal: many of them, one of them, and what comes next. Drawn from frozen rows at a frozen instant."""

import json
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from rich.console import Console

from taskmanager.console.figures import ROOM_FOR_ALL, cause, cause_of, exact, kind, message_of, relative, short
from taskmanager.console.outlook import Outlook, Surroundings, outlook
from taskmanager.console.terminal.record import Record, record_view
from taskmanager.console.terminal.tables import diagnosis_view, task_table
from taskmanager.model.clock import to_us
from taskmanager.model.escaping import escaped, escaped_lines
from taskmanager.model.ids import failure_task_id
from taskmanager.model.record import AttemptRow, TaskRow, UnreadableRow
from taskmanager.model.report import RunningTask, Suspect
from taskmanager.model.wording import why
from taskmanager.store.place import Finding
from taskmanager.store.protocol import InstanceRow
from tests.unit.screens import assert_screen, drawn

SECOND: Final = 1_000_000
NOW: Final = to_us(datetime(2026, 3, 14, 9, 30, tzinfo=UTC))
OWNER: Final = InstanceRow("i1", "web", "host-1", 4711, "MainProcess", None, NOW - 90 * SECOND, None, None, NOW)
ALONE: Final = Suspect(RunningTask("id-of-import", "app:import", "default", "i1", 2, NOW, is_persisted=True), 3)
SAFE: Final = '{"requeue_on_interrupt":true}'
TRACEBACK: Final = """Traceback (most recent call last):
  File "app/jobs.py", line 21, in send_mail
    server.send(message)
  File "app/mail.py", line 7, in send
    raise ConnectionRefusedError(111, "Connection refused")
ConnectionRefusedError: [Errno 111] Connection refused
"""


def task(number: int, **values: Any) -> TaskRow:
    """A row as an application writes it, waiting unless `values` say otherwise."""
    defaults: dict[str, Any] = dict.fromkeys(TaskRow._fields)
    defaults |= {
        "task_id": f"019cebe4-5b00-7000-8000-{number:012x}",
        "task_name": "app.jobs:send_mail",
        "queue_name": "default",
        "priority": 50,
        "args": "[7]",
        "kwargs": "{}",
        "status": "PENDING",
        "sent_at": NOW - 300 * SECOND,
        "enqueued_at": NOW - 300 * SECOND,
        "task_options": '{"persist":true}',
        "created_at": NOW - 300 * SECOND,
        "updated_at": NOW - 200 * SECOND,
    }
    defaults |= dict.fromkeys(
        ("retry_count", "max_retries", "start_count", "crash_count", "snooze_count", "is_workflow_task"), 0
    )
    return TaskRow(**(defaults | values))


def running(number: int, **values: Any) -> TaskRow:
    """A task that runs in `OWNER`."""
    facts = {"status": "RUNNING", "claimed_by_worker_id": "i1", "started_at": NOW - 75 * SECOND, "start_count": 1}
    return task(number, **(facts | values))


FAILED: Final = task(
    3,
    status="FAILED",
    args='["ann@example.org"]',
    kwargs='{"subject":"Grüße","copies":2}',
    tags='{"user":"1","order":"A-7"}',
    idempotency_key="mail-7",
    error_code="SMTP_DOWN",
    failed_reason=TRACEBACK,
    failed_at=NOW - 120 * SECOND,
    updated_at=NOW - 120 * SECOND,
    started_at=NOW - 121 * SECOND,
    start_count=3,
    retry_count=2,
    max_retries=2,
    worker_pid=4711,
    worker_hostname="host-1",
    claimed_by_worker_id="i0",
    task_options='{"persist":true,"timeout_s":30.0,"lane":"thread","retry":{}}',
    log='[{"at":1773480301123000,"attempt":1,"text":"connecting","host":"smtp.example.org"},'
    '{"at":1773480479000500,"attempt":3,"text":"giving up"}]',
)


def attempt(number: int, outcome: str, seconds_ago: int, took_us: int, **values: Any) -> AttemptRow:
    """One attempt of `FAILED`."""
    defaults: dict[str, Any] = dict.fromkeys(AttemptRow._fields)
    start = NOW - seconds_ago * SECOND
    facts = {"task_id": FAILED.task_id, "attempt": number, "outcome": outcome, "will_retry": number < 3}
    facts |= {"started_at": start, "finished_at": start + took_us, "created_at": start + took_us}
    return AttemptRow(**(defaults | facts | values))


ATTEMPTS: Final = (
    attempt(
        1, "FAILED", 299, 1_250_000, error_code="SMTP_DOWN",
        error_message="ConnectionRefusedError: [Errno 111] Connection refused", failed_reason=TRACEBACK,
    ),
    attempt(
        2, "WORKER_FAILURE", 240, 65 * SECOND, error_code="WORKER_CRASHED",
        error_message="its owner is gone while it ran", failed_reason="its owner is gone while it ran",
    ),
    attempt(
        3, "FAILED", 121, 900, error_code="SMTP_DOWN",
        error_message="ConnectionRefusedError: [Errno 111] Connection refused", failed_reason=TRACEBACK,
    ),
)  # fmt: skip


def failed_with(message: str) -> str:
    """A stored result."""
    return json.dumps({"err": {"error_code": "ANY", "message": message, "data": None}})


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_list_shows_an_id_to_copy_and_what_the_width_allows(width: int) -> None:
    """The whole id, or where that leaves no room its end, which will do; of a long name the end; no line wraps.

    Why a task failed goes before the whole id.
    """
    rows = [
        FAILED,
        task(4, enqueued_at=NOW + 3_599 * SECOND, queue_name="mail"),
        running(5, task_name="app.reports.monthly.finance:build_all_the_reports_of_a_year"),
        task(6, status="COMPLETED", updated_at=NOW - 9 * 86_400 * SECOND),
        task(7, status="INTERRUPTED", error_code="TASK_INTERRUPTED", task_name="app.jobs:\x1b[31mred\n"),
        task(8, status="CANCELLED", error_code="TASK_CANCELLED", updated_at=NOW),
        task(
            11, status="FAILED", error_code="UNHANDLED_EXCEPTION", result=failed_with("ValueError: no such invoice\n7")
        ),
        task(
            12, status="FAILED", error_code="TASK_TIMEOUT", result=failed_with("it took longer than its limit of 3 s")
        ),
        task(9, status="EXPIRED", error_code="TASK_EXPIRED", queue_name="a-queue-with-a-very-long-name"),
        task(10, enqueued_at=NOW - 7_300 * SECOND),
    ]
    messages = {row.task_id: message_of(row) or "" for row in rows}
    assert_screen(f"list_{width}", drawn(task_table(rows, messages, {}, NOW, width), width))


@pytest.mark.parametrize(
    ("code", "message", "words", "of_all"),
    [
        ("SMTP_DOWN", "the server is away\ntry later", "SMTP_DOWN: the server is away try later", "SMTP_DOWN"),
        ("SMTP_DOWN", None, "SMTP_DOWN", "SMTP_DOWN"),
        ("UNHANDLED_EXCEPTION", "KeyError: 'a: b'", "KeyError: 'a: b'", "KeyError"),
        ("UNHANDLED_EXCEPTION", "", "UNHANDLED_EXCEPTION", "UNHANDLED_EXCEPTION"),
    ],
)
def test_a_failure_is_named_by_what_says_most_about_it(code: str, message: str | None, words: str, of_all: str) -> None:
    """Its code and how its message begins; in a small column, an exception without a code of its own by its type."""
    assert (cause(code, message, ROOM_FOR_ALL - 1), kind(code, message)) == (words, of_all)
    assert cause(code, message, ROOM_FOR_ALL) == why(code, message)


@pytest.mark.parametrize(
    ("message", "width", "shown"),
    [
        ("KeyError: 'a'", 80, "UNHANDLED_EXCEPTION: KeyError: 'a'"),
        ("KeyError: no invoice of that number", 80, "  KeyError: no invoice of that number"),
        ("KeyError: no invoice of that number", 160, "UNHANDLED_EXCEPTION: KeyError: no invoice of that number"),
        ("KeyError: " + "x" * 200, 160, "UNHANDLED_EXCEPTION: KeyError: xxxx"),
    ],
)
def test_a_list_says_code_type_and_message_where_they_fit(message: str, width: int, shown: str) -> None:
    """People name the code in a policy and with `--code`. Where it would push the message out, the type says more."""
    row = task(1, status="FAILED", task_name="a:b", error_code="UNHANDLED_EXCEPTION")
    assert shown in drawn(task_table([row], {row.task_id: message}, {}, NOW, width), width)


@pytest.mark.parametrize("result", [None, "sealed", "[]", '{"err": 1}', '{"err": {"message": 2}}', '{"ok": 3}'])
def test_of_a_result_that_cannot_be_read_there_is_the_code(result: str | None) -> None:
    """A manager with `codec=` seals its results, and anybody may have written into the file."""
    row = task(1, status="FAILED", error_code="SMTP_DOWN", result=result)
    assert cause_of(row, message_of(row), 0) == "SMTP_DOWN"


@pytest.mark.parametrize("width", [80, 120])
def test_a_record_shows_every_attempt_with_its_traceback(width: int) -> None:
    """Facts, the next step, the attempts (a traceback that is there already is not repeated), and the log."""
    next_step = outlook(FAILED, Surroundings(NOW))
    assert_screen(f"show_{width}", drawn(record_view(Record(FAILED, ATTEMPTS, next_step, None, NOW)), width))


def test_a_record_is_drawn_whatever_stands_where_a_traceback_should() -> None:
    """The last words of a crashed child are the text of others, and the lexer of Pygments never ended with these."""
    thread = "Thread 0x00007fce86b9f6c0 (most recent call first):\n" + '  File "app.py", line 1 in run\n' * 3
    words = f"the child process died\nFatal Python error: Segmentation fault\n\n{thread}\nCurrent {thread}"
    row = task(1, status="FAILED", error_code="WORKER_CRASHED", start_count=1)
    told = AttemptRow(
        row.task_id,
        1,
        "WORKER_FAILURE",
        False,
        NOW,
        NOW,
        "WORKER_CRASHED",
        "it died",
        words,
        None,
        None,
        None,
        None,
        NOW,
    )
    record = Record(row, [told], Outlook("nothing", None), None, NOW)
    shown = drawn(record_view(record), 80)
    assert all(line in shown for line in words.splitlines())


def test_a_running_task_shows_its_progress_its_process_and_its_attempt() -> None:
    """What has not ended has no row of its own, and is told from the task's."""
    row = running(
        5,
        progress='{"done":30,"total":120,"text":"of the pages"}',
        task_options='{"persist":true,"requeue_on_interrupt":true,"timeout_s":600}',
        cancel_requested_at=None,
        good_until=NOW + 86_400 * SECOND,
        max_retries=1,
        crash_count=1,
    )
    view = record_view(Record(row, (), outlook(row, Surroundings(NOW, OWNER)), OWNER, NOW))
    assert_screen("show_running_80", drawn(view, 80))


def test_record_says_what_cannot_be_read_and_shows_the_rest() -> None:
    """Sealed arguments, arguments that were not stored, a result that is no JSON, a log of another shape."""
    sealed = task(1, args="c2VhbGVk", kwargs="c2VhbGVk", status="COMPLETED", result="c2VhbGVk", completed_at=NOW)
    bare = task(2, args=None, kwargs=None, tags="[]", progress='{"done":"x"}', log='[1,{"text":"line"}]', result="{}")
    for name, row in {"sealed": sealed, "bare": bare}.items():
        view = record_view(Record(row, (), outlook(row, Surroundings(NOW)), None, NOW))
        assert_screen(f"show_{name}_80", drawn(view, 80))


def test_a_diagnosis_says_what_to_do_below_what_is_not_well() -> None:
    """Advice folds below its finding; the last line is the sum."""
    lines = [
        Finding("log", True, "0.0 MB"),
        Finding("permissions", False, "tasks.db has mode 0644", "other users may read what tasks are given: chmod 600"),
    ]
    assert_screen("doctor_80", drawn(diagnosis_view(lines), 80))
    assert drawn(diagnosis_view(lines[:1]), 80).endswith("\nno findings\n")


@pytest.mark.parametrize(
    ("row", "around", "said", "at"),
    [
        (task(1), Surroundings(NOW), "starts when the application does", None),
        (task(1), Surroundings(NOW, living_count=1), "starts when an instance that knows the function has room", None),
        (task(1), Surroundings(NOW, living_count=1, is_function_known=False), "no running instance knows it", None),
        (task(1), Surroundings(NOW, is_queue_paused=True), "queue default is paused", None),
        (task(1, enqueued_at=NOW + 60), Surroundings(NOW), "it is due", NOW + 60),
        (
            task(1, enqueued_at=NOW + 60, next_retry_at=NOW + 60, retry_count=1, max_retries=3),
            Surroundings(NOW), "retry 1 of 3 is due", NOW + 60,
        ),
        (task(1, good_until=NOW - 1), Surroundings(NOW), "it expires", NOW - 1),
        (task(1, enqueued_at=NOW + 60, good_until=NOW + 30), Surroundings(NOW), "it expires", NOW + 30),
        (task(1, claimed_by_worker_id="i1"), Surroundings(NOW, OWNER), "waits for a slot in process 4711", None),
        (
            task(1, claimed_by_worker_id="i1"), Surroundings(NOW, OWNER, suspect=ALONE),
            "until task app:import (f-import) has ended, which runs alone because its process died before", None,
        ),
        (
            task(1, claimed_by_worker_id="i1", task_options=SAFE, crash_count=1),
            Surroundings(NOW, OWNER, suspect=ALONE), "until task app:import (f-import) has ended", None,
        ),
        (
            task(1, claimed_by_worker_id="i1", task_options=SAFE), Surroundings(NOW, OWNER, suspect=ALONE),
            "waits for a slot in process 4711", None,
        ),
        (task(1, cancel_requested_at=NOW, claimed_by_worker_id="i1"), Surroundings(NOW, OWNER), "a cancel was", None),
        (running(1), Surroundings(NOW, OWNER), "it runs in process 4711 on host-1", None),
        (running(1, task_options='{"timeout_s":80}'), Surroundings(NOW, OWNER), "times out", NOW + 5 * SECOND),
        (running(1), Surroundings(NOW, OWNER, is_owner_dead=True), "makes it FAILED", None),
        (
            running(1, task_options='{"requeue_on_interrupt":true}'),
            Surroundings(NOW, OWNER, is_owner_dead=True), "lets it wait again", None,
        ),
        (
            running(1, cancel_requested_at=NOW),
            Surroundings(NOW, OWNER, is_owner_dead=True), "makes it CANCELLED", None,
        ),
        (task(1, status="FAILED", failed_at=NOW), Surroundings(NOW), "`taskmanager retry 00000001`", None),
        (task(1, status="COMPLETED", completed_at=NOW), Surroundings(NOW), "retry --force", None),
        (task(1, status="FAILED", failed_at=NOW, args=None), Surroundings(NOW), "cannot be run again", None),
    ],
)  # fmt: skip
def test_the_outlook_names_the_next_step(row: TaskRow, around: Surroundings, said: str, at: int | None) -> None:
    """One sentence for each state, and the instant where there is one."""
    found = outlook(row, around)
    assert said in found.text
    assert found == Outlook(found.text, at)


def test_durations_are_short_or_exact() -> None:
    """Each in the unit that matters; never negative, and nothing is rounded up."""
    assert [short(each * SECOND) for each in (0, 59, 60, 3_599, 7_200, 200_000)] == [
        "0s", "59s", "1m", "59m", "2h", "2d",
    ]  # fmt: skip
    assert [exact(each) for each in (-5, 999, 12_340, 4_210_000, 125 * SECOND, 11_220 * SECOND, 187_200 * SECOND)] == [
        "0 µs", "999 µs", "12.3 ms", "4.21 s", "2 m 05 s", "3 h 07 m", "2 d 04 h",
    ]  # fmt: skip
    assert [relative(NOW + each * SECOND, NOW) for each in (-60, 0, 60)] == ["1m ago", "now", "in 1m"]


def test_foreign_text_does_not_steer_the_terminal() -> None:
    """A name with an escape sequence in it is shown, not obeyed."""
    assert escaped("a\x1b[2Jb\nc\u202e") == "a\\x1b[2Jb\\nc\\u202e"
    assert escaped_lines("one\ttwo\n\x07three") == "one two\n\\x07three"
    console = Console(width=80, force_terminal=True)
    with console.capture() as capture:
        console.print(record_view(Record(task(1, task_name="x\x1b]0;owned\x07"), (), Outlook("next"), None, NOW)))
    assert "\x1b]" not in capture.get()


def test_a_result_that_is_not_kept_says_what_to_do() -> None:
    """`show` gives the advice that stands in the record, as `--json` does."""
    result = '{"err":{"error_code":"RESULT_NOT_AVAILABLE","message":"NaN has no form; pass None","data":null}}'
    row = task(1, status="COMPLETED", result=result)
    assert "not stored: NaN has no form; pass None" in drawn(record_view(Record(row, [], Outlook(""), None, NOW)), 120)


@pytest.mark.parametrize(
    ("status", "words"),
    [("FAILED", "must be mended before it can run again"), ("PENDING", "FAILED when its turn comes")],
)
def test_the_outlook_of_an_unreadable_task_promises_no_run(status: str, words: str) -> None:
    """Neither its turn nor a retry runs what nobody can read."""
    row = UnreadableRow._make(task(1, status=status))
    assert words in outlook(row, Surroundings(NOW, living_count=1)).text


def test_failed_task_names_the_task_that_its_failure_has_enqueued() -> None:
    """With the id by which `show` finds it. A task that has not failed has enqueued nothing."""
    then = {"task_name": "app.jobs:tell", "queue_name": "alerts", "priority": 1, "options": {"persist": True}}
    row = FAILED._replace(task_options=json.dumps({"persist": True, "on_failure": then}))
    told = f"on failure  app.jobs:tell {failure_task_id(row.task_id, row.sent_at, 3)}"
    assert told in drawn(record_view(Record(row, (), Outlook("nothing"), None, NOW)), 100)
    other = running(4, task_options=row.task_options)
    assert "on failure" not in drawn(record_view(Record(other, (), Outlook("nothing"), None, NOW)), 100)

"""The filter of a list: what an address asks for, whatever somebody has typed into it."""

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmanager.model.clock import HOUR_US, SECOND_US
from taskmanager.model.states import TaskStatus
from taskmanager.store.sql.rows import Undecodable
from taskmanager.web.filters import MAX_CHARS, Filter, cursor_of, cursor_text, read_filter, told

NOW = 1_764_480_000_000_000
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=30)


def asked(query: str) -> Filter:
    return read_filter(parse_qsl(query, keep_blank_values=True), NOW)


def test_filter_reads_every_name_of_an_address() -> None:
    """The address is the filter, so that it can be sent to a colleague."""
    found = asked(
        "status=FAILED&status=running&task=app:send&queue=mail&tag=customer:42&tag=a=b&error=X&since=1h&text=x+y"
    )
    assert found == Filter(
        (TaskStatus.RUNNING, TaskStatus.FAILED),
        "app:send",
        "mail",
        (("customer", "42"), ("a", "b")),
        "X",
        "1h",
        NOW - HOUR_US,
        "x y",
    )


def test_filter_is_read_again_from_what_it_writes() -> None:
    """Links on the page lead to the same filter, with names that hold what means something in an address."""
    found = asked(
        "status=FAILED&task=a%26b%3D%23&queue=%20mail%2B&tag=a:b:c&since=2026-11-30T05:00:00%2B01:00&text=%25"
    )
    assert asked(found.query(before=(5, "x.y"))) == found._replace(before=(5, "x.y"))


def test_filter_that_lasts_names_the_instant() -> None:
    """While an action goes on page by page, "the last hour" must not move on."""
    later = read_filter(parse_qsl(asked("since=1h").query(is_lasting=True)), NOW + 100 * SECOND_US)
    assert later.since_us == NOW - HOUR_US


def test_filter_leaves_aside_what_a_form_has_left_empty() -> None:
    """A form sends all of its fields."""
    assert asked("status=&task=&queue=&tag=&error=&since=&text=&before=") == Filter()


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("status=NOPE", "Status 'NOPE' is none of PENDING, "),
        ("status=ok", "Status 'ok' is none of"),
        ("since=yesterday", "Since 'yesterday' is no time; write 15m"),
        ("since=-1h", "Since '-1h' is no time"),
        ("tag=customer", "Tag 'customer' has no value; write NAME:VALUE"),
        ("tag=a:1&tag=a:2", "No task has two values of the tag 'a'"),
        ("task=a&task=b", "There are two values for task, 'a' and 'b'; give one."),
        ("before=42", "Before '42' is no place in a list"),
        ("before=999999999999999999999.x", "Before "),
        (f"queue={'x' * (MAX_CHARS + 1)}", "Queue is not text of at most 1,000 characters."),
        ("&".join(f"tag=a{n}:1" for n in range(21)), "There are more than 20 values for tag."),
        ("status=%E2%80%AEx", "Status '\\u202ex' is none of"),
    ],
)
def test_filter_says_what_a_wrong_value_is(query: str, sentence: str) -> None:
    """A value that was not understood must not mean more tasks than the one that was meant."""
    faults = asked(query).faults
    assert len(faults) == 1
    assert sentence in faults[0]


def test_filter_names_what_was_meant_by_an_unknown_name() -> None:
    """Other parts of an application may add names of theirs, so these are no fault."""
    found = asked("stauts=FAILED&sid=1")
    assert found.faults == ()
    assert found.remarks == (
        "There is no filter 'stauts', so it was left aside; did you mean 'status'?",
        "There is no filter 'sid', so it was left aside.",
    )


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-11-30T05:00Z", 1_796_014_800_000_000),
        ("2026-11-30T05:00:00.000000Z", 1_796_014_800_000_000),
        ("2026-11-30T06:00 01:00", 1_796_014_800_000_000),  # the `+` has become a space
        ("2026-11-30", 1_795_996_800_000_000),
        ("0001-01-01T00:00Z", 0),
        ("99999999w", 0),
    ],
)
def test_since_is_an_instant_or_a_span(text: str, meant: int) -> None:
    """An instant without a zone is UTC, as all that the pages show."""
    found = read_filter([("since", text)], NOW)
    assert (found.since_us, found.faults) == (meant, ())


def test_spans_of_one_second_mean_the_same() -> None:
    """Viewers who look in the same second share one look."""
    first, second = (read_filter([("since", "15m")], NOW + us) for us in (1, 999_999))
    assert first == second


@given(st.lists(st.tuples(st.sampled_from(["status", "task", "tag", "since", "text", "before", "x"]), ANY_TEXT)))
def test_filter_never_raises(pairs: list[tuple[str, str]]) -> None:
    """Whatever stands in an address is a filter or a sentence that can be sent as UTF-8."""
    found = read_filter(pairs, NOW)
    for text in (*found.faults, *found.remarks, told(found), found.query(before=found.before)):
        text.encode()
    if not found.faults:
        again = read_filter(parse_qsl(found.query(before=found.before)), NOW)
        assert again._replace(since="", remarks=()) == found._replace(since="", remarks=())


@pytest.mark.parametrize("task_id", ["01a22079-3add-750c-9d03-39fd28862abb", "", "a.b", "~", "~zz", "ü\n", "\0"])
def test_place_is_read_again_from_its_text(task_id: str) -> None:
    """A page goes on exactly where the one before it has ended."""
    assert cursor_of(cursor_text((5, task_id))) == (5, task_id)


def test_place_keeps_the_bytes_of_an_id_that_is_no_text() -> None:
    """Its replacement has another place in the order, so a page would skip tasks or show them twice."""
    found = cursor_of(cursor_text((5, Undecodable(b"\xff\xfe"))))
    assert found is not None
    assert isinstance(found[1], Undecodable)
    assert found[1].raw == b"\xff\xfe"


def test_filter_is_told_in_words() -> None:
    """Before many tasks are retried, the page says which."""
    found = asked("status=FAILED&status=EXPIRED&task=app:send&queue=mail&tag=customer:42&error=X&text=a%E2%80%AEb")
    assert told(found) == (
        "failed or expired tasks of app:send in queue mail with the tag customer:42 with the error X"
        " with the text 'a\\u202eb'"
    )
    assert told(Filter(), is_one=True) == "task"


def test_filter_tells_a_span_as_it_was_given() -> None:
    """Its instant would be another one in each second, and an open page would change for nothing."""
    assert told(asked("since=1h")) == "tasks that changed in the last hour"
    assert told(asked("since=15M")) == "tasks that changed in the last 15 minutes"
    assert told(asked("since=2026-11-30T05:00Z")) == "tasks that changed since 2026-11-30 05:00:00 UTC"

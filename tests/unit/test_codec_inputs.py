"""What other nodes came to stands in the arguments of a task as if it had been passed."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from taskmanager.codec.arguments import ArgumentCodec
from taskmanager.codec.results import encode_error_text
from taskmanager.model.errors import ArgumentError
from taskmanager.model.result import TaskError, TaskResult
from taskmanager.model.states import BuiltInTaskCode
from taskmanager.model.workflows import Input

AT = datetime(2026, 3, 1, tzinfo=UTC)
FAILED = encode_error_text(TaskError("NO_PAGE", "gone"))


class Reversing:
    """A codec of an application."""

    def encode(self, data: bytes, /) -> bytes:
        """Read it from behind."""
        return data[::-1]

    def decode(self, data: bytes, /) -> bytes:
        """Read it from behind."""
        return data[::-1]


def work(
    page: str, amounts: dict[str, list[Decimal]], *, at: datetime | None = None, ended: TaskResult[datetime]
) -> None:
    """Take something from everybody."""


CODEC = ArgumentCodec(work, task_name="app:work")


def value(*path: int | str, of: Any = "x", status: str = "COMPLETED") -> Input:
    """The value of a node."""
    return Input(path, "value", "a", status, json.dumps({"ok": of}), None)


def result(*path: int | str, text: str | None, status: str = "COMPLETED") -> Input:
    """The `TaskResult` of a node."""
    is_good = status == "COMPLETED"
    return Input(path, "result", "a", status, text if is_good else None, None if is_good else text)


def decode(args: str, kwargs: str, *inputs: Input) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments of `work`."""
    return CODEC.decode_with(args, kwargs, inputs)


def test_inputs_are_decoded_by_the_annotations() -> None:
    args, kwargs = decode(
        '[null,{"a":["1.10",null],"b":[]}]',
        '{"at":null,"ended":null}',
        value(0),
        value(1, "a", 1, of="2.50"),
        value("at", of=AT.isoformat()),
        result("ended", text=json.dumps({"ok": AT.isoformat()})),
    )
    assert args == ("x", {"a": [Decimal("1.10"), Decimal("2.50")], "b": []})
    assert kwargs == {"at": AT, "ended": TaskResult(ok=AT)}


@pytest.mark.parametrize(
    ("status", "text", "code"),
    [
        ("FAILED", FAILED, "NO_PAGE"),
        ("FAILED", None, BuiltInTaskCode.RESULT_NOT_AVAILABLE),
        ("SKIPPED", None, BuiltInTaskCode.UPSTREAM_SKIPPED),
        ("RUNNING", None, BuiltInTaskCode.UPSTREAM_PENDING),
        ("COMPLETED", None, BuiltInTaskCode.RESULT_NOT_AVAILABLE),
    ],
)
def test_result_tells_of_a_node_that_has_no_value(status: str, text: str | None, code: str) -> None:
    """A node that takes the result of another one runs whatever that came to."""
    _, kwargs = decode('["x",{}]', '{"ended":null}', result("ended", text=text, status=status))
    assert kwargs["ended"].err_value.error_code == code


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (value(0, of=3), "Expected `str`, got `int`"),
        (value(0, status="FAILED"), "node 'a' has no value: it is FAILED"),
        (Input((0,), "value", "a", "COMPLETED", None, None), "node 'a' has no value: none is stored"),
        (Input((0,), "value", "a", "COMPLETED", FAILED, None), "node 'a' has no value: .*NO_PAGE"),
        (Input((0,), "value", "a", "COMPLETED", "{", None), "the value of node 'a' cannot be read"),
        (value(7), "no place of the stored arguments is named"),
        (value(1, "a", 0), "no place of the stored arguments is named"),
    ],
)
def test_inputs_that_do_not_fit_are_named(found: Input, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        decode("[null,{}]", '{"ended":{"ok":null}}', found)


def test_inputs_are_read_by_the_codec_of_the_application() -> None:
    """Arguments and results are sealed one by one, and opened one by one."""
    sealed = ArgumentCodec(work, task_name="app:work", codec=Reversing())
    sent = "x", {"a": [Decimal(1)]}
    texts = sealed.encode(sent, {"ended": TaskResult(ok=AT)})
    again, _ = sealed.decode_with(*texts, [value(1, "a", 0, of="7.5")])
    assert again == ("x", {"a": [Decimal("7.5")]})


@pytest.mark.parametrize(
    "sent", [TaskResult(ok=AT), TaskResult(err=TaskError("NO_PAGE", "gone", {"url": "x"}))], ids=["value", "error"]
)
def test_results_can_be_passed_by_hand(sent: TaskResult[datetime]) -> None:
    """So that a task of a node can be enqueued like any other."""
    texts = CODEC.encode(("x", {}), {"ended": sent})
    assert CODEC.decode(*texts)[1] == {"ended": sent}


def test_results_of_another_form_are_refused() -> None:
    with pytest.raises(ArgumentError, match="'ended' does not fit"):
        decode('["x",{}]', '{"ended":{"ok":null,"err":null}}')

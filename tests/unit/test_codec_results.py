"""What a task ended with survives storage, and an error is stored whatever it holds."""

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn, Optional, Union

import pytest

from taskmanager.codec.results import MAX_ERROR_CHARS, ResultCodec, decode_untyped, encode_error_text, encode_event
from taskmanager.codec.safe import dumps_safe
from taskmanager.codec.values import dumps, loads
from taskmanager.model.errors import ArgumentError, ConfigurationError
from taskmanager.model.result import Snooze, TaskError, TaskResult
from taskmanager.model.states import BuiltInTaskCode


@dataclass
class Report:
    day: date
    pages: int


REPORT = Report(date(2026, 1, 1), 3)


def codec_for(annotation: Any) -> ResultCodec:
    def work(): ...  # type: ignore[no-untyped-def]

    work.__annotations__["return"] = annotation
    return ResultCodec(work, task_name="jobs:work")


RETURNS: list[tuple[Any, Any]] = [
    (Report, REPORT),
    (Report | Snooze, REPORT),
    (Snooze | Report | None, None),
    (Optional[Report], REPORT),  # noqa: UP045  # the older spelling is the case
    (TaskResult[Report], REPORT),
    (TaskResult[Report] | Snooze, REPORT),
    (TaskResult[Report, TaskError], REPORT),
    (Union[Snooze, TaskResult[Path]], Path("a")),  # noqa: UP007  # the older spelling is the case
    (Annotated[TaskResult[Report], "x"], REPORT),
    (Annotated[int, "x"], 5),
    (TaskResult, {"a": 1}),
    (None, None),
    (NoReturn, None),
    (Snooze, None),
    (int, 5),
    (float, 5),
    (str, "a"),
    (bool, True),
    (Any, [1, "a"]),
    (Path, Path("x")),
    (datetime | None, datetime(2026, 1, 1, tzinfo=UTC)),
    (tuple[int, str], (1, "a")),
    (str | Path, Path("a")),
]


@pytest.mark.parametrize(("annotation", "value"), RETURNS, ids=lambda each: repr(each)[:50])
def test_a_returned_value_comes_back(annotation: Any, value: Any) -> None:
    codec = codec_for(annotation)
    back = codec.decode(codec.encode_ok(value)).ok_value
    assert (type(back), back) == (type(value), value)


def test_a_function_without_a_return_annotation_returns_plain_json() -> None:
    def work(): ...  # type: ignore[no-untyped-def]

    codec = ResultCodec(work, task_name="jobs:work")
    assert codec.encode_ok(None) == '{"ok":null}'
    assert codec.decode(codec.encode_ok({"a": [1]})) == TaskResult(ok={"a": [1]})
    with pytest.raises(
        ArgumentError, match=r"jobs:work: the result \(Report\) cannot be stored.*annotate the return type"
    ):
        codec.encode_ok(REPORT)
    with pytest.raises(ArgumentError, match="pass None or a text in its place$"):
        codec.encode_ok(float("nan"))  # no annotation would help


@pytest.mark.parametrize(
    ("annotation", "value"), [(int, "a"), (int, None), (None, 5), (float, float("nan")), (list[int], (1,))]
)
def test_a_value_that_would_change_is_refused(annotation: Any, value: Any) -> None:
    with pytest.raises(ArgumentError, match="the result"):
        codec_for(annotation).encode_ok(value)


@pytest.mark.parametrize("value", [float("nan"), object(), "x" * 17_000_000], ids=lambda each: type(each).__name__)
def test_a_value_of_an_event_is_refused_as_what_it_is(value: object) -> None:
    """Whoever sends one knows of no task, and of no result."""
    with pytest.raises(ArgumentError, match=r"^event go: the value (\(|takes )"):
        encode_event("go", value, None)


def test_a_result_that_is_too_large_is_refused() -> None:
    with pytest.raises(ArgumentError, match="limit"):
        codec_for(str).encode_ok("x" * 17_000_000)


@pytest.mark.parametrize("annotation", [int | TaskResult[int], TaskResult[int] | None, int | TaskResult[int] | Snooze])
def test_a_plain_value_and_a_task_result_do_not_mix(annotation: Any) -> None:
    with pytest.raises(ConfigurationError, match="mixes"):
        codec_for(annotation)


def test_a_return_annotation_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"return annotation.*Missing"):
        codec_for("Missing")


@pytest.mark.parametrize(
    "error",
    [
        TaskError("RATE_LIMITED", "later", {"after": 5, "who": ["a", None]}),
        TaskError("free text"),
        TaskError(BuiltInTaskCode.WORKER_CRASHED, "gone", {}),
        TaskError(BuiltInTaskCode.TASK_TIMEOUT),
    ],
)
def test_an_error_comes_back_equal(error: TaskError) -> None:
    codec = codec_for(int)
    text = codec.encode_error(error)
    assert json.loads(text)["err"].keys() == {"error_code", "message", "data"}
    assert codec.decode(text) == decode_untyped(text) == TaskResult(err=error)


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class BadMapping(dict[str, object]):
    def items(self) -> Any:
        raise RuntimeError("no")


def endless() -> dict[str, Any]:
    data: dict[str, Any] = {}
    data["self"] = data
    return data


HARD = [
    {"a": float("nan"), "b": object(), "c": {1, 2}, "d": (1,), "e": b"x", "f": Path("a")},
    {1: 2, None: 3},
    {"a": Unprintable()},
    {"\ud800": "\udcff"},
    endless(),
    {"a": 10**5000},
    {"a": "x" * 3_000_000},
    {str(n): "y" * 1_000 for n in range(5_000)},
    {"a": range(10**9)},
    BadMapping(a=1),
    {"l": [0] * 2_000_000},
]


@pytest.mark.parametrize("data", HARD, ids=range(len(HARD)))
def test_an_error_is_stored_whatever_its_data(data: dict[str, Any]) -> None:
    codec = codec_for(int)
    text = codec.encode_error(TaskError("A\ud800", "m\udcff" * 3, data))
    text.encode()
    assert len(text) <= MAX_ERROR_CHARS
    back = codec.decode(text).err_value
    assert back.error_code == "A\\ud800"
    assert isinstance(back.data, dict)


def test_only_the_part_json_cannot_hold_is_replaced() -> None:
    codec = codec_for(int)
    back = codec.decode(codec.encode_error(TaskError("A", "", {"keep": [1, "x"], "odd": object}))).err_value
    assert back.data == {"keep": [1, "x"], "odd": "<class 'object'>"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ok":"a"}', '{"err":{}}', '{"err":5}', "nonsense"])
def test_a_stored_result_that_cannot_be_read_is_reported(text: str) -> None:
    with pytest.raises(ArgumentError, match="jobs:work: the stored result"):
        codec_for(int).decode(text)


def test_an_unknown_function_gives_plain_values() -> None:
    assert decode_untyped(codec_for(Report).encode_ok(REPORT)) == TaskResult(ok={"day": "2026-01-01", "pages": 3})


class Swapped:
    def encode(self, data: bytes, /) -> bytes:
        return bytes(reversed(data))

    def decode(self, data: bytes, /) -> bytes:
        return bytes(reversed(data))


def test_results_pass_through_the_codec() -> None:
    def work() -> int | None: ...

    codec = ResultCodec(work, task_name="t", codec=Swapped())
    for value in (None, 5):
        text = codec.encode_ok(value)
        assert "ok" not in text
        assert codec.decode(text) == decode_untyped(text, Swapped()) == TaskResult(ok=value)
    error = TaskError("A", "secret")
    assert codec.decode(codec.encode_error(error)) == TaskResult(err=error)


def test_error_that_was_stored_without_the_codec_is_read() -> None:
    """Whoever recovers a task on the command line has no key."""

    def work() -> int: ...

    error = TaskError(BuiltInTaskCode.WORKER_CRASHED, "its owner is gone")
    codec = ResultCodec(work, task_name="t", codec=Swapped())
    assert codec.decode(encode_error_text(error)) == TaskResult(err=error)


def test_small_documents() -> None:
    assert loads(dumps({"a": [1, None, "ä"]})) == {"a": [1, None, "ä"]}
    for wrong in (object(), {"a": "\ud800"}):
        with pytest.raises(ArgumentError, match="JSON"):
            dumps(wrong)
    with pytest.raises(ArgumentError, match="not JSON"):
        loads("{")
    assert loads(dumps_safe({"a": object, 5: (1,)})) == {"a": "<class 'object'>", "5": [1]}

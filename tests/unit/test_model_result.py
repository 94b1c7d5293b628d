"""What a task ends with: values that compare by content and survive being copied and sent to another process."""

import copy
import enum
import math
import pickle
from datetime import timedelta
from typing import Any

import pytest

from taskmanager.model.errors import ConfigurationError, TaskManagerError
from taskmanager.model.result import Snooze, Subclasses, TaskError, TaskResult, seconds_of
from taskmanager.model.states import BuiltInTaskCode


class Code(str, enum.Enum):  # noqa: UP042  # the older spelling, whose str() is its name
    OWN = "OWN_CODE"
    STOLEN = "WORKER_CRASHED"


@pytest.mark.req("RP-58", "RP-57")
def test_none_is_a_legal_success() -> None:
    result: TaskResult[None] = TaskResult(ok=None)
    assert result.is_ok()
    assert result.ok_value is None


def test_a_result_is_exactly_one_of_both() -> None:
    for arguments in ({}, {"ok": 1, "err": TaskError("X")}):
        with pytest.raises(ConfigurationError, match="exactly one"):
            TaskResult(**arguments)


def test_the_side_that_is_not_there_cannot_be_read() -> None:
    failed: TaskResult[int] = TaskResult(err=TaskError("X"))
    with pytest.raises(TaskManagerError, match="holds an error"):
        failed.unwrap()
    with pytest.raises(TaskManagerError, match="holds a value"):
        _ = TaskResult(ok=1).err_value


@pytest.mark.parametrize(
    "result", [TaskResult(ok=1), TaskResult(ok=None), TaskResult(err=TaskError("X", "m", {"a": 1}))]
)
@pytest.mark.parametrize("through", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copied_result_still_knows_its_side(result: TaskResult[Any], through: Any) -> None:
    """The mark for "not there" is compared by identity; a child process sends results back as pickles."""
    copied = through(result)
    assert copied == result
    assert copied.is_ok() == result.is_ok()
    assert repr(copied) == repr(result)


@pytest.mark.req("RP-s6")
@pytest.mark.parametrize("code", ["WORKER_CRASHED", Code.STOLEN])
def test_a_built_in_code_needs_the_enum_member(code: str) -> None:
    with pytest.raises(ConfigurationError, match=r"BuiltInTaskCode\.WORKER_CRASHED"):
        TaskError(code)
    assert type(TaskError(BuiltInTaskCode.WORKER_CRASHED).error_code) is str


def test_a_code_from_a_string_enum_is_its_value() -> None:
    assert TaskError(Code.OWN) == TaskError("OWN_CODE")
    assert TaskError(Code.OWN).error_code == "OWN_CODE"
    assert type(TaskError(Code.OWN).error_code) is str


def test_errors_compare_by_content() -> None:
    assert TaskError("X", "m", {"a": [1]}) == TaskError("X", "m", {"a": [1]})
    assert TaskError("X", "m", {"a": [1]}) != TaskError("X", "m", {"a": [2]})
    assert len({TaskError("X", data={"a": [1]}), TaskError("X", data={"a": [1]})}) == 1


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, True, "3", None, timedelta(seconds=-1)])
def test_seconds_are_a_number_from_zero_up(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="Snooze"):
        Snooze(value)


def test_seconds_may_be_a_timedelta() -> None:
    assert Snooze(timedelta(minutes=1)) == Snooze(60)
    assert seconds_of(2, "delay") == 2.0


def test_subclasses_compare_by_code() -> None:
    assert Subclasses("A") == Subclasses("A")
    assert Subclasses("A") != Subclasses("B")

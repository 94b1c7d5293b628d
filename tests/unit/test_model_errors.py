"""The exceptions as users meet them: named by the package that they import, in one line."""

import inspect
import pickle
import traceback
from typing import Any

import pytest

import taskmanager
from taskmanager.model.errors import error_line

ERRORS = [
    each
    for each in vars(taskmanager).values()
    if isinstance(each, type) and issubclass(each, taskmanager.TaskManagerError)
]
ENDED = ("4c1f3a", taskmanager.TaskStatus.FAILED, taskmanager.TaskError("RATE_LIMITED", "too many"))


def made(kind: type[Any]) -> Any:
    if issubclass(kind, taskmanager.StepFailed):
        return kind(ENDED[-1])
    return kind(*ENDED) if issubclass(kind, taskmanager.TaskNotCompleted) else kind("of what")


@pytest.mark.parametrize("kind", ERRORS)
def test_an_exception_says_the_name_that_people_import(kind: type[Any]) -> None:
    """In tracebacks, logs and error trackers; where it is defined is nobody's business and may change."""
    error = made(kind)
    last = traceback.format_exception_only(error)[-1]
    assert last.startswith(f"taskmanager.{kind.__name__}: ")
    assert last == f"{error_line(error)}\n"
    assert getattr(taskmanager, kind.__name__) is kind


@pytest.mark.parametrize("kind", ERRORS)
def test_an_exception_survives_a_pickle_and_an_inspection(kind: type[Any]) -> None:
    """Process pools pickle by the public name. The source is not found there, and no other is shown for it."""
    back = pickle.loads(pickle.dumps(made(kind)))
    assert (type(back), str(back)) == (kind, str(made(kind)))
    assert inspect.getmodule(kind) is taskmanager
    assert inspect.getdoc(kind)
    with pytest.raises(OSError, match="could not find|not available"):
        inspect.getsource(kind)


def test_an_exception_of_a_user_keeps_its_module() -> None:
    """Only the classes of the library are renamed, not what is derived from them."""

    class Mine(taskmanager.TaskManagerError): ...

    assert Mine.__module__ == __name__
    assert error_line(Mine("a\nb")) == f"{__name__}.{Mine.__qualname__}: a b"
    assert error_line(ValueError("3")) == "ValueError: 3"

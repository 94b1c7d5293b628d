"""Between values and their stored forms, for rows of functions that are known here, and of those that are not.

A result is read, and an outcome written, by code of the application too: a codec, a comparison, a `__post_init__`, an
enum's `_missing_`. It is called in the loops of the engine, so whatever that raises ends here.
"""

from collections.abc import Callable, Mapping
from typing import Any

from taskmanager.codec.results import decode_untyped, encode_error_text
from taskmanager.engine.definition import Definition
from taskmanager.model.errors import ArgumentError
from taskmanager.model.record import TaskRow
from taskmanager.model.result import TaskError, TaskResult
from taskmanager.model.states import BuiltInTaskCode


class RowCodec:
    """A function that is not among the definitions of the manager has the codec without types."""

    def __init__(self, definitions: Mapping[str, Definition]) -> None:
        self._definitions = definitions

    def decode_result(self, row: TaskRow) -> TaskResult[Any]:
        """The result of a row, by the function's own types where it is known here."""
        text = row.result
        if text is None:
            return TaskResult(err=TaskError(BuiltInTaskCode.RESULT_NOT_AVAILABLE, "the record holds no result"))
        definition = self._definitions.get(row.task_name)
        try:
            return decode_untyped(text) if definition is None else definition.results.decode(text)
        except ArgumentError as exc:
            why = str(exc)
        except BaseException as exc:  # noqa: BLE001  # see above
            why = f"task {row.task_name}: the stored result cannot be read: {type(exc).__name__}"
        return TaskResult(err=TaskError(BuiltInTaskCode.RESULT_NOT_AVAILABLE, why))

    def encode_error(self, task_name: str, error: TaskError) -> str:
        """The stored form of an error, encrypted where the function's results are."""
        definition = self._definitions.get(task_name)
        return encode_error_text(error) if definition is None else stored_error(definition, error)


# What is stored of a call and of its outcome.


def stored_arguments(
    definition: Definition, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, str] | tuple[None, None]:
    """The arguments of a memory-only task for its record; nothing where they cannot be stored."""
    try:
        return definition.arguments.encode(args, kwargs)
    except BaseException:  # noqa: BLE001  # see above
        return None, None


def stored_result(definition: Definition, value: Any, tell: Callable[[Definition, str], None]) -> str:
    """What a task has returned, or why that cannot be stored, which `tell` is told."""
    try:
        return definition.results.encode_ok(value)
    except ArgumentError as exc:
        why = str(exc)
    except BaseException as exc:  # noqa: BLE001  # see above
        why = f"task {definition.name}: the result cannot be stored: {type(exc).__name__}"
    tell(definition, why)
    return stored_error(definition, TaskError(BuiltInTaskCode.RESULT_NOT_AVAILABLE, why))


def stored_error(definition: Definition, error: TaskError) -> str:
    """An error whose codec fails is not stored in plain text, but the task ends all the same."""
    try:
        return definition.results.encode_error(error)
    except ArgumentError as exc:
        why = str(exc)
    except BaseException as exc:  # noqa: BLE001  # see above
        why = f"task {definition.name}: the error cannot be stored: {type(exc).__name__}"
    return encode_error_text(TaskError(BuiltInTaskCode.RESULT_NOT_AVAILABLE, why))

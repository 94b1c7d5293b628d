"""Decodes and encodes the columns of a row that are in the codec of its function, whether that is known here or not."""

from collections.abc import Mapping
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
            return TaskResult(err=TaskError(BuiltInTaskCode.RESULT_NOT_AVAILABLE, str(exc)))

    def encode_error(self, task_name: str, error: TaskError) -> str:
        """The stored form of an error, encrypted where the function's results are."""
        definition = self._definitions.get(task_name)
        return encode_error_text(error) if definition is None else definition.results.encode_error(error)

"""What the call of a step means where an earlier run has recorded something, as a table."""

import pytest

from taskmanager.model.steps import StepRow
from taskmanager.rules.steps import Meaning, is_settled, meaning_of, unasked


def row(*, error: bool = False, is_final: int = 0, ended_at: int | None = 20, **changes: object) -> StepRow:
    code = "NO" if error else None
    made = StepRow("t1", "step", 1, "", "load", "d1", 10, ended_at, 1, '{"ok": 1}', code, None, is_final)
    return made._replace(**changes)  # type: ignore[arg-type]  # each test gives what its column holds


VALUE, ERROR, FINAL, TRIED = row(), row(error=True), row(error=True, is_final=1), row(error=True, ended_at=None)


@pytest.mark.parametrize(
    ("name", "digest", "record", "meaning"),
    [
        ("load", "d1", None, "run"),
        ("load", "d1", VALUE, "return"),
        ("load", None, VALUE, "return"),
        ("load", "d1", row(digest=None), "return"),
        ("load", None, row(digest=None), "return"),
        ("save", "d1", VALUE, "mismatch"),
        ("load", "d2", VALUE, "mismatch"),
        ("save", None, row(digest=None), "mismatch"),
        ("load", "d1", FINAL, "raise"),
        ("save", "d1", FINAL, "mismatch"),
        ("load", "d2", FINAL, "mismatch"),
        ("load", "d1", ERROR, "run"),
        ("save", "d2", ERROR, "run"),
        ("load", "d1", TRIED, "run"),
        ("save", "d2", TRIED, "run"),
    ],
)
def test_call_of_a_step_means(name: str, digest: str | None, record: StepRow | None, meaning: Meaning) -> None:
    """A record that is not settled binds nobody, so that what made the step fail can be put right."""
    assert meaning_of(name, digest, record) == meaning


def test_unasked_names_settled_steps_only() -> None:
    """A version that the code asks for no more is ignored."""
    second, patch = row(number=2), row(kind="patch", number=0, key="v2")
    found = unasked([VALUE, second, patch, row(number=3, error=True)], {VALUE.identity})
    assert found == [second]
    assert [is_settled(each) for each in (VALUE, ERROR, FINAL, TRIED)] == [True, False, True, False]

"""A plain success ends in one step (`Life.complete`), and as by the general path.

The same seeds are played with the shortcut and without it. A story has every write and every line of the log, so two
equal stories have the same rows and told the same.
"""

from typing import Any, ClassVar

import pytest

from taskmanager.engine.attempt import Attempt
from taskmanager.engine.life import Life
from tests.simulation.scenario import play

SEEDS = range(101, 117)


class Shortcut:
    """Counts the ends that take it."""

    count: ClassVar[int] = 0


def no_run_is_plain(patch: pytest.MonkeyPatch) -> None:
    """Let every run go the general way."""
    patch.setattr(Attempt, "is_plain", property(lambda _: False, lambda _, __: None))


def test_plain_runs_end_as_by_the_general_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens around them: kills, freezes, stops, outages and steps of the clock."""
    complete = Life.complete

    def counted(self: Life, attempt: Attempt, value: Any) -> None:
        Shortcut.count += 1
        complete(self, attempt, value)

    monkeypatch.setattr(Life, "complete", counted)
    shortened = [play(seed).lines for seed in SEEDS]
    count = Shortcut.count
    assert count > len(SEEDS)
    no_run_is_plain(monkeypatch)
    for seed, lines in zip(SEEDS, shortened, strict=True):
        assert play(seed).lines == lines, f"seed {seed} tells another story without the shortcut"
    assert Shortcut.count == count, "a run took the shortcut that is closed"

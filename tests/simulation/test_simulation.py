"""Fifty seeds of the simulator, and that a seed is a complete report: the same one tells the same story twice.

Every third one is played once more without the shortcut of a plain success (`Life.complete`) and with nobody who
listens. A story has every write and every line of the log, so two equal stories have the same rows and told the same.

How it fits together, and how to play a seed again, is in `__main__`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskmanager.engine.life import Life
from taskmanager.engine.words.attempt import Attempt
from tests.simulation.scenario import play
from tests.simulation.world import World

FIRST, SEEDS = 7, 50
PER_TEST = 10
SHORTENED_EVERY = 3


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, PER_TEST))
def test_nothing_is_lost_stuck_or_repeated_whatever_happens(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills, freezes, stops, outages and steps of the clock: safe at every write, and everything ends when they end."""
    shortened: list[Attempt] = []
    complete = Life.complete

    def counted(self: Life, attempt: Attempt, value: Any) -> None:
        shortened.append(attempt)
        complete(self, attempt, value)

    monkeypatch.setattr(Life, "complete", counted)
    for seed in range(first, first + PER_TEST):
        story = play(seed)
        assert not story.faults, f"seed {seed}: {story.faults}\n" + "\n".join(story.lines[-80:])
        assert story.lines
        if seed % SHORTENED_EVERY == 0:
            assert shortened
            shortened.clear()
            with no_run_is_plain(monkeypatch):
                again = play(seed, listens=False)
            assert again.lines == story.lines, f"seed {seed} is another one without the shortcut and the listeners"
            assert not shortened, "a run took the shortcut that is closed"


@contextmanager
def no_run_is_plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let every run go the general way."""
    with monkeypatch.context() as patch:
        patch.setattr(Attempt, "is_plain", property(lambda _: False, lambda _, __: None))
        yield


@pytest.mark.parametrize("seed", [3, 7])
def test_a_seed_tells_the_same_story_twice(seed: int) -> None:
    """On a file and in memory: every line, the library's log included."""
    first, second = play(seed), play(seed)
    assert first.lines == second.lines
    assert first.run_count > 0


def test_a_third_of_the_seeds_is_on_a_real_file(tmp_path: Path) -> None:
    """The real statements, and what two connections see of each other."""
    on_file = []
    for seed in range(SEEDS):
        world = World(seed, tmp_path)
        on_file.append(world.is_on_file)
        world.close()
    assert sum(on_file) > SEEDS / 4

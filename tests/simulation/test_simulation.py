"""Fifty seeds of the simulator, and that a seed is a complete report: the same one tells the same story twice.

How it fits together, and how to play a seed again, is in `__main__`.
"""

from pathlib import Path

import pytest

from tests.simulation.scenario import play
from tests.simulation.world import World

SEEDS = 50
PER_TEST = 10


@pytest.mark.parametrize("first", range(1, SEEDS + 1, PER_TEST))
def test_nothing_is_lost_stuck_or_repeated_whatever_happens(first: int) -> None:
    """Kills, freezes, stops, outages and steps of the clock: safe at every write, and everything ends when they end."""
    for seed in range(first, first + PER_TEST):
        story = play(seed)
        assert not story.faults, f"seed {seed}: {story.faults}\n" + "\n".join(story.lines[-80:])
        assert story.lines


@pytest.mark.parametrize("seed", [3, 4])
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

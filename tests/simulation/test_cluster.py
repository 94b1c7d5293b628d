"""Ten hosts on one server whose network breaks: see `cluster`, which plays thousands of seeds by its command line."""

import pytest

from tests.simulation.cluster import ReturnScenario, play_cluster


@pytest.mark.parametrize("seed", [1, 2])
def test_cluster_loses_and_doubles_nothing_when_hosts_are_cut_off(seed: int) -> None:
    """Nothing is taken before the grace, nothing starts on a host that is cut off, and all hosts share a burst."""
    story = play_cluster(seed)
    assert not story.faults, f"seed {seed}: {story.faults}\n" + "\n".join(story.lines[-80:])
    assert story.run_count > 0


@pytest.mark.parametrize("seed", [1, 3, 9])
def test_cluster_takes_nothing_that_a_host_starts_when_it_is_back(seed: int) -> None:
    """Others called it dead, and have not looked since. It starts nothing until they have."""
    story = play_cluster(seed, ReturnScenario)
    assert not story.faults, f"seed {seed}: {story.faults}\n" + "\n".join(story.lines[-80:])
    assert story.run_count > 0

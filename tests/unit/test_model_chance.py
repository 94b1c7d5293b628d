"""The numbers by chance that spread retries: `random_01` in `taskmanager/model/ids.py`."""

from taskmanager.model.ids import random_01


def test_random_01_stays_inside_and_covers_its_range() -> None:
    """A number of 1 would put a retry above its longest delay; one that does not vary spreads nothing."""
    drawn = [random_01() for _ in range(2_000)]
    assert 0.0 <= min(drawn) < 0.05
    assert 0.95 < max(drawn) < 1.0
    assert len(set(drawn)) == len(drawn)

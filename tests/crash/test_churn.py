"""A few rounds of the churn in the suite; `make churn` runs hundreds."""

from pathlib import Path

import pytest

from tests.crash.churn import run_rounds
from tests.crash.harness import both_with

ROUNDS = 10


@pytest.mark.slow
@pytest.mark.req("PR-34", "PR-36", "PR-37", "PR-44")
@both_with("seed", [1, 2], 1, is_long=True)
def test_random_kills_lose_nothing_and_double_nothing(tmp_path: Path, database: str, seed: int) -> None:
    """Everything promised has ended, once, and a file is whole."""
    assert run_rounds(tmp_path, ROUNDS, seed, database) == []

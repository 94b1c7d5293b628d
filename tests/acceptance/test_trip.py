"""The way of a task through the package stays short: every layer that it passes is paid for by every task."""

from collections.abc import Mapping
from typing import Final

import pytest

from tests.trip import KINDS, Trip, measure_apart

# Lower a number when the way gets shorter; do not raise one. `python -m tests.trip` prints the way. The aim is 18
# modules, 8 of them of engine/, and 118 calls for a memory-only task, 163 for a persisted one.
BOUNDS: Final[Mapping[str, Trip]] = {
    "memory-only": Trip(modules=37, engine_modules=21, calls=258),
    "persisted": Trip(modules=37, engine_modules=21, calls=340),
}
SLACK: Final = 0.9
"""Newer Pythons enter no function for a comprehension, so that fewer calls are counted there."""


@pytest.mark.parametrize("kind", KINDS)
def test_trip_stays_within_its_bounds(kind: str) -> None:
    """A trip that got longer has a new layer in it; one that got shorter must not get longer again unnoticed."""
    found, bound = measure_apart(kind), BOUNDS[kind]
    assert found.modules <= bound.modules, found
    assert found.engine_modules <= bound.engine_modules, found
    assert found.calls <= bound.calls, found
    is_tight = (found.modules, found.engine_modules) == bound[:2] and found.calls >= SLACK * bound.calls
    assert is_tight, f"{kind}: the trip is shorter now, lower its bounds to {found}"

"""The way of a task through the package stays short: every layer that it passes is paid for by every task."""

from collections.abc import Mapping
from functools import cache
from typing import Final

import pytest

from tests.trip import KINDS, Trip, measure_apart

# Lower a number when the way gets shorter; do not raise one. `python -m tests.trip` prints the way. The aim is 18
# modules, 8 of them of engine/, and 118 calls for a memory-only task, 163 for a persisted one.
BOUNDS: Final[Mapping[str, Trip]] = {
    "memory-only": Trip(modules=29, engine_modules=15, calls=218),
    "persisted": Trip(modules=29, engine_modules=15, calls=291),
}
MEASUREMENTS: Final = 6
SLACK: Final = 0.9
"""Newer Pythons enter no function for a comprehension, so that fewer calls are counted there."""


@cache
def shortest(kind: str) -> Trip:
    """Measure again while more is seen than is allowed: on a busy machine duties of the manager get into most trips."""
    found = []
    for _ in range(MEASUREMENTS):
        found.append(measure_apart(kind))
        if all(seen <= bound for seen, bound in zip(found[-1], BOUNDS[kind], strict=True)):
            break
    return min(found, key=lambda trip: trip.calls)


@pytest.mark.parametrize("kind", KINDS)
def test_trip_visits_few_modules(kind: str) -> None:
    """A trip that visits one more has a new layer in it."""
    found, bound = shortest(kind), BOUNDS[kind]
    assert found.modules <= bound.modules, found
    assert found.engine_modules <= bound.engine_modules, found
    assert found[:2] == bound[:2], f"{kind}: the trip is shorter now, lower its bounds to {found}"


@pytest.mark.parametrize("kind", KINDS)
def test_trip_makes_few_calls(kind: str) -> None:
    """Every task pays for every call, on the loop or in the thread that writes."""
    found, bound = shortest(kind), BOUNDS[kind]
    assert found.calls <= bound.calls, found
    assert found.calls >= SLACK * bound.calls, f"{kind}: the trip is shorter now, lower its bounds to {found}"

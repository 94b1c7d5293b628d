"""The line of history: packed records leave in order, as if each were an entry of its own."""

import gc
import random
from typing import NamedTuple

import pytest

from taskmanager.engine.write.history import WIDTH, HistoryLine
from taskmanager.engine.write.outbox import Line


class Other(NamedTuple):
    """A record that is not packed."""

    name: str


def values(name: str) -> tuple[str, ...]:
    """Those of one packed record."""
    return (name, *("value",) * (WIDTH - 1))


@pytest.mark.parametrize("seed", range(8))
def test_line_of_packed_records_does_what_a_plain_line_does(seed: int) -> None:
    """Records come, packed or not; some leave, and of those some are put back; some are tried again."""
    rng, line, plain = random.Random(seed), HistoryLine[Other](), Line[Other]()
    number = 0
    for _ in range(120):
        kind = rng.choice(("pack", "pack", "other", "take", "advance"))
        if kind in ("pack", "other"):
            for _ in range(rng.choice((1, 1, 70, 200)) if kind == "pack" else 1):
                number += 1
                plain.entries.append(Other(str(number)))
                if kind == "pack":
                    line.pack(values(str(number)))
                else:
                    line.append(Other(str(number)))
        elif kind == "take":
            most = rng.choice((0, 1, 5, 63, 64, 65, 512))
            taken = [Other(str(each[0])) for each in line.pop_many(most)]
            assert taken == [plain.pop() for _ in range(min(most, len(plain.entries)))]
            if rng.random() < 0.3:
                for each in reversed(taken):
                    line.put_back(each)
                    plain.put_back(each)
        else:
            name = str(rng.randint(1, number + 1))
            others = {each.name for each in line.others()}
            line.advance(lambda each, name=name: each.name == name)  # type: ignore[misc]
            plain.advance(lambda each, name=name, others=others: each.name == name in others)  # type: ignore[misc]
        assert (len(line), line.passed_count, line.end) == (len(plain.entries), plain.passed_count, plain.end)
        assert bool(line) is bool(plain.entries)
    for each in plain.entries:
        found = line.find(each.name)
        assert found == values(each.name) or (found is None and each in line.others())
    assert line.find("0") is None


def test_packed_records_are_no_objects_of_their_own() -> None:
    """Else the collector of garbage would count each of them, and look at it again and again."""
    line: HistoryLine[Other] = HistoryLine()
    gc.collect()
    before = len(gc.get_objects())
    for number in range(10_000):
        line.pack(values(str(number)))
    assert len(gc.get_objects()) - before < 200
    assert len(line) == 10_000

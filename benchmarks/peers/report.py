"""The tables: medians and ratios, written as Markdown and read back from it."""

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from benchmarks.peers.contenders import CONTENDERS
from benchmarks.peers.interface import Kept

BEGIN, END = "<!-- benchmarks.peers: begin -->", "<!-- benchmarks.peers: end -->"
OURS = "taskmanager"
LEVEL = 0.05
"""A ratio this close to 1 is no difference."""


class Line(NamedTuple):
    """One thing that is compared."""

    title: str
    is_more_better: bool


LINES: Mapping[str, Line] = {
    "per_s": Line("tasks/s", True),
    "processor_us": Line("processor, µs per task", False),
    "accepted_per_s": Line("calls/s, many callers", True),
    "call_us": Line("one call, µs", False),
    "free_call_us": Line("one call, loop goes on, µs", False),
    "idle_ms": Line("call to first line, ms", False),
    "first_s": Line("process start to first line, s", False),
    "restart_per_s": Line("tasks/s from process start", True),
    "peak_mib": Line("memory at full speed, MiB", False),
    "restart_mib": Line("memory at start, MiB", False),
    "steps_per_s": Line("steps/s, 100 tasks", True),
    "step_us": Line("processor, µs per step", False),
}
GROUPS: Mapping[str, str] = {
    "taskmanager, no file": "Nothing is kept",
    "taskmanager, recorded at once": "Ends are recorded, what waits and runs is lost",
    "taskmanager, persisted": "What waits is kept over an orderly stop",
    "taskmanager, saved()": "A call returns when its task is committed and synced",
    "taskmanager, saved(), not synced": "A call returns when its task is committed, and not synced",
    "taskmanager, steps": "A task goes on when the result of its step is committed and synced",
}
"""What is compared with which of ours, and what it has in common."""
ACCEPTED = {Kept.NEVER: "lost", Kept.SOON: "kept after some milliseconds", Kept.AT_ONCE: "kept when the call returns"}
STARTED = {Kept.NEVER: "lost", Kept.AT_ONCE: "known"}
ENDED = {Kept.NEVER: "not recorded", Kept.LATER: "recorded within a minute", Kept.SOON: "recorded"}

Samples = Mapping[str, float]
"""What one measure found, by the keys of LINES."""


class Cell(NamedTuple):
    """A median, and how many times better ours is: the median over the pairs. None in the rows of ours."""

    value: str
    factor: float | None


class Pair(NamedTuple):
    """One measure of one contender, and the same of ours right before or after it."""

    name: str
    its: Samples
    ours: Samples


class Results(NamedTuple):
    """All that a run has found."""

    pairs: Sequence[Pair]
    failures: Mapping[str, str]
    facts: str
    """On what it was measured, when, and how often."""


Tables = dict[str, dict[str, dict[str, Cell]]]
"""The cells by the one of ours, by the contender, and by the title of the line."""


def tables(results: Results) -> Tables:
    """The figures of everyone who took part, in the order of the tables."""
    found: Tables = {}
    took_part = {pair.name for pair in results.pairs}
    for ours in GROUPS:
        names = [name for name, each in CONTENDERS.items() if each.against == ours and name in took_part]
        if names:
            samples = {ours: [pair.ours for pair in results.pairs if CONTENDERS[pair.name].against == ours]}
            samples |= {name: [pair.its for pair in results.pairs if pair.name == name] for name in names}
            found[ours] = {name: _row(_lines_of(names), name, its, results.pairs) for name, its in samples.items()}
    return found


def _lines_of(names: Sequence[str]) -> Sequence[str]:
    """The lines of a table. How long a call takes that blocks nobody is asked where some do."""
    is_any_blocking = any(CONTENDERS[name].is_blocking for name in names)
    return [key for key in LINES if is_any_blocking or key != "free_call_us"]


def _row(keys: Sequence[str], name: str, its: Sequence[Samples], pairs: Sequence[Pair]) -> dict[str, Cell]:
    is_ours = CONTENDERS[name].environment == OURS
    found = {}
    for key in keys:
        values = [each[key] for each in its if key in each]
        if values:
            factor = None if is_ours else _factor(key, [pair for pair in pairs if pair.name == name])
            found[LINES[key].title] = Cell(figure(statistics.median(values)), factor)
    return found


def _factor(key: str, pairs: Sequence[Pair]) -> float | None:
    """The median of how many times better ours was."""
    both = [(pair.ours[key], pair.its[key]) for pair in pairs if key in pair.ours and key in pair.its]
    ratios = [mine / other if LINES[key].is_more_better else other / mine for mine, other in both]
    return float(f"{statistics.median(ratios):.2g}") if ratios else None


def figure(value: float) -> str:
    """Two or three digits that say something."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.2g}"


def not_ahead(found: Tables) -> Iterator[str]:
    """A sentence for each line of each table in which somebody is ahead of ours, or level with it."""
    for ours, rows in found.items():
        for title in rows[ours]:
            factors = {name: cells[title].factor or math.inf for name, cells in rows.items() if title in cells}
            ahead = [f"{name} ({1 / factor:.2g}×)" for name, factor in factors.items() if factor < 1 - LEVEL]
            level = [name for name, factor in factors.items() if _is_level(factor)]
            if ahead:
                yield f"“{title}”, ahead of {ours}: {'; '.join(ahead)}."
            if level:
                yield f"“{title}”, level with {ours}: {'; '.join(level)}."


def _is_level(factor: float) -> bool:
    return 1 - LEVEL <= factor <= 1 + LEVEL


# Writing.


def markdown(results: Results) -> str:
    """All of it."""
    found = tables(results)
    parts = [results.facts, *(f"{name} was left out: {why}" for name, why in results.failures.items())]
    parts += [_promises(results)]
    for ours, rows in found.items():
        parts += [f"### {GROUPS[ours]}", _table(rows)]
    sentences = [f"- {each}" for each in not_ahead(found)]
    parts += ["### Where taskmanager is not ahead", "\n".join(sentences) if sentences else "Nowhere."]
    return "\n\n".join(parts) + "\n"


def _promises(results: Results) -> str:
    rows = [["", "after a kill: accepted", "running", "ended", "synced", "how it is set up"]]
    names = {pair.name for pair in results.pairs}
    names |= {ours for name in names if (ours := CONTENDERS[name].against)}
    for name in (each for each in CONTENDERS if each in names):
        each = CONTENDERS[name]
        kept = each.promise
        is_anything_kept = kept.accepted or kept.started or kept.ended
        synced = ("yes" if kept.is_synced else "no") if is_anything_kept else "–"
        rows.append([name, ACCEPTED[kept.accepted], STARTED[kept.started], ENDED[kept.ended], synced, each.note])
    return _grid(rows)


def _table(rows: Mapping[str, Mapping[str, Cell]]) -> str:
    titles = [line.title for line in LINES.values() if any(line.title in cells for cells in rows.values())]
    grid = [["", *titles]]
    for name, cells in rows.items():
        grid.append([name, *(_text(cells[title]) if title in cells else "–" for title in titles)])
    return _grid(grid)


def _text(cell: Cell) -> str:
    if cell.factor is None:
        return cell.value
    text = f"{cell.value} ({cell.factor:g}×)"
    return f"**{text}**" if cell.factor <= 1 + LEVEL else text


def _grid(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join((lines[0], "|" + "---|" * len(rows[0]), *lines[1:]))


def written_into(page: str, results: Results) -> str:
    """The page with the part between its two marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{markdown(results)}\n{END}{after}"


# Reading back.

_CELL = re.compile(r"\*{0,2}(?P<value>[\d.,]+)(?: \((?P<factor>[\d.]+)×\))?\*{0,2}")


def read(page: str) -> Tables:
    """The tables of a page, as `tables` made them."""
    found: Tables = {}
    ours_of = {title: ours for ours, title in GROUPS.items()}
    for section in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        ours = ours_of.get(section.splitlines()[0])
        if ours is None:
            continue
        lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
        titles = lines[0]
        found[ours] = {row[0]: dict(_cells(titles, row[1:])) for row in lines[2:]}
    return found


def _cells(titles: Sequence[str], texts: Sequence[str]) -> Iterator[tuple[str, Cell]]:
    for title, text in zip(titles, texts, strict=True):
        match = _CELL.fullmatch(text)
        if match:
            factor = match["factor"]
            yield title, Cell(match["value"], float(factor) if factor else None)

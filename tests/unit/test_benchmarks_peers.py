"""benchmarks/peers/: the comparison is fair, the tables say what was measured, and our own contenders run."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import measures
from benchmarks.peers.contenders import CONTENDERS, chosen
from benchmarks.peers.environments import REQUIREMENTS
from benchmarks.peers.interface import NOTHING, PROBE, Contender, Kept, Promise
from benchmarks.peers.report import (
    BEGIN,
    END,
    GROUPS,
    LINES,
    OURS,
    Pair,
    Results,
    figure,
    markdown,
    not_ahead,
    read,
    tables,
    written_into,
)
from benchmarks.postgres_peers import PEERS as PEERS_OF_SERVERS

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]
CONTENDERS_OF_OURS = [each for each in CONTENDERS.values() if each.environment == OURS]
PEERS = [name for name, each in CONTENDERS.items() if each.environment != OURS]
AHEAD, BEHIND, SAME = 0.5, 2.0, 1.0
"""What a peer's figure is multiplied with: it needs half of the time, and so on."""


def results(worse: Callable[[str, str], float]) -> Results:
    """Two repetitions of everyone, where each of ours has 1,000 everywhere and a peer is `worse` by that much."""
    pairs = []
    for name in PEERS:
        its = {
            key: 1000 * (1 / worse(name, key) if line.is_more_better else worse(name, key))
            for key, line in LINES.items()
        }
        pairs += [Pair(name, dict(its), dict.fromkeys(LINES, 1000.0)) for _ in range(2)]
    return Results(pairs, {"somebody": "pip said no"}, "Measured once.")


@pytest.mark.parametrize("name", [name for name, each in CONTENDERS.items() if each.against])
def test_ours_promises_at_least_what_its_peer_does(name: str) -> None:
    """A peer that promises more than the contender of ours would lose for it. That one has what it is compared by."""
    peer, ours = CONTENDERS[name], CONTENDERS[str(CONTENDERS[name].against)]
    assert ours.name in GROUPS
    assert ours.environment == OURS
    if peer.environment != OURS:
        assert ours.promise.covers(peer.promise)
    for measure in ("count", "samples", "waiting", "steps"):
        assert bool(getattr(ours, measure)) >= bool(getattr(peer, measure))


def test_a_promise_covers_only_what_is_no_stronger_anywhere() -> None:
    """One stronger word is enough not to be covered."""
    held = Promise(accepted=Kept.SOON, started=Kept.NEVER, ended=Kept.SOON, is_synced=False)
    assert held.covers(held)
    assert held.covers(NOTHING)
    assert not held.covers(Promise(Kept.AT_ONCE, Kept.NEVER, Kept.NEVER, is_synced=False))
    assert not held.covers(Promise(Kept.NEVER, Kept.AT_ONCE, Kept.NEVER, is_synced=False))
    assert not held.covers(Promise(Kept.NEVER, Kept.NEVER, Kept.NEVER, is_synced=True))


def test_every_library_is_pinned_and_takes_part() -> None:
    """A table of last year is worth something only with the versions."""
    of_servers = {f"{name}-postgres" for name in PEERS_OF_SERVERS}
    assert REQUIREMENTS.keys() == {each.environment for each in CONTENDERS.values()} | of_servers
    loose = [
        each
        for name, wanted in REQUIREMENTS.items()
        for each in wanted
        if not name.startswith("taskmanager") and "==" not in each
    ]  # fmt: skip
    assert loose == []


def test_chosen_peers_bring_the_one_of_ours_they_are_compared_with() -> None:
    """Alone their figures would say nothing."""
    assert [each.name for each in chosen(["huey"])] == ["taskmanager, saved()", "Huey"]
    assert chosen([]) == list(CONTENDERS.values())
    assert chosen(["nobody"]) == []


def test_tables_are_read_back_as_they_were_written() -> None:
    """Every figure and every ratio stands in the text."""
    found = tables(results(lambda name, key: BEHIND if key == "per_s" else 1.5))
    assert list(found) == list(GROUPS)
    assert read(markdown(results(lambda name, key: BEHIND if key == "per_s" else 1.5))) == found


def test_a_ratio_says_how_many_times_better_ours_is() -> None:
    """Twice the rate and half the time are both 2."""
    found = tables(results(lambda name, key: BEHIND))["taskmanager, saved()"]
    assert found["taskmanager, saved()"]["tasks/s"] == ("1,000", None)
    assert found["Huey"]["tasks/s"] == ("500", 2.0)
    assert found["Huey"]["one call, µs"] == ("2,000", 2.0)


def test_a_sentence_names_each_line_where_ours_is_not_ahead() -> None:
    """Those where a peer is level, too."""
    worse = {("Huey", "call_us"): AHEAD, ("DBOS, started", "call_us"): AHEAD, ("taskiq", "per_s"): SAME}
    found = results(lambda name, key: worse.get((name, key), BEHIND))
    assert list(not_ahead(tables(found))) == [
        "“tasks/s”, level with taskmanager, no file: taskiq.",
        "“one call, µs”, ahead of taskmanager, saved(): Huey (2×); DBOS, started (2×).",
    ]
    text = markdown(found)
    assert text.count("**500 (0.5×)**") == 2
    assert text.count("**1,000 (1×)**") == 1
    assert text.count("**") == 6


def test_a_missing_figure_is_left_out_and_said() -> None:
    """An empty cell is no victory."""
    found = results(lambda name, key: BEHIND)
    kept = [pair for pair in found.pairs if pair.name != "litequeue"]
    half = next(number for number, pair in enumerate(kept) if pair.name == "Huey")
    kept[half] = Pair("Huey", {}, {"per_s": 1000.0})
    kept = [Pair("taskiq", {}, pair.ours) if pair.name == "taskiq" else pair for pair in kept]
    found = found._replace(pairs=kept)
    cells = tables(found)
    assert cells["taskmanager, saved()"]["Huey"]["tasks/s"] == ("500", 2.0)
    assert cells["taskmanager, saved()"]["Huey"]["one call, µs"] == ("2,000", 2.0)
    assert "taskmanager, saved(), not synced" not in cells
    assert cells["taskmanager, no file"]["taskiq"] == {}
    assert read(markdown(found)) == cells
    assert "somebody was left out: pip said no" in markdown(found)


def test_only_the_part_between_the_marks_is_replaced() -> None:
    """The rest of the page is written by hand."""
    found = results(lambda name, key: BEHIND)
    page = written_into(f"# Before\n{BEGIN}\nwhat stood here\n{END}\nAfter\n", found)
    assert page.startswith(f"# Before\n{BEGIN}\n\nMeasured once.")
    assert page.endswith(f"\n{END}\nAfter\n")
    assert "what stood here" not in page
    assert written_into(page, found) == page
    with pytest.raises(ValueError, match="the page needs"):
        written_into("# Before", found)


def test_the_page_admits_every_line_where_ours_is_not_ahead() -> None:
    """A table that was mended by hand must not lose its sentences."""
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    found = read(page)
    assert found, "make bench-peers has written no table yet"
    lines = (re.fullmatch("- (“.+”, (?:ahead of|level with) .+)", line) for line in page.splitlines())
    sentences = [match[1] for match in lines if match]
    assert sentences == list(not_ahead(found))


@pytest.mark.parametrize(
    ("value", "text"), [(12345.6, "12,346"), (999.4, "999"), (43.21, "43.2"), (1.234, "1.2"), (0.0456, "0.046")]
)
def test_a_figure_has_the_digits_that_mean_something(value: float, text: str) -> None:
    """More of them would be noise."""
    assert figure(value) == text


@pytest.mark.parametrize("contender", CONTENDERS_OF_OURS, ids=lambda each: each.name)
async def test_our_contenders_run_through_every_measure(contender: Contender, tmp_path: Path) -> None:
    """The interface is what the measures call; the figures are whatever they are."""
    wanted, found = {*LINES}, dict[str, float]()
    for folder in ("throughput", "single", "steps"):
        (tmp_path / folder).mkdir()
    if contender.count:
        found |= await measures.throughput(contender, contender.make(tmp_path / "throughput"), 30)
        found |= await measures.single(contender, contender.make(tmp_path / "single"), 3)
    else:
        wanted -= {"per_s", "processor_us", "accepted_per_s", "call_us", "free_call_us", "idle_ms", "peak_mib"}
    if contender.waiting:
        await contender.make(tmp_path).fill(waiting=7, ended=5)
        found |= await measures.restart(contender.make(tmp_path), 7, 0.0)
    else:
        wanted -= {"first_s", "restart_per_s", "restart_mib"}
    if contender.steps:
        found |= await measures.steps(contender, contender.make(tmp_path / "steps"), 3)
    else:
        wanted -= {"steps_per_s", "step_us"}
    assert found.keys() == wanted
    assert all(value > 0 for value in found.values()), found


async def test_probe_tells_the_first_and_the_last_of_the_expected_runs() -> None:
    """Runs that nobody expects are counted for nobody."""
    PROBE.expect(2)
    PROBE.hit()
    first = PROBE.first_at
    PROBE.hit()
    PROBE.hit()
    await PROBE.wait()
    assert 0 < first == PROBE.first_at <= PROBE.last_at


def test_a_process_prints_one_measure_of_one_contender(tmp_path: Path) -> None:
    """The runner reads nothing else."""
    command = [sys.executable, "-m", "benchmarks.peers.process", "taskmanager, persisted", "throughput", str(tmp_path)]
    done = subprocess.run([*command, "--count", "20"], cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["sqlite"]
    assert found["values"].keys() == {"per_s", "accepted_per_s", "processor_us", "peak_mib"}

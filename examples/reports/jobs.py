"""The background work of the reports service. Nothing here knows of HTTP."""

import asyncio
import logging
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from taskmanager import QueueConfig, TaskManager, TaskStatus, current_task

logger = logging.getLogger("reports")

# Everything is kept in the file, so that a deploy loses nothing; one process makes two reports at a time.
manager = TaskManager(
    os.environ.get("REPORTS_DB", "reports.db"),
    requeue_pending=True,
    queues=[QueueConfig("reports", max_concurrency=2)],
    drain_timeout=2,
)
PAGE_S = float(os.environ.get("REPORTS_PAGE_S", "0.5"))


@dataclass
class Report:
    """What a report has come to."""

    customer: str
    pages: int
    made_at: datetime


@manager.task(queue_name="reports", requeue_on_interrupt=True, retries=3, timeout=timedelta(minutes=10))
async def build_report(customer: str, pages: int, address: str | None = None) -> Report:
    """Takes a while, and may be repeated from the start: a stop in the middle puts it back."""
    task = current_task()
    for page in range(pages):
        task.progress(page, pages, f"page {page + 1}")
        await asyncio.sleep(PAGE_S)
    if address is not None:
        # The key makes it one mail, however often the report is built.
        mail = send_email.with_options(idempotency_key=f"report {task.task_id}")
        await mail.enqueue(address, f"The report on {customer} is ready").saved()
    return Report(customer, pages, datetime.now(UTC))


@manager.task(retries=5, retry_delay=10)
async def send_email(address: str, subject: str) -> None:
    """Must not be sent twice, so an interruption is reported and not repeated."""
    logger.info("to %s: %s", address, subject)


@manager.task
def count_words(text: str) -> int:
    """A plain function runs in a thread."""
    return len(text.split())


@manager.schedule(cron="0 6 * * MON-FRI", timezone="UTC")
@manager.task(requeue_on_interrupt=True)
async def morning_mail() -> None:
    """Once per working day, however many processes there are."""
    counts = await manager.counts()
    day = current_task().scheduled_for or datetime.now(UTC)
    mail = send_email.with_options(idempotency_key=f"morning {day:%Y-%m-%d}")
    await mail.enqueue("team@acme.test", f"{counts[TaskStatus.FAILED]} tasks have failed").saved()

"""Which pages there are, and where each is in the file of `content`."""

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlencode

import pytest

from tests.browser.serving import Served
from tests.browser.shop import HOSTILE

Address = Callable[[Served], str]
"""Gives the address of a page, relative to the root."""


def one_task(where: str, *values: object) -> Address:
    """The page of the first task of which that is true."""
    return lambda served: f"tasks/{served.task_id(where, *values)}"


PAGES: Final[Mapping[str, Address]] = {
    "overview": lambda _: "",
    "tasks": lambda _: "tasks",
    "tasks-failed": lambda _: "tasks?status=FAILED&since=7d",
    "tasks-hostile": lambda _: f"tasks?{urlencode({'text': HOSTILE['markup'], 'tag': 'hostile:markup'})}",
    "tasks-none": lambda _: "tasks?task=nobody:knows",
    "failures": lambda _: "failures",
    "failures-since": lambda _: "failures?since=1h",
    "schedules": lambda _: "schedules",
    "workflows": lambda _: "workflows",
    "workflow-running": lambda _: "workflows/weather-running",
    "workflow-failed": lambda _: "workflows/weather-failed",
    "workflow-paused": lambda _: "workflows/weather-paused",
    "workflow-nested": lambda _: "workflows/delivery-done",
    "bulk-retry": lambda _: "bulk/retry?status=FAILED&task=shop.*",
    "bulk-cancel": lambda _: "bulk/cancel?queue=newsletter",
    "queues": lambda _: "queues",
    "instances": lambda _: "instances",
    "task-failed": one_task("task_name = 'shop.orders:charge' AND status = 'FAILED'"),
    "task-hostile": one_task(
        "task_name LIKE 'app.%' AND status = 'FAILED' AND json_extract(args, '$[0]') = ?", HOSTILE["markup"]
    ),
    "task-direction": one_task(
        "task_name LIKE 'app.%' AND status = 'FAILED' AND json_extract(args, '$[0]') = ?", HOSTILE["direction"]
    ),
    "task-large": one_task("task_name = 'shop.exports:dump'"),
    "task-steps": one_task("task_name = 'shop.orders:fulfil'"),
    "task-running": one_task("task_name = 'shop.reports:build' AND status = 'RUNNING'"),
    "task-waiting": one_task("task_name = 'shop.reports:build' AND status = 'PENDING'"),
    "task-enqueue": lambda served: f"{PAGES['task-hostile'](served)}/enqueue",
}
"""The address of each page, by a name for it."""

each_page: Final = pytest.mark.parametrize("name", PAGES)

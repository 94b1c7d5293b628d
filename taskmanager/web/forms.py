"""Reads what a form has sent, and notes who did what."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from taskmanager.model.logger import logger
from taskmanager.web.site import viewer_of

TOLD_AT_ONCE: Final = 100
"""Ids in one line of the log. Of more there are several lines."""


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form. The guard has bounded its size."""
    body = (await request.body()).decode("utf-8", "replace")
    return dict(parse_qsl(body, keep_blank_values=True))


def audit(request: Request, what: str, names: Sequence[str]) -> None:
    """Log who did what to which tasks, queues or schedules. Every one of them is named."""
    for start in range(0, len(names), TOLD_AT_ONCE):
        some = ", ".join(names[start : start + TOLD_AT_ONCE])
        logger.info("dashboard: %s: %s: %s", viewer_of(request).name, what, some)

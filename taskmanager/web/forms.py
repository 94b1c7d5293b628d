"""Reads what a form has sent, and notes who did what."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from taskmanager.model.logger import logger
from taskmanager.web.site import viewer_of

MAX_TOLD: Final = 20
"""Ids that an audit line names; of more it says how many."""


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form. The guard has bounded its size."""
    body = (await request.body()).decode("utf-8", "replace")
    return dict(parse_qsl(body, keep_blank_values=True))


def audit(request: Request, what: str, names: Sequence[str]) -> None:
    """Log who did what to which tasks, queues or schedules."""
    some = ", ".join(names[:MAX_TOLD]) + (f" and {len(names) - MAX_TOLD} more" if len(names) > MAX_TOLD else "")
    logger.info("dashboard: %s: %s: %s", viewer_of(request).name, what, some)

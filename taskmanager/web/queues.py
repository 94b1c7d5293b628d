"""The page of queues: what waits and runs in each, for how long; pause and resume."""

from starlette.requests import Request
from starlette.responses import Response

from taskmanager.web.forms import audit, form_of
from taskmanager.web.render import View, done
from taskmanager.web.site import site_of


async def show(request: Request) -> View:
    """Show every queue, the fullest first."""
    overview = await site_of(request).source.overview()
    return View("queues.html", {"overview": overview, "queues": overview.queues})


async def pause(request: Request) -> Response:
    """Start nothing more from a queue."""
    return await _set(request, is_paused=True)


async def resume(request: Request) -> Response:
    """Start tasks from a queue again."""
    return await _set(request, is_paused=False)


async def _set(request: Request, *, is_paused: bool) -> Response:
    source, name = site_of(request).source, (await form_of(request)).get("queue", "")
    now = source.clock.now_us()
    await source.act(lambda store: store.set_paused(name, is_paused, now))
    word = "paused" if is_paused else "resumed"
    audit(request, f"{word} queue", [name])
    return done(request, "queues", f"Queue {name} is {word}.")

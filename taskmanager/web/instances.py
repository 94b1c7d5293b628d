"""The page of instances: who lives, what each does, and what becomes of the work of the dead."""

from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from taskmanager.console.overview import Health, InstanceView, Overview
from taskmanager.duties.recovery import Recovery
from taskmanager.engine.words.instance import new_identity
from taskmanager.model.wording import counted
from taskmanager.store.protocol import Store
from taskmanager.store.sql.loads import Load, loads_of
from taskmanager.store.statistics import OWNED_CAP
from taskmanager.web.forms import audit
from taskmanager.web.render import View, done
from taskmanager.web.site import site_of


class Card(NamedTuple):
    """One instance as the page shows it. `load` is what its process takes, if it has said so."""

    view: InstanceView
    load: Load | None
    state: str
    fate: str

    @property
    def has_more(self) -> bool:
        """Return whether it holds more tasks than were counted."""
        return self.view.held_count >= OWNED_CAP


async def show(request: Request) -> View:
    """Show every instance, those first that need somebody."""
    source = site_of(request).source
    overview = await source.overview()
    loads = await source.look(loads_of, tuple(each.row.instance_id for each in overview.instances))
    return View("instances.html", {"overview": overview, "cards": cards_of(overview, loads)})


async def recover(request: Request) -> Response:
    """Give back the work of dead instances at once, as `taskmanager recover` does."""
    source = site_of(request).source

    async def give_back(store: Store) -> int:
        identity = new_identity(None, source.clock.now_us())
        recovery = Recovery(store, source.clock, identity, source.place)
        node_count = await recovery.recover_workflows(0)
        return node_count + await recovery.run_once()

    dead = [each.row.instance_id for each in (await source.overview()).with_health(Health.DEAD)]
    count = await source.act(give_back)
    audit(request, f"recovered {counted(count, 'task')} of dead instances", dead or ["none that is known"])
    said = f"{counted(count, 'task')} of dead instances recovered." if count else "There was nothing to recover."
    return done(request, "instances", said)


def cards_of(overview: Overview, loads: dict[str, Load]) -> list[Card]:
    """Return what is shown of each instance."""
    is_taken_over = bool(overview.with_health(Health.ALIVE))
    return [
        Card(each, loads.get(each.row.instance_id), state_of(each), fate_of(each, is_taken_over=is_taken_over))
        for each in overview.instances
    ]


def state_of(view: InstanceView) -> str:
    """Return in a word what an instance is up to."""
    if view.health is not Health.ALIVE:
        return view.health.value
    if view.report.degraded_since is not None:
        return "storage degraded"
    return "stopping" if view.report.is_stopping else view.health.value


def fate_of(view: InstanceView, *, is_taken_over: bool) -> str:
    """Return what becomes of the work of an instance that does none; an empty text of one that works."""
    if view.health is Health.FROZEN:
        return "It keeps its tasks while its process exists. Nobody else may run them."
    if view.health is Health.ALIVE:
        return ""
    if not view.held_count:
        return "It left no unfinished task. Its row goes with the next check."
    who = "A living instance takes them over at its next check" if is_taken_over else "The next start takes them over"
    return f"{who}: what had not started waits again, what ran is retried or failed by its policy."

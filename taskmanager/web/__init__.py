"""Shows a manager in the browser: `app.mount("/tasks", dashboard(manager, auth=...))`, or `taskmanager web`.

The modules by what they are about. Each knows only modules that stand before it.

    Where the data is:      source site
    Addresses and files:    mounting assets
    HTML:                   markup render
    Who may:                guard
    What a form has sent:   forms
    Words:                  values filters
    Places in a drawing:    timeline charts graph
    Acts on tasks:          acting bulk
    The overview:           past overview
    Tasks:                  tasks task enqueue_again failures export
    All else:               queues schedules workflows workflow instances health
    The whole:              app local

A page is one function in a module of its own, a template of the same name, and a line in `app`.

docs/architecture.md tells the way of a request through these modules.
"""

try:
    import jinja2
    import starlette
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        f"{exc.name} is not installed; install it with: pip install 'taskmanager[web]'", name=exc.name
    ) from exc

from taskmanager.web.app import dashboard

__all__ = ["dashboard"]

del jinja2, starlette

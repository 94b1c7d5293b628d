"""Shows a manager in the browser: `app.mount("/tasks", dashboard(manager, auth=...))`, or `taskmanager web`."""

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

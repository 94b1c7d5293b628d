"""Writes what templates need beside text: instants that go on in the browser, statuses, commands and numbers."""

from collections.abc import Callable
from typing import Any, Final

from markupsafe import Markup, escape

from taskmanager.console import figures
from taskmanager.console.schedules import timing
from taskmanager.console.tones import Tone, tone_of
from taskmanager.model.escaping import escaped, escaped_lines
from taskmanager.model.report import RunningTask
from taskmanager.store.sql.search import exactly

_SIGNS: Final[dict[Tone, str]] = {"good": "✓", "bad": "✕", "busy": "▶", "calm": "○", "off": "–", "warn": "!"}


def ago(instant_us: int | None, now_us: int) -> Markup:
    """Return how long ago, or in how long, with the exact instant behind it."""
    if instant_us is None:
        return Markup('<span class="none">–</span>')
    values = figures.iso(instant_us), f"{figures.precise(instant_us)} UTC", figures.relative(instant_us, now_us)
    return Markup('<time datetime="{}" title="{}" data-ago>{}</time>').format(*values)


def elapsed(since_us: int | None, now_us: int) -> Markup:
    """Return a stopwatch that runs since then."""
    if since_us is None:
        return Markup('<span class="none">–</span>')
    values = figures.iso(since_us), f"since {figures.precise(since_us)} UTC", figures.stopwatch(now_us - since_us)
    return Markup('<time datetime="{}" title="{}" data-elapsed>{}</time>').format(*values)


def left(task: RunningTask, now_us: int) -> Markup:
    """Return how long a task will go on at the speed that it had so far. The browser counts on by itself."""
    left_us = task.left_us(now_us)
    if left_us is None or task.fraction is None:
        return Markup('<span class="none">–</span>')
    values = figures.iso(task.started_at), f"{task.fraction:.6f}", figures.stopwatch(left_us)
    return Markup('<time datetime="{}" data-left="{}" title="at the speed so far">{}</time>').format(*values)


def status(name: str) -> Markup:
    """Return a status as a badge: a sign, a word and a colour."""
    tone = tone_of(name)
    return Markup('<span class="badge {}"><span aria-hidden="true">{}</span> {}</span>').format(
        tone, _SIGNS[tone], name.capitalize() if name.isupper() else name
    )


def commands(text: str) -> Markup:
    """Return a sentence whose commands, which stand between backticks, are set as code."""
    parts = escaped(text).split("`")
    if len(parts) % 2 == 0:
        return escape("`".join(parts))
    return Markup().join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part) for place, part in enumerate(parts)
    )


def capitalize_first(text: str) -> str:
    """Return a sentence of one. A command stays as it is typed."""
    return text if text.startswith("taskmanager ") else text[:1].upper() + text[1:]


def sign(name: str) -> str:
    """Return the sign of a status."""
    return _SIGNS[tone_of(name)]


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "ago": ago, "elapsed": elapsed, "left": left, "status": status, "tone": tone_of, "sign": sign, "commands": commands,
    "plain": escaped, "lines": escaped_lines, "capitalize_first": capitalize_first, "exactly": exactly,
    "compact": figures.compact, "size": figures.size, "took": figures.took, "precise": figures.precise,
    "iso": figures.iso, "cut": figures.cut, "cause": figures.cause, "done_of": figures.done_of,
    "workflow_label": figures.workflow_label, "timing": timing,
}  # fmt: skip
"""What templates call behind a `|`, by its name there."""

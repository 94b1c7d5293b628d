"""One table says how a status reads. Terminal and browser look it up, and have a colour for each tone."""

from typing import get_args

import pytest

from taskmanager.console.overview import Health
from taskmanager.console.terminal.colours import STYLES, style_of
from taskmanager.console.tones import TONES, Tone, tone_of
from taskmanager.model.states import AttemptOutcome, TaskStatus
from taskmanager.model.workflows import NodeStatus, WorkflowStatus
from taskmanager.web import markup

SHOWN = [*TaskStatus, *AttemptOutcome, *Health, *get_args(NodeStatus), *get_args(WorkflowStatus)]


def test_tones_are_decided_for_every_status_that_is_shown() -> None:
    assert [each for each in SHOWN if each not in TONES] == []


def test_tones_have_a_colour_in_the_terminal_and_a_sign_in_the_browser() -> None:
    for tone in get_args(Tone):
        assert tone in STYLES
    for status in SHOWN:
        assert f'class="badge {tone_of(status)}"' in markup.status(status)
        assert style_of(status) == STYLES[tone_of(status)]


@pytest.mark.parametrize(("status", "tone"), [("CANCELLED", "off"), ("SKIPPED", "off"), ("INTERRUPTED", "warn")])
def test_tones_of_what_somebody_stopped_are_no_failure(status: str, tone: Tone) -> None:
    assert tone_of(status) == tone


def test_tones_of_a_status_that_is_not_known_are_calm() -> None:
    """A file may come from a newer release, and is shown all the same."""
    assert tone_of("UNHEARD_OF") == "calm"

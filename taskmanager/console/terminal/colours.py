"""The colours of the terminal: one for each tone, by the names that rich gives them."""

from typing import Final

from taskmanager.console.tones import Tone, tone_of

STYLES: Final[dict[Tone, str]] = {
    "good": "green", "bad": "red", "busy": "cyan", "calm": "", "off": "dim", "warn": "yellow",
}  # fmt: skip
RUNNING_STYLE: Final = STYLES["busy"]
FAILED_STYLE: Final = STYLES["bad"]
PAUSED_STYLE: Final = STYLES["warn"]


def style_of(status: str) -> str:
    """Return the colour of a status."""
    return STYLES[tone_of(status)]

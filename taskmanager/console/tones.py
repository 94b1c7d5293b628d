"""Says of each status how it reads: as good news, bad news, a warning, or calmly. Each face has a colour for a tone."""

from typing import Final, Literal

Tone = Literal["good", "bad", "busy", "calm", "off", "warn"]

TONES: Final[dict[str, Tone]] = {
    # tasks, attempts and nodes of workflows
    "PENDING": "calm", "CLAIMED": "calm", "READY": "calm", "ENQUEUED": "calm", "RUNNING": "busy", "COMPLETED": "good",
    "FAILED": "bad", "WORKER_FAILURE": "bad", "EXPIRED": "warn", "INTERRUPTED": "warn", "CANCELLED": "off",
    "SKIPPED": "off",
    # workflows, queues and schedules
    "PAUSED": "warn", "not declared": "warn", "open": "good",
    # instances
    "alive": "good", "frozen": "warn", "dead": "bad", "stopping": "warn", "storage degraded": "bad",
}  # fmt: skip


def tone_of(status: str) -> Tone:
    """Return the tone of a status. One that is not known is calm."""
    return TONES.get(status, "calm")

"""What one call asks for beyond what its task declares."""

from typing import Final

from taskmanager.model.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What one call asks beyond the definition. None means what the definition says."""

    delay_s: float | None = None
    run_at_us: int | None = None
    good_until_us: int | None = None
    priority: int | None = None
    queue_name: str | None = None
    timeout_s: float | None = None
    idempotency_key: str | None = None
    tags_text: str | None = None


NO_OPTIONS: Final = CallOptions()

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

    @property
    def is_ordinary(self) -> bool:
        """Whether the task may start as soon as there is a slot, and runs as its definition says."""
        decisive = self.delay_s, self.run_at_us, self.good_until_us, self.timeout_s, self.idempotency_key
        return decisive == _NOTHING

    def fault_in_many_calls(self, what: str, task_name: str) -> str | None:
        """Return what is wrong with these options for `what` enqueues the task again and again, or None."""
        means = {"idempotency_key": self.idempotency_key, "run_at": self.run_at_us, "good_until": self.good_until_us}
        if not (given := [name for name, value in means.items() if value is not None]):
            return None
        return (
            f"{what}={task_name}.with_options(...) enqueues it many times, and {' and '.join(given)} would be meant "
            "for one of them; leave it out, or give a delay, which counts anew for each"
        )


_NOTHING: Final = (None,) * 5
NO_OPTIONS: Final = CallOptions()

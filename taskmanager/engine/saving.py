"""What the writer knows of one task: what the store holds of it, and what is on its way there.

A task is *dirty* from a change until it is taken into a batch, and *in flight* from there until the answer. It may be
both, when it changes again meanwhile. This is written by the writer, its outbox, and those who hear what became of the
writes; all others only read.
"""

from taskmanager.model.record import Expected


class Saving:
    """Of one persisted task, or of one memory-only task that has ended. Class attributes stand for "not yet"."""

    committed: Expected | None = None
    """The last state that is known to be in the store: what the next write is based on."""
    in_doubt: tuple[Expected, ...] = ()
    """States that were sent since, in commits that seemed to fail, and may have arrived all the same."""
    is_written_anew = False
    """The file was replaced: what the new one holds of this task, if anything, is an older state of it."""
    is_dirty = False
    """There is a change that no batch has taken yet."""
    is_urgent = False
    """That change does not wait for an interval."""
    unsaved_since_s = 0.0
    """When it became dirty, on the clock of the outbox."""
    is_end_unsaved = False
    """Its end counts against `max_pending` until it is in the store."""
    rejection: str | None = None
    """Why the store will never hold its newest state."""
    pared_result: int | None = None
    """The attempt whose result was left out of the record, because the store refused that."""

    def __repr__(self) -> str:
        queued = "urgent" if self.is_urgent else "dirty" if self.is_dirty else "clean"
        return f"<Saving {queued}, in the store: {self.committed and self.committed.status}>"


class _NotSaved(Saving):
    """Of all tasks that nothing is to be written of so far; nobody's own, so nobody writes to it."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError(f"{name} is set of a task whose saving has not begun")


NOT_SAVED = _NotSaved()

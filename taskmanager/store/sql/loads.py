"""What the processes of instances take of the machine, as each has said last."""

from typing import Final, NamedTuple

from taskmanager.store.sql.session import Session

_NEWEST: Final = """
    SELECT snapshot_at, memory_usage_mb, children_memory_mb, cpu_percent
    FROM taskmanager_worker_states INDEXED BY taskmanager_worker_states_worker_id
    WHERE worker_id = ? ORDER BY snapshot_at DESC LIMIT 1
"""


class Load(NamedTuple):
    """Memory and processor of one instance at `at`. The memory of its child processes is told apart."""

    at: int
    memory_mb: float | None
    children_memory_mb: float | None
    cpu_percent: float | None


def loads_of(connection: Session, instance_ids: tuple[str, ...]) -> dict[str, Load]:
    """Return the newest load of each of these instances that has told one."""
    found = ((each, connection.execute(_NEWEST, (each,)).fetchone()) for each in instance_ids)
    return {each: Load._make(row) for each, row in found if row is not None}

"""What instances write of themselves: their rows, and snapshots; and the signs of life that their heartbeats wrote."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from taskmanager.store.constraints import encodable
from taskmanager.store.protocol import Beat, InstanceRow
from taskmanager.store.sql.session import Session

if TYPE_CHECKING:
    from taskmanager.model.report import WorkerState


def _into(table: str, names: Sequence[str]) -> str:
    return f"INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"


BEAT: Final = f"INSERT {_into('taskmanager_heartbeats', Beat._fields)}"
"""Writes a sign of life: a `Beat`."""
_INSTANCE: Final = (
    f"INSERT {_into('taskmanager_instances', InstanceRow._fields)} ON CONFLICT (instance_id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in InstanceRow._fields if name != "instance_id")
)


def heartbeats(connection: Session) -> list[tuple[str, str, int]]:
    """See `Store.heartbeats`: the latest of each sender and role, by the order of their writing.

    Not the one with the greatest instant: after a wall clock was stepped back, that one would never change again.
    """
    found = connection.execute(
        """
        SELECT sender_id, role, sent_at FROM taskmanager_heartbeats
        WHERE id IN (SELECT max(id) FROM taskmanager_heartbeats GROUP BY sender_id, role)
        """
    ).fetchall()
    return [(sender, role, sent_at) for sender, role, sent_at in found]


def save_worker_state(connection: Session, state: "WorkerState") -> None:
    """See `Store.save_worker_state`."""
    with connection.transaction(is_beside=True):
        connection.execute(f"INSERT {_into('taskmanager_worker_states', state._fields)}", state)


def save_instance(connection: Session, row: InstanceRow) -> None:
    """See `Store.save_instance`."""
    with connection.transaction(is_beside=True):
        # A process may be named after a file whose name is no UTF-8.
        connection.execute(_INSTANCE, encodable(row))


def forget_instances(connection: Session, instance_ids: Collection[str]) -> None:
    """See `Store.forget_instances`."""
    with connection.transaction(is_beside=True):
        connection.executemany(
            "DELETE FROM taskmanager_instances WHERE instance_id = CAST(? AS TEXT)", [(each,) for each in instance_ids]
        )

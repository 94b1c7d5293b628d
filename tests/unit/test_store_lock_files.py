"""Which files a start removes: lock files that are ours by their whole name, and that nobody holds or asks for."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from taskmanager.model.ids import new_instance_id
from taskmanager.store.sqlite.presence import (
    InstanceLock,
    has_lock_file,
    is_dead,
    lock_files,
    lock_path,
    remove_abandoned_locks,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="no flock on this platform"),
]

NAMES = [
    "tasks.db",
    "tasks[1].db",
    "ta*ks?.db",
    "two\nlines",
    "tasks.db\n",
    "a.b.lock",
    "(x|y)+$.db",
    "-new.db",
    "ü \udc80",
]


async def nobody(instance_id: str) -> bool:
    return False


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def theirs(name: str) -> list[str]:
    """Names of other programs, and of other databases, that look much like ours."""
    an_id = new_instance_id()
    return [
        f"{name}.lock",
        f"{name}.backup.lock",
        f"{name}.{an_id}",
        f"{name}.{an_id}.lock.old",
        f"{name}.{an_id}-old.lock",
        f"{name}.{an_id}-new-new.lock",
        f"{name}.{an_id.upper()}X.lock",
        f"{name}.{an_id[:-1]}.lock",
        f"{name}.x{an_id}.lock",
        f"{name}.{an_id}.lock\n",
        f"{name}{an_id}.lock",
        f"{name}..lock",
        f"{name}.2.{an_id}.lock",
        f"my{name}.{an_id}.lock",
        f"{name}.3f0c7e6a-0d3c-4a51-9d5e-1b1f6a0c9f11.lock",  # a random id, as anybody makes them
    ]


@pytest.mark.parametrize("name", NAMES)
async def test_a_sweep_removes_lock_files_of_dead_instances_only(tmp_path: Path, name: str) -> None:
    """`<file name>.<instance id>.lock` and `...-new.lock`, whatever signs stand in the name of the file; nothing else
    beside the database, however much it looks like that.
    """
    database = tmp_path / name
    database.touch()
    living = InstanceLock(database, new_instance_id())
    living.take()
    registered, dead = new_instance_id(), new_instance_id()
    left = [lock_path(database, dead), tmp_path / f"{name}.{dead}-new.lock"]
    kept = [*(tmp_path / each for each in theirs(name)), lock_path(database, registered)]
    for path in (*left, *kept):
        path.touch()

    async def is_registered(instance_id: str) -> bool:
        return instance_id == registered

    await remove_abandoned_locks(database, is_registered)
    assert names_in(tmp_path) == {path.name for path in (database, living.path, *kept)}
    assert not is_dead(database, living.path.name[len(name) + 1 : -len(".lock")])
    living.drop()


async def test_a_sweep_follows_no_link_and_waits_for_no_pipe(tmp_path: Path) -> None:
    """What a link leads to is somebody else's, and so is whatever is no plain file."""
    database, target = tmp_path / "tasks.db", tmp_path / "precious"
    for path in (database, target):
        path.touch()
    link, pipe, folder = (lock_path(database, new_instance_id()) for _ in "123")
    link.symlink_to(target)
    os.mkfifo(pipe)
    folder.mkdir()
    before = names_in(tmp_path)
    await remove_abandoned_locks(database, nobody)
    assert names_in(tmp_path) == before
    for instance_id in (each for _, each in list(lock_files(database))):
        assert not has_lock_file(database, instance_id)
        assert is_dead(database, instance_id), "its tasks must not wait for ever for what is no lock"


async def test_a_file_is_held_while_the_store_is_asked_for_its_id(tmp_path: Path) -> None:
    """A list of instances that was read before may be out of date. While the file is held nobody takes it for the lock
    of a living instance, nor for that of a dead one.
    """
    database, instance_id = tmp_path / "tasks.db", new_instance_id()
    database.touch()
    path = lock_path(database, instance_id)
    path.touch()
    asked = []

    async def is_registered(each: str) -> bool:
        asked.append((each, path.exists(), is_dead(database, each)))
        return False

    await remove_abandoned_locks(database, is_registered)
    assert asked == [(instance_id, True, False)]
    assert not path.exists()


async def test_an_instance_that_puts_its_lock_back_waits_for_no_sweep(tmp_path: Path) -> None:
    """A sweep holds a file while it awaits the store. Whoever waited for it in the same loop would stop both."""
    database, instance_id = tmp_path / "tasks.db", new_instance_id()
    database.touch()
    lock = InstanceLock(database, instance_id)
    new = tmp_path / f"tasks.db.{instance_id}-new.lock"
    new.touch()

    async def take_meanwhile(each: str) -> bool:
        in_time(lock.take)
        return False

    await remove_abandoned_locks(database, take_meanwhile)
    assert not is_dead(database, instance_id)
    assert names_in(tmp_path) == {"tasks.db", lock.path.name}
    lock.drop()


async def test_a_lock_is_never_taken_through_a_link(tmp_path: Path) -> None:
    """The file that the link leads to would be locked, and given the mode and the owner of the database."""
    database, target, instance_id = tmp_path / "tasks.db", tmp_path / "precious", new_instance_id()
    for path in (database, target):
        path.touch()
    target.chmod(0o400)
    (tmp_path / f"tasks.db.{instance_id}-new.lock").symlink_to(target)
    lock_path(database, instance_id).symlink_to(target)
    lock = InstanceLock(database, instance_id)
    lock.take()
    assert not lock.path.is_symlink()
    assert not is_dead(database, instance_id)
    assert target.stat().st_mode & 0o777 == 0o400
    lock.drop()


def in_time(call: Callable[[], None]) -> None:
    """Call it in a thread that may hang."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()

"""The instance's lock: who holds it lives, and whoever can take it knows that its instance is dead."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from taskmanager.engine.words.instance import new_identity
from taskmanager.store.sqlite.presence import InstanceLock, is_dead, lock_path

needs_flock = pytest.mark.skipif(sys.platform == "win32", reason="no flock on this platform")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.db"
    path.touch(0o600)
    return path


def test_every_start_is_an_instance_of_its_own() -> None:
    """The facts are for people; the id is what counts."""
    one, other = new_identity("web", 5), new_identity("web", 5)
    assert one.instance_id != other.instance_id
    assert one._replace(instance_id="") == other._replace(instance_id="")
    assert (one.pid, one.started_at, one.instance_name) == (os.getpid(), 5, "web")
    assert (one.updated_at, one.stopped_at, one.live_tasks) == (5, None, None)


@needs_flock
def test_an_instance_is_alive_exactly_while_its_lock_is_held(database: Path) -> None:
    """Looking takes nothing away: it may be done again and again, from anywhere."""
    lock = InstanceLock(database, "i1")
    assert is_dead(database, "i1")
    lock.take()
    assert lock.path == lock_path(database, "i1") == database.with_name("tasks.db.i1.lock")
    for _ in range(2):
        assert not is_dead(database, "i1")
        assert is_dead(database, "i2")
    lock.drop()
    assert is_dead(database, "i1")
    assert not lock.path.exists()
    lock.drop()


@needs_flock
def test_a_file_reached_through_a_link_has_the_same_locks(database: Path, tmp_path: Path) -> None:
    """SQLite's log lies beside the file itself too. Else whoever takes the other way takes a living instance's work."""
    (tmp_path / "other").mkdir()
    link = tmp_path / "other" / "link.db"
    link.symlink_to(database)
    lock = InstanceLock(link, "i1")
    lock.take()
    assert not is_dead(database, "i1")
    assert not is_dead(link, "i1")
    lock.drop()


@needs_flock
def test_looking_at_a_dead_instance_does_not_revive_it(database: Path) -> None:
    """The lock that the look takes is gone with it, and so it is for the next who looks."""
    lock = InstanceLock(database, "i1")
    lock.take()
    lock.close_descriptor()
    assert lock.path.exists()
    for _ in range(2):
        assert is_dead(database, "i1")


def test_a_lock_file_is_private(database: Path) -> None:
    """As the database beside it."""
    lock = InstanceLock(database, "i1")
    lock.take()
    assert lock.path.stat().st_mode & 0o077 == 0
    lock.drop()


@needs_flock
def test_who_may_read_the_database_may_ask_who_lives(database: Path) -> None:
    """Two users share a file through its mode; a lock that only one of them may open would keep its dead alive."""
    database.touch()
    database.chmod(0o664)
    if os.geteuid() == 0:
        os.chown(database, 65534, 65534)
    lock = InstanceLock(database, "i1")
    lock.take()
    found, wanted = lock.path.stat(), database.stat()
    assert (found.st_mode & 0o777, found.st_uid, found.st_gid) == (0o664, wanted.st_uid, wanted.st_gid)
    lock.drop()


@needs_flock
@pytest.mark.parametrize("by", ["nothing", "another file"])
def test_a_lock_file_that_somebody_has_removed_is_put_back(database: Path, by: str) -> None:
    """Once; and what was dropped, or belongs to the parent of a fork, is not."""
    lock = InstanceLock(database, "i1")
    assert not lock.put_back()
    lock.take()
    assert not lock.put_back()
    lock.path.unlink()
    if by == "another file":
        lock.path.touch()
    assert is_dead(database, "i1")
    assert lock.put_back()
    assert not is_dead(database, "i1")
    assert not lock.put_back()
    assert list(database.parent.glob("*.lock")) == [lock.path]
    lock.drop()
    assert not lock.put_back()
    assert is_dead(database, "i1")


@needs_flock
def test_an_empty_folder_is_no_proof_of_anybodys_death(database: Path) -> None:
    """Locks that are gone together with the database are on its volume, held as before. One that was made anew in the
    folder that is there instead would let go of that, and the work of a living instance would be taken over.
    """
    lock = InstanceLock(database, "i1")
    lock.take()
    folder, away = database.parent, database.parent.with_name("away")
    folder.rename(away)
    folder.mkdir()
    assert not is_dead(database, "i1")
    assert not lock.put_back()
    assert list(folder.iterdir()) == []
    folder.rmdir()
    away.rename(folder)
    assert not is_dead(database, "i1")
    lock.drop()
    assert is_dead(database, "i1")


@needs_flock
def test_a_lock_that_cannot_be_put_back_is_held_nevertheless(database: Path) -> None:
    """The next round tries again."""
    lock = InstanceLock(database, "i1")
    lock.take()
    lock.path.unlink()
    in_the_way = database.with_name("tasks.db.i1-new.lock")
    in_the_way.mkdir()
    with pytest.raises(OSError, match="tasks.db"):
        lock.put_back()
    in_the_way.rmdir()
    assert lock.put_back()
    assert not is_dead(database, "i1")
    lock.drop()


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """The start says so; nothing is half taken."""
    lock = InstanceLock(tmp_path / "nowhere" / "tasks.db", "i1")
    with pytest.raises(OSError, match="nowhere"):
        lock.take()
    lock.drop()


HOLDER = """
    import os, sys, time
    from pathlib import Path
    from taskmanager.store.sqlite.presence import InstanceLock
    lock = InstanceLock(Path(sys.argv[1]), "child")
    lock.take()
    grandchild = os.fork() if sys.argv[2] == "forks" else None
    if grandchild != 0 and sys.argv[2] == "forks":
        time.sleep(60)  # the grandchild says when it is there: until it has run at all, it holds what it inherited
    print("ready", flush=True)
    sys.stdin.read()  # the grandchild lives until the test ends, long after its parent
    os._exit(0)
"""


def holder(database: Path, how: str) -> "subprocess.Popen[str]":
    """Another process that holds the lock of the instance `child` until it is killed."""
    command = [sys.executable, "-c", textwrap.dedent(HOLDER), str(database), how]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@needs_flock
@pytest.mark.req("RC-01", "HB-01")
def test_a_killed_process_is_dead_at_once(database: Path) -> None:
    """The kernel lets go of the lock; no threshold is waited for."""
    process = holder(database, "alone")
    assert not is_dead(database, "child")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert is_dead(database, "child")


@needs_flock
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_keep_its_dead_parent_alive(database: Path) -> None:
    """It inherits the descriptor, and closes it at once."""
    process = holder(database, "forks")
    assert not is_dead(database, "child")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert is_dead(database, "child")
    process.communicate()


@needs_flock
def test_a_lock_that_could_not_be_put_back_is_put_back_by_a_later_try(database: Path) -> None:
    """A try in vain leaves nothing locked: the next one would wait for that for ever, and the heartbeat with it."""
    lock = InstanceLock(database, "i1")
    lock.take()
    lock.path.unlink()
    lock.path.mkdir()  # nothing can be renamed to this
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(IsADirectoryError):
            in_time(lock.put_back)
    assert len(list(Path("/dev/fd").iterdir())) == before
    lock.path.rmdir()
    assert in_time(lock.put_back)
    assert not is_dead(database, "i1")
    assert list(database.parent.glob("*.lock")) == [lock.path]
    lock.drop()


@needs_flock
def test_a_lock_that_is_being_dropped_is_not_put_back(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat that hangs is not waited for at a stop. It would leave a file behind, and close what is another's."""
    lock = InstanceLock(database, "i1")
    lock.take()
    unlink, answers = Path.unlink, []

    def unlink_and_beat(path: Path) -> None:
        unlink(path)
        answers.append(lock.put_back())

    monkeypatch.setattr(Path, "unlink", unlink_and_beat)
    lock.drop()
    assert answers == [False]
    assert list(database.parent.glob("*.lock")) == []


def in_time(call: Callable[[], bool]) -> bool:
    """What it returns or raises, in a thread that may hang."""
    found: Future[bool] = Future()

    def run() -> None:
        try:
            found.set_result(call())
        except OSError as exc:
            found.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    return found.result(5)

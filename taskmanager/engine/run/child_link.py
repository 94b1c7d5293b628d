"""The parent's side of one child process: starts it, sends it calls, hears its reports, and finds out how it ended."""

import asyncio
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from subprocess import PIPE
from typing import Final

from anyio import (
    BrokenResourceError,
    CancelScope,
    ClosedResourceError,
    EndOfStream,
    IncompleteRead,
    move_on_after,
    open_process,
)
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from taskmanager.engine.run.child import BEGUN, HEADER, ChildReply, Heard, News, Welcome
from taskmanager.engine.words.loops import Host, shielded
from taskmanager.model.logger import logger

MAX_FRAME_BYTES: Final = 1 << 40
TAIL_BYTES: Final = 8_192
"""How much is kept of what a child writes to its standard error: the last bytes."""
EXIT_PATIENCE_S: Final = 1.0
"""How long a child may take to exit after its channel has ended, and its channel to end after the child has exited."""
STDERR_PATIENCE_S: Final = 0.2
"""How long to wait for the end of its standard error, which a program of the child may hold open for ever."""

# Sets the path first, because the library may be found only through it. Until then -P keeps the current directory out.
_PROGRAM: Final = (
    "import os, pickle, sys; calls = os.fdopen(os.dup(0), 'rb'); sys.path[:] = pickle.load(calls); "
    "from taskmanager.engine.run.child_program import serve; serve(calls)"
)
_AT_END: Final = (EndOfStream, IncompleteRead, BrokenResourceError, ClosedResourceError, OSError)


class Died(Exception):
    """The child died. `has_begun` tells whether it had taken the call. `tail` is the end of what it had written."""

    def __init__(self, why: str, *, has_begun: bool, tail: str = "") -> None:
        super().__init__(why)
        self.has_begun = has_begun
        self.tail = tail


class _Unreadable(Exception):
    """The child has sent something that is not one of our frames."""


async def spawned(host: Host, on_gone: "Callable[[Child], None]") -> "Child":
    """Start a child and return it. Raises the error of the system when the system provides no process."""
    command = [sys.executable, "-P", "-u", "-c", _PROGRAM]
    child = Child(await open_process(command, stdin=PIPE, stdout=PIPE, stderr=PIPE), on_gone)
    for run in (child.listen, child.keep_stderr, child.watch_exit):
        host.spawn(run, f"child {child.pid}")
    return child


def _welcome() -> Welcome:
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None and (name == "__main__" or name.endswith(".__main__")):
        name = None  # the `__main__` of a folder may have no guard: its path is used
    is_of_main_thread = threading.current_thread() is threading.main_thread()
    return Welcome(os.getpid(), is_of_main_thread, sys.argv, name, getattr(main, "__file__", None))


class Child:
    """One child process, which runs one task at a time. `on_gone` is called when another one may take its place."""

    def __init__(self, process: Process, on_gone: "Callable[[Child], None]") -> None:
        self.idle_since_s = 0.0
        self._process = process
        self._on_gone = on_gone
        self._reply: asyncio.Future[ChildReply] | None = None
        self._heard: Heard = _log_records
        self._has_begun = False
        self._is_killed = False
        self._tail = bytearray()
        self._stderr_over = asyncio.Event()
        self.gone = asyncio.Event()
        """Set when the process has ended, and whoever waited for a reply has been told."""

    def __repr__(self) -> str:
        state = "gone" if self.gone.is_set() else "idle" if self._reply is None else "busy"
        return f"<Child {self.pid} {state}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    async def load_main(self) -> ChildReply:
        """Let it load the main module of the program. After a reply without words it can take a task."""
        return await self.ask(pickle.dumps(list(sys.path)) + pickle.dumps(_welcome()), _log_records)

    async def ask(self, framed: bytes, heard: Heard) -> ChildReply:
        """Return the reply to one call. A cancellation kills the child and waits until it is gone. Raises `Died`."""
        if self.gone.is_set():
            raise Died("it died before it had a task", has_begun=False)
        self._reply = asyncio.get_running_loop().create_future()
        self._heard, self._has_begun = heard, False
        self._tail.clear()
        try:
            await self._send(framed)
            return await self._reply
        except asyncio.CancelledError:
            self.kill()
            await shielded(self.gone.wait())
            raise
        finally:
            self._reply, self._heard = None, _log_records

    async def _send(self, data: bytes) -> None:
        """Send data to the child. If nobody reads there any more, do nothing: `listen` reports the end of the child."""
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send(data)
        except (*_AT_END, RuntimeError):
            return

    def kill(self) -> None:
        """Kill it now. Another child may take its place at once."""
        self._is_killed = True
        self._on_gone(self)
        if self._process.returncode is None:
            try:
                if sys.platform == "win32":
                    self._process.kill()
                else:  # the call of asyncio may take the exit status away from asyncio itself (CPython before 3.13.2)
                    os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has exited by itself
                return

    async def dismiss(self) -> None:
        """Let the child end in order, because there are no more calls."""
        assert self._process.stdin is not None
        await self._process.stdin.aclose()

    # In the host.

    async def listen(self) -> None:
        """Hear the child until it ends, and tell its waiters what ended it, however often this is cancelled."""
        assert self._process.stdout is not None
        stream = BufferedByteReceiveStream(self._process.stdout)
        is_broken, cancelled = False, None
        try:
            while True:
                self._hear(await _message(stream))
                await asyncio.sleep(0)  # a child may fill the buffer faster than this loop reads
        except _AT_END:
            pass
        except _Unreadable:
            is_broken = True
        except asyncio.CancelledError as exc:
            cancelled = exc
            self.kill()
        why = "it was killed"
        try:
            with CancelScope(shield=True):
                why = await self._bury(is_broken)
        except asyncio.CancelledError as exc:
            cancelled = exc
            self.kill()
        self._tell_end(why)
        if cancelled is not None:
            raise cancelled

    def _hear(self, message: object) -> None:
        if isinstance(message, News):
            self._heard(message)
        elif message == BEGUN:
            self._has_begun = True
        elif isinstance(message, ChildReply) and self._reply is not None and not self._reply.done():
            self._reply.set_result(message)

    async def _bury(self, is_broken: bool) -> str:
        """Wait until the child is gone, and return what ended it."""
        with move_on_after(0.0 if is_broken else EXIT_PATIENCE_S):
            await self._process.wait()
        has_exited = self._process.returncode is not None
        was_killed = self._is_killed
        self.kill()
        with move_on_after(STDERR_PATIENCE_S):
            await self._stderr_over.wait()
        await self._process.aclose()
        if is_broken:
            return "it was killed: what came from it cannot be read"
        if not has_exited:
            return "it was killed: it had closed the connection to its parent"
        return ending(self._process.returncode or 0, is_ours=was_killed)

    def _tell_end(self, why: str) -> None:
        if self._reply is not None and not self._reply.done():
            tail = self._tail.decode("utf-8", "replace").strip()
            self._reply.set_exception(Died(why, has_begun=self._has_begun, tail=tail))
            self._reply.exception()  # whoever waited for it may have gone
        self.gone.set()
        self._on_gone(self)

    async def keep_stderr(self) -> None:
        """Keep the end of what the child writes to its standard error."""
        assert self._process.stderr is not None
        try:
            while True:
                self._tail += await self._process.stderr.receive()
                del self._tail[:-TAIL_BYTES]
        except _AT_END:
            pass
        except asyncio.CancelledError:
            self.kill()  # or it would wait for ever for somebody to read
            raise
        finally:
            self._stderr_over.set()

    async def watch_exit(self) -> None:
        """Close the channel after the child has exited: a forked copy that its task left behind may hold it open."""
        await self._process.wait()
        with move_on_after(EXIT_PATIENCE_S):
            await self.gone.wait()
        if not self.gone.is_set() and self._process.stdout is not None:
            await self._process.stdout.aclose()


def _log_records(news: News) -> None:
    """Log what comes between tasks: a thread that a task has left behind in its child may log."""
    for fields in news.records:
        logger.pass_on(fields)


async def _message(stream: BufferedByteReceiveStream) -> object:
    (length,) = HEADER.unpack(await stream.receive_exactly(HEADER.size))
    if length > MAX_FRAME_BYTES:
        raise _Unreadable
    body = await stream.receive_exactly(length)
    try:
        return pickle.loads(body)  # noqa: S301  # our child's
    except Exception as exc:  # bytes that are not ours may raise anything
        raise _Unreadable from exc


def ending(returncode: int, *, is_ours: bool = False) -> str:
    """Return in words how a process has ended."""
    if returncode >= 0 or sys.platform == "win32":
        return f"exited with {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:  # a real-time signal
        name = f"signal {-returncode}"
    if name == "SIGKILL" and not is_ours:
        return f"killed by {name}, the system does that when memory runs out"
    return f"killed by {name}"

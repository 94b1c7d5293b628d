"""The demo's grip on its program: starts it, feeds it, sends it SIGTERM, and never waits for ever."""

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Final

import taskmanager
from taskmanager.cli.demo.program import encode_names

STOP_TIMEOUT_S: Final = 10.0
"""What a container gives between SIGTERM and SIGKILL."""


class Program:
    """One run of `program` in a process of its own."""

    def __init__(self, database: Path, directory: Path, names: tuple[str, ...]) -> None:
        self._log = database.with_name(f"{database.name}.log")
        with self._log.open("ab") as log:
            # A session of its own, or Ctrl-C would reach the program too, and the demo could not say how it stops.
            # The working directory makes the package importable, and nothing in the user's directory shadows a module.
            self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and module
                [sys.executable, "-m", "taskmanager.cli.demo.program", str(database), str(directory)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=Path(taskmanager.__file__).parent.parent,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        # stdin stays open: the program stops when it is closed, so that it never outlives the demo.
        with contextlib.suppress(BrokenPipeError):  # it died at once; its exit code tells
            self._process.stdin.write(encode_names(names))
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def stop(self) -> bool:
        """SIGTERM, and SIGKILL when it takes too long; whether it stopped by itself."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        self._close_stdin()
        return True

    def kill(self) -> None:
        """SIGKILL. What was running is recovered at the next start."""
        self._process.kill()
        self._process.wait()
        self._close_stdin()

    def reap(self) -> None:
        """After it has ended by itself."""
        self._process.wait()
        self._close_stdin()

    def _close_stdin(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def last_words(self) -> str:
        """The last line of its log, and where the rest is."""
        try:
            lines = self._log.read_text("utf-8", "replace").split("\n")
        except OSError:
            return ""
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return f"{last} (all of it: {self._log.name})"

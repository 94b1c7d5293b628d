"""What the demo does, step by step, and the sentences that say why each step matters."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from taskmanager.cli.demo.child import Program
from taskmanager.cli.demo.files import Listing, key_of
from taskmanager.cli.demo.judge import Judge, Tally
from taskmanager.cli.demo.report import accounting, document, report
from taskmanager.cli.demo.screen import Screen
from taskmanager.cli.output import answer_json
from taskmanager.model.escaping import escaped

POLL_S: Final = 0.1
CLOSE_POLL_S: Final = 0.02
"""How often to look while the moment of the SIGTERM comes nearer."""
STALL_S: Final = 120.0
"""Without one task ending for so long, something hangs. More than a task's own time limit."""
STOP_AT: Final = 0.5
"""The part of the files after which the SIGTERM comes."""

WHY_START: Final = (
    "A program in a process of its own enqueues one task per file. A task is in the database before it runs, so from "
    "here on no crash can lose it."
)
WHY_SIGTERM: Final = (
    "as at a deploy. Process {pid} must stop now, and may neither lose a task nor leave one behind whose state nobody "
    "knows."
)
WHY_AGAIN: Final = (
    "A new process takes over what waits in the database. It also enqueues its files once more, as a program does at "
    "every start: the idempotency key of a file, its path, finds the task that is there, and none is doubled."
)
WHY_COUNT: Final = "Not the program's own words: these are the rows of the database, read with plain sqlite3."


class Story:
    """One demo. `options` is what a command line needs to go on with it.

    Told on stderr where the count goes to stdout as JSON.
    """

    def __init__(self, database: Path, root: Path, listing: Listing, options: str, *, as_json: bool) -> None:
        self._database = database
        self._root = root
        self._listing = listing
        self._options = options
        self._judge = Judge(database)
        self._as_json = as_json
        self._screen = Screen(is_on_stderr=as_json)
        self._program: Program | None = None
        self._worked_s = 0.0

    # The two ways through it.

    def tell(self, *, is_anew: bool) -> int:
        """Start, SIGTERM in the middle, start again, count. Returns the exit code."""
        if not self._introduce(is_anew):
            self._answer(self._judge.tally(), (), None)
            return 0
        self._screen.step(1, "Start.", WHY_START)
        self._start()
        total = len(self._listing.names)
        if not self._watch(stop_at=max(1, int(total * STOP_AT))):
            return 1
        if self._has_ended or self._judge.ended_count() >= total:
            self.close()
            self._screen.step(2, "SIGTERM", "was to come in the middle, but all was done before it could be sent.")
        else:
            self._sigterm()
        self._screen.step(3, "Start again.", WHY_AGAIN)
        return self._finish(4, done_before=0)

    def resume(self) -> int:
        """Go on where an interrupted demo was. Returns the exit code."""
        tally = self._judge.tally()
        left = max(0, len(self._listing.names) - tally.ended)
        done = f"{_files(tally.ended)} done, {left:,} to do, below {self._shown_root}"
        self._screen.say(f"Going on with {self._shown_db}: {done}.")
        if not left and tally.total == tally.ended:
            return self._count(1, per_s=None)
        self._screen.step(1, "Start again.", WHY_AGAIN)
        return self._finish(2, done_before=tally.ended)

    def _introduce(self, is_anew: bool) -> bool:
        names, unreadable, is_cut = self._listing
        say, root = self._screen.say, self._shown_root
        if is_anew:
            say(f"{self._shown_db} is of an earlier demo and is started anew (--resume would go on with it).")
        if unreadable:
            say(f"{unreadable} directories below {root} cannot be read and are left out.")
        if not names:
            say(f"There are no files below {root}, so there is nothing to do.")
            return False
        if is_cut:
            say(f"There are more files below {root}; the first {len(names):,} are taken (--limit).")
        say(
            f"{_files(len(names))} below {root}. One task for each: hash it, count its lines, and parse it if it is "
            f"Python. The tasks are kept in {self._shown_db}."
        )
        return True

    # The steps.

    def _start(self) -> None:
        failed = self._judge.failed_keys()
        # Enqueueing a failed one would be a retry, and the demo counts what the policy does alone.
        names = tuple(name for name in self._listing.names if key_of(name) not in failed)
        self._program = Program(self._database.absolute(), self._root, names)

    def _sigterm(self) -> None:
        assert self._program is not None
        self._screen.step(2, "SIGTERM in the middle,", WHY_SIGTERM.format(pid=self._program.pid))
        since = time.perf_counter()
        by_itself = self._program.stop()
        took_s = time.perf_counter() - since
        self._worked_s += took_s
        tally = self._judge.tally()
        how = f"Stopped after {took_s:.1f} s" if by_itself else f"It had to be killed after {took_s:.1f} s"
        was = (
            "1 of them was running and is"
            if tally.interrupted == 1
            else f"{tally.interrupted} of them were running and are"
        )
        requeued = f"; {was} requeued, because reading a file twice is harmless" if tally.interrupted else ""
        self._screen.note(
            f"{how}: {_files(tally.ended)} done, {tally.waiting:,} wait in the database{requeued}. "
            f"{tally.claimed_or_running or 'None'} is left marked as running."
        )

    def _finish(self, number: int, *, done_before: int) -> int:
        self._start()
        if not self._watch():
            return 1
        return self._count(number, per_s=(self._judge.ended_count() - done_before) / self._worked_s)

    def _count(self, number: int, *, per_s: float | None) -> int:
        self._screen.step(number, "Count.", WHY_COUNT)
        files = len(self._listing.names)
        tally = self._judge.tally()
        missing = self._judge.unaccounted(key_of(name) for name in self._listing.names)
        size_bytes = self._judge.size_bytes()
        self._screen.show(*report(tally, files=files, per_s=per_s, database=self._database, size_bytes=size_bytes))
        self._screen.show()
        for line in accounting(tally, missing, files):
            self._screen.say(line)
        self._answer(tally, missing, per_s)
        return 1 if missing else 0

    def _answer(self, tally: Tally, missing: Sequence[str], per_s: float | None) -> None:
        """The count once more, for a program."""
        if self._as_json:
            files = len(self._listing.names)
            answer_json(document(tally, missing, files=files, per_s=per_s, database=self._database))

    # Watching.

    @property
    def _has_ended(self) -> bool:
        return self._program is None or self._program.exit_code is not None

    def _watch(self, stop_at: int | None = None) -> bool:
        """Show progress until the program ends, or `stop_at` files are done. False when it went wrong, and said why."""
        total, judge = len(self._listing.names), self._judge
        since = moved_at = time.perf_counter()
        before = done = judge.ended_count()
        is_stalled = False
        with self._screen.progress(before) as view:
            while not (self._has_ended or is_stalled) and (stop_at is None or done < stop_at):
                time.sleep(POLL_S if stop_at is None else CLOSE_POLL_S)
                was, done = done, max(done, judge.ended_count())
                if done != was:
                    moved_at = time.perf_counter()
                is_stalled = time.perf_counter() - moved_at > STALL_S
                if view.wants_news():
                    view.draw(judge.progress(total))
            took_s = time.perf_counter() - since
            self._worked_s += took_s
            end = judge.progress(total)
            view.last(end._replace(per_s=(end.done - before) / took_s))
        return self._is_well(is_stalled)

    def _is_well(self, is_stalled: bool) -> bool:
        program = self._program
        assert program is not None
        if is_stalled:
            program.stop()
            self._screen.note(f"No task ended for {STALL_S:.0f} s, so the program was stopped. {program.last_words()}")
            return False
        if self._has_ended:
            program.reap()
        if program.exit_code:
            self._screen.note(f"The program ended with exit code {program.exit_code}: {escaped(program.last_words())}")
            return False
        return True

    # Ctrl-C, and the end.

    def interrupted(self) -> None:
        """Ctrl-C: stop the program in order, and say how to go on."""
        self._screen.show()
        if not self._has_ended and self._program is not None:
            self._screen.say(
                "Ctrl-C: the program is stopped in order (once more kills it, which loses nothing either)."
            )
            self._program.stop()
        tally = self._judge.tally()
        if tally.total:
            self._screen.say(f"Stopped: {_files(tally.ended)} done, {tally.waiting:,} wait in {self._shown_db}. Go on:")
            self._screen.command(f"taskmanager demo --resume {self._options}")
        else:
            self._screen.say("Stopped before anything was enqueued. Start again:")
            self._screen.command(f"taskmanager demo {self._options}")

    def interrupted_again(self) -> None:
        """A second Ctrl-C: no more patience."""
        if not self._has_ended and self._program is not None:
            self._program.kill()
        self._screen.say("Killed. The next start finds what was running, and goes on:")
        self._screen.command(f"taskmanager demo --resume {self._options}")

    def close(self) -> None:
        """No program and no open file is left, whatever happened."""
        if not self._has_ended and self._program is not None:
            self._program.stop()
        self._judge.close()

    @property
    def _shown_db(self) -> str:
        return escaped(str(self._database))

    @property
    def _shown_root(self) -> str:
        return escaped(str(self._root))


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"

"""PostgreSQL servers and a pooler of our own: real programs in a folder of their own, with a port of their own.

`fsync` is on. Nothing of them is left when the process that started them has ended, however it ended. They run as
somebody without rights where the suite runs as root, because the server refuses to.
"""

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import psutil
import psycopg

from tests.crash.harness import wait_for

PATIENCE_S: Final = 60.0
HOST: Final = "127.0.0.1"
# Below those that systems give to outgoing connections: a port stays free while its server is down.
PORTS: Final = range(20_000, 32_000)

SETTINGS: Final = f"""
listen_addresses = '{HOST}'
fsync = on
max_connections = 200
shared_buffers = 32MB
wal_level = replica
max_wal_senders = 10
wal_keep_size = 256MB
max_prepared_transactions = 5
log_line_prefix = '%m [%p] %a '
"""
# Where it listens decides who reaches it.
EVERYBODY: Final = """
local all,replication all trust
host all,replication all all trust
"""

# Reads until the process that holds the other end has ended, then ends what is left and removes the folder.
GUARD: Final = """
read _
for file in "$0"/data/postmaster.pid "$0"/pgbouncer.pid; do
    pid=$(head -n 1 "$file" 2>/dev/null) || continue
    kill -QUIT "$pid" 2>/dev/null
    while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
done
rm -rf "$0"
"""

PROGRAMS: Final = ("initdb", "postgres", "pg_ctl", "pg_basebackup")
STOP_SIGNALS: Final = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}


def find_binaries() -> Path | None:
    """Return the folder with the programs of a server, of the newest version where there are several."""
    folders = [Path(each) for each in os.environ.get("PATH", "").split(os.pathsep)]
    versions = [each for each in Path("/usr/lib/postgresql").glob("*/bin") if each.parent.name.isdigit()]
    folders += sorted(versions, key=lambda each: int(each.parent.name), reverse=True)
    if asked := shutil.which("pg_config"):
        answer = subprocess.run([asked, "--bindir"], capture_output=True, text=True, check=False)
        folders.append(Path(answer.stdout.strip()))
    return next((each for each in folders if all((each / name).exists() for name in PROGRAMS)), None)


def find_pgbouncer() -> Path | None:
    """Return the program of the pooler. Debian keeps it where only root looks."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    return Path(found) if found else None


def free_port() -> int:
    """Return a port that nobody listens on."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as listener:
            try:
                listener.bind((HOST, port))
            except OSError:
                continue
        return port


def server_url(
    port: int, schema: str | None = None, user: str | None = None, password: str | None = None, host: str = HOST
) -> str:
    """Return the address of the database `postgres`; the user is `postgres` unless given."""
    name = quote(user or "postgres", safe="") + (f":{quote(password, safe='')}" if password is not None else "")
    return f"postgresql://{name}@{host}:{port}/postgres" + (f"?schema={quote(schema, safe='')}" if schema else "")


class _Site:
    """A folder that the programs may use, and the port of one of them."""

    quits_with = signal.SIGQUIT

    def __init__(self) -> None:
        # Not below the folders of pytest: nobody but its user can reach those.
        self.folder = Path(tempfile.mkdtemp(prefix="taskmanager-pg-"))
        self.port = free_port()
        self.log = self.folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self._user = self._unprivileged()
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        self.folder.chmod(0o755)
        self._guard = subprocess.Popen(
            ["sh", "-c", GUARD, str(self.folder)], stdin=subprocess.PIPE, start_new_session=True
        )

    @staticmethod
    def _unprivileged() -> pwd.struct_passwd | None:
        """Return who runs the programs where that is not who runs the tests."""
        if os.getuid() != 0:
            return None
        names = {each.pw_name for each in pwd.getpwall()}
        return pwd.getpwnam("postgres" if "postgres" in names else "nobody")

    def _how(self) -> dict[str, Any]:
        """How each program is started: without what the environment says of other servers, and deaf to Ctrl-C."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        how: dict[str, Any] = {"cwd": self.folder, "env": environment, "start_new_session": True}
        if self._user is not None:
            how |= {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        return how

    def run(self, *command: str | Path) -> None:
        """Run a program to its end; `RuntimeError` with what it said if it fails."""
        done = subprocess.run(command, capture_output=True, text=True, check=False, **self._how())
        if done.returncode:
            raise RuntimeError(f"{Path(command[0]).name} failed: {done.stderr.strip()}")

    def launch(self, *command: str | Path) -> None:
        """Start the program that serves. What it says is added to the log."""
        assert not self.is_running, f"{self!r} runs already"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, **self._how())

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """The process that serves, or did so last."""
        assert self.process is not None, "it was never started"
        return self.process.pid

    def last_words(self) -> str:
        """Return the end of the log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-20:])

    def until_it_answers(self, answers: Callable[[], object]) -> None:
        """Wait for the first answer; `RuntimeError` with the end of the log if the process ends instead."""

        def is_there() -> bool:
            if not self.is_running:
                raise RuntimeError(f"{self!r} did not start:\n{self.last_words()}")
            try:
                answers()
            except psycopg.OperationalError:
                return False
            return True

        wait_for(is_there, lambda: f"{self!r} does not answer:\n{self.last_words()}", PATIENCE_S)

    def send(self, number: int) -> None:
        """Send a signal to the process that serves, and to none of its children."""
        if self.is_running:
            os.kill(self.pid, number)

    def end(self, number: int) -> None:
        """End the process with a signal, and wait for it and for its children."""
        if not self.is_running or self.process is None:
            return
        children = psutil.Process(self.pid).children(recursive=True)
        self.send(number)
        self.process.wait(PATIENCE_S)
        # Whoever was busy sees only afterwards that the parent has gone, and holds the shared memory until then.
        _, busy = psutil.wait_procs(children, timeout=PATIENCE_S)
        for each in busy:
            each.kill()
        psutil.wait_procs(busy, timeout=PATIENCE_S)

    def destroy(self) -> None:
        """End the program at once and remove the folder."""
        self.end(self.quits_with)
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self._guard.wait(PATIENCE_S)

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.is_running else "stopped"
        return f"<{type(self).__name__} port {self.port}, {state}>"


class Cluster(_Site):
    """One PostgreSQL server with its data. Whoever stops one that others use starts it again."""

    def __init__(self, binaries: Path) -> None:
        super().__init__()
        self.binaries = binaries
        self.data = self.folder / "data"

    @classmethod
    def create(cls, binaries: Path | None = None) -> "Cluster":
        """Make and start a server. `binaries` is the folder of another version than `find_binaries` gives."""
        binaries = binaries or find_binaries()
        assert binaries is not None, "no PostgreSQL server is installed"
        made = cls(binaries)
        try:
            # Nothing of it has to survive a power cut yet, and it takes half of the time.
            words = ("--encoding=UTF8", "--locale=C", "--auth=trust", "--username=postgres", "--no-sync")
            made.run(binaries / "initdb", "-D", made.data, *words)
            with (made.data / "postgresql.conf").open("a") as settings:
                settings.write(SETTINGS)
            made.admit(EVERYBODY)
            made.start()
        except BaseException:
            made.destroy()
            raise
        return made

    def start(self) -> None:
        """Start it on the port that it has always had, and return when it answers."""
        self.launch(self.binaries / "postgres", "-D", self.data, "-p", str(self.port), "-k", self.folder)
        self.until_it_answers(lambda: self.psql("SELECT 1"))

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop it: `fast` ends all sessions and writes everything, `immediate` leaves that to the next start."""
        self.end(STOP_SIGNALS[mode])

    def kill(self) -> None:
        """Send SIGKILL to the server, and return when its shared memory is free so that it can start again."""
        self.end(signal.SIGKILL)

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop and start it."""
        self.stop(mode)
        self.start()

    def standby(self) -> "Cluster":
        """Make and start another server that follows this one, by the name `standby`."""
        made = Cluster(self.binaries)
        source = f"host={self.folder} port={self.port} user=postgres application_name=standby"
        try:
            words = ("--checkpoint=fast", "--no-sync", "--write-recovery-conf")
            made.run(self.binaries / "pg_basebackup", "-D", made.data, "-d", source, *words)
            made.start()
        except BaseException:
            made.destroy()
            raise
        return made

    def promote(self) -> None:
        """Make a primary of a standby, and return when it is one."""
        self.psql("SELECT pg_promote(true, 60)")
        assert self.psql("SELECT pg_is_in_recovery()") == [("f",)], self.last_words()

    def until_it_has(self, primary: "Cluster") -> None:
        """Wait until this standby has replayed all that `primary` has written so far."""
        [(written,)] = primary.psql("SELECT pg_current_wal_insert_lsn()")
        question = f"SELECT pg_last_wal_replay_lsn() >= '{written}'"
        wait_for(lambda: self.psql(question) == [("t",)], lambda: f"{self!r} does not follow", PATIENCE_S)

    def set(self, name: str, value: str | None) -> None:
        """Set a setting of the server; None is its default. A setting that needs a restart waits for one."""
        literal = "DEFAULT" if value is None else "'" + value.replace("'", "''") + "'"
        self.psql(f"ALTER SYSTEM SET {name} = {literal}")
        self.psql("SELECT pg_reload_conf()")

    def admit(self, lines: str) -> None:
        """Replace the lines of pg_hba.conf, which say who is let in and how. `EVERYBODY` is what it begins with.

        The line for `local` is kept, because `psql` comes in there.
        """
        (self.data / "pg_hba.conf").write_text("local all postgres trust\n" + lines)
        self.send(signal.SIGHUP)

    def url(
        self, schema: str | None = None, user: str | None = None, password: str | None = None, host: str = HOST
    ) -> str:
        """Return the address as a manager takes it."""
        return server_url(self.port, schema, user, password, host)

    def psql(self, sql: str, *, user: str = "postgres", database: str = "postgres") -> list[tuple[str, ...]]:
        """Run statements, each in a transaction of its own if it is alone. Return the rows of the last as text.

        NULL is the empty text, as with `psql -At`. It comes in through the socket, and needs no password there.
        """
        place = {"host": str(self.folder), "port": self.port, "user": user, "dbname": database}
        with psycopg.connect(**place, autocommit=True, connect_timeout=5) as connection:  # type: ignore[arg-type]  # by name
            cursor = connection.execute(sql.encode())
            while cursor.nextset():
                pass
            found = cursor.pgresult
            assert found is not None
            columns = range(found.nfields)
            return [
                tuple((found.get_value(row, column) or b"").decode() for column in columns)
                for row in range(found.ntuples)
            ]


class PgBouncer(_Site):
    """A pooler in transaction mode before a cluster, as Debian brings it: it knows no prepared statements."""

    quits_with = signal.SIGKILL  # it heeds no SIGQUIT where the shell that started the tests ignores that

    def __init__(self, cluster: Cluster, *users: str) -> None:
        """Make and start one that lets in `users` and `postgres`, all without a password."""
        super().__init__()
        self.cluster = cluster
        (self.folder / "users").write_text("".join(f'"{name}" ""\n' for name in ("postgres", *users)))
        (self.folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={HOST} port={cluster.port}\n"
            f"[pgbouncer]\nlisten_addr = {HOST}\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {self.folder}/users\npidfile = {self.folder}/pgbouncer.pid\n"
            "pool_mode = transaction\nmax_client_conn = 400\ndefault_pool_size = 20\n"
        )
        try:
            self.start()
        except BaseException:
            self.destroy()
            raise

    def start(self) -> None:
        """Start it on the port that it has always had, and return when it answers."""
        program = find_pgbouncer()
        assert program is not None, "no pgbouncer is installed"
        self.launch(program, self.folder / "pgbouncer.ini")
        self.until_it_answers(lambda: psycopg.connect(server_url(self.port), connect_timeout=5).close())

    def stop(self) -> None:
        """End it at once, with all of its connections."""
        self.end(signal.SIGTERM)

    def url(self, schema: str | None = None, user: str | None = None, password: str | None = None) -> str:
        """Return the address as a manager takes it."""
        return server_url(self.port, schema, user, password)

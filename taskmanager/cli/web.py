"""`taskmanager web`: serves the dashboard of a file to the browser, also while the application is down."""

import errno
import logging
import os
import re
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import click

from taskmanager.cli.options import db_option
from taskmanager.cli.run import load
from taskmanager.store.place import Place

Application = Callable[..., Any]
"""An ASGI application. Its type is in a library that may not be installed."""
DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8421
TOKEN_VARIABLE: Final = "TASKMANAGER_WEB_TOKEN"  # noqa: S105  # the name of it
HOST: Final = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?", re.ASCII)
MADE: Final = "a new one"
PATIENCE_S: Final = 1
"""How long a stop waits for answers that are being sent."""
EPILOG: Final = """
\b
Examples:
  taskmanager web
  taskmanager web --db /srv/app/tasks.db --read-only
  taskmanager web --host 0.0.0.0 --token
  taskmanager web --auth app.admin:may_see --allowed-host tasks.example.com

Prints the address to open. Ctrl-C or SIGTERM stops it. Without --token and --auth it can be reached from this machine
only, and whoever uses this machine may act. A token is good for everything; keep it out of the list of processes by
$TASKMANAGER_WEB_TOKEN. FN gets the request and returns "read", "act" or None. Needs pip install 'taskmanager[web]'.
"""


@click.command(epilog=EPILOG)
@db_option
@click.option("--host", default=DEFAULT_HOST, show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0 takes a free one."
)
@click.option(
    "--token", is_flag=False, flag_value=MADE, envvar=TOKEN_VARIABLE, metavar="[T]",
    help="Let in only who knows this text, of 16 characters or more. Without T a new one is made.",
)  # fmt: skip
@click.option("--auth", metavar="MODULE:FN", help="Ask this function what the sender of a request may do.")
@click.option(
    "--allowed-host", "allowed_hosts", multiple=True, metavar="NAME",
    help="Answer to this name, too; may be given more than once.",
)  # fmt: skip
@click.option("--read-only", is_flag=True, help="Nobody may change anything.")
def web(
    db: Place,
    host: str,
    port: int,
    token: str | None,
    auth: str | None,
    allowed_hosts: tuple[str, ...],
    read_only: bool,
) -> int:
    """Serve the dashboard of a file, for the browser."""
    if token is not None and auth is not None:
        raise click.UsageError("--token and --auth exclude each other: both say who may see it")
    if wrong := next((each for each in allowed_hosts if not HOST.fullmatch(each)), None):
        raise click.UsageError(f"--allowed-host {wrong!r}: write a name as in tasks.example.com, with or without :PORT")
    if token == MADE:
        token = secrets.token_urlsafe(32)
    is_guarded = token is not None or auth is not None
    sockets = listen(host, port)
    try:
        bound_port: int = sockets[0].getsockname()[1]
        app = _app(db, token, auth, None if is_guarded and not allowed_hosts else allowed_hosts, bound_port, read_only)
        if not is_guarded:
            _check_loopback(sockets)
        for each in sockets:
            each.listen()  # whoever clicks at once waits, and is not refused
        logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        click.echo(f"The dashboard of {db}: {_address(host, bound_port, token)}\nCtrl-C stops it.")
        return serve(app, sockets)
    finally:
        for each in sockets:
            each.close()


def _app(
    db: Place, token: str | None, auth: str | None, allowed: tuple[str, ...] | None, port: int, read_only: bool
) -> Application:
    try:
        import uvicorn

        from taskmanager.web.guard import check_auth
        from taskmanager.web.local import MIN_TOKEN_LENGTH, TokenAuth, everybody_here, file_dashboard, hosts_of
    except ModuleNotFoundError as exc:
        what = f"{exc.name} is not installed; install it with: pip install 'taskmanager[web]'"
        raise click.ClickException(what) from exc
    del uvicorn
    hosts = None if allowed is None else hosts_of(port, allowed)
    asked: Any = everybody_here
    if auth is not None:
        asked = check_auth(load(auth, "function", "MODULE:FN, as in app.admin:may_see"))
    elif token is not None:
        if len(token) < MIN_TOKEN_LENGTH or not token.isprintable():
            raise click.UsageError(f"--token: use {MIN_TOKEN_LENGTH} characters or more, or leave the text out")
        asked = TokenAuth(token)
    return file_dashboard(db, asked, hosts=hosts, read_only=read_only)


def listen(host: str, port: int) -> list[socket.socket]:
    """Return a socket bound to each address of `host`, all with one port. Raise `click.ClickException`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as exc:
        raise click.ClickException(f"--host {host}: there is no such address ({exc.strerror})") from exc
    bound: list[socket.socket] = []
    fault: OSError | None = None
    for family, *_, address in found:
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            _bind(made, (address[0], bound[0].getsockname()[1] if bound else port, *address[2:]))
        except OSError as exc:
            made.close()
            fault = exc if fault is None or exc.errno == errno.EADDRINUSE else fault
        else:
            bound.append(made)
    if bound and (fault is None or fault.errno != errno.EADDRINUSE):
        return bound  # the other one is an address family that this machine has not
    for each in bound:
        each.close()
    raise _why_not(host, port, fault)


def _bind(made: socket.socket, address: tuple[Any, ...]) -> None:
    if os.name == "posix":  # on Windows it would share the port with whoever has it
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if made.family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    made.bind(address)


def _why_not(host: str, port: int, fault: OSError | None) -> click.ClickException:
    if fault is None:
        return click.ClickException(f"--host {host}: there is no such address")
    if fault.errno == errno.EADDRINUSE:
        return click.ClickException(f"port {port} is in use; give another one with --port, or --port 0 for a free one")
    if fault.errno == errno.EACCES:
        return click.ClickException(f"port {port} is not for this user; give one from 1024 on with --port")
    return click.ClickException(f"nothing can listen on {host} port {port}: {fault.strerror}")


def _check_loopback(sockets: list[socket.socket]) -> None:
    from taskmanager.web.local import is_loopback

    for each in sockets:
        address = each.getsockname()[0]
        if not is_loopback(address):
            raise click.UsageError(
                f"{address} can be reached from other machines; say who may see it with --token or --auth, "
                f"or listen on --host {DEFAULT_HOST}"
            )


def _address(host: str, port: int, token: str | None) -> str:
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname(), "": socket.gethostname()}.get(host, host)  # noqa: S104  # only shown
    shown = f"[{shown}]" if ":" in shown else shown
    return f"http://{shown}:{port}/" + ("" if token is None else f"?token={quote(token, safe='')}")


def serve(app: Application, sockets: list[socket.socket]) -> int:
    """Serve until a signal asks to stop. Return 0 after SIGTERM; Ctrl-C raises `KeyboardInterrupt`."""
    import uvicorn

    config = uvicorn.Config(
        app,
        access_log=False,  # it would write the token down
        log_config=None,
        log_level="warning",
        lifespan="off",
        ws="none",
        proxy_headers=False,  # anybody can write them
        server_header=False,
        timeout_graceful_shutdown=PATIENCE_S,
    )
    # The server catches both signals while it serves, and raises them once more when it has stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    uvicorn.Server(config).run(sockets)
    return 0

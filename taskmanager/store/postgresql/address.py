"""Where on which server the tasks live: a URL as libpq reads it, and what this library adds to its query.

    postgresql://user@host1,host2/database?schema=jobs&direct=host:5432&sslmode=verify-full

`schema` is the schema of the tables, `taskmanager` if it is not named. `direct` is an address without a pooler, for
what needs a session of its own. All else is libpq's: `service`, `passfile` and the modes of TLS mean what they mean
there.

A message shows an address without its passwords. One that cannot be read is not shown at all: a character that was not
escaped may have put a part of the password anywhere.
"""

import os
import socket
import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import ProgrammingError

from taskmanager.model.dataclass import dataclass
from taskmanager.model.errors import ConfigurationError

DEFAULT_SCHEMA: Final = "taskmanager"
MAX_NAME_BYTES: Final = 63
"""PostgreSQL cuts longer names, and two of them may then be the same."""
CONNECT_TIMEOUT_S: Final = 3
_SCHEMES: Final = ("postgresql", "postgres")
_OURS: Final = frozenset({"schema", "direct"})
_SECRET: Final = frozenset({"password", "sslpassword"})
_LOOKS_LIKE: Final = "postgresql://user@host:5432/database?schema=taskmanager"
_ESCAPES: Final = "in a name or a password `@` is written %40, `/` %2F, `#` %23, `?` %3F, `:` %3A and `%` %25"
# So a host that vanished is noticed within 20 seconds, whatever the machine's own settings are.
_DEFAULTS: Final[dict[str, Any]] = {
    "client_encoding": "utf8",
    "connect_timeout": CONNECT_TIMEOUT_S,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 4,
    "tcp_user_timeout": 15_000,
    "target_session_attrs": "read-write",
}

KEEPALIVES: Final = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "3",
    "tcp_keepalives_count": "4",
    "tcp_user_timeout": "15000",
}
"""The same as settings of a session, for the server's side. When our host has vanished, the server lets go of the
session within 17 s. With the settings of most systems it keeps it for two hours, and with it one of its connections,
and the snapshot of whoever was reading.
"""


def is_address(text: str) -> bool:
    """Return whether this is the URL of a PostgreSQL server."""
    return text.partition("://")[0].lower() in _SCHEMES and "://" in text


@dataclass(frozen=True, slots=True)
class Address:
    """One schema of one database. As text it shows no password.

    `conninfo` is what libpq connects by, and `direct` the same past a pooler; both may hold a password.
    """

    conninfo: str
    direct: str | None
    schema: str
    shown: str

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"<Address {self.shown}>"

    @property
    def quoted_schema(self) -> str:
        """Return the schema's name as SQL spells it."""
        return f'"{self.schema}"'

    def conninfo_of(self, use: str, *, is_direct: bool = False) -> str:
        """Return what libpq connects by. The server's lists show the connection with its use, unless it has a name."""
        conninfo = self.direct if is_direct and self.direct is not None else self.conninfo
        return make_conninfo(conninfo, fallback_application_name=_application_name(use))

    @classmethod
    def of(cls, url: str) -> "Address":
        """Read a URL. Raises `ConfigurationError`, whose message shows no password either."""
        try:
            scheme, netloc, path, query, fragment = urlsplit(url)
            pairs = parse_qsl(query, keep_blank_values=True)
        except ValueError:  # its message may quote the password
            raise _unreadable() from None
        if fragment or netloc.count("@") > 1 or "@" in path or any("@" in name for name, _ in pairs):
            raise _unreadable()
        ours = {name: value for name, value in pairs if name in _OURS}
        rest = [(name, value) for name, value in pairs if name not in _OURS]
        given = _read(_joined("postgresql", netloc, path, urlencode(rest, quote_via=quote)))
        if not str(given.get("port", "")).replace(",", "").isdigit() and "port" in given:
            raise _unreadable()
        if "@" in ours.get("direct", ""):
            raise ConfigurationError("give direct= as host:port alone: user and password are those of the address")
        shown = _shown(scheme, netloc, path, pairs)
        schema = ours.get("schema", DEFAULT_SCHEMA)
        _check_schema(schema, shown)
        conninfo = make_conninfo(**(_DEFAULTS | given))
        direct = ours.get("direct")
        return cls(conninfo, None if direct is None else _direct(given, direct, shown), schema, shown)


def _application_name(use: str) -> str:
    program = Path(sys.argv[0] if sys.argv else "").name or "python"
    name = f"taskmanager {use}: {program} {os.getpid()} on {socket.gethostname()}"
    return name.encode()[:MAX_NAME_BYTES].decode(errors="ignore")


def _unreadable() -> ConfigurationError:
    return ConfigurationError(
        f"this is not an address that PostgreSQL understands; it looks like {_LOOKS_LIKE}, and {_ESCAPES}"
    )


def _read(plain: str) -> dict[str, Any]:
    try:
        return dict(conninfo_to_dict(plain))
    except ProgrammingError as error:
        if "URI query parameter" in str(error):
            name = str(error).partition('"')[2].partition('"')[0]
            if name.replace("_", "").isalnum():
                raise ConfigurationError(
                    f"the address has a parameter that PostgreSQL does not know, {name}; its own are those of libpq, "
                    "and `schema` and `direct`"
                ) from None
        raise _unreadable() from None  # the message quotes a part of the URL, and so perhaps of the password


def _check_schema(schema: str, shown: str) -> None:
    if not schema or '"' in schema or "\0" in schema or len(schema.encode()) > MAX_NAME_BYTES:
        raise ConfigurationError(
            f"{shown} names a schema that cannot be: give a name of 1 to {MAX_NAME_BYTES} bytes without quotes"
        )
    if schema.startswith("pg_") or schema == "information_schema":
        raise ConfigurationError(f"{shown} names a schema of PostgreSQL itself; choose another, such as `taskmanager`")


def _direct(given: dict[str, Any], direct: str, shown: str) -> str:
    host, _, port = direct.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigurationError(f"{shown} has direct={direct}; give it as host:port")
    past = {name: value for name, value in given.items() if name != "hostaddr"}
    return make_conninfo(**(_DEFAULTS | past | {"host": host.strip("[]"), "port": port}))


def _shown(scheme: str, netloc: str, path: str, pairs: list[tuple[str, str]]) -> str:
    """Return the URL without what is secret in it."""
    user, at, hosts = netloc.rpartition("@")
    name = user.partition(":")[0]
    shown = [(each, "***" if each in _SECRET else value) for each, value in pairs]
    return _joined(scheme, f"{name}{at}{hosts}", path, urlencode(shown, safe="/:*,"))


def _joined(scheme: str, netloc: str, path: str, query: str) -> str:
    """Put a URL together. `urlunsplit` would leave out the slashes where there is no host."""
    return f"{scheme}://{netloc}{path}{'?' if query else ''}{query}"

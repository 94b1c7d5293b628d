"""What an address says, to the server and to people; and that it shows no password to anybody."""

import sys

import pytest
from psycopg.conninfo import conninfo_to_dict

from taskmanager.model.errors import ConfigurationError
from taskmanager.store.postgresql.address import MAX_NAME_BYTES, Address


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cr/et@h/db",
        "postgresql://u:s3cr#et@h/db",
        "postgresql://u:s3cr#et@h/db?schema=jobs",
        "postgresql://u:s3cr?et@h/db",
        "postgresql://u:s3cr@et@h/db",
        "postgresql://u:s3cr%et@h/db",
        "postgresql://u:s3cr\u2100et@h/db",
        "postgresql://u:s3cret@[::1/db",
        "postgresql://u:s3cret@h:99x/db",
        "postgresql://u:s3cret/db",
        "postgresql://h/db?Password=s3cret",
        "postgresql://u@h/db?direct=u:s3cret@h:5432",
        "postgresql://u:s3cret@h/db?direct=nowhere",
        "postgresql://u:s3cret@h/db?schema=pg_temp",
    ],
)
def test_address_that_cannot_be_shows_no_password(url: str) -> None:
    """A character that was not escaped moves the rest of the password to where nobody looks for one."""
    with pytest.raises(ConfigurationError) as caught:
        Address.of(url)
    assert "s3cr" not in str(caught.value)
    assert "et@" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_address_as_text_has_no_password() -> None:
    address = Address.of("postgresql://me:s3cret@h1:1,h2:2/db?schema=jobs&sslpassword=s3cret&direct=h3:3")
    assert str(address) == "postgresql://me@h1:1,h2:2/db?schema=jobs&sslpassword=***&direct=h3:3"
    assert "s3cret" not in repr(address)
    assert conninfo_to_dict(address.conninfo)["password"] == "s3cret"


def test_connection_is_named_after_its_use_within_what_a_name_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/srv/" + "\u00e4" * 80 + ".py"])
    given = conninfo_to_dict(Address.of("postgresql://h/db").conninfo_of("watch"))
    name = str(given["fallback_application_name"])
    assert name.startswith("taskmanager watch: \u00e4")
    assert len(name.encode()) <= MAX_NAME_BYTES


def test_connection_keeps_the_name_that_the_address_gives() -> None:
    given = conninfo_to_dict(Address.of("postgresql://h/db?application_name=shop").conninfo_of("watch"))
    assert given["application_name"] == "shop"


def test_address_past_a_pooler_differs_in_host_and_port_alone() -> None:
    address = Address.of("postgresql://me:s3cret@pool:6432/db?sslmode=require&direct=[::1]:5432")
    past = conninfo_to_dict(address.conninfo_of("watch", is_direct=True))
    through = conninfo_to_dict(address.conninfo_of("watch"))
    assert (past.pop("host"), past.pop("port")) == ("::1", "5432")
    assert (through.pop("host"), through.pop("port")) == ("pool", "6432")
    assert past == through

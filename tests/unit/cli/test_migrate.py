"""`migrate`: a schema is made and brought up to date by hand, or its SQL is printed for a DBA."""

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from taskmanager.store.place import place_at
from tests.unit.command_line import taskmanager

if TYPE_CHECKING:
    from tests.servers import Cluster


def test_migrate_makes_a_schema_and_then_has_nothing_to_do(schema_url: str) -> None:
    """A role that may make it does so before the application starts with one that may not."""
    first = taskmanager("migrate", "--db", schema_url, "--json").document(dict[str, int | str])
    assert (first["before"], first["db"]) == (0, schema_url)
    again = taskmanager("migrate", "--db", schema_url)
    assert (again.code, again.out) == (0, f"{schema_url} has schema version {first['after']}; nothing was to do\n")
    assert taskmanager("list", "--db", schema_url).out == "no tasks\n"


def test_migrate_prints_sql_that_psql_takes(schema_url: str, cluster: "Cluster", tmp_path: Path) -> None:
    """What a DBA has run leaves nothing to do. No server is asked for the SQL."""
    ran = taskmanager("migrate", "--sql", "--db", schema_url.replace("127.0.0.1", "host.invalid"))
    assert (ran.code, ran.err) == (0, "")
    script = tmp_path / "this.sql"
    script.write_text(ran.out, encoding="utf-8")
    psql = [str(cluster.binaries / "psql"), "--no-psqlrc", "--quiet", f"--file={script}", cluster.url()]
    subprocess.run(psql, check=True, capture_output=True)
    assert "nothing was to do" in taskmanager("migrate", "--db", schema_url).out


def test_migrate_of_a_file_does_what_a_start_does(copied: tuple[Path, dict[str, str]]) -> None:
    """There is nothing to do in a file of this version, and a file that is not there is not made."""
    version = place_at(str(copied[0])).version()
    assert taskmanager("migrate", "--db", copied[0]).out == (
        f"{copied[0]} has schema version {version}; nothing was to do\n"
    )
    lost = copied[0].with_name("lost.db")
    assert taskmanager("migrate", "--db", lost).code == 1
    assert not lost.exists()


@pytest.mark.parametrize(("more", "code"), [((), 1), (("--json",), 2)])
def test_migrate_refuses_sql_where_there_is_none(tmp_path: Path, more: tuple[str, ...], code: int) -> None:
    """A file needs no DBA, and SQL is no JSON."""
    ran = taskmanager("migrate", "--sql", "--db", tmp_path / "tasks.db", *more)
    assert (ran.code, ran.out) == (code, "")

"""The database of a test with processes: a file of its own, or a schema on a server where it asks for that."""

from pathlib import Path

import pytest


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What the manager of each process is given."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return str(tmp_path / "tasks.db")
    # To make the tables takes half a second, so only those have a schema of their own who watch how it is made.
    url: str = request.getfixturevalue("empty_url" if request.param == "postgresql" else "schema_url")
    return url

"""The database of a test with processes: a file of its own, or an empty schema on a server where it asks for that."""

from pathlib import Path

import pytest


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What the manager of each process is given."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return str(tmp_path / "tasks.db")
    url: str = request.getfixturevalue("empty_url")
    return url

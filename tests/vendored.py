"""The files that come from npm packages: `python -m tests.vendored` fetches them again, and compares.

It needs npm and the network. `tests/web/test_vendored.py` compares what is here with the checksums.
"""

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

STATIC: Final = Path(__file__).resolve().parents[1] / "taskmanager" / "web" / "static"
TABLE: Final = STATIC / "VENDORED.md"
_ROW: Final = re.compile(
    r"\| `(?P<file>[^`]+)` \| \[(?P<package>[^\]]+)\]\([^)]+\) \| (?P<version>[\d.]+) \| `(?P<source>[^`]+)` \| "
    r"(?P<licence>[^|]+) \| `(?P<sha256>[0-9a-f]{64})` \|"
)


class Vendored(NamedTuple):
    """One row of the table."""

    file: str
    package: str
    version: str
    source: str
    licence: str
    sha256: str


def vendored() -> list[Vendored]:
    """Every file that is not ours."""
    return [Vendored(**found.groupdict()) for found in _ROW.finditer(TABLE.read_text(encoding="utf-8"))]


def checksum(content: bytes) -> str:
    """The SHA-256 as the table has it."""
    return hashlib.sha256(content).hexdigest()


def fetched(one: Vendored, folder: Path) -> bytes:
    """The file as the package has it that npm finds by this name and version."""
    command = ["npm", "pack", "--silent", f"{one.package}@{one.version}"]
    name = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.split()[-1]
    with tarfile.open(folder / name) as archive:
        found = archive.extractfile(f"package/{one.source}")
        assert found is not None, one.source
        return found.read()


def main() -> int:
    """Say of each file whether it is the one of its package."""
    code = 0
    with tempfile.TemporaryDirectory() as folder:
        for one in vendored():
            is_same = fetched(one, Path(folder)) == (STATIC / one.file).read_bytes()
            print(f"{one.file}: {'the same as' if is_same else 'NOT'} {one.package} {one.version} {one.source}")
            code = code if is_same else 1
    return code


if __name__ == "__main__":
    sys.exit(main())

"""An environment for each library, with nothing in it but that library. Versions are pinned in one table."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv-peers"
"""git ignores it, and `make clean` removes it."""

REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "taskmanager": ("--editable", str(ROOT)),
    "huey": ("huey==3.5.4",),
    "litequeue": ("litequeue==0.14",),  # needs Python 3.12
    "persist-queue": ("persist-queue==1.1.0", "aiosqlite==0.22.1"),
    "fastapi-taskflow": ("fastapi-taskflow==0.12.1", "fastapi==0.165.0"),
    "taskiq": ("taskiq==0.13.0",),
    # It imports sniffio and greenlet, and requires neither.
    "apscheduler": (
        "apscheduler[sqlalchemy]==4.0.0a6",
        "sqlalchemy[asyncio]==2.1.9",
        "anyio==4.16.0",
        "sniffio==1.3.1",
    ),
    # For benchmarks/postgres_peers.py. They need Python 3.13 together.
    "taskmanager-postgres": ("--editable", f"{ROOT}[postgres]"),
    "oban-postgres": ("oban==0.7.0",),
    "procrastinate-postgres": ("procrastinate==3.10.0", "psycopg[binary]==3.3.9"),
    "horsies-postgres": ("horsies==0.5.4", "psycopg[binary]==3.3.9"),
    "dbos": ("dbos==3.4.0", "sqlalchemy==2.1.9", "pysqlite3-binary==0.5.4.post2; sys_platform == 'linux'"),
}


class NotInstalled(Exception):
    """An environment that could not be made; the message is the last thing that pip said."""


def interpreter_of(name: str, python: str = sys.executable) -> Path:
    """The interpreter of an environment, which is made first if it is not there or not as the table says."""
    folder = FOLDER / name
    found = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    stamp = folder / "installed.txt"
    wanted = "\n".join((str(Path(python).resolve()), *_contents(name)))
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return found
    _run([python, "-m", "venv", "--clear", str(folder)])
    _run([str(found), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS[name]])
    stamp.write_text(wanted, encoding="utf-8")
    return found


def _contents(name: str) -> Sequence[str]:
    """What an environment depends on besides its interpreter."""
    if name.startswith("taskmanager"):
        return ((ROOT / "pyproject.toml").read_text(encoding="utf-8"),)
    return REQUIREMENTS[name]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise NotInstalled(lines[-1] if lines else f"{command[0]} ended with {done.returncode}")

"""The public types, as two checkers see them: a user's mistakes are errors, a user's code is not."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
USER_CODE = "tests/typing/api.py"


def check(checker: str, *arguments: str) -> None:
    if find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed; it comes with the dev extra")
    command = [sys.executable, "-m", checker, *arguments, USER_CODE]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.timeout(300)
def test_mypy_reads_user_code_as_it_is_meant() -> None:
    """`warn_unused_ignores` is part of `--strict`: an expected error that is none fails here too."""
    check("mypy", "--strict")


@pytest.mark.timeout(300)
def test_pyright_reads_user_code_as_it_is_meant() -> None:
    """The other checker solves overloads and type variables in another way; editors use it."""
    check("basedpyright", "--pythonpath", sys.executable)

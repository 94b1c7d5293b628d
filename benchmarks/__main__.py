"""Runs every benchmark of this folder, one after the other, and shows at the end which targets are reached.

python benchmarks --quick                      # all questions, small numbers
python benchmarks --against ../other-checkout  # all options of a benchmark are passed on to each of them
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from _harness import show

HERE = Path(__file__).parent
FIRST = (
    "engine.py",
    "saved.py",
    "latency.py",
    "startup.py",
    "request_latency.py",
    "loop_lag.py",
    "memory.py",
    "scale.py",
)
"""The questions that have most of the targets; the others follow."""


def main() -> None:
    """Ask all questions; the last table has the lines with a target."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    _, passed_on = parser.parse_known_args()
    files = sorted(
        HERE.glob("[a-z]*.py"), key=lambda file: (FIRST.index(file.name) if file.name in FIRST else 99, file)
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            lines = Path(folder) / file.name
            command = [sys.executable, str(file), "--json", str(lines), *passed_on]
            if subprocess.run(command, check=False).returncode:
                rows.append({"file": file.name, "what": "failed", "must": "an answer", "reached": "NO"})
            else:
                rows += json.loads(lines.read_text(encoding="utf-8"))
    columns = ["file", "what", "measured", "CPU", "must", "wish", "reached"]
    if "--against" in passed_on:
        columns.insert(3, "this / other")
    show("All lines with a target", [row for row in rows if row["must"]], columns)


if __name__ == "__main__":
    main()

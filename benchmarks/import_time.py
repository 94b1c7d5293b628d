"""How long does `import taskmanager` take in a fresh process, and what does it load?

`import asyncio` in another fresh process stands beside it; it is part of the time of the library.
"""

import json
import subprocess
import sys
from typing import NamedTuple

from _sheet import Sheet, interleaved, parse_options

NOT_LOADED = ("rich", "click", "psutil", "cronsim", "concurrent.futures.process")

PROGRAM = """
import time
began = time.perf_counter()
import {name}
took_s = time.perf_counter() - began
import json, sys
print(json.dumps([took_s, sorted(sys.modules)]))
"""


class Found(NamedTuple):
    """What one fresh process saw."""

    took_s: float
    modules: frozenset[str]


def measure(name: str) -> Found:
    """Import `name` in a fresh process."""
    command = [sys.executable, "-c", PROGRAM.format(name=name)]
    took_s, modules = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return Found(took_s, frozenset(modules))


def main() -> None:
    """Print the table."""
    options = parse_options(__doc__)
    measure("taskmanager")  # the first one may have to write the compiled modules
    found = interleaved(
        {"taskmanager": lambda: measure("taskmanager"), "asyncio": lambda: measure("asyncio")}, options.repetitions
    )
    bare = [each.took_s for each in found["asyncio"]]
    sheet = Sheet(__doc__, options)
    sheet.add("import taskmanager", [each.took_s for each in found["taskmanager"]], "s", target="<= 0.15", bare=bare)
    sheet.add("import asyncio", bare, "s", bare=bare)
    modules = found["taskmanager"][0].modules
    loaded = ", ".join(name for name in NOT_LOADED if name in modules)
    sheet.fact(f"of {', '.join(NOT_LOADED)}", loaded or "none loaded", target="none loaded")
    sheet.fact("modules beyond those of asyncio", str(len(modules - found["asyncio"][0].modules)))
    sheet.print()


if __name__ == "__main__":
    main()

"""Counts what a server accepts, completes, loses and repeats while it is restarted under load.

python -m tests.acceptance.restarts [STARTS] [WORKERS]

uvicorn is started so often, and stopped by SIGTERM while requests come in; the last start may finish. One line with the
counts; it fails when something is lost or done twice.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.acceptance.serving import free_port
from tests.acceptance.test_servers import Round, assert_each_ended_once, serve_under_load, uvicorn
from tests.crash.harness import Site

REQUESTS = 250
"""Accepted ones, at least, between two stops."""


def main(starts: int = 8, workers: int = 1) -> None:
    with tempfile.TemporaryDirectory() as folder:
        site, port = Site(Path(folder)), free_port()
        command = uvicorn(port, *(("--workers", str(workers)) if workers > 1 else ()))
        accepted = serve_under_load(site, port, *[Round(command, workers)] * starts, requests=REQUESTS)
        statuses = Counter(site.statuses().get(each.label) for each in accepted)
        repeated = sum(count > 1 for count in site.starts().values())
        sys.stdout.write(
            f"{starts} starts with {workers} workers: {len(accepted)} accepted, {statuses['COMPLETED']} completed, "
            f"{statuses[None]} lost, {repeated} repeated\n"
        )
        assert_each_ended_once(site, accepted)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

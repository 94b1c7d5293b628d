"""Sends requests over some connections until SIGTERM, and appends every accepted one to a file.

python -m tests.acceptance.hammer PORT FILE CONNECTIONS PATH...

A connection that breaks is opened again, for as long as it takes: the server is being restarted. A request whose answer
did not come is sent again under a new label, so the file holds exactly what the server has said yes to.
"""

import http.client
import itertools
import json
import os
import signal
import sys
import threading
import time

RETRY_S = 0.02
REQUESTS_PER_CONNECTION = 20
"""Then another one, so that each of several workers gets its share."""


def hammer(port: int, descriptor: int, number: int, paths: list[str], stop: threading.Event) -> None:
    """One connection after the other, one request after the other."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    for count in itertools.count():
        if stop.is_set():
            return
        if count % REQUESTS_PER_CONNECTION == 0:
            connection.close()
        path = paths[count % len(paths)]
        label = f"{path}-{number}-{count}-{os.getpid()}"
        try:
            connection.request("POST", f"/{path}/{label}")
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            time.sleep(RETRY_S)
            continue
        if answer.status == 202:
            os.write(descriptor, json.dumps([label, json.loads(body)]).encode() + b"\n")
        else:
            time.sleep(RETRY_S)


def main() -> None:
    port, path, connections, paths = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    threads = [
        threading.Thread(target=hammer, args=(port, descriptor, number, paths, stop)) for number in range(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()

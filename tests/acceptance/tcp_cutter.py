"""A way to a server that is cut at a chosen moment of a commit, as a network does it."""

import asyncio
import re
import socket
import struct
from contextlib import suppress
from typing import Literal
from urllib.parse import urlsplit

PREPARED = re.compile(rb"P....([^\0]*)\0COMMIT\0", re.DOTALL)
"""A statement of this name is to be made that commits."""
When = Literal["before", "after"]


class Cutter:
    """Listens on a port of its own, and passes everything on to `target_port`."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._when: When | None = None
        self.cut_count = 0

    async def open(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """End it."""
        assert self._server is not None
        self._server.close()

    def url(self, url: str) -> str:
        """Return this address by way of the cutter."""
        return url.replace(f":{urlsplit(url).port}", f":{self.port}")

    def cut_at_next_commit(self, when: When) -> None:
        """Cut once: `before` the server hears of it, or `after`, before its answer has come back."""
        self._when = when

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):  # the loop ends
            server, to_server = await asyncio.open_connection("127.0.0.1", self._target_port)
            back = asyncio.create_task(_pass_on(server, to_client))
            commits = {b"COMMIT\0"}
            try:
                while sent := await client.read(1 << 16):
                    commits |= {b"\0%b\0" % name for name in PREPARED.findall(sent) if name}
                    when = self._when if any(each in sent for each in commits) else None
                    if when is not None:
                        self._when = None
                        back.cancel()
                        await asyncio.wait([back])
                        if when == "after":
                            to_server.write(sent)
                            rest = asyncio.create_task(_pass_on(client, to_server))  # a part of it may come later
                            await server.read(1)
                            rest.cancel()
                        self.cut_count += 1
                        return
                    to_server.write(sent)
            finally:
                back.cancel()
                _reset(to_client)
                _reset(to_server)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while got := await reader.read(1 << 16):
            writer.write(got)
        writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close it as a reset does: without a word."""
    raw = writer.get_extra_info("socket")
    if raw is not None:
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()

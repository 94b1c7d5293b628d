"""Hosts of our own on this machine: network namespaces, each with one cable to a switch that the server listens on.

A host whose cable is pulled is silent: nobody gets a reset, and what was sent comes to nothing until it is plugged in
again. Nothing of them is left when the process that made them has ended, however it ended. Needs the rights of root.
"""

import os
import shutil
import subprocess
from typing import Final

# Reads until the process that holds the other end has ended, then removes what is left.
GUARD: Final = """
read _
for name in $1; do ip netns del "$name" 2>/dev/null; done
ip link del "$0" 2>/dev/null
"""
FIRST_NETS: Final = "10.213"
"""Of this the process takes a part, by its number."""


class NoNamespaces(Exception):
    """What is missing here."""


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNamespaces(f"`ip {' '.join(words)}` is not possible here: {done.stderr.strip()}")


class Host:
    """One namespace with one cable. It is cut off while that is pulled."""

    def __init__(self, name: str, bridge: str, address: str) -> None:
        self.name, self._cable = name, f"{name}c"
        self.is_cut = False
        _ip("netns", "add", name)
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", self._cable, "master", bridge, "up")
        for words in (
            ("link", "set", "lo", "up"),
            ("addr", "add", address, "dev", "eth0"),
            ("link", "set", "eth0", "up"),
        ):
            _ip("-n", name, *words)

    def __repr__(self) -> str:
        return f"<Host {self.name}{' cut off' if self.is_cut else ''}>"

    def command(self, *words: str) -> list[str]:
        """Return the command that runs there, as the same process."""
        return ["ip", "netns", "exec", self.name, *words]

    def cut(self) -> None:
        """Pull the cable."""
        self.is_cut = True
        _ip("link", "set", self._cable, "down")

    def mend(self) -> None:
        """Plug it in again."""
        _ip("link", "set", self._cable, "up")
        self.is_cut = False


class Network:
    """So many hosts, and `address`, at which all of them reach what runs outside of them."""

    def __init__(self, host_count: int) -> None:
        if os.getuid() != 0 or shutil.which("ip") is None:
            raise NoNamespaces("hosts of their own need the rights of root and the program `ip` (Debian: iproute2)")
        pid = os.getpid()
        bridge, names = f"tm{pid}", [f"tm{pid}h{number}" for number in range(host_count)]
        words = ["sh", "-c", GUARD, bridge, " ".join(names)]
        self._guard = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
        net = f"{FIRST_NETS}.{pid % 256}"
        self.address = f"{net}.1"
        self.hosts: list[Host] = []
        try:
            _ip("link", "add", bridge, "type", "bridge")
            _ip("addr", "add", f"{self.address}/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
            for number, name in enumerate(names):
                self.hosts.append(Host(name, bridge, f"{net}.{number + 2}/24"))
        except NoNamespaces:
            self.destroy()
            raise

    def destroy(self) -> None:
        """Remove all of it. What runs there loses its network."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()

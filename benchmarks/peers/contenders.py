"""Everyone who takes part, in the order of the tables."""

from benchmarks.peers import (
    peer_apscheduler,
    peer_dbos,
    peer_huey,
    peer_litequeue,
    peer_persistqueue,
    peer_taskflow,
    peer_taskiq,
    peer_taskmanager,
)
from benchmarks.peers.interface import Contender

MODULES = (
    peer_taskmanager,
    peer_taskiq,
    peer_taskflow,
    peer_huey,
    peer_litequeue,
    peer_persistqueue,
    peer_apscheduler,
    peer_dbos,
)
CONTENDERS: dict[str, Contender] = {each.name: each for module in MODULES for each in module.CONTENDERS}


def chosen(words: list[str]) -> list[Contender]:
    """Those whose name has one of the words, with those of ours that they are compared with. All without words."""
    found = {name for name in CONTENDERS if not words or any(word.lower() in name.lower() for word in words)}
    found |= {against for name in found if (against := CONTENDERS[name].against)}
    return [each for name, each in CONTENDERS.items() if name in found]

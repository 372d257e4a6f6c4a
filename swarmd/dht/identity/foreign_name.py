"""What a peer is called elsewhere: a note beside the key file, for names that swarmd cannot make itself."""

from __future__ import annotations

from pathlib import Path

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.files import read_start

SUFFIX = ".called"  # identity.key.called
NOTE_BYTES_MAX = 4096
NAME_CHARS_MAX = 100


class ForeignName(msgspec.Struct, frozen=True):
    """A name in RL Swarm, made of words that swarmd does not ship."""

    peer: str
    rl_swarm: str


def note_name(key: Path, peer: str, rl_swarm: str) -> None:
    """Write down what a key's peer is called in RL Swarm. Raises OSError."""
    key.with_name(key.name + SUFFIX).write_bytes(msgspec.json.encode(ForeignName(peer, rl_swarm)))


def known_name(key: Path, peer: str) -> str:
    """What this peer is called in RL Swarm, empty where no note says it."""
    try:
        called = msgspec.json.decode(read_start(key.with_name(key.name + SUFFIX), NOTE_BYTES_MAX), type=ForeignName)
    except (OSError, *DECODE_ERRORS):
        return ""
    sound = called.peer == peer and len(called.rl_swarm) <= NAME_CHARS_MAX and called.rl_swarm.isprintable()
    return called.rl_swarm if sound else ""

"""A stopped node's data directory, small and quickly made, with everything that a real one has."""

import hashlib
from pathlib import Path

import msgspec

from swarmd.core.state import State
from swarmd.core.values import RolloutsRef
from swarmd.dht.identity.identity import create_identity
from swarmd.eventlog.blobs import BlobStore
from swarmd.eventlog.store import EventLog
from swarmd.paths import NodeDirectory
from tests.core.story import Story, announced, gathered, settings, trained
from tests.eventlog.making import write_story

PASSPHRASE = "correct horse battery"
SECRET = b"0x" + b"5ec4e7" * 10
BODY = b"what a peer published" * 20
PEER = "12D3KooWOtherPeer"


def make_node(root: Path, rounds: int = 4, segment_bytes: int = 1500) -> NodeDirectory:
    """A follower that has trained some rounds and was at training one more."""
    data = NodeDirectory(root)
    root.mkdir(mode=0o700)
    peer = create_identity(root / "identity.key").peer_id
    blobs = BlobStore(data.blobs)
    digest = blobs.put(BODY)
    blobs.put(b"of long ago")
    story = Story.joined(settings(peer=peer))
    for number in range(rounds):
        story.at += 10
        story.tell(announced(number, deadline_at=1e6), gathered(number), trained(number, reward=0.1))
    story.at += 10
    reference = RolloutsRef(PEER, rounds - 1, 0, digest, len(BODY), 1)
    story.tell(announced(rounds, deadline_at=1e6), gathered(rounds, rollouts=(reference,)))
    with EventLog.open(data.events, peer, "run1", segment_bytes) as log:
        write_story(log, story.recorded, State())
    (root / "config.toml").write_text('[swarm]\nid = "test"\n')
    (root / "account.json").write_bytes(SECRET)
    data.network.mkdir()
    data.records.write_bytes(b"old records")
    data.peers.write_bytes(b"[]")
    data.invitations.write_bytes(b"[]")
    for number in range(rounds):
        make_checkpoint(data, number)
    return data


def make_checkpoint(data: NodeDirectory, number: int, content: bytes = b"weights") -> Path:
    """A checkpoint as `swarmd.training.checkpoints` lays them out, without a model."""
    place = data.checkpoints / f"r{number:09d}-s0000"
    place.mkdir(parents=True)
    (place / "model.safetensors").write_bytes(content * (number + 1))
    digest = hashlib.sha256(content * (number + 1)).hexdigest()
    (place / "meta.json").write_bytes(msgspec.json.encode({"format": 1, "files": {"model.safetensors": digest}}))
    return place

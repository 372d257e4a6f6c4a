"""A swarm of any size as a model: shipped choices, look-ups of a sample of nodes, and counts for all the others.

Look-ups are simulated one by one (`bench.scale_lookup`) for a sample of askers and keys; what all nodes do is a number
of look-ups of these kinds. Which shard a record lies in, what a node gathers, and whom it asks beside the nearest peers
are chosen by the shipped functions. Sizes are those of messages that the shipped encoders make.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from functools import cache
from hashlib import sha256
from random import Random
from typing import Any, NamedTuple

import msgspec
import numpy as np

from bench.scale_lookup import BUCKET, Looked, Network
from bench.scale_rows import Outcome
from swarmd.core.coordination import shard_count_for
from swarmd.core.values import Standing
from swarmd.dht.gather import FETCHES_AT_ONCE, LOOK_AGAIN_S, WHOLE_MAX, SampledShards
from swarmd.dht.identity.identity import generate_identity
from swarmd.dht.membership import POLLS_BETWEEN_READS
from swarmd.dht.p2p.hivemind_api import dht_pb2
from swarmd.dht.p2p.peers import CHECKED, REJOIN_S
from swarmd.dht.publisher import RENEWALS
from swarmd.dht.rounds import POLLS_BETWEEN_READS as CLOCK_POLLS_BETWEEN_READS
from swarmd.dht.store import parts
from swarmd.dht.store.capacity import KEY_BYTES_MAX
from swarmd.dht.store.lookup import REPLICAS
from swarmd.dht.store.parts import Cursor, FindFilter, KeyPart, ShownRecord, add_filter
from swarmd.dht.store.seniority import ELDERS, ELDEST_SHARE, TRUSTED_PEERS, Rank, choose_trusted_peers
from swarmd.dht.wire.bodies import LeaderboardBody, deflate, encode_leaderboard
from swarmd.dht.wire.names import EPOCH_ROUNDS, shard_of
from swarmd.dht.wire.records import Membership, Payload, ReportRecord, RolloutsRecord, sign

Counts = defaultdict[str, float]  # by the names of `bench.scale_worker`

SAMPLED = 60  # look-ups of each kind that are simulated
READERS = 200  # nodes of a round whose choices are made
SWARM = "model"
MESH = 6  # peers that gossipsub sends a message on to
HINT_BYTES = 200
CLOCK_BYTES = 330
KEPT_RECORDS = 7  # of its own that a node renews: a membership, three reports and three rollouts
BOARD_ROWS = 300  # of a leaderboard that are encoded; so many fit into no record, and more have as many bytes each
BOARD_READS = 1.0  # of a leaderboard's key: .9 to 1.1 in `swarmd sim --large`, since few ask before it is there
DEAD_FOR_S = 600.0  # a peer that is gone stays in a routing table for about so long


class Settings(msgspec.Struct, frozen=True):
    """What a swarm is like; times in seconds."""

    shard_members: int = 64
    gather_peers: int = 32
    poll_s: float = 5.0
    record_s: float = 900.0
    train_s: tuple[float, float] = (60.0, 90.0)
    link_s: tuple[float, float] = (0.05, 0.2)  # one way
    churn_per_hour: float = 0.0
    body_bytes: int = 12 * 1024
    packed_bytes: int = 0  # of a body inside its record, where that has room for it; 0: as many as of the body
    round_s: float = 0.0  # a round lasts so long at least: on a busy machine all that goes by time happens more often


class Sizes(NamedTuple):
    """Bytes of messages."""

    request: int
    answer: int  # with no record in it
    shown: dict[str, int]  # of one record more in it, by kind
    store: dict[str, int]  # request and answer
    ping: int  # request and answer


def sizes_of(nearby: int) -> Sizes:
    """Sizes of messages in which so many peers are named."""
    identity, now = generate_identity(), time.time()
    request = dht_pb2.FindRequest(keys=[bytes(20)], peer=dht_pb2.NodeInfo(node_id=bytes(20)))
    add_filter(request, FindFilter((), Cursor(bytes(8), 1000)))
    named = {"nearest_node_ids": [bytes(20)] * nearby, "nearest_peer_ids": [bytes(38)] * nearby}

    def answer(*shown: ShownRecord) -> int:
        encoded = msgspec.msgpack.encode(KeyPart(bytes(8), 1000, shown))
        result = dht_pb2.FindResult(type=dht_pb2.FOUND_DICTIONARY, value=encoded, **named)
        return int(dht_pb2.FindResponse(results=[result], peer=request.peer).ByteSize())

    place: dict[str, Any] = {
        "swarm": SWARM,
        "round": 100,
        "stage": 0,
        "digest": "0" * 64,
        "size_bytes": 12288,
        "groups": 1,
    }
    more: dict[str, Any] = {"work": 50_000, "shards": 128, "shard": 77}
    contents: dict[str, Payload] = {
        "reports": ReportRecord(reward=0.5, **place, **more),
        "rollouts": RolloutsRecord(**place, **more),
        "members": Membership(SWARM, "name", "0" * 16, now, addresses=("/ip4/10.0.0.1/tcp/40000/p2p/" + "0" * 52,)),
    }
    shown, store = {}, {}
    for kind, content in contents.items():
        record = sign(identity, content, now + 900)
        shown[kind] = answer(ShownRecord(record.owner, record.value, record.expiration)) - answer()
        call = dht_pb2.StoreRequest(keys=[bytes(20)], subkeys=[bytes(54)], values=[record.value],
                                    expiration_time=[now], in_cache=[False], peer=request.peer)  # fmt: skip
        store[kind] = int(call.ByteSize()) + 26
    peer = request.peer
    ping = dht_pb2.PingRequest(peer=peer).ByteSize() + dht_pb2.PingResponse(peer=peer, dht_time=now).ByteSize()
    return Sizes(int(request.ByteSize()), answer(), shown, store, int(ping))


@cache
def board_bytes(size: int) -> tuple[int, int]:
    """Bytes of a round's leaderboard of so many nodes: (inside its record, to be fetched)."""
    rows, now = min(size, BOARD_ROWS), time.time()
    peers = [generate_identity() for _ in range(rows)]
    standings = tuple(Standing(each.peer_id, "", 0.5 + number / 7, 90, 99) for number, each in enumerate(peers))
    digests = [sha256(each.peer_id.encode()).hexdigest() for each in peers]
    contents = [ReportRecord(SWARM, 100, 0, 0.5, digest, 12288, 1, 50_000) for digest in digests]
    reports = tuple(sign(*each, now + 900).encode() for each in zip(peers, contents, strict=True))
    body = encode_leaderboard(LeaderboardBody(100, standings, reports))
    packed = deflate(body, 1) if rows == size else b""
    return len(packed), 0 if packed else len(body) * size // rows


class Kind(NamedTuple):
    """Look-ups of one kind: means of those that were simulated, and all their durations."""

    asked: float
    to_coordinator: float  # of the asked
    further: float  # keepers that only the look-up found
    seconds: np.ndarray[Any, Any]
    load: Counter[int]  # of the asked, by node: guides are asked by all


class Model:
    """A swarm.

    Args:
        size: nodes, the coordinator among them.
        settings: what it is like.
        seed: of all chance.
        sharded: whether its stages lie in shards where there are members enough.
    """

    def __init__(self, size: int, settings: Settings, seed: int, sharded: bool = True) -> None:
        self.size, self.settings = size, settings
        self.shards = shard_count_for(size, settings.shard_members) if sharded else 0
        self.random, self.chance = np.random.default_rng(seed), Random(seed)
        dead = 1 - float(np.exp(-settings.churn_per_hour * DEAD_FOR_S / 3600))
        self.network = Network(size, self.random, settings.link_s, dead)
        self.eldest = self.chance.sample(range(1, size), min(max(ELDERS, size // ELDEST_SHARE), size - 1))
        self.sizes = sizes_of(min(BUCKET, size - 2))
        self.looked = self._look_ups(self.shards == 0)
        self.board = board_bytes(size)
        self.keepers, self.shown_by = self._keepers()
        self.inline_bytes = self._inline_bytes()
        self.peers = [f"12D3KooW{node:044d}" for node in range(size)]
        self.outcome = Outcome()

    def _guides(self, node: int, coordinator: bool) -> list[int]:
        elders = Random(node).sample(self.eldest, min(ELDERS, len(self.eldest)))
        named = choose_trusted_peers(str(node), "0", (), [str(peer) for peer in elders], self.chance.sample)
        return [int(guide) for guide in named if coordinator or guide != "0"]

    def _look_ups(self, coordinator: bool) -> Kind:
        looked: list[Looked] = []
        load: Counter[int] = Counter()
        for number in range(SAMPLED):
            node = int(self.random.integers(1, self.size))
            name = f"swarmd/{SWARM}/reports/{number}/{coordinator}"
            looked.append(self.network.look_up(node, name, self._guides(node, coordinator)))
            load.update(looked[-1].asked)
        asked = sum(len(each.asked) for each in looked) / SAMPLED
        further = sum(len({*each.nearest} - {*each.known}) for each in looked) / SAMPLED
        return Kind(asked, load[0] / SAMPLED, further, np.array([each.seconds for each in looked]), load)

    def _keepers(self) -> tuple[float, float]:
        """(peers that a record is stored with, peers that show it to whoever looks for all of a key): the nearest ones
        are asked each time; guides of its owner, and the owner itself, are by chance among those who are asked."""
        others = self.size - 1
        keepers = min(REPLICAS + TRUSTED_PEERS * (1 - min(1.0, REPLICAS / others)) + self.looked.further, others)
        asked = min(1.0, self.looked.asked / others)
        nearest = min(REPLICAS, others)
        return keepers, nearest + (keepers + 1 - nearest) * asked - keepers / others

    def _inline_bytes(self) -> int:
        """Of a body inside its record. Where more share a key than are read with all that lies under it, none is."""
        if self.shards or self.size - 1 > WHOLE_MAX:
            return 0
        return len(deflate(self.chance.randbytes(self.settings.packed_bytes or self.settings.body_bytes), self.size))

    # --- a round ---

    def play(self, round: int) -> None:
        """One round of all nodes."""
        settings, outcome = self.settings, self.outcome
        announced = self._announce()
        looks, read, bodies, full, gathered_s = self._gather(round)
        trained = self.random.uniform(*settings.train_s, self.size)
        published = 2 * (self._rtt() + self._rtt())
        finished = announced + gathered_s + trained + published
        ended_s = float(finished.max()) + 2 * float(self.random.uniform(*settings.link_s))
        round_s = max(ended_s, settings.round_s)
        counts = self._count(round_s, looks, read, bodies)
        outcome.add_means(counts, 1)
        outcome.add("largest", self._largest(counts))
        outcome.figures["announced"] += announced.tolist()
        outcome.add("closed", ended_s - float(finished.max()))
        outcome.add("full", full)
        outcome.add("seconds", round_s)

    def _rtt(self) -> np.ndarray[Any, Any]:
        return self.random.uniform(*self.settings.link_s, (2, self.size)).sum(0)

    def _announce(self) -> np.ndarray[Any, Any]:
        """Seconds until each node has heard: the clock is stored, then gossiped over a mesh of so many peers each."""
        heard = np.full(self.size, np.inf)
        heard[0] = self._rtt()[:2].max()
        mesh = self.random.integers(0, self.size, (MESH // 2, self.size))
        links = self.random.uniform(*self.settings.link_s, mesh.shape)
        before = -1.0
        while before != (before := float(np.where(np.isinf(heard), 1e9, heard).sum())):
            for peers, link in zip(mesh, links, strict=True):
                heard = np.minimum(heard, heard[peers] + link)
                np.minimum.at(heard, peers, heard + link)
        return heard

    def _gather(self, round: int) -> tuple[float, float, float, float, np.ndarray[Any, Any]]:
        """(looks, shards read in each, bodies fetched, per cent of nodes with all they wanted, seconds of each)."""
        settings = self.settings
        owners: dict[int, list[str]] = {}
        for peer in self.peers:
            owners.setdefault(shard_of(SWARM, peer, round, 0, self.shards), []).append(peer)
        gone = settings.churn_per_hour * settings.train_s[1] / 3600
        read, bodies, full = [], [], 0
        for _ in range(READERS):
            number, fetched, alive = self._choose(owners, gone)
            read.append(number)
            bodies.append(fetched)
            full += alive
        waves = 0 if self.inline_bytes else np.ceil(np.mean(bodies) / FETCHES_AT_ONCE)
        fetch_s = waves * 2 * self._rtt()
        look_s = 2 * float(np.mean(read)) * self.random.choice(self.looked.seconds, self.size)
        rest_s = np.maximum(0.0, fetch_s - LOOK_AGAIN_S)
        again = np.ceil(rest_s / (look_s + 2 * LOOK_AGAIN_S))
        seconds = (1 + again) * look_s + again * LOOK_AGAIN_S + np.minimum(fetch_s, LOOK_AGAIN_S)
        return float(1 + again.mean()), float(np.mean(read)), float(np.mean(bodies)), 100 * full / READERS, seconds

    def _choose(self, owners: dict[int, list[str]], gone: float) -> tuple[int, float, bool]:
        """(shards that a node reads, bodies that it fetches, whether these are all it wants), as the shipped code: the
        bodies of all that it has chosen are asked for before it is seen that there are enough."""
        sample = SampledShards(self.shards, self.settings.gather_peers, self.chance.sample)
        useless: set[str] = set()
        while (not sample.read or sample.has_too_few_peers(len(useless))) and (
            shard := sample.next_shard()
        ) is not None:
            before = set(sample.sources.peers)
            ranks = {peer: Rank(1, 16, True, peer.encode()) for peer in owners.get(shard.shard, ())}
            sample.sources.choose_peers(ranks)
            fresh = sample.sources.peers.keys() - before
            useless |= {peer for peer in fresh if self.chance.random() < gone}
        given = len(sample.sources.peers) - len(useless)
        wanted = self.settings.gather_peers if sample.is_sample else self.size - 1
        return len(sample.read), given, given >= wanted or not self.shards

    def _count(self, round_s: float, looks: float, read: float, bodies: float) -> Counts:
        """What a follower counts in a round, in the names of `bench.scale_worker`."""
        settings = self.settings
        renewals = round_s * RENEWALS / settings.record_s
        in_shard = self.size / max(self.shards, 1)
        counts = Counts(float)
        often = round_s / (settings.poll_s * (CLOCK_POLLS_BETWEEN_READS if self.shards else 1))
        self._find(counts, "clock", often, CLOCK_BYTES * self.shown_by * min(often, 1.0))
        reads = round_s / (settings.poll_s * POLLS_BETWEEN_READS)
        self._find(counts, "members", reads, self._members_shown(round_s, reads, in_shard))
        self._find_single_members(counts, round_s, bodies)
        inside, apart = self.board
        self._find(counts, "leaderboard", BOARD_READS, inside * self.shown_by)
        pings = CHECKED * round_s / REJOIN_S
        for way in ("out", "in"):
            counts[f"{way} ping places"] += pings
            counts[f"bytes {way} ping places"] += pings * self.sizes.ping
        own = 1.0 + renewals * (KEPT_RECORDS - 1) / 2
        elsewhere = 1 - min(1.0, read / self.shards) if self.shards else 0.0  # the own shard, with which boards are
        # compared, is read besides those that were gathered from
        readings = {"reports": looks * read + 1 + own, "rollouts": looks * read + own}
        kept = {"reports": (read + elsewhere) * in_shard, "rollouts": read * in_shard}
        for kind, number in readings.items():
            body = self.inline_bytes if kind == "rollouts" else 0
            self._find(counts, kind, number, kept[kind] * self.shown_by * (self.sizes.shown[kind] + body))
            counts[f"out find {kind}"] += own  # one reads back what it has stored
            counts[f"in find {kind}"] += own
            self._store(counts, kind, own, body)
        self._store(counts, "members", renewals + (1 / EPOCH_ROUNDS if self.shards else 0))
        self._answer_coordinator(counts, round_s)
        each_hinted = 0 if self.shards else 2 * self.size
        counts["bytes in gossip"] += each_hinted * HINT_BYTES + CLOCK_BYTES * (
            1 + round_s * RENEWALS / settings.record_s
        )
        if not self.inline_bytes:
            counts["bytes in body"] = counts["bytes out body"] = bodies * settings.body_bytes
        counts["bytes out body"] += apart
        return counts

    def _answer_coordinator(self, counts: Counts, round_s: float) -> None:
        """Add a follower's part of what the coordinator asks for and stores: as much as a follower and, where all lies
        under one key, reports and memberships in each poll. What it looks for in shards is not in it."""
        others = self.size - 1
        for name in [name for name in counts if name.startswith(("out find", "out store"))]:
            counts["in " + name[4:]] += counts[name] / others
            counts["bytes in " + name[4:]] += counts["bytes " + name] / others
        if not self.shards:
            polls = round_s / self.settings.poll_s * self.looked.asked / others
            for kind in ("reports", "members"):
                counts[f"in find {kind}"] += polls
                counts[f"bytes in find {kind}"] += polls * (self.sizes.request + self.sizes.answer)

    def _members_shown(self, round_s: float, reads: float, in_shard: float) -> float:
        """Bytes of memberships that a node is shown in a round under the key that it watches: those that are new or,
        where they are too many to be remembered, all, by each of the peers that keep them."""
        shown = self.sizes.shown["members"]
        records = min(in_shard, KEY_BYTES_MAX // shown)
        fits = records * (shown + parts.REMEMBERED_RECORD_BYTES) <= parts.KEY_BYTES_MAX
        fresh = records * min(1.0, round_s * RENEWALS / self.settings.record_s + (self.shards > 0) / EPOCH_ROUNDS)
        return self.shown_by * shown * (fresh if fits else reads * records)

    def _find_single_members(self, counts: Counts, round_s: float, bodies: float) -> None:
        """Where memberships lie in shards, those of the peers that a node gathers from are asked of these themselves,
        unless they were seen lately."""
        if not self.shards:
            return
        lives_s = self.settings.record_s * (1 - 0.5 / RENEWALS)  # of a record that is renewed, in the mean
        seen = 1 - (1 - bodies / (self.size - 1)) ** (lives_s / round_s)
        one = self.sizes.request + self.sizes.answer + self.sizes.shown["members"]
        number = bodies * (1 - seen)
        self._call(counts, "find members", number, number * one, 1 / (self.size - 1))

    def _find(self, counts: Counts, kind: str, number: float, shown_bytes: float) -> None:
        own = number * self.looked.asked
        size = own * (self.sizes.request + self.sizes.answer) + shown_bytes
        self._call(counts, f"find {kind}", own, size, self.looked.to_coordinator / self.looked.asked)

    def _store(self, counts: Counts, kind: str, number: float, more_bytes: int = 0) -> None:
        stores = number * self.keepers
        size = stores * (self.sizes.store[kind] + more_bytes)
        self._call(counts, f"store {kind}", stores, size, 1 / self.keepers)

    def _call(self, counts: Counts, name: str, number: float, size: float, to_coordinator: float) -> None:
        """Count so many calls of so many bytes, and as many of other followers' that are answered."""
        for way, share in (("out", 1.0), ("in", 1 - to_coordinator)):
            counts[f"{way} {name}"] += number * share
            counts[f"bytes {way} {name}"] += size * share

    def _largest(self, counts: Counts) -> float:
        """Per cent of all finds that the follower answers that is asked most: one of the guides that all ask."""
        total = sum(self.looked.load.values())
        guided = sum(self.looked.load[peer] for peer in self.eldest) / len(self.eldest)
        return 100 * max(guided / total, 1 / self.size)


def simulate(size: int, rounds: int, settings: Settings, seed: int = 0, sharded: bool = True) -> Outcome:
    """So many rounds of a swarm."""
    model = Model(size, settings, seed, sharded)
    for round in range(rounds):
        model.play(round)
    return model.outcome

"""Records and frames that a hostile peer might send, from a seed: valid ones, and all that is almost valid.

Most begin as a genuine record: signed by an identity of the grammar's own, or one that an honest node wrote. Then a few
things about it are changed, before the signature is made, so that it is good, or after.
"""

import math
import time
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import msgpack

from swarmd.dht.identity.identity import Identity, peer_id_of
from swarmd.dht.p2p.hivemind_api import dht_pb2
from swarmd.dht.wire import names
from swarmd.dht.wire.records import SignedRecord, signed_message
from tests.dht.outsider import bomb, dictionary_of, store_request
from tests.extremes import INTEGERS, REALS
from tests.hostile.worked import identity_of

IDENTITIES = 48
KEYLESS = 16  # peer ids of which nobody has the key
GENUINE_MAX = 256  # records of honest nodes that are remembered
KINDS = ("membership", "report", "rollouts", "clock", "leaderboard")
DIGEST = "0123456789abcdef" * 4
TEXTS = ("", "x" * 65, "x" * 70_000, "\x00\n\u202e", "/ip4/1.2.3.4/tcp/1", "é" * 40, DIGEST, DIGEST.upper())
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    b"",
    b"\xff" * 40,
    [],
    {},
    [[]],
    {"kind": "report"},
    *TEXTS,
    *INTEGERS,
    *REALS,
)
EXPIRATIONS = (0.0, -0.0, -1.0, 1e18, 2e9, math.inf, -math.inf, math.nan, 5e-324)


class Entry(NamedTuple):
    """A record as a store request has it."""

    key: bytes
    subkey: bytes
    value: bytes
    expiration: float


class Grammar:
    """Everything is drawn from one seed; what honest nodes wrote meanwhile is not.

    Args:
        seed: of all that is drawn.
        swarm: its id.
        honest: peer ids of its nodes, the coordinator first.
        rsa: an identity of the other kind.
    """

    def __init__(self, seed: str, swarm: str, honest: Sequence[str], rsa: Identity) -> None:
        self.random = Random(seed)
        self.swarm = swarm
        self.honest = list(honest)
        self.identities: list[Identity] = [identity_of(self.random.randbytes(32)) for _ in range(IDENTITIES)]
        self.identities.append(rsa)
        self.keyless = [peer_id_of(self.random.randbytes(32)) for _ in range(KEYLESS)]
        self.genuine: list[Entry] = []
        self.keys: set[bytes] = set()
        self.round = 0  # where the swarm is

    def learn(self, entries: Sequence[Entry]) -> None:
        """Take note of what honest nodes wrote, to change it."""
        self.genuine = [*self.genuine, *entries][-GENUINE_MAX:]

    # --- records ---

    def entry(self) -> Entry:
        """One record, in one of all ways."""
        make = self.random.choices(
            (self._whole, self._signed_odd, self._changed, self._copied, self._noise), (10, 40, 30, 15, 5)
        )[0]
        entry = make()
        self.keys.add(entry.key)
        return entry

    def _whole(self) -> Entry:
        """A valid one, signed by its owner."""
        identity, fields = self.random.choice(self.identities), self._fields()
        return self._sign(identity, self.name_of(fields), msgpack.packb(fields), self._soon())

    def _signed_odd(self) -> Entry:
        """Odd content, or an odd life, under a good signature."""
        identity, fields = self.random.choice(self.identities), self._fields()
        name = self.name_of(fields)
        for _ in range(self.random.randint(1, 3)):
            self._change_field(fields)
        payload = msgpack.packb(fields)
        if self.random.random() < 0.4:
            payload = self.spoil(payload)
        expiration = self._soon() if self.random.random() < 0.8 else self.random.choice(EXPIRATIONS)
        return self._sign(identity, name, payload, expiration)

    def _changed(self) -> Entry:
        """A signed record that was changed afterwards."""
        return self._change(self._whole())

    def _copied(self) -> Entry:
        """What an honest node wrote, as it is or changed."""
        if not self.genuine:
            return self._changed()
        entry = self.random.choice(self.genuine)
        return self._change(entry) if self.random.random() < 0.9 else entry

    def _noise(self) -> Entry:
        size = self.random.choice((0, 1, 63, 64, 65, 200, 1200, 52_000, 70_000))
        subkey = self.random.choice((msgpack.packb(self._name()), self.random.randbytes(8), b"", b"\xc0"))
        return Entry(self._key(), subkey, self.random.randbytes(size), self._soon())

    def _change(self, entry: Entry) -> Entry:
        for _ in range(self.random.randint(1, 2)):
            entry = self.random.choice((self._other_value, self._other_owner, self._other_key, self._other_life))(entry)
        return entry

    def _other_value(self, entry: Entry) -> Entry:
        return entry._replace(value=self.spoil(entry.value))

    def _other_owner(self, entry: Entry) -> Entry:
        subkey = self.random.choice((self._name(), None, 7, b"x", ["a"], "", "x" * 200, self._name() + " "))
        return entry._replace(subkey=msgpack.packb(subkey) if self.random.random() < 0.9 else bomb(30))

    def _other_key(self, entry: Entry) -> Entry:
        return entry._replace(key=self._key())

    def _other_life(self, entry: Entry) -> Entry:
        nudged = entry.expiration + self.random.choice((5e-7, 1.0, -1.0, 600.0))
        return entry._replace(expiration=self.random.choice((nudged, *EXPIRATIONS)))

    def _sign(self, identity: Identity, name: str, payload: bytes, expiration: float) -> Entry:
        key = names.key_id(name)
        signature = identity.sign(signed_message(key, identity.peer_id, payload, expiration))
        signed = SignedRecord(identity.peer_id, payload, expiration, signature)
        return Entry(key, msgpack.packb(signed.owner), signed.value, expiration)

    def _fields(self) -> dict[str, Any]:
        """A valid payload."""
        kind, random = self.random.choices(KINDS, (3, 4, 3, 1, 1))[0], self.random
        fields: dict[str, Any] = {"kind": kind, "swarm": self.swarm}
        if kind == "membership":
            addresses = ["/ip4/127.0.0.1/tcp/1"] * random.randint(0, 2)
            return fields | {"name": "x", "nonce": str(random.random()), "joined_at": 1.7e9, "addresses": addresses}
        fields["round"] = max(0, self.round + random.randint(-1, 2))
        if kind != "leaderboard":
            fields["stage"] = 0 if random.random() < 0.9 else random.randint(0, 1023)
        if kind == "clock":
            return fields | {"opened_at": time.time(), "deadline_at": time.time() + 60.0}
        if kind == "report":
            fields["reward"] = random.random()
        fields |= {"digest": random.randbytes(32).hex(), "size_bytes": random.randint(0, 5000)}
        return fields if kind == "leaderboard" else fields | {"groups": random.randint(0, 16)}

    def _change_field(self, fields: dict[str, Any]) -> None:
        name = self.random.choice((*fields, "unknown", "work", "invitation", "body", "final", "leaving", "protocol"))
        if name in fields and self.random.random() < 0.15:
            del fields[name]
        else:
            fields[name] = (
                self.random.choice(ODD) if self.random.random() < 0.95 else nested(self.random.randint(2, 40))
            )

    def name_of(self, fields: dict[str, Any]) -> str:
        """The key's name of a payload."""
        kind = fields["kind"]
        if kind == "membership":
            return names.members_key(self.swarm)
        if kind == "clock":
            return names.clock_key(self.swarm)
        if kind == "leaderboard":
            return names.leaderboard_key(self.swarm, fields["round"])
        name = names.reports_key if kind == "report" else names.rollouts_key
        return name(self.swarm, fields["round"], fields["stage"])

    def _name(self) -> str:
        """Anybody's peer id."""
        return self.random.choice((*self.honest, *self.keyless, self.random.choice(self.identities).peer_id))

    def _key(self) -> bytes:
        if self.random.random() < 0.3:
            return self.random.randbytes(self.random.choice((0, 1, 19, 20, 20, 21, 400)))
        return names.key_id(self.name_of(self._fields()))

    def _soon(self) -> float:
        return time.time() + self.random.uniform(5.0, 900.0)

    def spoil(self, encoded: bytes) -> bytes:
        """Cut, flip, double, splice or lengthen."""
        made, random = bytearray(encoded), self.random
        for _ in range(random.randint(1, 3)):
            at = random.randint(0, len(made))
            way = random.randrange(6)
            if way == 0:
                del made[at:]
            elif way == 1 and at < len(made):
                made[at] ^= 1 << random.randrange(8)
            elif way == 2:
                made[at:at] = made[at : at + random.randint(1, 40)]
            elif way == 3 and self.genuine:
                other = random.choice(self.genuine).value
                made[at:] = other[random.randint(0, len(other)) :]
            elif way == 4:
                made[at:at] = random.randbytes(random.choice((1, 8, 300)))
            else:
                made[at : at + 5] = random.choice((b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc9\x00\x00"))
        return bytes(made[:80_000])

    # --- frames ---

    def dictionary(self, count: int) -> bytes:
        """Records as a holder hands them on, or what looks like it."""
        entries = [self.entry() for _ in range(count)]
        rows: list[tuple[Any, Any, Any]] = [
            (self._opened(each.subkey), each.value, each.expiration) for each in entries
        ]
        if self.random.random() < 0.1:
            rows.append(
                self.random.choice([(["x"], b"x", 1.0), (None, None, None), ({}, 5, "x"), ("x", b"x", 2**64 - 1)])
            )
        encoded = dictionary_of(rows)
        return self.random.choices((encoded, self.spoil(encoded), bomb(self.random.randint(1, 300))), (12, 3, 1))[0]

    def _opened(self, subkey: bytes) -> Any:
        try:
            return msgpack.unpackb(subkey)
        except (ValueError, msgpack.UnpackException):
            return subkey

    def store(self, records: int) -> Any:
        """A store request of so many records."""
        entries = [self.entry() for _ in range(records)]
        return store_request(entries)

    def hand_on(self, records: int) -> Any:
        """A store request of a dictionary of records."""
        return store_request([Entry(self._key(), b"", self.dictionary(records), self._soon())])

    def find(self) -> Any:
        """A find request."""
        keys = [self._key() for _ in range(self.random.choice((0, 1, 1, 3, 70)))]
        if keys and self.random.random() < 0.2:
            keys.append(keys[0])
        return dht_pb2.FindRequest(keys=keys, peer=self._info())

    def ping(self) -> Any:
        """A ping."""
        return dht_pb2.PingRequest(peer=self._info(), validate=self.random.random() < 0.3)

    def _info(self) -> Any:
        size = self.random.choice((0, 1, 19, 20, 21, 300))
        return dht_pb2.NodeInfo(node_id=self.random.randbytes(size))

    def found(self, keys: int, records: int) -> Any:
        """An answer to a find request."""
        results = []
        for _ in range(keys if self.random.random() < 0.9 else self.random.randint(0, 5)):
            value = self.dictionary(records) if self.random.random() < 0.9 else msgpack.packb(self.random.choice(ODD))
            kind = self.random.choices((dht_pb2.FOUND_DICTIONARY, dht_pb2.FOUND_REGULAR, dht_pb2.NOT_FOUND), (8, 1, 1))[
                0
            ]
            result = dht_pb2.FindResult(
                type=kind, value=value, expiration_time=self.random.choice((self._soon(), *EXPIRATIONS))
            )
            for _ in range(self.random.choice((0, 3, 100))):
                result.nearest_node_ids.append(self.random.randbytes(self.random.choice((20, 20, 0, 19, 5000))))
                result.nearest_peer_ids.append(self.random.randbytes(self.random.choice((38, 34, 0, 3000))))
            results.append(result)
        return dht_pb2.FindResponse(results=results, peer=self._info())

    def frame(self, message: Any) -> bytes:
        """A message, now and then spoiled."""
        encoded = bytes(message.SerializeToString())
        return self.spoil(encoded) if self.random.random() < 0.3 else encoded

    def hint(self) -> bytes:
        """A message for the topic of hints."""
        fields: dict[str, Any] = {"kind": self.random.choice(KINDS), "key": self.name_of(self._fields())}
        fields |= {"expiration": self._soon(), "sender": self._name()}
        for _ in range(self.random.randint(0, 2)):
            fields[self.random.choice((*fields, "more"))] = self.random.choice(ODD)
        return self._maybe_spoiled(msgpack.packb(fields))

    def clock(self) -> bytes:
        """A message for the topic of the clock."""
        entry = self.entry()
        owner = self._opened(entry.subkey)
        parts = [owner if isinstance(owner, str) else "x", entry.value[:-64], entry.expiration, entry.value[-64:]]
        return self._maybe_spoiled(msgpack.packb(parts))

    def _maybe_spoiled(self, encoded: bytes) -> bytes:
        return self.spoil(encoded) if self.random.random() < 0.4 else encoded

    def asking(self) -> bytes:
        """What is written to the stream of bodies."""
        return self.random.randbytes(self.random.choice((0, 1, 31, 32, 32, 33, 5000)))


def nested(levels: int) -> Any:
    """Lists in lists."""
    value: Any = None
    for _ in range(levels):
        value = [value]
    return value

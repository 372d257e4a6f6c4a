"""When a node's records expire: always later than those before under a key, whatever its machine's clock shows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from swarmd.dht.rounds.publisher import FAILED_S, RENEWALS, Publisher
from swarmd.dht.store.own_records import OwnRecordStore
from swarmd.dht.wire.records import Payload
from swarmd.errors import NetworkDown, RecordRejected
from swarmd.sim.coroutines import VirtualRuntime
from tests.dht.making import MEMBERSHIP, SWARM

pytestmark = pytest.mark.anyio

NOW, TTL_S = 1.7e9, 900.0


class NoDisk:
    def load(self) -> list[object]:
        return []

    async def save(self, kept: list[object]) -> None: ...


def test_a_record_expires_after_one_of_a_clock_that_was_ahead_as_soon_as_peers_take_that() -> None:
    clock = [NOW]
    store = OwnRecordStore(NoDisk(), SWARM)  # type: ignore[arg-type]
    runtime = VirtualRuntime(lambda *_: None, lambda: clock[0], lambda: clock[0])
    publisher = Publisher(None, store, runtime, TTL_S, True, lambda record: None)  # type: ignore[arg-type]
    ahead = NOW + 3000.0 + TTL_S
    store.keep(MEMBERSHIP, ahead)
    store.keep(MEMBERSHIP, publisher._expiration(MEMBERSHIP.key))
    assert store.floors(MEMBERSHIP.key) == (NOW + TTL_S, ahead), "nobody would take a later one"
    clock[0] += 300.0
    assert publisher._expiration(MEMBERSHIP.key) > ahead


class Enough(Exception):
    """The test has seen what it wanted."""


class RenewingNetwork:
    """A network in which publishing succeeds or fails, and that says how long the publisher waits after it."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.waits: list[float] = []

    async def wait_up(self) -> None: ...

    async def disturbed(self, within_s: float, lonely: bool) -> None:
        self.waits.append(within_s)
        if not lonely:
            raise Enough

    def sign(self, content: Payload, expiration: float) -> Any:
        return SimpleNamespace(content=content, expiration=expiration)

    async def call(self, operation: Any) -> None:
        if self.error is not None:
            raise self.error


class Lock:
    """Nobody else publishes."""

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *raised: object) -> None: ...


@pytest.mark.parametrize(
    ("error", "wait_s"),
    [
        (None, TTL_S / RENEWALS),
        (NetworkDown("nobody could show it"), FAILED_S),
        (RecordRejected("wrong-round", "it is over"), TTL_S / RENEWALS),
    ],
)
async def test_what_could_not_be_renewed_is_tried_again_before_it_expires(
    error: Exception | None, wait_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = OwnRecordStore(NoDisk(), SWARM)  # type: ignore[arg-type]
    runtime = VirtualRuntime(lambda *_: None, lambda: NOW, lambda: NOW)
    network: Any = RenewingNetwork(error)
    publisher = Publisher(network, store, runtime, TTL_S, True, lambda record: None)
    publisher._live[MEMBERSHIP.key] = MEMBERSHIP
    store.keep(MEMBERSHIP, NOW + TTL_S)
    monkeypatch.setattr(publisher, "_lock_of", lambda key: Lock())
    with pytest.raises(Enough):
        await publisher.run()
    assert network.waits[-1] == wait_s


class HastyKeepers:
    """Two strangers are the first to say that they have taken a record, and then show it to nobody."""

    def __init__(self, trusted: str, near: list[str]) -> None:
        self.trusted, self.others = trusted, near
        self.settled: list[str] = []

    def admit(self, name: str, record: Any) -> None: ...

    def near(self, name: str) -> list[str]:
        return ["hasty", "hastier", *self.others]

    def guides(self, name: str) -> list[str]:
        return [self.trusted] if self.trusted else []

    async def spread(self, name: str, record: Any, peers: list[str]) -> list[str]:
        return peers[:2]

    async def shows(self, peer: str, name: str, record: Any) -> tuple[bool, None]:
        return not peer.startswith("hast"), None

    def settle(self, name: str, record: Any, stored: list[str]) -> None:
        self.settled.append(name)


async def publish_to(keepers: HastyKeepers, monkeypatch: pytest.MonkeyPatch) -> None:
    network = RenewingNetwork(None)
    monkeypatch.setattr(network, "call", lambda operation: operation(keepers))
    store = OwnRecordStore(NoDisk(), SWARM)  # type: ignore[arg-type]
    runtime = VirtualRuntime(lambda *_: None, lambda: NOW, lambda: NOW)
    publisher = Publisher(network, store, runtime, TTL_S, True, lambda record: None)  # type: ignore[arg-type]
    monkeypatch.setattr(publisher, "_lock_of", lambda key: Lock())
    await publisher.publish(MEMBERSHIP)


@pytest.mark.parametrize(("trusted", "near"), [("coordinator", []), ("", ["one", "other"])])
async def test_strangers_that_take_a_record_first_and_show_it_to_nobody_do_not_keep_it_from_counting(
    trusted: str, near: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keepers = HastyKeepers(trusted, near)
    await publish_to(keepers, monkeypatch)
    assert keepers.settled == [MEMBERSHIP.key]


async def test_one_stranger_is_no_proof_where_others_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NetworkDown, match="only one of 3 peers"):
        await publish_to(HastyKeepers("", ["one"]), monkeypatch)

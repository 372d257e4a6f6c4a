"""A search among peers of whom some are silent, some lie, and some lead on and on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmd.dht.legacy import search as module
from swarmd.dht.legacy.records import read_reward
from swarmd.dht.legacy.search import ASKED_MAX, Findings, search
from swarmd.dht.legacy.values import encode
from swarmd.dht.p2p.hivemind_api import DHTID, DictionaryDHTValue, ValueWithExpiration
from swarmd.dht.p2p.node import NodeRun
from swarmd.dht.store.shown_records import YIELD_EVERY
from swarmd.errors import RecordRejected

pytestmark = pytest.mark.anyio

NAME = "rl_swarm_rewards_0_0"
SOON, LATER = time.time() + 100_000, time.time() + 200_000  # from when the file is read: runs of all tests take long
Answer = Callable[[DHTID], Any]


def plain(value: object, expiration: float = SOON) -> Any:
    return ValueWithExpiration(encode(value), expiration)


def dictionary(**entries: tuple[object, float]) -> Any:
    held = DictionaryDHTValue()
    for subkey, (value, expiration) in entries.items():
        held.store(subkey, encode(value), expiration)
    return ValueWithExpiration(held, held.latest_expiration_time)


class World:
    """A node that knows some peers, each of which gives an answer or none."""

    def __init__(self, *answers: Any, own: Any = None) -> None:
        self.answers = dict(zip((DHTID.generate() for _ in answers), answers, strict=True))
        self.asked: list[Any] = []
        self.refused: list[str] = []
        protocol = SimpleNamespace(bucket_size=20, call_find=self._call_find, storage={} if own is None else own)
        table = SimpleNamespace(get_nearest_neighbors=lambda *args, **more: [(one, one) for one in self.answers])
        if own is not None:
            protocol.storage = SimpleNamespace(get=lambda key: own)
        self.life = cast(
            NodeRun, SimpleNamespace(dht=SimpleNamespace(node_id=DHTID.generate(), protocol=protocol), table=table)
        )

    async def _call_find(self, peer: Any, keys: list[DHTID]) -> Any:
        self.asked.append(peer)
        answer = self.answers.get(peer)
        if callable(answer):
            answer = await answer(keys[0])
        return None if answer is None else {keys[0]: answer}

    def _refuse(self, subkey: str | None, value: bytes, error: RecordRejected) -> None:
        self.refused.append(error.reason)

    async def look(self, beam: int = 20, timeout_s: float = 5.0) -> Findings[float]:
        until = asyncio.get_running_loop().time() + timeout_s
        return await search(self.life, NAME, beam, until, lambda subkey, raw: read_reward(raw), self._refuse)


def values_of(found: Findings[float]) -> dict[str, float]:
    return {subkey: latest.value for subkey, latest in found.entries.items()}


async def test_all_else_goes_on_while_long_answers_are_merged() -> None:
    many = {f"peer-{number}": (1.0, SOON) for number in range(4000)}
    own, turns = dictionary(**many), 0

    async def do_something_else() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1
            own.value.store(f"stored-{turns}", encode(1.0), SOON)

    elsewhere = asyncio.create_task(do_something_else())
    found = await World((dictionary(**many), {}), own=own).look()
    elsewhere.cancel()
    assert many.keys() <= found.entries.keys() and turns >= 2000 // YIELD_EVERY


async def test_the_latest_record_of_each_subkey_counts() -> None:
    answers = [(dictionary(a=(1.0, SOON), b=(5.0, LATER)), {}), (dictionary(a=(2.0, LATER), b=(4.0, SOON)), {})]
    world = World(*answers, (plain(7.0), {}), (plain(8.0, LATER), {}), own=dictionary(c=(3.0, SOON)))
    found = await world.look()
    assert values_of(found) == {"a": 2.0, "b": 5.0, "c": 3.0}
    assert found.plain is not None and found.plain.value == 8.0
    assert len(found.answered) == 4 and world.refused == []


async def test_an_unreadable_record_hides_none_and_counts_once_whoever_holds_it() -> None:
    bad = dictionary(a=("junk", LATER))
    found_in = World((bad, {}), (dictionary(a=(1.0, SOON)), {}), (bad, {}), (bad, {}))
    assert values_of(await found_in.look()) == {"a": 1.0}
    assert found_in.refused == ["malformed"]


async def test_records_that_somebody_invents_have_a_bound_and_the_first_ones_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FOUND_BYTES_MAX", 20 * module.ENTRY_BYTES)
    crowd = [(dictionary(**{f"{peer}-{number}": (1.0, SOON) for number in range(50)}), {}) for peer in range(4)]
    world = World(*crowd, (dictionary(own=(3.0, LATER)), {}), own=dictionary(own=(2.0, SOON)))
    found = await world.look()
    assert 10 < len(found.entries) <= 20 and found.entries["own"].value == 3.0
    assert len(found.answered) == 5


async def test_unreadable_records_are_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BAD_MAX", 10)
    junk = {f"peer-{number}": ("junk" + 1000 * "x", SOON) for number in range(50)}
    world = World((dictionary(**junk), {}), (dictionary(a=(1.0, SOON), **junk), {}))
    found = await world.look()
    assert values_of(found) == {"a": 1.0} and len(found._bad) == 10
    assert 50 <= len(world.refused) <= 90


async def test_nearer_peers_that_are_named_are_asked_too() -> None:
    far = DHTID.generate()
    world = World((None, {far: far}))
    world.answers[far] = (dictionary(a=(1.0, SOON)), {})
    hidden = World((None, {far: far}))
    assert values_of(await world.look()) == {"a": 1.0}
    found = await hidden.look()
    assert found.entries == {} and len(hidden.asked) == 2 and list(found.answered) != [far]


async def test_silent_peers_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.1)

    async def silent(key: DHTID) -> None:
        await asyncio.sleep(60)

    began = time.monotonic()
    found = await World(silent, silent, (dictionary(a=(1.0, SOON)), {})).look()
    assert values_of(found) == {"a": 1.0} and time.monotonic() - began < 30
    nobody = await World(silent, silent).look(timeout_s=0.2)
    assert nobody.answered == {} and time.monotonic() - began < 30


async def test_only_the_beam_is_asked() -> None:
    world = World(*[(None, {})] * 30)
    found = await world.look(beam=5)
    nearest = sorted(world.answers, key=found.key.xor_distance)[:5]
    assert sorted(world.asked) == sorted(nearest)


async def test_peers_that_lead_on_and_on_come_to_an_end() -> None:
    async def lead_on(key: DHTID) -> Any:
        nearer = DHTID.from_bytes((int(key) ^ (1 << 150 - len(world.asked))).to_bytes(20, "big"))
        world.answers[nearer] = lead_on
        return None, {nearer: nearer}

    world = World(lead_on)
    assert len((await world.look(beam=4)).answered) == len(world.asked) == ASKED_MAX + 4

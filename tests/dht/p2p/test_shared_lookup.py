"""Each large record is read once, from one of the peers that keep it, or from another if that one has lost it."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import pytest

from swarmd.dht.identity.identity import generate_identity
from swarmd.dht.p2p.hivemind_api import DHTID
from swarmd.dht.store import lookup, validator
from swarmd.dht.wire import names
from swarmd.dht.wire.records import SignedRecord, sign
from tests.dht.making import REPORT
from tests.dht.p2p.conftest import Single, Start, trio

pytestmark = pytest.mark.anyio

KEY = DHTID.from_bytes(names.key_id(REPORT.key))
OWNERS = 20


def keep(node: Single, records: list[SignedRecord]) -> None:
    for signed in records:
        node.run.dht.protocol.storage.store_record(KEY, signed)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each owner's record is shown, by any node here."""
    counts: Counter[str] = Counter()
    part_of = validator.select_key_part

    def counted(*asked: Any) -> Any:
        part = part_of(*asked)
        counts.update(each.owner for each in part.records)
        return part

    monkeypatch.setattr(validator, "select_key_part", counted)
    return counts


async def test_each_record_is_shown_once_and_what_one_keeper_lacks_by_another(
    start: Start, shown: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("HEDGE_S", "PATIENCE_S", "SILENCE_S"):  # nobody is slow, however busy the machine is
        monkeypatch.setattr(lookup, bound, 60.0)
    one, two, three = await trio(start)
    records = [sign(generate_identity(), REPORT, time.time() + 60.0) for _ in range(OWNERS)]
    keep(one, records[:-1])
    keep(two, records[2:])  # less than one share, for who shows nothing of its first is not asked again
    found = await three.records.find_records_by_owners(REPORT.key, [record.owner for record in records])
    assert found.records == {record.owner: record for record in records}
    assert set(shown.values()) == {1}


async def test_owners_of_whom_nobody_has_anything_do_not_keep_what_is_wanted_waiting(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = await trio(start)
    monkeypatch.setattr(
        lookup,
        "ask_peer_for_records",
        late(lookup.ask_peer_for_records, dict.fromkeys((one.identity.peer_id, two.identity.peer_id), 0.25)),
    )
    record = sign(generate_identity(), REPORT, time.time() + 60.0)
    keep(one, [record])
    keep(two, [record])
    absent = [generate_identity().peer_id for _ in range(8 * lookup.BREADTH)]
    began = anyio.current_time()
    found = await three.records.find_records_by_owners(REPORT.key, [record.owner, *absent], [record.owner])
    assert found.records == {record.owner: record}
    assert anyio.current_time() - began < lookup.SILENCE_S / 2


async def test_what_a_slow_peer_was_asked_for_comes_from_another(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three = await trio(start)
    monkeypatch.setattr(lookup, "ask_peer_for_records", late(lookup.ask_peer_for_records, {one.identity.peer_id: 60.0}))
    records = [sign(generate_identity(), REPORT, time.time() + 60.0) for _ in range(OWNERS)]
    keep(one, records)
    keep(two, records)
    began = anyio.current_time()
    found = await three.records.find_records_by_owners(REPORT.key, [record.owner for record in records])
    assert len(found.records) == OWNERS
    assert anyio.current_time() - began < lookup.SILENCE_S / 2


def late(find_at: Callable[..., Awaitable[Any]], by_s: Mapping[str, float]) -> Callable[..., Awaitable[Any]]:
    """The call, answered so much later by some peers."""

    async def found_late(protocol: Any, peer: Any, *asked: Any) -> Any:
        await anyio.sleep(by_s.get(peer.to_base58(), 0.0))
        return await find_at(protocol, peer, *asked)

    return found_late

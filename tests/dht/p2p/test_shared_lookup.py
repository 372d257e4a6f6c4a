"""Large records are read once each, from one of those who keep them; what one of these has lost comes from another."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from swarmd.dht.adapters import HiveRecords
from swarmd.dht.identity.identity import generate_identity
from swarmd.dht.p2p.hivemind_api import DHTID
from swarmd.dht.store import partial_answers
from swarmd.dht.wire import names
from swarmd.dht.wire.records import SignedRecord, sign
from tests.dht.driver import until
from tests.dht.making import REPORT
from tests.dht.p2p.conftest import Single, Start

pytestmark = pytest.mark.anyio

KEY = DHTID.from_bytes(names.key_id(REPORT.key))
OWNERS = 20


def keep(node: Single, records: list[SignedRecord]) -> None:
    for signed in records:
        node.life.dht.protocol.storage.admit(KEY, signed)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each owner's record is shown, by any node here."""
    counts: Counter[str] = Counter()
    part_of = partial_answers.part_of

    def counted(*asked: Any) -> Any:
        part = part_of(*asked)
        counts.update(each.owner for each in part.records)
        return part

    monkeypatch.setattr(partial_answers, "part_of", counted)
    return counts


async def test_each_record_is_shown_once_and_what_one_keeper_lacks_by_another(
    start: Start, shown: Counter[str]
) -> None:
    one = await start()
    two, three = [await start(one.identity.peer_id, (await one.address(),)) for _ in range(2)]
    await until(lambda: two.node.peers > 1 and three.node.peers > 1)
    records = [sign(generate_identity(), REPORT, time.time() + 60.0) for _ in range(OWNERS)]
    keep(one, records[:-1])
    keep(two, records[5:])
    found = await HiveRecords(three.node).find_each(REPORT.key, [record.owner for record in records])
    assert found.records == {record.owner: record for record in records}
    assert set(shown.values()) == {1}

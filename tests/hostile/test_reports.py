"""A member that rewrites its report of the open stage again and again fills no log."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.core.commands import CollectReports
from swarmd.core.events import Equivocated, ReportSeen
from swarmd.dht.identity.identity import generate_identity
from swarmd.dht.wire.records import ReportRecord
from tests.dht.driver import SWARM, until
from tests.dht.making import DIGEST, signed_by
from tests.hostile.attack import besieged
from tests.hostile.floods import rewrite

pytestmark = pytest.mark.anyio


async def test_a_report_that_keeps_changing_is_found_out_once(tmp_path: Path) -> None:
    async with besieged(tmp_path) as siege:
        await siege.victim.do(CollectReports("collect/0/0", 0, 0))
        flooder, honest = generate_identity(), generate_identity()
        await rewrite(siege.stranger, flooder, 150)
        record = report(1.0)
        assert await siege.honest.store_signed(record.key, signed_by(honest, record))
        await siege.victim.expect(ReportSeen, peer=honest.peer_id)
        await until(lambda: siege.refused("flood") > 0)
        assert len(siege.victim.seen(ReportSeen, peer=flooder.peer_id)) <= 1
        assert len(siege.victim.seen(Equivocated, peer=flooder.peer_id)) == 1
        await siege.is_unharmed()


def report(reward: float) -> ReportRecord:
    """Of the open stage."""
    return ReportRecord(SWARM, 0, 0, reward, DIGEST, 10, 1)

"""What p2pd itself keeps for peers: halves of requests, answers that nobody takes. It has no limits of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.dht.p2p.hivemind_api import dht_pb2
from swarmd.dht.wire import names
from tests.dht.driver import until
from tests.hostile.attack import GROWTH_MIB_MAX, MIB, besieged, memory_mib
from tests.hostile.floods import begin_call, framed, half_frame

pytestmark = pytest.mark.anyio

MEMORY_BYTES_MAX = 256 * MIB  # half of it p2pd's, which has 64 MiB in peace


async def test_halves_of_requests_are_cut_off_before_p2pd_is_too_large(tmp_path: Path) -> None:
    async with besieged(tmp_path, memory_bytes_max=MEMORY_BYTES_MAX) as siege:
        p2pd = siege.victim.p2pd()
        held = [await begin_call(siege.stranger, half_frame()) for _ in range(16)]
        await until(lambda: b"little room is left" in siege.victim.errors)
        await until(lambda: memory_mib(p2pd) < MEMORY_BYTES_MAX / MIB / 2)
        assert siege.victim.p2pd() == p2pd and held
        assert siege.growth_mib < GROWTH_MIB_MAX
        await siege.is_unharmed()


async def test_answers_that_nobody_takes_are_no_more_than_a_share(tmp_path: Path) -> None:
    async with besieged(tmp_path) as siege:
        (key,) = await siege.fill_stages(1, records=40)
        find = dht_pb2.FindRequest(keys=[names.key_id(key)]).SerializeToString()
        held = [await begin_call(siege.stranger, framed(find)) for _ in range(100)]
        await until(lambda: siege.refused("bytes-out") > 0)
        assert siege.growth_mib < GROWTH_MIB_MAX and held
        await siege.is_unharmed()

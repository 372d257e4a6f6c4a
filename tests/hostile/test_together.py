"""All floods at once, from several identities, while an honest peer keeps asking."""

import asyncio
import time
from pathlib import Path

import pytest

from swarmd.dht.wire import names
from tests.dht.driver import SWARM, until
from tests.dht.outsider import Outsider
from tests.hostile.attack import GROWTH_MIB_MAX, Siege, besieged
from tests.hostile.floods import Flood, keep_on, open_streams, ping_hugely, repeat_finds, spam_hints, store_crumbs

pytestmark = [pytest.mark.anyio, pytest.mark.soak]

ATTACK_S = 60.0
BACK_S = 60.0
STRANGERS = 1  # of each kind
ANSWERED_LEAST = 0.95  # of the honest peer's questions


async def test_an_honest_peer_is_answered_under_all_floods_at_once(tmp_path: Path) -> None:
    async with besieged(tmp_path) as siege:
        keys = await siege.fill_stages(1, records=20)
        p2pd = siege.victim.p2pd()
        floods: tuple[Flood, ...] = (repeat_finds, store_crumbs, open_streams, spam_hints, ping_hugely)
        strangers = [await stranger(siege, tmp_path / f"s{number}") for number in range(STRANGERS * len(floods))]
        attacks = [
            asyncio.ensure_future(keep_on(each, floods[number % len(floods)], keys[0]))
            for number, each in enumerate(strangers)
        ]
        answers, growth = [], [0.0]
        until_at = time.monotonic() + ATTACK_S
        while time.monotonic() < until_at:
            began = time.monotonic()
            answered = await siege.find([names.clock_key(SWARM)], by=siege.honest) == ""
            answers.append((answered, time.monotonic() - began))
            growth.append(siege.growth_mib)
            await asyncio.sleep(0.1)
        for each in attacks:
            each.cancel()
        await asyncio.gather(*attacks, return_exceptions=True)
        await asyncio.gather(*(each.close() for each in strangers))
        good = sum(answered for answered, _ in answers)
        waits = sorted(wait for _, wait in answers)
        print(f"{good} of {len(answers)} answered, median {waits[len(waits) // 2]:.3f} s, worst {waits[-1]:.3f} s")
        print(f"growth {max(growth):.0f} MiB, p2pd the same: {siege.victim.p2pd() == p2pd}")
        assert good >= ANSWERED_LEAST * len(answers)
        assert max(growth) < GROWTH_MIB_MAX
        await until(lambda: siege.growth_mib < GROWTH_MIB_MAX / 2, BACK_S)
        await siege.is_unharmed()


async def stranger(siege: Siege, root: Path) -> Outsider:
    """One more identity, connected to the victim."""
    return await Outsider(root).open(await siege.victim.address())

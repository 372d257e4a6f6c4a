"""A watched key: what it is read for when somebody hints at records without end."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarmd.dht.rounds.key_watch import WHOLE_POLLS, KeyWatch
from swarmd.worker.runtime import LoopRuntime

pytestmark = pytest.mark.anyio
POLL_S = 0.4


class Reading:
    """Peers that hold one record, nobody's whom the hints name."""

    def __init__(self) -> None:
        self.asked_for: list[dict[str, float]] = []

    async def find(self, name: str, wanted: dict[str, float]) -> Any:
        self.asked_for.append(dict(wanted))
        records = {} if wanted else {"honest": "record"}
        return SimpleNamespace(records=records, has=lambda wanted: False)

    async def wait_up(self) -> None:
        """It is."""

    def spent_s(self) -> float:
        return 0.0


async def watched(reading: Reading, seconds: float, hints_every_s: float) -> list[str]:
    """Whose records a watch has seen after its first read."""
    seen: list[str] = []
    watch = KeyWatch(cast(Any, reading), LoopRuntime(), Random(1), "key", POLL_S, seen.extend)
    running = asyncio.ensure_future(watch.run())
    await asyncio.sleep(0.02)
    seen.clear()
    for number in range(int(seconds / hints_every_s)):
        watch.want("stranger", float(number))
        await asyncio.sleep(hints_every_s)
    running.cancel()
    return seen


async def test_hints_without_end_do_not_keep_other_records_from_being_read() -> None:
    assert "honest" in await watched(Reading(), 6 * POLL_S, hints_every_s=0.01)


async def test_a_hint_now_and_then_has_just_what_it_names_read() -> None:
    reading = Reading()
    await watched(reading, WHOLE_POLLS * POLL_S / 2, hints_every_s=WHOLE_POLLS * POLL_S / 4)
    hinted = [wanted for wanted in reading.asked_for if wanted]
    assert hinted and all(set(wanted) == {"stranger"} for wanted in hinted)

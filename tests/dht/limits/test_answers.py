"""What all members ask at one moment of a peer that keeps a stage's rollouts is within what it may answer."""

from __future__ import annotations

import math
import random

import pytest

from swarmd.dht.limits.answer_size import NEARBY_BYTES, RECORD_BYTES
from swarmd.dht.limits.door import RequestLimits
from swarmd.dht.rounds.gather import WHOLE_MAX
from swarmd.dht.store.lookup import BREADTH
from swarmd.dht.wire.bodies import deflate

NOISE = random.Random(1).randbytes(40 * 1024)  # of what no compression makes less
FIELDS_BYTES = 700  # of a record of rollouts with an RSA signature


@pytest.mark.parametrize("body_bytes", [12 * 1024, len(NOISE)])
@pytest.mark.parametrize("members", [2, 9, 10, 17, 32, 64, 100, 128, 250])
def test_all_members_behind_one_address_are_answered_at_once(members: int, body_bytes: int) -> None:
    refused: list[str] = []
    door = RequestLimits(lambda peer, reason, detail: refused.append(reason))
    shown = members if members - 1 <= WHOLE_MAX else math.ceil(members / BREADTH)
    answer = shown * (len(deflate(NOISE[:body_bytes], members)) + FIELDS_BYTES + RECORD_BYTES) + NEARBY_BYTES
    for number in range(members):  # of which p2pd has taken none yet
        peer = f"peer-{number}"
        door.place(peer, "10.0.0.0/24")
        door.meet(peer)
        door.allow_answer(peer, answer)
        door.enter_answer(door.caller(peer), answer)
    assert not refused

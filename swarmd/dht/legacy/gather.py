"""Gathering peers' outputs of a stage, by v0.4's rules: whoever has a reward is asked for, some 200 samples in all."""

from __future__ import annotations

import logging
import random
import time
from functools import partial

import anyio

from swarmd.core.commands import Gather
from swarmd.core.events import RolloutsGathered
from swarmd.core.values import RolloutsRef
from swarmd.dht.legacy import keys
from swarmd.dht.legacy.records import Output, read_output
from swarmd.dht.legacy.rollouts import rollouts_of
from swarmd.dht.legacy.session import BEAM, LegacySession
from swarmd.dht.rounds.gather import ANSWER_S, LEAST_S
from swarmd.dht.rounds.sources import PEERS_MAX
from swarmd.errors import NetworkDown, RecordRejected, SwarmdError

REWARDS_BEAM = 100
RETRY_S = 5.0  # between two looks for rewards,
RETRIES_S = 10.0  # for so long
SAMPLES_MAX = 200  # outputs in all
SAMPLES_PER_PEER_MAX = 64  # of these, so that nobody fills them alone
FETCHES_AT_ONCE = 8

log = logging.getLogger(__name__)


class LegacyGathering:
    """One `Gather` command being done.

    Args:
        session: where all this happens.
        command: what to gather.
    """

    def __init__(self, session: LegacySession, command: Gather) -> None:
        self._session = session
        self._command = command
        self._got: dict[str, RolloutsRef] = {}
        self._wanted: set[str] = set()
        self._samples = 0
        self._answered = False

    async def run(self) -> None:
        """Gather and tell, shortly before the time is over. Raises NetworkDown when nobody answered."""
        command = self._command
        if command.source_round >= 0:
            with anyio.move_on_after(max(self._remaining_s(), LEAST_S)):
                await self._gather()
            if not self._answered and not self._session.coordinating:
                raise NetworkDown("nobody answered when rollouts were looked for")
        rollouts = tuple(self._got[peer] for peer in sorted(self._got))
        missing = len(self._wanted) - len(self._got) if self._samples < SAMPLES_MAX else 0
        self._session.emit(RolloutsGathered(command.id, command.round, command.stage, rollouts, missing))

    def _remaining_s(self) -> float:
        return self._command.until_at - ANSWER_S - time.time()

    def _call_s(self, room_s: float) -> float:
        return min(self._session.config.dht.call_s, max(room_s, LEAST_S))

    async def _gather(self) -> None:
        rewards = await self._find_rewards()
        peers = [peer for peer in rewards if peer != self._session.peer_id]
        chosen = random.sample(peers, min(len(peers), PEERS_MAX))
        self._wanted = set(chosen)
        limiter = anyio.CapacityLimiter(FETCHES_AT_ONCE)
        async with anyio.create_task_group() as tasks:
            for peer in chosen:
                tasks.start_soon(self._fetch_bounded, limiter, peer, rewards[peer])

    async def _find_rewards(self) -> dict[str, float]:
        """Who took part. Nobody there yet is looked for again, as v0.4 does."""
        command, began_at = self._command, time.time()
        while True:
            try:
                place = (command.source_round, command.source_stage)
                found = await self._session.find_rewards(*place, REWARDS_BEAM, self._call_s(self._remaining_s() / 2))
                self._answered = self._answered or bool(found.answered)
                if found.entries:
                    return {peer: latest.value for peer, latest in found.entries.items()}
            except NetworkDown as error:
                log.info("gathering goes on: %s", error)
            if time.time() - began_at >= RETRIES_S:
                return {}
            await anyio.sleep(RETRY_S)

    async def _fetch_bounded(self, limiter: anyio.CapacityLimiter, peer: str, reward: float) -> None:
        async with limiter:
            try:
                if self._samples < SAMPLES_MAX:
                    await self._fetch(peer, reward)
            except RecordRejected as error:
                self._session.refuse(error)
            except SwarmdError as error:
                log.info("outputs of %s are not to be had: %s", peer, error)

    async def _fetch(self, peer: str, reward: float) -> None:
        """Read one peer's outputs and put them into the blob store. One with a reward and no outputs is passed over."""
        outputs = await self._outputs_of(peer)
        if not outputs:
            return
        command, session = self._command, self._session
        place = (command.source_round, command.source_stage)
        body, encoded, refused = rollouts_of(session.swarm, peer, *place, reward, outputs)
        for error in refused:
            session.refuse(error)
        if body.groups:
            digest = await anyio.to_thread.run_sync(session.blobs.put, encoded)
            self._got[peer] = RolloutsRef(peer, *place, digest, len(encoded), len(body.groups))

    async def _outputs_of(self, peer: str) -> list[Output]:
        stage = self._command.source_stage
        name = keys.outputs(peer, self._command.source_round, stage)
        read = partial(_read_output, stage, peer)
        found = await self._session.find(name, read, BEAM, self._call_s(self._remaining_s()))
        room = min(SAMPLES_PER_PEER_MAX, SAMPLES_MAX - self._samples)
        taken = [latest.value for latest in found.entries.values()][:room]
        self._samples += len(taken)
        return taken


def _read_output(stage: int, peer: str, subkey: str | None, encoded: bytes) -> Output:
    if subkey is None:
        raise RecordRejected("malformed", "a plain value where a peer has its outputs")
    return read_output(stage, peer, subkey, encoded)


async def gather(session: LegacySession, command: Gather) -> None:
    """Do a `Gather` command. Raises NetworkDown."""
    await LegacyGathering(session, command).run()

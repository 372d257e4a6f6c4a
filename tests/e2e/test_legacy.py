"""Whole nodes in networks of RL Swarm v0.4: three with a v0.4 node among them, and one in a v0.4 node's network."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import anyio
import pytest

from swarmd.cli.local_swarm.layout import LOOPBACK, ConfigSource, LocalNode, choose_port, write_config
from swarmd.core.commands import Train
from swarmd.core.events import StageTrained
from swarmd.dht.identity.rsa import create_rsa_identity
from swarmd.paths import configs_directory
from swarmd.swarms.rollouts import Rollouts
from tests.dht.legacy.network import V04
from tests.e2e.conftest import PATIENCE_S, Swarm, audited
from tests.e2e.rebuilt import body_of, stages_of

pytestmark = [pytest.mark.e2e, pytest.mark.anyio, pytest.mark.timeout(900)]

QUESTION = "How much is 2 + 2?"
QUESTIONS = 4  # of a round
CONFIGS = configs_directory() / "gsm8k"
SOURCE = ConfigSource(CONFIGS / "legacy-coordinator.toml", CONFIGS / "legacy-follower.toml")
TINY: dict[str, Any] = {
    "swarm.tasks": [{"name": "digits_sort"}, {"name": "digits_reverse"}],
    "swarm.options": {"rewards": "compat", "data": "generated", "brief": True, "questions": QUESTIONS, "students": 3},
    "dht.poll_s": 1.0,
    "round.gather_s": 8.0,
    "training.model": "embedded",
    "training.device": "cpu",
    "training.threads": 1,
    "training.steps": 2,
    "training.questions": 2,
    "training.completion_tokens": 12,
    "training.prompt_tokens": 1000,
    "training.learning_rate": 3e-4,
    "training.held_out_questions": 0,
    "logs.level": "debug",
}


class LegacySwarm(Swarm):
    """Nodes from configs/gsm8k/legacy-*.toml with the embedded model, and RSA keys as v0.4's nodes have them."""

    def __init__(self, directory: Path, nodes: int, trained: Collection[int]) -> None:
        super().__init__(directory, nodes, trained)
        self.peers = [make_key(place) for place in self.places]

    def lay_out_legacy(self, bootstrap: str = "") -> None:
        """Write the configurations. The first node coordinates, unless all are to join another network."""
        listen = f"/ip4/{LOOPBACK}/tcp/{choose_port(self.places[0])}"
        for place in self.places:
            own: dict[str, Any] = {"name": place.name, "data": "."}
            if place.coordinates and not bootstrap:
                own |= {"dht.listen": [listen], "coordinator.stage_s": 60.0}
                write_config(place, TINY | own, SOURCE)
            else:
                own |= {"dht.listen": [f"/ip4/{LOOPBACK}/tcp/0"]}
                own |= {"dht.bootstrap": [bootstrap or f"{listen}/p2p/{self.peers[0]}"]}
                write_config(place, TINY | own, ConfigSource(SOURCE.follower, SOURCE.follower))

    def address(self, number: int) -> str:
        """Where others reach a node that runs."""
        status = self.status(number)
        assert status is not None
        return next(address for address in status.network.addresses if LOOPBACK in address)

    def stages(self, number: int) -> dict[tuple[int, int], tuple[Train, StageTrained]]:
        """What a node trained, by round and stage."""
        place = self.places[number - 1]
        if not place.events.is_dir():
            return {}
        return {(event.round, event.stage): (order, event) for order, event in stages_of(place)}

    def whole_rounds(self, number: int, peers: set[str]) -> list[int]:
        """Rounds of which a node trained every stage, the later ones after gathering what all these peers wrote."""
        done = self.stages(number)
        return [
            round
            for round in sorted({round for round, _ in done})
            if {(round, 0), (round, 1), (round, 2)} <= done.keys()
            and all({ref.peer for ref in done[round, stage][0].rollouts} >= peers for stage in (1, 2))
        ]

    def has_gathered(self, number: int, peer: str) -> bool:
        """Whether a node was told to train with what this peer wrote."""
        return any(ref.peer == peer for order, _ in self.stages(number).values() for ref in order.rollouts)

    def body(self, number: int, round: int, stage: int) -> Rollouts:
        """What a node published of a stage."""
        return body_of(self.places[number - 1], self.stages(number)[round, stage][1].rollouts)


def make_key(place: LocalNode) -> str:
    place.root.mkdir(mode=0o700, parents=True)
    return create_rsa_identity(place.identity).peer_id


@pytest.fixture
async def theirs(tmp_path: Path) -> AsyncIterator[V04]:
    node = V04(tmp_path / "theirs.pem")
    yield node
    await node.clean()


async def test_three_of_our_nodes_with_one_of_v04(tmp_path: Path, theirs: V04) -> None:
    """They run rounds and show each other's answers; it reads their rewards, outputs and leaderboard, and they its."""
    with audited(LegacySwarm(tmp_path / "swarm", nodes=3, trained=(1,))) as swarm:
        swarm.lay_out_legacy()
        swarm.start()
        others = [set(swarm.peers) - {peer} for peer in swarm.peers]

        def ran() -> bool:
            return all(len(swarm.whole_rounds(number + 1, others[number])) >= 2 for number in range(3))

        swarm.wait_until(ran, PATIENCE_S, "two rounds of all", every_s=1.0)
        await theirs.start(swarm.address(1))
        common = set.intersection(*(set(swarm.whole_rounds(n + 1, others[n])) for n in range(3)))
        await check_reading(swarm, theirs, max(common))
        await be_heard(swarm, theirs)
        swarm.stop()
        for number in range(1, 4):
            for round in swarm.whole_rounds(number, others[number - 1])[:2]:
                check_showing(swarm, number, round, others[number - 1])


async def be_heard(swarm: LegacySwarm, theirs: V04) -> None:
    """Have it publish outputs for the rounds to come, until each of our nodes has been told to train with some."""
    spoken = 0
    with anyio.fail_after(PATIENCE_S):
        while not all(swarm.has_gathered(number, theirs.peer_id) for number in range(1, 4)):
            round, _ = await theirs.do("clock")
            for ahead, stage in itertools.product(range(max(round, spoken) + 1, round + 4), range(3)):
                prompt = f"prompt of {stage}" if stage else ""
                told = {"question": QUESTION, "answer": "4", "text": "<answer>4</answer>", "prompt": prompt}
                await theirs.do("publish", round=ahead, stage=stage, reward=2.5, **told)
            spoken = max(spoken, round + 3)
            await anyio.sleep(1.0)


async def check_reading(swarm: LegacySwarm, theirs: V04, round: int) -> None:
    """Rewards, outputs and leaderboard of a round, as v0.4 sees them, are what our nodes' logs say."""
    earned = {peer: swarm.body(number, round, 0).total for number, peer in enumerate(swarm.peers, 1)}
    assert await theirs.do("rewards", round=round, stage=0) == pytest.approx(earned)
    rows = {row["question"]: row["agent_answers"] for row in await theirs.do("merge", round=round, stage=0)}
    for number, peer in enumerate(swarm.peers, 1):
        for group in swarm.body(number, round, 0).groups:
            assert group.quoted is not None
            assert rows[group.quoted.question][peer] == group.completions[group.quoted.choice]
    board = await theirs.do("leaderboard", round=round, stage=0)
    assert dict(board["rows"]) == pytest.approx(earned)


def check_showing(swarm: LegacySwarm, number: int, round: int, peers: set[str]) -> None:
    """The questions of the second stage hold, word for word, what each peer was read to have answered."""
    place = swarm.places[number - 1]
    order, _ = swarm.stages(number)[round, 1]
    said: dict[tuple[str, str], str] = {}
    for ref in order.rollouts:
        for group in body_of(place, ref).groups:
            assert group.quoted is not None
            said[ref.peer, group.quoted.question] = group.completions[group.quoted.choice]
    shown = set()
    for group in swarm.body(number, round, 1).groups:
        assert group.quoted is not None
        for peer, question in said:
            whole = "\ufffd" not in said[peer, question]  # broken bytes take more tokens when read than when written
            if question == group.quoted.question and whole:
                assert said[peer, question] in group.quoted.prompt
                shown.add(peer)
    assert shown >= peers


async def test_one_of_our_nodes_in_a_network_of_v04(tmp_path: Path, theirs: V04) -> None:
    """It goes by the v0.4 coordinator's clock, shows its answers in its questions, and is read by it."""
    await theirs.start()
    with audited(LegacySwarm(tmp_path / "swarm", nodes=1, trained=(1,))) as swarm:
        swarm.lay_out_legacy(theirs.address)
        swarm.start()
        for round, stage in itertools.product(range(2), range(3)):
            await theirs.do("announce", round=round, stage=stage)
            swarm.wait_until(lambda at=(round, stage): at in swarm.stages(1), PATIENCE_S, f"{round}.{stage}", 0.5)  # type: ignore[misc]
            outputs = await outputs_of(theirs, swarm.peers[0], round, stage)
            assert {output["question"] for _, output in outputs.values()} == {
                group.quoted.question for group in swarm.body(1, round, stage).groups if group.quoted
            }
            for number, (_, output) in enumerate(outputs.values()):  # it answers the same questions
                told = {"question": output["question"], "answer": output["answer"], "prompt": prompt_in(output)}
                text = f"<answer>{round}.{stage}.{number}</answer>"
                await theirs.do("publish", round=round, stage=stage, reward=2.5, text=text, **told)
            total = swarm.body(1, round, stage).total
            rewards = await theirs.do("rewards", round=round, stage=stage)
            assert rewards == pytest.approx({theirs.peer_id: 2.5 * len(outputs), swarm.peers[0]: total})
        swarm.stop()
        assert swarm.whole_rounds(1, {theirs.peer_id}) == [0, 1]
        for round in range(2):
            check_showing(swarm, 1, round, {theirs.peer_id})


async def outputs_of(theirs: V04, peer: str, round: int, stage: int) -> dict[str, Any]:
    """A peer's outputs of a stage as soon as v0.4 finds a whole stage of them with their reward."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            if peer in (await theirs.do("rewards", round=round, stage=stage) or {}):
                outputs: dict[str, Any] = await theirs.do("outputs", peer=peer, round=round, stage=stage)
                if len(outputs) == QUESTIONS:
                    return outputs
            await anyio.sleep(0.5)


def prompt_in(output: dict[str, Any]) -> str:
    return str(next((text for key, text in output.items() if key.endswith("_prompt")), ""))

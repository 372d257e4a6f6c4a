"""Two rounds on real engines: what one proposes is checked, solved and judged by the other."""

from __future__ import annotations

from pathlib import Path

import msgspec

from swarmd.config import Config, SwarmConfig, TrainingConfig
from swarmd.core.commands import Train
from swarmd.core.events import StageTrained
from swarmd.core.values import RolloutsRef
from swarmd.paths import NodeDirectory
from swarmd.swarms.proposer.plan import PROPOSE, SOLVE
from swarmd.swarms.registry import make_plan
from swarmd.swarms.rollouts import decode_rollouts, encode_rollouts
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from tests.swarms.proposer.texts import propose

SWARM = SwarmConfig(id="problems", kind="proposer-solver", stages=2, options={"level": 1, "problem_bytes": 200})
TRAINING = TrainingConfig(
    device="cpu",
    prompt_tokens=720,
    completion_tokens=210,
    steps=1,
    questions=2,
    generations=2,
    peer_questions=1,
    held_out_questions=0,
    share_groups=16,
)
BRIEF = [f"assert solve({n}) == {n + 1}" for n in range(4)]
PROPOSAL = propose("def solve(x):\n    return x + 1", BRIEF, "Return the next number.")


class Node:
    """An engine, and what its log would know."""

    def __init__(self, peer: str, directory: Path) -> None:
        self.peer = peer
        paths = NodeDirectory(directory / peer)
        self.engine = TrainingEngine(
            Config(SWARM, role="coordinator", training=TRAINING), paths, peer, make_plan(SWARM)
        )
        self.context: tuple[RolloutsRef, ...] = ()

    def train(self, round: int, stage: int, published: dict[RolloutsRef, bytes]) -> StageTrained:
        gathered = tuple(ref for ref in published if ref.peer != self.peer)
        for body in published.values():
            self.engine._blobs.put(body)
        order = Train(f"train/{round}/{stage}", round, stage, gathered, self.context)
        event = self.engine.train(order, Cancellation())
        self.context = tuple(ref for ref in (*self.context, *gathered, event.rollouts) if ref.round >= round - 1)
        return event

    def publish(self, event: StageTrained, proposal: str = "") -> dict[RolloutsRef, bytes]:
        """The body of a stage; with a proposal that the embedded model does not write in the place of the first."""
        rollouts = decode_rollouts(self.engine._blobs.get(event.rollouts.digest))
        if proposal:
            first, *others = rollouts.groups
            better = msgspec.structs.replace(first, completions=(proposal, first.completions[1]))
            rollouts = msgspec.structs.replace(rollouts, groups=(better, *others))
        body = encode_rollouts(rollouts)
        ref = msgspec.structs.replace(event.rollouts, digest=self.engine._blobs.put(body), size_bytes=len(body))
        return {ref: body}


def test_a_proposal_is_checked_solved_and_judged_by_others(tmp_path: Path) -> None:
    anna, otto = Node("anna", tmp_path), Node("otto", tmp_path)
    proposed = anna.publish(anna.train(0, 0, {}), PROPOSAL)
    solved = otto.train(0, 1, proposed)
    assert solved.rejected == () and [each.peer for each in solved.judged] == ["anna"]
    assert solved.judged[0].worth > 0, "the valid one was found to be so here"
    body = otto.publish(solved)
    groups = decode_rollouts(next(iter(body.values()))).groups
    (group,) = [group for group in groups if group.sources]
    assert (group.task, group.sources[0].peer, group.sources[0].choice) == (SOLVE, "anna", 0)
    anna.context = tuple(proposed)
    told = anna.train(1, 0, body)
    assert told.rejected == () and [each.peer for each in told.judged] == ["otto"]
    fresh = decode_rollouts(next(iter(anna.publish(told).values()))).groups
    assert {group.task for group in fresh} == {PROPOSE}

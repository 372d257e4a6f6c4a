"""Two rounds on real engines: what one proposes is checked, solved and judged by the other."""

from __future__ import annotations

from pathlib import Path

import msgspec

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.core.events import StageTrained
from swarmd.core.values import RolloutsRef
from swarmd.swarms.proposer.plan import PROPOSE, SOLVE
from swarmd.swarms.rollouts import decode_rollouts, encode_rollouts
from tests.swarms.proposer.texts import propose
from tests.training.test_stages import Node as StageNode

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


class Node(StageNode):
    def publish(self, event: StageTrained, proposal: str = "") -> dict[RolloutsRef, bytes]:
        """The body of a stage; with a proposal that the embedded model does not write in the place of the first."""
        rollouts = decode_rollouts(self.body(event))
        if proposal:
            first, *others = rollouts.groups
            better = msgspec.structs.replace(first, completions=(proposal, first.completions[1]))
            rollouts = msgspec.structs.replace(rollouts, groups=(better, *others))
        body = encode_rollouts(rollouts)
        ref = msgspec.structs.replace(event.rollouts, digest=self.engine._blobs.put(body), size_bytes=len(body))
        return {ref: body}


def test_a_proposal_is_checked_solved_and_judged_by_others(tmp_path: Path) -> None:
    anna, otto = (Node(peer, tmp_path, SWARM, TRAINING) for peer in ("anna", "otto"))
    proposed = anna.publish(anna.train(0, {}), PROPOSAL)
    solved = otto.train(1, proposed)
    assert solved.rejected == () and [each.peer for each in solved.judged] == ["anna"]
    assert solved.judged[0].worth > 0, "the valid one was found to be so here"
    body = otto.publish(solved)
    groups = decode_rollouts(next(iter(body.values()))).groups
    (group,) = [group for group in groups if group.sources]
    assert (group.task, group.sources[0].peer, group.sources[0].choice) == (SOLVE, "anna", 0)
    anna.context = tuple(proposed)
    told = anna.train(0, body, round=1)
    assert told.rejected == () and [each.peer for each in told.judged] == ["otto"]
    fresh = decode_rollouts(next(iter(anna.publish(told).values()))).groups
    assert {group.task for group in fresh} == {PROPOSE}

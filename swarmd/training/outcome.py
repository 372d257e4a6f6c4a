"""What comes of a stage: what is shared and kept of it, and its figures."""

from __future__ import annotations

from swarmd.core.values import RolloutsRef
from swarmd.errors import FOREIGN_ERRORS
from swarmd.eventlog.blobs import Blobs
from swarmd.logger import get_logger
from swarmd.swarms.plan import Plan, encode_scored, of_peers
from swarmd.swarms.rollouts import decode_rollouts, encode_rollouts
from swarmd.training.groups import Collected
from swarmd.training.progress import ETA
from swarmd.training.stage import Stage

log = get_logger(__name__)


def publish(stage: Stage, blobs: Blobs) -> tuple[RolloutsRef, bytes]:
    """Put what is shared of a stage into the blob store. Returns its reference and the body."""
    rollouts = stage.make_rollouts()
    body = encode_rollouts(rollouts)
    shared = len(decode_rollouts(body).groups)
    place = (rollouts.peer, rollouts.round, rollouts.stage)
    return RolloutsRef(*place, blobs.put(body), len(body), shared), body


def keep_scored(stage: Stage, collected: Collected, plan: Plan, blobs: Blobs) -> str:
    """Put what was asked, expected and rewarded into the blob store, for views. Returns the digest.

    A stage is not lost over it: where it cannot be told or kept, nothing is, and the digest is empty.
    """
    try:
        groups = [*stage.describe_published(), *of_peers(plan, collected.judged.values())]
        return blobs.put(encode_scored(groups))
    except FOREIGN_ERRORS:  # a plan's own code is asked for the truth
        log.warning("questions and rewards of this stage are not kept in words", exc_info=True)
        return ""


def figures_of(stage: Stage, done: int, steps: int, rest_s: float) -> dict[str, float]:
    """How a stage goes that has taken `done` of its `steps`, one or more, for status and metrics.

    What comes after the steps is expected to take `rest_s` seconds.
    """
    return {
        "tokens_per_s": stage.tokens / max(stage.seconds, 1e-6),
        ETA: stage.seconds / done * (steps - done) + rest_s,
        "reward": stage.reward,
        "step_reward": stage.last_reward,
        **{name: count for name, count in stage.tally.stage.read_faults().items() if count},
    }


def step_figures(stage: Stage) -> dict[str, float]:
    """Of the step that was just taken, what TRL does not log; by the names that trackers get."""
    figures = stage.tally.step.read() | {"tokens_per_s": stage.tokens / max(stage.seconds, 1e-6)}
    return {f"step/{name}": value for name, value in figures.items()}

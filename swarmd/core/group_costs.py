"""Decides how many groups of a step come from peers, by the cost of an informative own group and of a peer's.

- An own group costs drawing and scoring, a peer's costs waiting for the network, reading and scoring. Both cost their
  share of the forward and backward passes. The trainer measures this (`TrainerTimes`), and the node how long it waits
  for peers' rollouts.
- The cheaper peers' groups are, the more are used: at four tenths of the own price, six tenths of a step. At the same
  price or above, one per step, so that the price is still measured. At least one group is this node's own. If all nodes
  took the cheaper kind only, nobody in the swarm might draw.
- The figures are in the log, and the choice is computed from them alone, so a replay chooses the same.
"""

from __future__ import annotations

from msgspec.structs import replace

from swarmd.core.events import StageTrained
from swarmd.core.state import GroupCosts, StateBase
from swarmd.core.values import PeerSlots, TrainerPart, TrainerTimes

MEASURED_MIN = 8.0  # measured groups of each kind below which their cost counts as unknown
KEPT = 0.5  # share of the sums that is kept from one stage to the next
DRAWING: tuple[TrainerPart, ...] = ("prefill", "decode", "sync", "score")
PASSES: tuple[TrainerPart, ...] = ("forward", "backward", "gradients")


def count_stage(state: StateBase, event: StageTrained) -> None:
    """Add a trained stage's group costs to the running sums."""
    times, trainer, before = state.stage_times, event.times, state.group_costs
    if times is None or trainer is None or (times.round, times.stage) != (event.round, event.stage):
        return
    now = stage_costs(trainer, dict(times.parts).get("gather", 0.0))
    state.group_costs = GroupCosts(
        KEPT * before.own_groups + now.own_groups,
        KEPT * before.own_s + now.own_s,
        KEPT * before.peer_groups + now.peer_groups,
        KEPT * before.peer_s + now.peer_s,
        KEPT * before.trained_groups + now.trained_groups,
        KEPT * before.pass_s + now.pass_s,
    )


def stage_costs(trainer: TrainerTimes, gather_s: float) -> GroupCosts:
    """Return the cost of one stage's groups; `gather_s` is the time spent waiting for peers' rollouts."""
    parts = dict(trainer.parts)
    return GroupCosts(
        trainer.own_groups,
        sum(parts.get(part, 0.0) for part in DRAWING),
        trainer.peer_groups,
        parts.get("judge", 0.0) + gather_s,
        trainer.trained_groups,
        sum(parts.get(part, 0.0) for part in PASSES),
    )


def group_prices(costs: GroupCosts, least: float = MEASURED_MIN) -> tuple[float, float] | None:
    """Return the seconds that an informative group costs, (own, peer's); None if fewer than `least` were measured."""
    if min(costs.own_groups, costs.peer_groups, costs.trained_groups) < least:
        return None
    passing_s = costs.pass_s / costs.trained_groups
    own_s, peer_s = costs.own_s / costs.own_groups + passing_s, costs.peer_s / costs.peer_groups + passing_s
    return (own_s, peer_s) if own_s > 0 else None


def choose_peer_questions(slots: PeerSlots, costs: GroupCosts) -> int:
    """Return the maximum number of groups of a step that come from peers."""
    prices = group_prices(costs)
    if prices is None:
        return slots.usual
    own_s, peer_s = prices
    wanted = round(slots.questions * (1 - min(peer_s / own_s, 1.0)))
    return min(max(wanted, 1), slots.at_most)


def choose_for_stage(state: StateBase, slots: PeerSlots | None) -> int:
    """Return the choice for the current stage, and record it with its costs; 0: a fixed configured number."""
    if slots is None:
        return 0
    chosen, times = choose_peer_questions(slots, state.group_costs), state.stage_times
    if times is not None:
        state.stage_times = replace(times, peer_questions=chosen, costs=state.group_costs)
    return chosen

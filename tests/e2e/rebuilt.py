"""What a node's log and blob store say of a round of several stages: the questions that were asked, made again."""

from __future__ import annotations

from collections.abc import Iterator

from swarmd.cli.local_swarm import LocalNode
from swarmd.config import load_config
from swarmd.core.commands import Train
from swarmd.core.events import StageTrained
from swarmd.core.values import RolloutsRef
from swarmd.eventlog.blobs import Blobs
from swarmd.eventlog.fold import commits_from, fold, oldest_base
from swarmd.swarms.plan import Material, Outcome, Plan, Question, StageId
from swarmd.swarms.registry import make_plan
from swarmd.swarms.rollouts import Rollouts, decode_rollouts


def stages_of(place: LocalNode) -> Iterator[tuple[Train, StageTrained]]:
    """Every stage that a node trained: what its trainer was told, and what came of it."""
    base = oldest_base(place.events)
    orders: dict[str, Train] = {}
    for applied in fold(commits_from(place.events, base), base.state):
        orders |= {command.id: command for command in applied.commands if isinstance(command, Train)}
        if isinstance(applied.event, StageTrained):
            yield orders[applied.event.command], applied.event


def body_of(place: LocalNode, ref: RolloutsRef) -> Rollouts:
    """A body that lies in a node's blob store."""
    return decode_rollouts(Blobs(place.blobs).get(ref.digest))


def material_of(place: LocalNode, plan: Plan, order: Train) -> Material:
    """What the trainer had to make questions of, made again from the references in its command alone."""
    material = Material()
    for ref in sorted((*order.context, *order.rollouts), key=lambda ref: (ref.round, ref.stage)):
        where = StageId(ref.peer, ref.round, ref.stage)
        for group in body_of(place, ref).groups:
            question = plan.regenerate(group.reference, where, material)
            scores = tuple(plan.score(question, group.completions))
            material.add(Outcome(where, question, group.completions, scores))
    return material


def asked_of(place: LocalNode, order: Train, event: StageTrained) -> Iterator[tuple[Question, Material]]:
    """The questions of a stage that a node published answers to, with what they were made of."""
    config = load_config(place.config)
    plan = make_plan(config.swarm, config.training, place.root)
    material = material_of(place, plan, order)
    where = StageId(event.rollouts.peer, event.round, event.stage)
    for group in body_of(place, event.rollouts).groups:
        yield plan.regenerate(group.reference, where, material), material

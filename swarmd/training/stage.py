"""One stage while it is trained: its batches, what is published of it, and its metrics.

A step's batch has `questions` groups. Peers' groups that the schedule has for the step and informative own groups come
first. The slots of flat own groups go to peers' groups that no later step needs, then to earlier groups.

The groups of a batch may be drawn in another thread while the step before is trained (`Stage.draw_ahead`). That thread
updates no counts: its groups count when their batch is made, so a stage that ends early has not counted them. Draws do
not depend on how fast the thread is: peers are judged when it starts, and meanwhile it alone draws from the stage's
random generator.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import InitVar, dataclass
from functools import partial
from itertools import islice
from random import Random
from typing import Any, NamedTuple

import msgspec
import psutil
import torch

from swarmd.config import TrainingConfig
from swarmd.core.events import StageTrained
from swarmd.core.values import RolloutsRef, StageTokens
from swarmd.errors import FOREIGN_ERRORS, SwarmError
from swarmd.eventlog.blobs import BlobStore
from swarmd.logger import get_logger
from swarmd.swarms.conversation import EnvironmentFailed
from swarmd.swarms.plan import (
    CORRECT,
    ENDLESS,
    Plan,
    Question,
    Score,
    ScoredGroup,
    StageId,
    encode_scored_groups,
    interleave_peer_groups,
    make_scored_group,
    qualified_plan_name,
)
from swarmd.swarms.rollouts import (
    COMPLETION_CHARACTERS_MAX,
    GROUPS_MAX,
    VERSION,
    Group,
    Reference,
    Rollouts,
    decode_rollouts,
    encode_rollouts,
)
from swarmd.training.cancellation import Cancellation
from swarmd.training.flatness import ZeroVarianceStats
from swarmd.training.groups import CollectedGroups, Scorer, TrainingGroup, fit_prompt
from swarmd.training.masking import DRAWN_KEY, FOREIGN_KEY, PEER_KEY, UNTRUSTED_KEY, MaskCounts, MaskStats
from swarmd.training.models.memory import GIB
from swarmd.training.models.model import Policy
from swarmd.training.overlap import DrawingThread
from swarmd.training.progress import ETA
from swarmd.training.sampling import BaseSampler
from swarmd.training.schedule import PeerSchedule, Reason, ReplayBuffer
from swarmd.training.token_counter import TokenClasses
from swarmd.training.trainer import REWARD_KEY
from swarmd.training.turns import make_turn_sampler

PARTS_MAX = 32  # named parts of a reward that are reported
LONG_QUESTIONS_MAX = 64  # too long in a row, after which the stage gives up

log = get_logger(__name__)


class StageStats:
    """Sums over a step's or stage's groups, for status, trackers and metrics."""

    groups = 0
    flat = 0
    others = 0  # peers' and earlier groups in the batches
    completions = 0
    failed = 0  # completions whose scorer failed
    too_long = 0  # questions skipped because their prompts are too long
    tokens = 0

    def __init__(self) -> None:
        self._worth: dict[str, float] = {}

    def add(self, groups: Sequence[TrainingGroup]) -> None:
        scores = [score for group in groups for score in group.scores]
        self.groups += len(groups)
        self.flat += sum(group.has_zero_variance for group in groups)
        self.completions += len(scores)
        self.failed += sum(score.failed for score in scores)
        self.tokens += count_completion_tokens(groups)
        for score in scores:
            self._add_score_part("reward", score.reward)
            self._add_score_part("accuracy", score.accuracy)
            self._add_score_part("format", score.format)
            for part, value in score.parts.items():
                self._add_score_part(f"reward_{part}", value)

    def merge(self, other: "StageStats") -> None:
        """Add another rank's sums."""
        for name in ("groups", "flat", "others", "completions", "failed", "too_long", "tokens"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, value in other._worth.items():
            self._add_score_part(name, value)

    def _add_score_part(self, name: str, value: float) -> None:
        if name in self._worth or len(self._worth) < PARTS_MAX:
            self._worth[name] = self._worth.get(name, 0.0) + value

    @property
    def mean_reward(self) -> float:
        """Mean reward of the completions."""
        return self._worth.get("reward", 0.0) / max(self.completions, 1)

    def read_means(self) -> dict[str, float]:
        """Means over completions by name, and counts of groups."""
        count = max(self.completions, 1)
        return {
            **{name: value / count for name, value in self._worth.items()},
            "completion_tokens": self.tokens / count,
            "own_groups": float(self.groups),
            "other_groups": float(self.others),
            "flat_share": self.flat / max(self.groups, 1),
            **self.count_faults(),
        }

    def count_faults(self) -> dict[str, float]:
        """Counts of unusable questions and completions."""
        return {"prompts_too_long": float(self.too_long), "scores_failed": float(self.failed)}


class StageMetrics:
    """Sums of the current step and of the whole stage."""

    def __init__(self) -> None:
        self.stage = StageStats()
        self.begin_step()

    def begin_step(self) -> None:
        self.step = StageStats()

    def add(self, groups: Sequence[TrainingGroup]) -> None:
        """Count own groups, whether they are trained on or not."""
        for sums in (self.step, self.stage):
            sums.add(groups)

    def count_too_long(self, count: int) -> None:
        self.step.too_long += count
        self.stage.too_long += count

    def count_other_groups(self, count: int) -> None:
        self.step.others += count
        self.stage.others += count


class RankOutput(msgspec.Struct):
    """The output of one of several ranks in a stage."""

    tokens: int
    classes: TokenClasses
    peer_groups: int
    groups: list[TrainingGroup]  # to publish
    learnt: list[tuple[Question, Sequence[Score]]]
    sums: StageStats
    mask_counts: dict[str, MaskCounts]
    flatness: ZeroVarianceStats


class DrawnStep(NamedTuple):
    """The groups drawn for one batch."""

    scheduled: Sequence[TrainingGroup]  # peers' groups of the step
    answered: Sequence[TrainingGroup]  # own groups for the questions of `scheduled`, if they are answered first
    own: Sequence[TrainingGroup]  # own groups, whether or not they fit into the batch
    too_long: int  # number of questions skipped
    steps: int  # optimiser steps of the node's life before the draw


class PublicationBuffer:
    """The latest groups of a stage, each question once; flat ones only if there are too few informative ones."""

    def __init__(self, groups_max: int) -> None:
        self._groups_max = groups_max
        self._kept: dict[bool, dict[Reference, TrainingGroup]] = {False: {}, True: {}}  # by flatness, oldest first

    def add(self, group: TrainingGroup) -> None:
        """Keep a group, unless peers would refuse the whole body because of it: a text is too long for the wire, or a
        conversation in it failed and cannot be replayed."""
        if any(len(text) > COMPLETION_CHARACTERS_MAX for text in group.texts):
            return
        if group.turns and any(score.failed for score in group.scores):
            return
        kept, question = self._kept[group.has_zero_variance], group.question.reference.base
        kept.pop(question, None)
        kept[question] = group
        if len(kept) > self._groups_max:
            del kept[next(iter(kept))]

    def choose_groups(self) -> list[TrainingGroup]:
        """The groups to publish, the latest informative one first."""
        chosen: dict[Reference, TrainingGroup] = {}
        for question, group in (*reversed(self._kept[False].items()), *reversed(self._kept[True].items())):
            chosen.setdefault(question, group)
        return list(chosen.values())[: self._groups_max]


@dataclass(eq=False)
class Stage:
    """Makes one batch per step for the trainer, and keeps the groups to publish."""

    swarm: str
    place: StageId
    training: TrainingConfig
    policy: Policy
    plan: Plan
    sampler: InitVar[BaseSampler]
    scorer: Scorer
    questions: Iterator[Question]  # this node's own, endless
    schedule: PeerSchedule
    seed: InitVar[int]
    cancellation: Cancellation
    replay: ReplayBuffer
    bare: Iterator[Question] | None  # questions without peers' texts, used if all of `questions` are too long
    weights: Mapping[str, float]  # of tasks whose earlier groups are replayed more often than others'
    first_step: int = 0  # optimiser steps of the node's life before the stage
    long: Sequence[TrainingGroup] = ()  # peers' groups left out for their length

    def __post_init__(self, sampler: BaseSampler, seed: int) -> None:
        training, policy = self.training, self.policy
        self._sampler = sampler
        self._ahead: Future[DrawnStep] | None = None  # the next batch's groups while they are drawn
        self._batches = 0  # number made so far
        self.staleness = 0  # largest number of optimiser steps between drawing a batch and training on it
        self._turns = make_turn_sampler(self.plan, policy, sampler, training.completion_tokens, training.temperature)
        self._generator = torch.Generator(policy.device).manual_seed(seed)
        self._random = Random(seed)
        self._publication = PublicationBuffer(min(training.share_groups, GROUPS_MAX))
        self._started = time.perf_counter()
        self.tokens = 0
        self.token_classes = TokenClasses()
        self._spare: list[TrainingGroup] = []  # own informative groups that did not fit into a batch
        self.metrics = StageMetrics()
        self.mask_stats = MaskStats()
        self._longest_prompt = 0  # tokens of the longest skipped question
        self.flatness = ZeroVarianceStats(policy.stop_ids)
        self.trained_groups = 0  # number that went through the passes
        self._longest = 0  # tokens of the longest own completion in this stage
        self._learnt: list[tuple[Question, Sequence[Score]]] = []
        self._joined_groups = 0
        self._left_out = 0  # number of peers' groups whose questions this node can answer itself

    @property
    def rank_output(self) -> RankOutput:
        """The output of this process, for the other ranks."""
        groups = self._publication.choose_groups()
        trained = self.schedule.scheduled - self._left_out
        figures = (self.metrics.stage, self.mask_stats.counts, self.flatness)
        return RankOutput(self.tokens, self.token_classes, trained, groups, self._learnt, *figures)

    def finish_steps(self) -> None:
        """After the last step, record which peers' groups were skipped, and warn of questions that were too long."""
        long: Counter[tuple[str, Reason]] = Counter((group.peer, "long") for group in self.long)
        self.mask_stats.record_skipped(self.schedule.count_skipped() + long)
        if self.metrics.stage.too_long:
            log.warning(
                "questions were passed over: their prompts are longer than training.prompt_tokens",
                questions=self.metrics.stage.too_long,
                longest=self._longest_prompt,
                prompt_tokens=self.training.prompt_tokens,
            )

    def merge_rank_output(self, part: RankOutput) -> None:
        """Add another rank's output to this node's."""
        self.tokens += part.tokens
        self.token_classes.merge(part.classes)
        self._joined_groups += part.peer_groups
        self.metrics.stage.merge(part.sums)
        self.mask_stats.merge(part.mask_counts)
        self.flatness.merge(part.flatness)
        for group in part.groups:
            self._publication.add(group)

    @property
    def mean_reward(self) -> float:
        """Mean reward of this node's completions so far."""
        return self.metrics.stage.mean_reward

    @property
    def last_step_reward(self) -> float:
        """Mean reward of this node's completions in the last step."""
        return self.metrics.step.mean_reward

    @property
    def elapsed_seconds(self) -> float:
        return time.perf_counter() - self._started

    @property
    def peer_group_count(self) -> int:
        """Number of peers' groups trained on."""
        return self.schedule.scheduled - self._left_out + self._joined_groups

    def next_batch(self) -> dict[str, Any]:
        """Columns for TRL's rollout function: `questions` groups of `generations`, own and peers', with rewards. Waits
        for groups drawn ahead, and raises the errors of that."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            drawn = self._draw(self._schedule_step(), self._steps)
        else:
            with self._sampler.timer.time("decode"):
                drawn = ahead.result()
        self.staleness = max(self.staleness, self._steps - drawn.steps)
        self._batches += 1
        self.metrics.begin_step()
        self._count_groups(drawn)
        gated = self.training.peer_loss == "success-gated"
        share = self._keep_unsolved_groups(drawn) if gated else drawn.scheduled
        informative = filter_by_variance(drawn.own, flat=False)[: self.training.questions - len(drawn.scheduled)]
        flat = filter_by_variance(drawn.own, flat=True)
        if gated:
            informative = [*filter_by_variance(drawn.answered, flat=False), *informative]
            informative = informative[: self.training.questions - len(share)]
            flat += filter_by_variance(drawn.answered, flat=True)  # to fill the batch
        fresh = [*informative, *share]
        if not gated:
            fresh += self.schedule.take_spare_groups(self.training.questions - len(fresh))
        replayed = self.replay.draw(
            min(self.training.replay_questions, self.training.questions - len(fresh)),
            self._random,
            self.schedule.admit_group,
            self.weights,
        )
        for group in fresh:
            self.replay.add(group)
        others = [self._cut_peer_group(group) for group in (*fresh[len(informative) :], *replayed)]
        groups = [*informative, *others, *flat][: self.training.questions]
        self._classify_tokens(drawn, informative)
        foreign = {id(group) for group in others}
        self.trained_groups += sum(self.training.beta > 0 or not group.has_zero_variance for group in groups)
        self.metrics.count_other_groups(len(foreign))
        return {
            "prompt_ids": [group.prompt for group in groups for _ in group.completions],
            "completion_ids": [tokens for group in groups for tokens in group.completions],
            "logprobs": None,  # one step on each batch: the ratio is 1
            "env_mask": [own for group in groups for own in group.own],
            REWARD_KEY: [reward for group in groups for reward in group.rewards],
            FOREIGN_KEY: [id(group) in foreign for group in groups for _ in group.completions],
            DRAWN_KEY: [[] if id(group) in foreign else logps for group in groups for logps in list_logps(group)],
            UNTRUSTED_KEY: [mask for group in groups for mask in list_untrusted_masks(group)],
            PEER_KEY: [self.mask_stats.peer_number(group.peer) for group in groups for _ in group.completions],
        }

    def _classify_tokens(self, drawn: DrawnStep, trained: Sequence[TrainingGroup]) -> None:
        """Record what becomes of each token drawn for a batch, whose groups `trained` are trained on."""
        own, used = [*drawn.own, *drawn.answered], {id(group) for group in trained}
        spare = [group for group in filter_by_variance(own, flat=False) if id(group) not in used]
        classes = self.token_classes
        classes.trained += count_drawn_tokens(trained)
        classes.flat += count_drawn_tokens(filter_by_variance(own, flat=True))
        classes.spare += count_drawn_tokens(spare)
        self._spare += spare

    def count_tokens(self, drawn: int, groups_shared: int) -> StageTokens:
        """What became of the tokens of this stage. `drawn`: total of the node's life. `groups_shared`: number of groups
        published."""
        classes = self.token_classes
        shared = {id(group) for group in self._publication.choose_groups()[:groups_shared]}
        only_shared = count_drawn_tokens([group for group in self._spare if id(group) in shared])
        return StageTokens(
            drawn,
            classes.generated,
            trained=classes.trained,
            flat=classes.flat,
            set_aside=classes.spare - only_shared,
            shared=only_shared,
            cancelled=classes.cancelled,
            teachers=self.mask_stats.list_teachers(),
        )

    def _cut_peer_group(self, group: TrainingGroup) -> TrainingGroup:
        """Cut a peer's group to the length of this node's own longest completion; a peer's verbose answers would
        otherwise pad the whole batch and slow every step down."""
        if not group.peer:
            return group
        self.mask_stats.record_peer(group)
        return cut_group(group, self._longest)

    def _keep_unsolved_groups(self, drawn: DrawnStep) -> list[TrainingGroup]:
        """Keep the peers' groups whose questions only the peer solved. This node's answers to these questions are
        neither published nor counted for its reward, since the questions are not its own."""
        failed = [
            theirs
            for theirs, own in zip(drawn.scheduled, drawn.answered, strict=True)
            if not is_solved(own) and is_solved(theirs)
        ]
        self.tokens += count_completion_tokens(drawn.answered)
        self._left_out += len(drawn.scheduled) - len(failed)
        return failed

    @property
    def _steps(self) -> int:
        """Optimiser steps of the node's life before that of the next batch."""
        return self.first_step + self._batches

    def draw_ahead(self, thread: DrawingThread) -> None:
        """Start drawing for the next batch, with the present weights, while the last one is trained; not after the last
        batch."""
        if self._batches == self.training.steps:
            thread.rest()
            return
        self._sampler.freeze(self.cancellation)
        self._ahead = thread.submit(partial(self._draw, self._schedule_step(), self._steps - 1))

    def _schedule_step(self) -> list[TrainingGroup]:
        return self.schedule.schedule_step(self.mask_stats.decide_peer_slots())

    def _draw(self, scheduled: Sequence[TrainingGroup], steps: int) -> DrawnStep:
        """Draw the own groups of a batch, without counting them. `scheduled`: peers' groups of the step, whose
        questions this node answers first if they count only where it fails (`peer_loss`). `steps`: optimiser steps of
        the node's life before the draw."""
        self._too_long = 0
        gated = self.training.peer_loss == "success-gated"
        answered = (
            self._answer_questions([(group.question, group.prompt) for group in scheduled], steps) if gated else []
        )
        own = self._generate_informative(self.training.questions - len(scheduled), len(answered), steps)
        return DrawnStep(scheduled, answered, own, self._too_long, steps)

    def _generate_informative(self, slots: int, asked: int, steps: int) -> list[TrainingGroup]:
        """Generate own groups until `slots` of them are informative or the limit is reached. `asked`: number of peers'
        questions already answered in this step."""
        own = self._generate_groups(max(slots, self.training.own_questions - asked), steps)
        while True:
            left = self.training.own_questions_max - len(own)
            if len(filter_by_variance(own, flat=False)) >= slots or left <= 0:
                return own
            own += self._generate_groups(min(slots, left), steps)

    def _generate_groups(self, count: int, steps: int) -> list[TrainingGroup]:
        if count < 1:
            return []
        groups = self._answer_questions([self._next_question() for _ in range(count)], steps)
        for group in groups:
            self.plan.learn(group.question, group.scores)
            self._learnt.append((group.question, group.scores))
        return groups

    def _answer_questions(self, asked: Sequence[tuple[Question, list[int]]], steps: int) -> list[TrainingGroup]:
        """Draw and score a group of completions for each question."""
        if not asked:
            return []
        size = self.training.generations
        questions, prompts = [question for question, _ in asked], [prompt for _, prompt in asked]
        drawn = self._turns.complete_questions(questions, prompts, size, self._generator, self.cancellation)
        return [
            self.scorer.make_group(question, prompt, drawn[place * size : (place + 1) * size], self.place.round, steps)
            for place, (question, prompt) in enumerate(asked)
        ]

    def _next_question(self) -> tuple[Question, list[int]]:
        """The next question whose prompt is short enough, with the prompt. If peers' texts make all questions too long,
        those without them follow. Raises SwarmError if there is none."""
        found = self._find_short_question()
        limit = self.training.prompt_tokens
        if found is None and self.bare is not None:
            log.warning("what peers wrote is too long to be shown: bare questions for the rest", prompt_tokens=limit)
            self.questions, self.bare = self.bare, None
            found = self._find_short_question()
        if found is None:
            raise SwarmError(
                f"the questions of {', '.join(self.plan.tasks)} take more than training.prompt_tokens = {limit}",
                "Raise training.prompt_tokens or give the tasks smaller settings",
            )
        return found

    def _find_short_question(self) -> tuple[Question, list[int]] | None:
        """The next question whose prompt is short enough; None if many in a row are too long. Raises SwarmError if the
        plan has no more questions."""
        looked = 0
        for question in islice(self.questions, LONG_QUESTIONS_MAX):
            try:
                fitted = fit_prompt(self.plan, self.policy, question, self.training.prompt_tokens)
            except EnvironmentFailed as error:
                log.warning("a question is passed over: its environment failed", reason=error.message)
                looked += 1
                continue
            if len(fitted[1]) <= self.training.prompt_tokens:
                return fitted
            looked += 1
            self._too_long += 1
            self._longest_prompt = max(self._longest_prompt, len(fitted[1]))
        if looked < LONG_QUESTIONS_MAX:
            where = f"round {self.place.round}, stage {self.place.stage}"
            raise SwarmError(f"{qualified_plan_name(self.plan)}.draw has no more questions for {where}", ENDLESS)
        return None

    def _count_groups(self, drawn: DrawnStep) -> None:
        self.metrics.count_too_long(drawn.too_long)
        self.metrics.add(drawn.own)
        self.flatness.add(drawn.own)
        self.mask_stats.record_own(drawn.own)
        lengths = [len(tokens) for group in drawn.own for tokens in group.completions]
        self._longest = max([self._longest, *lengths])
        self.tokens += count_completion_tokens(drawn.own)
        for group in drawn.own:
            self._publication.add(group)

    def make_rollouts(self) -> Rollouts:
        """The rollouts to publish, from the groups so far."""
        place, chosen = self.place, self._publication.choose_groups()
        return Rollouts(
            VERSION, self.swarm, place.peer, place.round, place.stage, tuple(map(self._encode_group, chosen))
        )

    def describe_published(self) -> list[ScoredGroup]:
        """The published groups with their texts, truth and rewards."""
        place = (self.place.peer, self.place.round, self.place.stage)
        chosen = self._publication.choose_groups()
        return [make_scored_group(self.plan, group.question, *place, group.scores, group.steps) for group in chosen]

    def _encode_group(self, group: TrainingGroup) -> Group:
        stops = self.policy.stop_ids
        cut = tuple(place for place, tokens in enumerate(group.completions) if tokens[-1] not in stops)
        reference = group.question.reference
        where = (reference.task, reference.config_digest, reference.seed, reference.index)
        return Group(*where, tuple(group.texts), cut, reference.sources, tuple(group.turns))


def cut_group(group: TrainingGroup, tokens_max: int) -> TrainingGroup:
    """Cut each completion to `tokens_max` tokens, but not before the number that the truth vouches for; rewards
    stay."""
    if max(map(len, group.completions)) <= tokens_max:
        return group
    limits = [max(tokens_max, sum(trusted)) for trusted in group.trusted_mask]
    return msgspec.structs.replace(
        group,
        completions=[tokens[:limit] for tokens, limit in zip(group.completions, limits, strict=True)],
        own=[own[:limit] for own, limit in zip(group.own, limits, strict=True)],
        trusted_mask=[trusted[:limit] for trusted, limit in zip(group.trusted_mask, limits, strict=True)],
    )


def list_untrusted_masks(group: TrainingGroup) -> list[list[int]]:
    """1 for each untrusted token of a peer's completions; empty for own completions."""
    if not group.peer:
        return [[] for _ in group.completions]
    return [[1 - trusted for trusted in each] for each in group.trusted_mask]


def list_logps(group: TrainingGroup) -> Sequence[list[float]]:
    """Log-probabilities by which each completion was drawn; empty if they are the policy's own, or unknown."""
    return group.logps or [[] for _ in group.completions]


def filter_by_variance(groups: Sequence[TrainingGroup], flat: bool) -> list[TrainingGroup]:
    """The groups that are flat, or those that are not, in order."""
    return [group for group in groups if group.has_zero_variance == flat]


def is_solved(group: TrainingGroup) -> bool:
    """Whether at least one completion is right."""
    return any(score.accuracy >= CORRECT for score in group.scores)


def count_completion_tokens(groups: Sequence[TrainingGroup]) -> int:
    return sum(len(tokens) for group in groups for tokens in group.completions)


def count_drawn_tokens(groups: Sequence[TrainingGroup]) -> int:
    """Number of tokens that a model drew, without those that the swarm added."""
    return sum(sum(own) for group in groups for own in group.own)


def publish_rollouts(stage: Stage, blobs: BlobStore) -> tuple[RolloutsRef, bytes]:
    """Put a stage's rollouts into the blob store. Returns their reference and the body."""
    rollouts = stage.make_rollouts()
    body = encode_rollouts(rollouts)
    shared = len(decode_rollouts(body).groups)
    place = (rollouts.peer, rollouts.round, rollouts.stage)
    return RolloutsRef(*place, blobs.put(body), len(body), shared), body


def store_scored_groups(stage: Stage, collected: CollectedGroups, plan: Plan, blobs: BlobStore) -> str:
    """Put questions, expected answers and rewards into the blob store, for views. Returns the digest; a failure is only
    logged, and the digest is empty."""
    try:
        groups = [*stage.describe_published(), *interleave_peer_groups(plan, collected.judged.values())]
        return blobs.put(encode_scored_groups(groups))
    except FOREIGN_ERRORS:  # the plan's own code computes the truth
        log.warning("questions and rewards of this stage are not kept in words", exc_info=True)
        return ""


def progress_metrics(stage: Stage, done: int, steps: int, rest_s: float) -> dict[str, float]:
    """Metrics of a stage after `done` of its `steps`, at least one. `rest_s`: expected time from the last step to the
    stage's end."""
    return {
        "tokens_per_s": stage.tokens / max(stage.elapsed_seconds, 1e-6),
        ETA: stage.elapsed_seconds / done * (steps - done) + rest_s,
        "reward": stage.mean_reward,
        "step_reward": stage.last_step_reward,
        **{name: count for name, count in stage.metrics.stage.count_faults().items() if count},
    }


def step_metrics(stage: Stage) -> dict[str, float]:
    """Metrics of the last step that TRL does not log, under their names for trackers."""
    figures = stage.metrics.step.read_means() | {"tokens_per_s": stage.tokens / max(stage.elapsed_seconds, 1e-6)}
    return {f"step/{name}": value for name, value in figures.items()}


def stage_metrics(event: StageTrained, stage: StageStats, vram_bytes: int = 0) -> dict[str, float]:
    """Metrics of a finished stage, under their names for trackers. `vram_bytes`: peak memory of tensors on the
    accelerator; 0 without one."""
    figures = stage.read_means()
    figures |= {
        "round": float(event.round),
        "stage": float(event.stage),
        "seconds": event.seconds,
        "tokens": float(event.tokens),
        "tokens_per_s": event.tokens / max(event.seconds, 1e-6),
        "peer_groups": float(event.peer_groups),
        "refused_groups": float(sum(count for _, count in event.rejected)),
        "memory_gib": psutil.Process().memory_info().rss / GIB,
    }
    if vram_bytes:
        figures["vram_gib"] = vram_bytes / GIB
    for name in ("held_out", "held_out_before"):
        value = getattr(event, name)
        if value is not None:
            figures[name] = value
    return {f"stage/{name}": value for name, value in figures.items()}

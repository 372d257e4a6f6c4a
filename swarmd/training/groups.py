"""Groups to train on: this node's own, and those that peers published.

A peer's group is worth nothing by its own word: its questions are generated again, its completions tokenized and scored
here, and of each token it is noted whether the truth alone vouches for it (`vouch`). What a peer sends, and what the
plan raises over it, costs that group and nothing else.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from random import Random

import msgspec

from swarmd.bounds import INTEGER_MAX, fit
from swarmd.config import TrainingConfig
from swarmd.core.commands import Train
from swarmd.core.values import Judgement, RolloutsRef
from swarmd.errors import FOREIGN_ERRORS, RecordRejected, SwarmdError
from swarmd.logger import get_logger
from swarmd.swarms.plan import Material, Outcome, Plan, Question, Score, StageId, score_completions
from swarmd.swarms.rollouts import Group, Rollouts, check_origin, decode_rollouts
from swarmd.training.cancellation import BodyReader, Cancellation
from swarmd.training.footprint import is_device_lost, is_out_of_memory
from swarmd.training.models.model import Policy
from swarmd.training.plan_failures import find_failure, score_own, warn_of
from swarmd.training.progress import NoteSink
from swarmd.training.sampling import TurnCompletion, encode_turns

EXAMINED_MAX = 1024  # groups of one stage generated again and scored
CUTS_MAX = 16  # of what peers wrote in one question
FLAT_RANGE = 1e-6  # a group whose rewards lie within this teaches nothing

log = get_logger(__name__)


class TrainingGroup(msgspec.Struct, frozen=True):
    """One question with its completions, ready for the trainer."""

    question: Question
    prompt: list[int]
    completions: list[list[int]]
    texts: list[str]
    rewards: list[float]
    scores: Sequence[Score]
    own: list[list[int]]  # for each token, whether a model wrote it (1) or the swarm put it there (0)
    peer: str = ""  # who wrote the completions; empty for this node
    sure: Sequence[list[int]] = ()  # peers': for each token, whether the truth alone vouches for it (1) or not (0)
    round: int = 0  # in which the completions were drawn
    logps: Sequence[list[float]] = ()  # own: of each token, by which it was drawn, as in `swarmd.training.sampling`

    @property
    def is_flat(self) -> bool:
        return max(self.rewards) - min(self.rewards) <= FLAT_RANGE


class Scorer:
    """Rewards of completions, by the plan."""

    note: NoteSink = staticmethod(lambda words: None)

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.failures: Counter[str] = Counter()  # tasks whose scorer raised
        self._raised: BaseException | None = None  # over own completions, since this was told last

    def score(self, question: Question, texts: Sequence[str]) -> tuple[Score, ...]:
        """Scores of completions to one question; a reward that is no number counts as 0 and as a failure.

        Raises:
            SwarmError: the plan gave something else than a score for each completion.
        """
        return self._count(question, score_completions(self._plan, question, texts))

    def _count(self, question: Question, scores: tuple[Score, ...]) -> tuple[Score, ...]:
        self.failures[question.task] += sum(score.failed for score in scores)
        return scores

    def report(self) -> None:
        """Tell of what failed since the last report, once for all of it."""
        failed = {task: count for task, count in self.failures.items() if count}
        words = "scorers failed, the completions count as wrong"
        if self._raised is not None:
            warn_of(self._plan, self._raised, words, failures=failed)
        elif failed:
            log.warning(words, failures=failed)
        self.failures.clear()
        self._raised = None

    def make_group(
        self, question: Question, prompt: list[int], drawn: Sequence[TurnCompletion], round: int = 0
    ) -> TrainingGroup:
        """This node's own completions of a round, scored; those over which the plan raises count as failed."""
        self.note("scoring completions")
        texts = [each.text for each in drawn]
        scores, raised = score_own(self._plan, question, texts)
        self._count(question, scores)
        self._raised = self._raised or raised
        return TrainingGroup(
            question,
            prompt,
            [each.tokens for each in drawn],
            texts,
            [score.reward for score in scores],
            scores,
            [each.own for each in drawn],
            round=round,
            logps=[each.logps for each in drawn],
        )


class Collected(msgspec.Struct):
    """What came of the rollouts that a command names."""

    groups: list[TrainingGroup] = msgspec.field(default_factory=list)  # peers', informative, in seeded random order
    material: Material = msgspec.field(default_factory=Material)
    rejected: Counter[str] = msgspec.field(default_factory=Counter)  # groups refused anew, by reason
    judged: dict[str, list[Outcome]] = msgspec.field(default_factory=dict)  # peers' of the preceding stage


class PeerGroups:
    """Published groups: read, checked, generated again and scored, stage by stage, as later ones may build on them."""

    def __init__(
        self, swarm: str, training: TrainingConfig, policy: Policy, plan: Plan, scorer: Scorer, own: str
    ) -> None:
        self._swarm = swarm
        self._training = training
        self._groups_max = max(training.share_groups, 1)  # of one peer trained on in one stage
        self._policy = policy
        self._plan = plan
        self._scorer = scorer
        self._own = own  # peer id

    def collect(self, order: Train, read: BodyReader, seed: int, cancellation: Cancellation) -> Collected:
        """Informative groups of peers to train on, the material for questions that build on earlier stages, and how
        many groups were refused. A refusal counts once: what is only context was looked at when it was gathered.

        Args:
            order: whose `rollouts` and `context` are read.
            read: the body under a digest; raises SwarmdError when it is missing or damaged.
        """
        collected = Collected()
        taken: Counter[str] = Counter()
        fresh = frozenset(order.rollouts)
        recent = {(ref.peer, ref.round, ref.stage) for ref in fresh if ref.peer != self._own}
        self._plan.expect(sorted({peer for peer, _, _ in recent}))
        for _, offers in sorted(self._offers(order, read, collected).items()):
            Random(seed).shuffle(offers)
            for ref, group in choose_offers(offers, EXAMINED_MAX):
                cancellation.check()
                preceding = (ref.peer, ref.round, ref.stage) in recent and taken[ref.peer] < self._groups_max
                if not preceding and self._plan.stages == 1:
                    continue
                try:
                    regenerated = self._take(ref, group, preceding, collected)
                except RecordRejected as error:
                    if error.reason == "plan" and not collected.rejected["plan"]:  # once in a stage is enough
                        log.warning(error.message, exc_info=error.__cause__)
                    if ref in fresh:
                        collected.rejected[error.reason] += 1
                    continue
                cancellation.check()  # what a plan gives of a stage that was cancelled is not what it would give
                if regenerated is not None and not regenerated.is_flat:
                    taken[ref.peer] += 1
                    collected.groups.append(regenerated)
        return collected

    def _offers(
        self, order: Train, read: BodyReader, collected: Collected
    ) -> Mapping[tuple[int, int], list[tuple[RolloutsRef, Group]]]:
        """Groups by (round, stage), each place of each peer once; this node's own only where questions build on it."""
        seen, rejected = set(), collected.rejected
        offers: dict[tuple[int, int], list[tuple[RolloutsRef, Group]]] = defaultdict(list)
        for ref in (*order.rollouts, *order.context):
            place = (ref.peer, ref.round, ref.stage)
            if place in seen or (ref.peer == self._own and self._plan.stages == 1):
                continue
            seen.add(place)
            try:
                rollouts = self._read(ref, order, read)
            except RecordRejected as error:
                if ref in order.rollouts:
                    rejected[error.reason] = fit(rejected[error.reason] + max(ref.groups, 1), INTEGER_MAX)
                continue
            offers[ref.round, ref.stage] += [(ref, group) for group in rollouts.groups]
        return offers

    def _read(self, ref: RolloutsRef, order: Train, read: BodyReader) -> Rollouts:
        if (ref.round, ref.stage) >= (order.round, order.stage):
            raise RecordRejected("future", f"rollouts of round {ref.round} reached round {order.round}")
        if ref.round < order.round - self._training.staleness_rounds:
            raise RecordRejected("stale", f"rollouts of round {ref.round} reached round {order.round}")
        try:
            body = read(ref.digest)
        except RecordRejected:
            raise
        except SwarmdError as error:
            raise RecordRejected("missing", f"the rollouts of {ref.peer} are not here: {error}") from error
        rollouts = decode_rollouts(body)
        check_origin(rollouts, ref, self._swarm)
        return rollouts

    def _take(self, ref: RolloutsRef, group: Group, preceding: bool, collected: Collected) -> TrainingGroup | None:
        """Score the group under this node's own question and truth: for the material, and for the vote where it is of
        the preceding stage. Such a one is trained on, too, if it has the size."""
        if len(group.completions) != self._training.generations:
            raise RecordRejected("group-size", f"{ref.peer} sent a group of {len(group.completions)}")
        question, drawn, scores, sure = self._understand(ref, group, collected.material)
        texts = [each.text for each in drawn]
        outcome = Outcome(StageId(ref.peer, ref.round, ref.stage), question, tuple(texts), scores)
        if self._plan.stages > 1:
            collected.material.add(outcome)
        if preceding:
            collected.judged.setdefault(ref.peer, []).append(outcome)
        if not preceding or not self._training.peer_questions:  # without places, peers' groups are material alone
            return None
        with self._at_the_cost_of_the_group(ref):
            question, prompt = fit_prompt(self._plan, self._policy, question, self._training.prompt_tokens)
        if len(prompt) > self._training.prompt_tokens:
            raise RecordRejected("prompt-length", f"a question of {ref.peer} has {len(prompt)} tokens here")
        rewards = [score.reward for score in scores]
        tokens, own = [each.tokens for each in drawn], [each.own for each in drawn]
        return TrainingGroup(question, prompt, tokens, texts, rewards, scores, own, ref.peer, sure, ref.round)

    def _understand(
        self, ref: RolloutsRef, group: Group, material: Material
    ) -> tuple[Question, list[TurnCompletion], tuple[Score, ...], list[list[int]]]:
        """Question, completions and scores as this node has them, and which tokens the truth vouches for."""
        with self._at_the_cost_of_the_group(ref):
            question = self._plan.regenerate(group.reference, StageId(ref.peer, ref.round, ref.stage), material)
            drawn = [self._encode(ref, group, index) for index in range(len(group.completions))]
            spans = [self._plan.true_spans(question, each.text) for each in drawn]
            sure = [vouch(self._policy, each.text, each.tokens, at) for each, at in zip(drawn, spans, strict=True)]
            return question, drawn, self._scorer.score(question, [each.text for each in drawn]), sure

    @contextlib.contextmanager
    def _at_the_cost_of_the_group(self, ref: RolloutsRef) -> Iterator[None]:
        """What a plan raises over a peer's group costs that group only: else one peer's text could end the stage on
        every node. The end of memory, or of the accelerator, is nobody's group. Raises RecordRejected("plan").
        """
        try:
            yield
        except RecordRejected:
            raise
        except FOREIGN_ERRORS as error:
            if is_out_of_memory(error) or is_device_lost(error):
                raise
            told = find_failure(self._plan, error) or type(error).__name__
            raise RecordRejected("plan", f"the plan failed at a group of {ref.peer}: {told}") from error

    def _encode(self, ref: RolloutsRef, group: Group, index: int) -> TurnCompletion:
        """One completion in this node's tokens; what does not fit is scored as it is trained on."""
        text, limit = group.completions[index], self._training.completion_tokens
        tokens, own = encode_turns(self._plan, self._policy, text, index in group.cut, limit)
        if not tokens:
            raise RecordRejected("empty", f"{ref.peer} sent an empty completion")
        if tokens[-1] != self._policy.tokenizer.eos_token_id:
            text = self._policy.decode_completion(tokens)
        return TurnCompletion(tokens, own, text)


Offer = tuple[RolloutsRef, Group]


def choose_offers(offers: Sequence[Offer], count: int) -> Sequence[Offer]:
    """At most `count` of them: where there are more, of each peer in turn, so that many groups crowd nobody out."""
    if len(offers) <= count:
        return offers
    seen: Counter[str] = Counter()
    turns = []
    for offer in offers:
        turns.append((seen[offer[0].peer], offer))
        seen[offer[0].peer] += 1
    return [offer for _, offer in sorted(turns, key=lambda turn: turn[0])[:count]]


def fit_prompt(plan: Plan, policy: Policy, question: Question, tokens_max: int) -> tuple[Question, list[int]]:
    """The question with its prompt, what peers wrote in it cut as short as it takes; it may be too long even so."""
    prompt = policy.encode_prompt(question.messages)
    for _ in range(CUTS_MAX):
        shorter = plan.shorten(question) if len(prompt) > tokens_max else None
        if shorter is None:
            break
        question, prompt = shorter, policy.encode_prompt(shorter.messages)
    return question, prompt


def judge_peers(plan: Plan, judged: Mapping[str, Sequence[Outcome]]) -> tuple[Judgement, ...]:
    """What the peers' rollouts of the preceding stage count for in a vote; nothing where the plan cannot say."""
    judgements = []
    for peer, outcomes in sorted(judged.items()):
        try:
            worth = float(plan.judge(outcomes))
        except FOREIGN_ERRORS:
            log.warning("the plan failed to judge a peer, which gets no vote", peer=peer, exc_info=True)
            continue
        if math.isfinite(worth):
            judgements.append(Judgement(peer, worth))
    return tuple(judgements)


def vouch(policy: Policy, text: str, tokens: Sequence[int], spans: Sequence[tuple[int, int]]) -> list[int]:
    """For each token of a completion whether it stands in a span of true text (1) or not (0). Spans are in characters.

    A span counts only where whole tokens spell exactly its text: one that reaches over its edge would bring along what
    stands beside it. The end token counts where a span ends the text.
    """
    sure = [0] * len(tokens)
    offsets = measure_offsets(policy, text, tokens) if spans else []
    for begin, end in spans:
        inside = [place for place, (start, stop) in enumerate(offsets) if begin <= start < stop <= end]
        if not inside or policy.decode_completion(tokens[inside[0] : inside[-1] + 1]) != text[begin:end]:
            continue
        sure[inside[0] : inside[-1] + 1] = [1] * (inside[-1] + 1 - inside[0])
        if end == len(text) and inside[-1] + 2 == len(tokens) and tokens[-1] in policy.stop_ids:
            sure[-1] = 1
    return sure


def measure_offsets(policy: Policy, text: str, tokens: Sequence[int]) -> list[tuple[int, int]]:
    """Where each token stands in the text, in characters; none where the tokenizer cannot say, or says others."""
    if not policy.tokenizer.is_fast:
        return []
    encoded = policy.tokenizer(
        text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True, verbose=False
    )
    count = min(len(encoded["input_ids"]), len(tokens))
    if list(encoded["input_ids"][:count]) != list(tokens[:count]):
        return []
    return [(int(start), int(stop)) for start, stop in encoded["offset_mapping"][:count]]

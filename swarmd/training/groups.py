"""Groups to train on: this node's own, and those that peers published.

- A peer's claims about a group are ignored: its question is generated again, its completions are tokenized and scored
  here. A mask records for each token whether the truth alone vouches for it (`make_trusted_mask`).
- Bad data from a peer, and errors of the plan over them, cost that group and nothing else.
"""

import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import msgspec

from swarmd.bounds import INTEGER_MAX, clamp_integer
from swarmd.config import TrainingConfig
from swarmd.core.commands import Train
from swarmd.core.values import Judgement, RolloutsRef
from swarmd.errors import FOREIGN_ERRORS, RecordRejected, SwarmdError
from swarmd.logger import get_logger
from swarmd.swarms.conversation import ConversationPlan
from swarmd.swarms.plan import Material, Outcome, Plan, Question, Score, StageId, score_completions
from swarmd.swarms.rollouts import Group, Rollouts, check_origin, decode_rollouts
from swarmd.training.cancellation import BodyReader, Cancellation
from swarmd.training.footprint import is_device_lost, is_out_of_memory
from swarmd.training.models.model import Policy
from swarmd.training.plan_failures import find_failure, warn_of_failure
from swarmd.training.progress import NoteSink
from swarmd.training.sampling import TurnCompletion, encode_turns
from swarmd.training.stage_timer import StageTimer
from swarmd.training.turns import Replay, score_drawn

EXAMINED_MAX = 1024  # groups that are scored again in one stage
CUTS_MAX = 16  # times that peers' texts in one question are shortened
FLAT_RANGE = 1e-6  # a group is flat, and teaches nothing, if its rewards differ by no more

log = get_logger(__name__)


class TrainingGroup(msgspec.Struct, frozen=True):
    """One question with its completions, ready for the trainer."""

    question: Question
    prompt: list[int]
    completions: list[list[int]]
    texts: list[str]
    rewards: list[float]
    scores: Sequence[Score]
    own: list[list[int]]  # for each token, whether a model wrote it (1) or the swarm inserted it (0)
    peer: str = ""  # peer who wrote the completions; empty for this node
    trusted_mask: Sequence[list[int]] = ()  # peers' groups: for each token, whether the truth alone vouches for it (1)
    round: int = 0  # in which the completions were drawn
    logps: Sequence[
        list[float]
    ] = ()  # own: log-probability of each token when it was drawn, see `sampling.SampledTokens`
    steps: int = 0  # own groups: optimiser steps of the node's life before the completions were drawn
    turns: Sequence[tuple[int, ...]] = ()  # of conversations, see `swarmd.swarms.rollouts.Group.turns`

    @property
    def has_zero_variance(self) -> bool:
        return max(self.rewards) - min(self.rewards) <= FLAT_RANGE


class Scorer:
    """Scores completions by the plan, and counts failures of scorers."""

    note: NoteSink = staticmethod(lambda words: None)

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.timer = StageTimer()
        self.failures: Counter[str] = Counter()  # tasks whose scorer raised
        self._raised: BaseException | None = None  # first exception over own completions since the last report

    def score(self, question: Question, texts: Sequence[str]) -> tuple[Score, ...]:
        """Score completions of one question; a reward that is not a number becomes 0 and a failure. Raises SwarmError:
        the plan did not return one score for each completion."""
        with self.timer.time("score"):
            scores = score_completions(self._plan, question, texts)
        self.failures[question.task] += sum(score.failed for score in scores)
        return scores

    def log_failures(self) -> None:
        """Log the failures since the last report, if any."""
        failed = {task: count for task, count in self.failures.items() if count}
        words = "scorers failed, the completions count as wrong"
        if self._raised is not None:
            warn_of_failure(self._plan, self._raised, words, failures=failed)
        elif failed:
            log.warning(words, failures=failed)
        self.failures.clear()
        self._raised = None

    def make_group(
        self, question: Question, prompt: list[int], drawn: Sequence[TurnCompletion], round: int = 0, steps: int = 0
    ) -> TrainingGroup:
        """Score this node's own completions; those over which the plan raises count as failed."""
        self.note("scoring completions")
        texts = [each.text for each in drawn]
        with self.timer.time("score"):
            scores, raised = score_drawn(self._plan, question, drawn)
        self.failures[question.task] += sum(score.failed for score in scores)
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
            steps=steps,
            turns=[each.turns for each in drawn] if any(each.turns for each in drawn) else (),
        )


class CollectedGroups(msgspec.Struct):
    """The result of collecting the rollouts that a command names."""

    groups: list[TrainingGroup] = msgspec.field(default_factory=list)  # peers', informative, in seeded random order
    material: Material = msgspec.field(default_factory=Material)
    rejected: Counter[str] = msgspec.field(default_factory=Counter)  # groups refused for the first time, by reason
    judged: dict[str, list[Outcome]] = msgspec.field(default_factory=dict)  # of peers, in the preceding stage


@dataclass(eq=False)
class PeerGroupCollector:
    """Reads, checks and scores published groups, stage by stage, because later stages may build on earlier ones."""

    swarm: str
    training: TrainingConfig
    policy: Policy
    plan: Plan
    scorer: Scorer
    own: str  # this node's peer id
    _replay: Replay | None = None  # replays conversations

    def collect(self, order: Train, read: BodyReader, seed: int, cancellation: Cancellation) -> CollectedGroups:
        """Collect peers' informative groups, material for questions that build on earlier stages, and refusals.

        Refusals of groups that are only context are not counted again.

        Args:
            order: whose `rollouts` and `context` are read.
            read: returns the body for a digest; raises SwarmdError if it is missing or damaged.
        """
        collected = CollectedGroups()
        taken: Counter[str] = Counter()
        groups_max = max(self.training.share_groups, 1)  # trained on of one peer
        fresh = frozenset(order.rollouts)
        recent = {(ref.peer, ref.round, ref.stage) for ref in fresh if ref.peer != self.own}
        peers = sorted({peer for peer, _, _ in recent})
        self.plan.expect(peers)
        if isinstance(self.plan, ConversationPlan):
            limit = self.training.completion_tokens
            self._replay = Replay(self.plan, self.policy, limit, len(peers), cancellation.raise_if_requested)
        for _, offers in sorted(self._list_offers(order, read, collected).items()):
            Random(seed).shuffle(offers)
            for ref, group in choose_offers(offers, EXAMINED_MAX):
                cancellation.raise_if_requested()
                preceding = (ref.peer, ref.round, ref.stage) in recent and taken[ref.peer] < groups_max
                if not preceding and self.plan.stages == 1:
                    continue
                try:
                    regenerated = self._accept_group(ref, group, preceding, collected)
                except RecordRejected as error:
                    if error.reason == "plan" and not collected.rejected["plan"]:  # once per stage
                        log.warning(error.message, exc_info=error.__cause__)
                    if ref in fresh:
                        collected.rejected[error.reason] += 1
                    continue
                # in a cancelled stage a plan may return anything
                cancellation.raise_if_requested()
                if regenerated is not None and not regenerated.has_zero_variance:
                    taken[ref.peer] += 1
                    collected.groups.append(regenerated)
        return collected

    def _list_offers(
        self, order: Train, read: BodyReader, collected: CollectedGroups
    ) -> Mapping[tuple[int, int], list[tuple[RolloutsRef, Group]]]:
        """Groups by (round, stage), each peer's once; this node's own only if questions build on them."""
        seen, rejected = set(), collected.rejected
        offers: dict[tuple[int, int], list[tuple[RolloutsRef, Group]]] = defaultdict(list)
        for ref in (*order.rollouts, *order.context):
            place = (ref.peer, ref.round, ref.stage)
            if place in seen or (ref.peer == self.own and self.plan.stages == 1):
                continue
            seen.add(place)
            try:
                rollouts = self._read_rollouts(ref, order, read)
            except RecordRejected as error:
                if ref in order.rollouts:
                    rejected[error.reason] = clamp_integer(rejected[error.reason] + max(ref.groups, 1), INTEGER_MAX)
                continue
            offers[ref.round, ref.stage] += [(ref, group) for group in rollouts.groups]
        return offers

    def _read_rollouts(self, ref: RolloutsRef, order: Train, read: BodyReader) -> Rollouts:
        if (ref.round, ref.stage) >= (order.round, order.stage):
            raise RecordRejected("future", f"rollouts of round {ref.round} reached round {order.round}")
        if ref.round < order.round - self.training.staleness_rounds:
            raise RecordRejected("stale", f"rollouts of round {ref.round} reached round {order.round}")
        try:
            body = read(ref.digest)
        except RecordRejected:
            raise
        except SwarmdError as error:
            raise RecordRejected("missing", f"the rollouts of {ref.peer} are not here: {error}") from error
        rollouts = decode_rollouts(body)
        check_origin(rollouts, ref, self.swarm)
        return rollouts

    def _accept_group(
        self, ref: RolloutsRef, group: Group, preceding: bool, collected: CollectedGroups
    ) -> TrainingGroup | None:
        """Score a group under this node's own question and truth.

        It becomes material for later stages. If it is of the preceding stage, it counts for the vote and is returned
        for training.
        """
        if len(group.completions) != self.training.generations:
            raise RecordRejected("group-size", f"{ref.peer} sent a group of {len(group.completions)}")
        question, drawn, scores, trusted = self._regenerate_and_score(ref, group, collected.material)
        texts = [each.text for each in drawn]
        outcome = Outcome(StageId(ref.peer, ref.round, ref.stage), question, tuple(texts), scores)
        if self.plan.stages > 1:
            collected.material.add(outcome)
        if preceding:
            collected.judged.setdefault(ref.peer, []).append(outcome)
        if not preceding or not self.training.peer_questions:  # without slots, peers' groups are only material
            return None
        with self._refuse_group_on_plan_error(ref):
            question, prompt = fit_prompt(self.plan, self.policy, question, self.training.prompt_tokens)
        if len(prompt) > self.training.prompt_tokens:
            raise RecordRejected("prompt-length", f"a question of {ref.peer} has {len(prompt)} tokens here")
        rewards = [score.reward for score in scores]
        tokens, own = [each.tokens for each in drawn], [each.own for each in drawn]
        return TrainingGroup(question, prompt, tokens, texts, rewards, scores, own, ref.peer, trusted, ref.round)

    def _regenerate_and_score(
        self, ref: RolloutsRef, group: Group, material: Material
    ) -> tuple[Question, list[TurnCompletion], tuple[Score, ...], list[list[int]]]:
        """This node's own question, completions and scores for a peer's group, and the mask of tokens that the truth
        vouches for."""
        with self._refuse_group_on_plan_error(ref):
            question = self.plan.regenerate(group.reference, StageId(ref.peer, ref.round, ref.stage), material)
            if self._replay is not None:
                with self.scorer.timer.time("score"):
                    question, drawn, scores = self._replay.run_group(ref.peer, question, group)
                return question, drawn, scores, [[0] * len(each.tokens) for each in drawn]
            drawn = [self._encode_completion(ref, group, index) for index in range(len(group.completions))]
            spans = [self.plan.true_spans(question, each.text) for each in drawn]
            trusted = [
                make_trusted_mask(self.policy, each.text, each.tokens, at)
                for each, at in zip(drawn, spans, strict=True)
            ]
            return question, drawn, self.scorer.score(question, [each.text for each in drawn]), trusted

    @contextlib.contextmanager
    def _refuse_group_on_plan_error(self, ref: RolloutsRef) -> Iterator[None]:
        """Refuse the group if the plan raises over it; otherwise one peer's text could end the stage on every node.
        Errors of memory or the accelerator are not the group's fault. Raises RecordRejected("plan")."""
        try:
            yield
        except RecordRejected:
            raise
        except FOREIGN_ERRORS as error:
            if is_out_of_memory(error) or is_device_lost(error):
                raise
            told = find_failure(self.plan, error) or type(error).__name__
            raise RecordRejected("plan", f"the plan failed at a group of {ref.peer}: {told}") from error

    def _encode_completion(self, ref: RolloutsRef, group: Group, index: int) -> TurnCompletion:
        """Encode a completion in this node's tokens. One that is too long is cut before it is scored, as in
        training."""
        text, limit = group.completions[index], self.training.completion_tokens
        tokens, own = encode_turns(self.plan, self.policy, text, index in group.cut, limit)
        if not tokens:
            raise RecordRejected("empty", f"{ref.peer} sent an empty completion")
        if tokens[-1] != self.policy.tokenizer.eos_token_id:
            text = self.policy.decode_completion(tokens)
        return TurnCompletion(tokens, own, text)


Offer = tuple[RolloutsRef, Group]


def choose_offers(offers: Sequence[Offer], count: int) -> Sequence[Offer]:
    """Choose at most `count` offers. If there are more, peers take turns, so that nobody crowds out others with many
    groups."""
    if len(offers) <= count:
        return offers
    seen: Counter[str] = Counter()
    turns = []
    for offer in offers:
        turns.append((seen[offer[0].peer], offer))
        seen[offer[0].peer] += 1
    return [offer for _, offer in sorted(turns, key=lambda turn: turn[0])[:count]]


def fit_prompt(plan: Plan, policy: Policy, question: Question, tokens_max: int) -> tuple[Question, list[int]]:
    """Shorten peers' texts in a question until its prompt fits. Returns question and prompt, which may still be too
    long. Raises EnvironmentFailed if the prompt is an environment's, and the environment fails."""
    question = plan.complete_prompt(question)
    prompt = policy.encode_prompt(question.messages)
    for _ in range(CUTS_MAX):
        shorter = plan.shorten(question) if len(prompt) > tokens_max else None
        if shorter is None:
            break
        question, prompt = shorter, policy.encode_prompt(shorter.messages)
    return question, prompt


def judge_peers(plan: Plan, judged: Mapping[str, Sequence[Outcome]]) -> tuple[Judgement, ...]:
    """Rate each peer's rollouts of the preceding stage for the vote; peers on whom the plan fails are left out."""
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


def make_trusted_mask(policy: Policy, text: str, tokens: Sequence[int], spans: Sequence[tuple[int, int]]) -> list[int]:
    """For each token of a completion, whether it is in a span of true text (1) or not (0). Spans are in characters.

    A span counts only if whole tokens spell exactly its text: a token across its edge would include other text. The end
    token counts if a span ends the text.
    """
    trusted_mask = [0] * len(tokens)
    offsets = find_token_offsets(policy, text, tokens) if spans else []
    for begin, end in spans:
        inside = [place for place, (start, stop) in enumerate(offsets) if begin <= start < stop <= end]
        if not inside or policy.decode_completion(tokens[inside[0] : inside[-1] + 1]) != text[begin:end]:
            continue
        trusted_mask[inside[0] : inside[-1] + 1] = [1] * (inside[-1] + 1 - inside[0])
        if end == len(text) and inside[-1] + 2 == len(tokens) and tokens[-1] in policy.stop_ids:
            trusted_mask[-1] = 1
    return trusted_mask


def find_token_offsets(policy: Policy, text: str, tokens: Sequence[int]) -> list[tuple[int, int]]:
    """Start and end of each token in the text, in characters; empty if the tokenizer gives no offsets, or other
    tokens."""
    if not policy.tokenizer.is_fast:
        return []
    encoded = policy.tokenizer(
        text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True, verbose=False
    )
    count = min(len(encoded["input_ids"]), len(tokens))
    if list(encoded["input_ids"][:count]) != list(tokens[:count]):
        return []
    return [(int(start), int(stop)) for start, stop in encoded["offset_mapping"][:count]]

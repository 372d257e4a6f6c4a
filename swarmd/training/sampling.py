"""Completions: tokens drawn from the model, in turns with the swarm.

`Sampler` computes a prompt once for its whole group. The prompts of a batch are padded on the left and run through the
model once; the key-value cache is then repeated for the completions of each prompt, and one token is drawn at a time.
Models whose cache does not allow this use transformers' own `generate`. The caller may cancel between any two tokens.
vLLM draws behind the same interface (`swarmd.training.vllm_sampler`). vLLM, or a copy in bfloat16
(`swarmd.training.drawing_copy`), computes in other dtypes than training does; so it returns the log-probabilities by
which it drew, and the loss corrects for the difference (`swarmd.training.masking.weight_by_importance_ratio`).

`TurnSampler` lets the swarm answer. A plan whose models use tools names the texts at which generation pauses
(`Plan.stops`); what `Plan.react` appends is part of the completion, but none of its tokens is trained on.
Conversations, in which a turn of the model is a whole message, are in `swarmd.training.turns`.
"""

import abc
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import torch
from torch.nn.functional import pad
from transformers import DynamicCache, StoppingCriteria, StoppingCriteriaList
from transformers.cache_utils import DynamicLayer

from swarmd.logger import get_logger
from swarmd.swarms.plan import Plan, Question, Score
from swarmd.training.cancellation import Cancellation, TokenDecoder
from swarmd.training.drawing_copy import SamplingCopy
from swarmd.training.footprint import is_out_of_memory, release_memory
from swarmd.training.models.device import synchronize
from swarmd.training.models.model import Policy
from swarmd.training.plan_failures import is_plan_failure, warn_of_failure
from swarmd.training.progress import NoteSink
from swarmd.training.stage_timer import TAIL_SHARE, StageTimer
from swarmd.training.token_counter import TokenCounter

TURNS_MAX = 16  # answers of the swarm in one completion
REACTIONS_AT_ONCE = 2  # calls of the plan's `react`, which may run programs, in parallel
POLL_S = 0.2  # how often the cancellation is checked while they run
CACHE_TOLERANCE = 2e-2  # largest difference of log-probabilities between cached and uncached computation
SHORT_TOLERANCE = 0.5  # the same for models in bfloat16 or float16
NEUTRAL: dict[str, Any] = {  # settings of `generate` in a model's files that would change the distribution
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "sequence_bias")),
    **dict.fromkeys(("min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff", "guidance_scale", "penalty_alpha")),
    **dict.fromkeys(("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id")),
    **dict.fromkeys(("forced_eos_token_id", "exponential_decay_length_penalty", "min_length", "min_new_tokens")),
    **dict.fromkeys(("watermarking_config", "dola_layers", "prompt_lookup_num_tokens", "stop_strings", "max_time")),
    "num_beams": 1,
}

log = get_logger(__name__)


class SampledTokens(msgspec.Struct):
    """The tokens of a completion."""

    tokens: list[int]
    logps: list[float] = []  # of each token when it was drawn, at the temperature, in nats; empty: the policy's own


class SamplingRequest(NamedTuple):
    """The arguments of `BaseSampler.sample`."""

    prompts: Sequence[Sequence[int]]
    group: int
    tokens_max: int
    temperature: float
    generator: torch.Generator
    cancellation: Cancellation
    stops: tuple[str, ...]
    rooms: Sequence[int]  # token limit of each prompt's completions; `tokens_max` is the largest

    @property
    def row_count(self) -> int:
        """Number of completions."""
        return len(self.prompts) * self.group

    def halve(self) -> "tuple[SamplingRequest, SamplingRequest]":
        """Split into two requests for the same completions in the same order; there must be at least two
        completions."""
        half = len(self.prompts) // 2
        if half:
            return self._slice(slice(half)), self._slice(slice(half, None))
        half = self.group // 2
        return self._replace(group=half), self._replace(group=self.group - half)

    def _slice(self, some: slice) -> "SamplingRequest":
        rooms = self.rooms[some]
        return self._replace(prompts=self.prompts[some], rooms=rooms, tokens_max=max(rooms))


class BaseSampler(abc.ABC):
    """Draws completions. `stop_ids`: token ids that end a completion; the id stays in it, so that the model learns to
    end. `decode`: turns token ids into text."""

    note: NoteSink = staticmethod(lambda words: None)  # called with the progress of a batch
    timer = StageTimer()  # replaced by the engine's own
    tokens: TokenCounter | None = None  # counts drawn tokens
    _copy: SamplingCopy | None = None  # the copy of the policy to draw from, if there is one
    _is_frozen = False

    def __init__(self, stop_ids: Sequence[int], decode: TokenDecoder) -> None:
        self._stop_ids = sorted(set(stop_ids))
        self._decode = decode

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        group: int,
        tokens_max: int,
        temperature: float,
        generator: torch.Generator,
        cancellation: Cancellation,
        stops: tuple[str, ...] = (),
        rooms: Sequence[int] = (),
    ) -> list[SampledTokens]:
        """Draw `group` completions of each prompt, prompt by prompt.

        Each ends in a stop id or after one of the texts `stops`, or is cut at `tokens_max` tokens, or at the prompt's
        limit in `rooms` if that is given. No tokens beyond are drawn. Raises Cancelled (a BaseException) on
        cancellation.
        """
        if not self._is_frozen:
            self._update_weights(cancellation)
        bounds = [min(room, tokens_max) for room in rooms] or [tokens_max] * len(prompts)
        wanted = SamplingRequest(prompts, group, max(bounds), temperature, generator, cancellation, stops, bounds)
        with self.timer.time("decode"):
            return self._draw_completions(wanted)

    def _count_tokens(self, tokens: int) -> None:
        if self.tokens is not None:
            self.tokens.add(tokens)

    def _count_completions(self, drawn: list[SampledTokens]) -> list[SampledTokens]:
        """Count the tokens of finished completions, and return these."""
        self._count_tokens(sum(len(each.tokens) for each in drawn))
        return drawn

    def freeze(self, cancellation: Cancellation) -> None:
        """Draw with the present weights until `release`, even if the policy's change meanwhile."""
        self._update_weights(cancellation)
        self._is_frozen = True

    def release(self) -> None:
        """Free the memory that only drawing needs, until the next `sample`, and undo `freeze`."""
        self._is_frozen = False
        if self._copy is not None:
            self._copy.release()

    @property
    def can_freeze(self) -> bool:
        """Whether completions can be drawn while the policy is trained."""
        return False

    def _update_weights(self, cancellation: Cancellation) -> None:
        """Make later draws use the policy's present weights."""
        if self._copy is not None:
            with self.timer.time("sync"):
                self._copy.refresh()

    @abc.abstractmethod
    def _draw_completions(self, wanted: SamplingRequest) -> list[SampledTokens]:
        """Draw completions, as `sample`."""

    def _draw_to_smallest_bound(
        self, draw: Callable[[SamplingRequest], list[SampledTokens]], wanted: SamplingRequest
    ) -> list[SampledTokens]:
        """Draw with a function that takes only one token limit: up to the smallest, then on with the rows that are
        left."""
        if len(set(wanted.rooms)) == 1:
            return draw(wanted)
        prompts = [list(prompt) for prompt in wanted.prompts for _ in range(wanted.group)]
        rooms = [room for room in wanted.rooms for _ in range(wanted.group)]
        drawn = [SampledTokens([], []) for _ in prompts]
        left = list(range(len(prompts)))
        while left:
            least = min(rooms[row] - len(drawn[row].tokens) for row in left)
            asked = [prompts[row] + drawn[row].tokens for row in left]
            given = draw(wanted._replace(prompts=asked, group=1, tokens_max=least, rooms=[least] * len(left)))
            going = []
            for row, more in zip(left, given, strict=True):
                begun = drawn[row].tokens
                whole = begun + more.tokens
                tokens, ended = self._cut_at_stop(whole, wanted.stops, len(begun))
                drawn[row] = SampledTokens(tokens, (drawn[row].logps + more.logps)[: len(tokens)])
                if not ended and more.tokens and len(whole) < rooms[row]:
                    going.append(row)
            left = going
        return drawn

    def _ends_with_stop(self, tokens: Sequence[int], stops: tuple[str, ...]) -> bool:
        """Whether the text of the last few tokens ends with one of `stops`."""
        return bool(stops) and self._decode(tokens[-max(map(len, stops)) - 1 :]).endswith(stops)

    def _cut_at_stop(self, tokens: list[int], stops: tuple[str, ...], begun: int = 0) -> tuple[list[int], bool]:
        """Cut tokens after the first stop id or text to pause at. Returns them, and whether there is one. `begun`:
        number of tokens already checked; a text to pause at may begin among them."""
        for end in range(begun + 1, len(tokens) + 1):
            if tokens[end - 1] in self._stop_ids or (stops and self._ends_with_stop(tokens[:end], stops)):
                return tokens[:end], True
        return tokens, False


class Sampler(BaseSampler):
    """Draws completions from a policy's model, which it puts in evaluation mode meanwhile. `copy`: a copy of the policy
    to draw from instead. `splits`: whether to draw in parts after memory ran out, which ranks with parts of one model
    cannot do: they wait for each other's passes."""

    def __init__(self, policy: Policy, splits: bool = True, copy: SamplingCopy | None = None) -> None:
        super().__init__(policy.stop_ids, policy.decode_completion)
        self._copy = copy
        self._tried = policy.model  # not the copy: in bfloat16 cached and uncached steps differ by rounding
        self._model = policy.model if copy is None else copy.model
        self._pad_id = policy.tokenizer.pad_token_id
        self._autocast = contextlib.nullcontext if copy is not None and copy.is_short else policy.autocast
        self._splits = splits
        self._rows_max = 0  # completions drawn at once; 0: no limit, memory has not run out yet
        self._shared: bool | None = None

    @property
    def can_share_prefill(self) -> bool:
        """Whether the model's cache can be repeated; tried once, on two short prompts of different length."""
        if self._shared is None:
            training = self._tried.training
            self._tried.eval()
            with torch.no_grad():
                self._shared = self._is_cache_exact()
            self._tried.train(training)
        return self._shared

    @property
    def can_freeze(self) -> bool:
        """Whether completions can be drawn while the policy is trained. Not by `generate`: it uses the random generator
        of the whole process, which threads would share in random order."""
        return self._copy is not None and self.can_share_prefill

    def _draw_completions(self, wanted: SamplingRequest) -> list[SampledTokens]:
        training = self._model.training
        self._model.eval()
        try:
            with torch.no_grad(), self._autocast():
                return self._draw_in_parts(wanted)
        finally:
            self._model.train(training)

    def _draw_in_parts(self, wanted: SamplingRequest) -> list[SampledTokens]:
        """Draw all at once while memory suffices; if it runs out, halve each part."""
        drawn: list[SampledTokens] = []
        left = [wanted]
        while left:
            part = left.pop()
            if 0 < self._rows_max < part.row_count:
                left += reversed(part.halve())
                continue
            begun, counted = wanted.generator.get_state(), self.tokens.drawn if self.tokens else 0
            try:
                drawn += self._draw_at_once(part)
                continue
            except Exception as error:
                if not self._splits or part.row_count == 1 or not is_out_of_memory(error):
                    raise
                self._rows_max = max(half.row_count for half in part.halve())
                log.warning("memory ran out: fewer completions at once from now on", rows=self._rows_max)
            if self.tokens is not None:
                self.tokens.discard(self.tokens.drawn - counted)
            release_memory()  # here, because the error held references until now
            wanted.generator.set_state(begun)
            left.append(part)
        return drawn

    def _draw_at_once(self, wanted: SamplingRequest) -> list[SampledTokens]:
        return (
            self._draw_sharing_prefill(wanted)
            if self.can_share_prefill
            else self._count_completions(self._draw_to_smallest_bound(self._draw_with_generate, wanted))
        )

    def _draw_sharing_prefill(self, wanted: SamplingRequest) -> list[SampledTokens]:
        self.note("reading the prompts")
        with self.timer.time("prefill"):
            batch = DecodingBatch(self._model, wanted.prompts, self._pad_id)
            batch.repeat_sequences(wanted.group)
            synchronize()
        drawn = [SampledTokens([], []) for _ in range(wanted.row_count)]
        few, tail_since = wanted.row_count // TAIL_SHARE, math.inf  # time since which few completions are left
        for number in range(wanted.tokens_max):
            wanted.cancellation.raise_if_requested()
            self.note(describe_drawing(number, wanted.tokens_max))
            tokens, logps = _draw_tokens(batch.logits, wanted.temperature, wanted.generator)
            self._count_tokens(len(batch.rows))
            if self._copy is not None:
                for row, logp in zip(batch.rows, logps.tolist(), strict=True):
                    drawn[row].logps.append(logp)
            going = []
            for row, token in zip(batch.rows, tokens.tolist(), strict=True):
                written = drawn[row].tokens
                written.append(token)
                full = len(written) == wanted.rooms[row // wanted.group]
                going.append(not (token in self._stop_ids or full or self._ends_with_stop(written, wanted.stops)))
            if sum(going) <= few:
                tail_since = min(tail_since, time.perf_counter())
            if not batch.append_tokens(going, tokens):
                break
        self.timer.add_straggler_s(max(0.0, time.perf_counter() - tail_since))
        return drawn

    def _draw_with_generate(self, wanted: SamplingRequest) -> list[SampledTokens]:
        stops, sampled = wanted.stops, wanted.temperature > 0
        ids, mask = pad_left(wanted.prompts, self._pad_id, self._model.device)
        pauses = (lambda tokens: self._ends_with_stop(tokens, stops)) if stops else None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(draw_seed(wanted.generator))
            output = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=wanted.tokens_max,
                do_sample=sampled,
                temperature=wanted.temperature or None,
                top_k=0 if sampled else None,
                top_p=1.0 if sampled else None,
                num_return_sequences=wanted.group,
                eos_token_id=self._stop_ids,
                pad_token_id=self._pad_id,
                stopping_criteria=StoppingCriteriaList([_GenerationMonitor(wanted, pauses, ids.shape[1], self.note)]),
                **NEUTRAL,
            )
        # `generate` ends rows one by one, but pads them to equal length.
        return [SampledTokens(self._cut_at_stop(row, stops)[0]) for row in output[:, ids.shape[1] :].tolist()]

    def _is_cache_exact(self) -> bool:
        """Whether two cached steps agree with the plain forward pass."""
        prompts = [[self._pad_id + 1, self._pad_id + 2, self._pad_id + 3], [self._pad_id + 4]]
        model, device = self._tried, self._tried.device
        limit = model.get_input_embeddings().num_embeddings
        prompts = [[token % limit for token in prompt] for prompt in prompts]
        try:
            batch = DecodingBatch(model, prompts, self._pad_id)
            batch.repeat_sequences(2)
            tokens = torch.tensor([7, 8, 9, 10], device=device) % limit
            batch.append_tokens([True] * 4, tokens)
            cached = torch.log_softmax(batch.logits.float(), -1)
            whole = [prompts[row // 2] + [int(token)] for row, token in enumerate(tokens)]
            plain = [model(input_ids=torch.tensor([ids], device=device)).logits[0, -1] for ids in whole]
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            return False
        difference = (cached - torch.log_softmax(torch.stack(plain).float(), -1)).abs().max()
        return bool(difference < (CACHE_TOLERANCE if model.dtype == torch.float32 else SHORT_TOLERANCE))


class DecodingBatch:
    """Sequences being extended: their cache, mask, and logits of the next token."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], pad_id: int) -> None:
        self._model = model
        ids, self._mask = pad_left(prompts, pad_id, model.device)
        self._cache = DynamicCache(config=model.config)
        positions = (self._mask.cumsum(1) - 1).clamp(min=0)
        self.logits = self._forward(ids, positions)
        self._next = self._mask.sum(1)
        self.rows = list(range(len(prompts)))  # index of each sequence in the caller's list

    def repeat_sequences(self, group: int | torch.Tensor) -> None:
        """Repeat each sequence `group` times; a tensor has one number for each."""
        if isinstance(group, torch.Tensor) or group > 1:
            repeats: Any = group
            self._cache.batch_repeat_interleave(repeats)
            self.logits = self.logits.repeat_interleave(repeats, 0)
            self._mask = self._mask.repeat_interleave(repeats, 0)
            self._next = self._next.repeat_interleave(repeats, 0)
        self.rows = list(range(len(self.logits)))

    @property
    def is_joinable(self) -> bool:
        """Whether `join` and `trim` work: each layer of the cache holds the states of all tokens, and nothing else."""
        return all(type(layer) is DynamicLayer for layer in self._cache.layers)

    def join(self, other: "DecodingBatch") -> None:
        """Append the sequences of another batch; the shorter ones are padded."""
        both, width = (self, other), max(self._mask.size(1), other._mask.size(1))
        for mine, theirs in zip(self._cache.layers, other._cache.layers, strict=True):
            for name in ("keys", "values"):
                states = [getattr(layer, name) for layer in (mine, theirs)]
                setattr(mine, name, torch.cat([pad(each, (0, 0, width - each.size(-2), 0)) for each in states]))
        self._mask = torch.cat([pad(each._mask, (width - each._mask.size(1), 0)) for each in both])
        self._next = torch.cat([each._next for each in both])
        self.logits = torch.cat([each.logits for each in both])
        self.rows = list(range(len(self.logits)))

    def trim(self) -> None:
        """Drop columns that are padding in every sequence, as they are after the longest has ended."""
        unused = int(self._mask.argmax(1).min())
        if unused:
            self._mask = self._mask[:, unused:]
            layers: list[Any] = self._cache.layers
            for layer in layers:
                layer.keys, layer.values = layer.keys[:, :, unused:], layer.values[:, :, unused:]

    def append_tokens(self, still: Sequence[bool], tokens: torch.Tensor) -> bool:
        """Append a token to each sequence and drop finished ones; returns False if none is left."""
        kept = [place for place, goes_on in enumerate(still) if goes_on]
        if not kept:
            return False
        if len(kept) < len(self.rows):
            index = torch.tensor(kept, device=tokens.device)
            self._cache.batch_select_indices(index)
            self._mask, self._next, tokens = self._mask[index], self._next[index], tokens[index]
            self.rows = [self.rows[place] for place in kept]
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self.rows), 1)], 1)
        self.logits = self._forward(tokens[:, None], self._next[:, None])
        self._next = self._next + 1
        return True

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        # An index copies the last states. With a slice they stay a view into those of all tokens, for which torch's
        # linear layer copies the whole output layer for each sequence.
        last = torch.tensor([-1], device=ids.device)
        output = self._model(
            input_ids=ids,
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=last,
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits


class _GenerationMonitor(StoppingCriteria):
    """Checks for cancellation between tokens of `generate`, reports progress, and ends rows that pause."""

    def __init__(
        self,
        wanted: SamplingRequest,
        pauses: Callable[[Sequence[int]], bool] | None,
        prompt: int,
        note: NoteSink,
    ) -> None:
        self._wanted = wanted
        self._pauses = pauses
        self._prompt = prompt  # number of prompt columns
        self._note = note

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        self._wanted.cancellation.raise_if_requested()
        self._note(describe_drawing(input_ids.shape[1] - self._prompt, self._wanted.tokens_max))
        if self._pauses is None:
            return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        paused = [self._pauses(row) for row in input_ids[:, self._prompt :].tolist()]
        return torch.tensor(paused, dtype=torch.bool, device=input_ids.device)


def describe_drawing(done: int, total: int) -> str:
    """Progress of a batch, in words."""
    return f"drawing {done} of {total} tokens"


def draw_seed(generator: torch.Generator) -> int:
    """Draw a seed for code that does not take a generator."""
    return int(torch.randint(2**31, (1,), generator=generator, device=generator.device))


def pad_left(sequences: Sequence[Sequence[int]], pad_id: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids (batch, longest) and their mask, padded on the left."""
    longest = max(map(len, sequences))
    ids = [[pad_id] * (longest - len(sequence)) + list(sequence) for sequence in sequences]
    mask = [[0] * (longest - len(sequence)) + [1] * len(sequence) for sequence in sequences]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def _draw_tokens(
    logits: torch.Tensor, temperature: float, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token for each row (rows,); at temperature 0 the likeliest. Returns tokens and log-probabilities. Raises
    ArithmeticError if logits are not finite.

    torch's multinomial draws a random number for every token of the vocabulary, which on a CPU takes an eighth of a
    small model's time. So on a CPU one number for each row is looked up in the cumulative sums of the weights.
    """
    if temperature == 0:
        return logits.argmax(-1), logits.new_zeros(len(logits))
    weights = torch.softmax(logits.float() / temperature, -1)
    if weights.device.type == "cpu":
        tokens = pick_tokens(weights, torch.rand(len(weights), generator=generator, dtype=torch.float64))
    else:
        tokens = torch.multinomial(weights, 1, generator=generator).squeeze(1)
    return tokens, weights.gather(1, tokens[:, None]).log().squeeze(1)


def pick_tokens(weights: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """The token of each row (rows,) at which the cumulative sum of its weights (rows, vocabulary) passes a point.
    `points`: (rows,) in float64, uniform between 0 and 1. Raises ArithmeticError if weights are not finite."""
    sums = weights.cumsum(-1, dtype=torch.float64)
    if not sums[:, -1].isfinite().all():
        raise ArithmeticError("the model's logits are not finite numbers")
    found = torch.searchsorted(sums, points[:, None] * sums[:, -1:], right=True)
    return found.clamp(max=sums.size(1) - 1).squeeze(1)


class TurnCompletion(msgspec.Struct):
    """One completion. `own` is 1 for each token that the model drew, and 0 for those that the swarm added."""

    tokens: list[int]
    own: list[int]
    text: str
    logps: list[float] = []  # as in `SampledTokens`; 0 for tokens that the swarm added
    turns: tuple[int, ...] = ()  # of a conversation: see `swarmd.swarms.rollouts.Group.turns`
    score: Score | None = None  # of a conversation, from its environment


@dataclass(eq=False)
class TurnSampler:
    """Draws completions for one plan."""

    plan: Plan  # says where generation pauses and what follows
    policy: Policy
    sampler: BaseSampler
    tokens_max: int  # of a completion, including what the swarm adds
    temperature: float

    def complete_questions(
        self,
        questions: Sequence[Question],
        prompts: Sequence[list[int]],
        group: int,
        generator: torch.Generator,
        cancellation: Cancellation,
    ) -> list[TurnCompletion]:
        """Draw `group` completions of each question, question by question. Raises Cancelled."""
        draw = self._make_draw(generator, cancellation)
        completions = [
            TurnCompletion(
                drawn.tokens, [1] * len(drawn.tokens), self.policy.decode_completion(drawn.tokens), drawn.logps
            )
            for drawn in draw(prompts, group)
        ]
        if not self.plan.stops:
            return completions
        asked = [(questions[place // group], prompts[place // group]) for place in range(len(completions))]
        paused = [place for place, drawn in enumerate(completions) if self._is_paused(drawn)]
        # Turn by turn, until each completion has ended or reached its limit.
        for _ in range(TURNS_MAX):
            cancellation.raise_if_requested()
            paused = self._append_reactions(
                [(asked[place][0], completions[place], place) for place in paused], cancellation
            )
            if not paused:
                break
            begun = [asked[place][1] + completions[place].tokens for place in paused]
            rooms = [self.tokens_max - len(completions[place].tokens) for place in paused]
            for place, more in zip(paused, draw(begun, 1, rooms), strict=True):
                self._append(completions[place], more, own=1)
            paused = [place for place in paused if self._is_paused(completions[place])]
        return completions

    def _make_draw(self, generator: torch.Generator, cancellation: Cancellation) -> Callable[..., list[SampledTokens]]:
        """A function of (prompts, group, rooms) that draws completions within this sampler's bounds."""

        def draw(prompts: Sequence[list[int]], group: int, rooms: Sequence[int] = ()) -> list[SampledTokens]:
            bounds = (self.tokens_max, self.temperature)
            return self.sampler.sample(prompts, group, *bounds, generator, cancellation, self.plan.stops, rooms)

        return draw

    def _append_reactions(
        self, paused: Sequence[tuple[Question, TurnCompletion, int]], cancellation: Cancellation
    ) -> list[int]:
        """Append the swarm's answers to paused completions. Returns the indices of those that can go on."""
        answers = self._compute_reactions([(question, drawn.text) for question, drawn, _ in paused], cancellation)
        going = []
        for (_, drawn, place), answer in zip(paused, answers, strict=True):
            if answer is None:
                continue
            room = self.tokens_max - len(drawn.tokens)
            tokens = self.policy.encode_completion(answer, True, room)
            self._append(drawn, SampledTokens(tokens, [0.0] * len(tokens) if drawn.logps else []), own=0)
            if len(drawn.tokens) < self.tokens_max:
                going.append(place)
        return going

    def _compute_reactions(
        self, paused: Sequence[tuple[Question, str]], cancellation: Cancellation
    ) -> list[str | None]:
        """Ask the plan for its answers. A cancellation does not wait for those still being computed."""
        pool = ThreadPoolExecutor(REACTIONS_AT_ONCE, thread_name_prefix="react")
        try:
            answers = [pool.submit(self.plan.react, question, text) for question, text in paused]
            left = set(answers)
            with self.sampler.timer.time("score"):
                while left:
                    cancellation.raise_if_requested()
                    left = wait(left, POLL_S).not_done
            return self._collect_reactions(answers)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _collect_reactions(self, answers: Sequence[Future[str | None]]) -> list[str | None]:
        """Collect the plan's answers; a completion over which it raised gets None, which ends it."""
        results, raised = [], None
        for answer in answers:
            error = answer.exception()
            if error is not None and not is_plan_failure(error):
                raise error
            results.append(answer.result() if error is None else None)
            raised = raised or error
        if raised is not None:
            warn_of_failure(self.plan, raised, "completions are not continued")
        return results

    def _is_paused(self, drawn: TurnCompletion) -> bool:
        full = len(drawn.tokens) >= self.tokens_max
        return not full and drawn.tokens[-1] not in self.policy.stop_ids and drawn.text.endswith(self.plan.stops)

    def _append(self, drawn: TurnCompletion, more: SampledTokens, own: int) -> None:
        room = self.tokens_max - len(drawn.tokens)
        drawn.tokens += more.tokens[:room]
        drawn.logps += more.logps[:room]
        drawn.own += [own] * len(more.tokens[:room])
        drawn.text = self.policy.decode_completion(drawn.tokens)


def encode_turns(plan: Plan, policy: Policy, text: str, cut: bool, tokens_max: int) -> tuple[list[int], list[int]]:
    """Encode a finished completion. Returns token ids and, for each, whether a model wrote it (1) or the swarm (0)."""
    tokens: list[int] = []
    own: list[int] = []
    start = 0
    spans = [*plan.foreign_spans(text), (len(text), len(text))]
    for place, (begin, end) in enumerate(spans):
        last = place + 1 == len(spans)
        ids = policy.encode_completion(text[start:begin], cut or not last, tokens_max - len(tokens))
        tokens, own = tokens + ids, own + [1] * len(ids)
        ids = policy.encode_completion(text[begin:end], True, tokens_max - len(tokens)) if begin < end else []
        tokens, own = tokens + ids, own + [0] * len(ids)
        start = end
    return tokens, own

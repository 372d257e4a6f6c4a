"""Completions, sampled with the prompt computed once for its whole group.

The prompts of a batch are padded on the left and run through the model once; the key-value cache is then repeated for
the completions of each prompt, and one token is drawn at a time. The caller may cancel between any two tokens. Models
whose cache does not allow this generate through transformers' own `generate`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache, StoppingCriteria, StoppingCriteriaList

from swarmd.logger import get_logger
from swarmd.training.cancellation import Cancellation, TokenDecoder
from swarmd.training.footprint import is_out_of_memory, release_memory

CACHE_TOLERANCE = 2e-2  # largest difference of log-probabilities between cached and uncached computation
SHORT_TOLERANCE = 0.5  # the same for models in bfloat16 or float16
NEUTRAL: dict[str, Any] = {  # a model's own settings of `generate` by which it would draw otherwise than it is trained
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "sequence_bias")),
    **dict.fromkeys(("min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff", "guidance_scale", "penalty_alpha")),
    **dict.fromkeys(("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id")),
    **dict.fromkeys(("forced_eos_token_id", "exponential_decay_length_penalty", "min_length", "min_new_tokens")),
    **dict.fromkeys(("watermarking_config", "dola_layers", "prompt_lookup_num_tokens", "stop_strings", "max_time")),
    "num_beams": 1,
}

log = get_logger(__name__)


class SamplingRequest(NamedTuple):
    """What `Sampling.sample` was asked for."""

    prompts: Sequence[Sequence[int]]
    group: int
    tokens_max: int
    temperature: float
    generator: torch.Generator
    cancellation: Cancellation
    stops: tuple[str, ...]
    rooms: Sequence[int]  # of each prompt, the tokens that its completions may have; `tokens_max` is the largest

    @property
    def rows(self) -> int:
        """Completions."""
        return len(self.prompts) * self.group

    def halve(self) -> tuple[SamplingRequest, SamplingRequest]:
        """Two requests for the same completions in the same order; there are two of them at least."""
        half = len(self.prompts) // 2
        if half:
            return self._of(slice(half)), self._of(slice(half, None))
        half = self.group // 2
        return self._replace(group=half), self._replace(group=self.group - half)

    def _of(self, some: slice) -> SamplingRequest:
        rooms = self.rooms[some]
        return self._replace(prompts=self.prompts[some], rooms=rooms, tokens_max=max(rooms))


class Sampling(abc.ABC):
    """What draws completions."""

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
    ) -> list[list[int]]:
        """`group` completions of each prompt, prompt by prompt: token ids ending in a stop id, behind one of the texts
        `stops`, or cut at `tokens_max`, or at the prompt's own number of `rooms` where they are given: never is more
        drawn.

        Raises Cancelled (a BaseException) when the cancellation is asked for.
        """
        bounds = [min(room, tokens_max) for room in rooms] or [tokens_max] * len(prompts)
        return self._draw(
            SamplingRequest(prompts, group, max(bounds), temperature, generator, cancellation, stops, bounds)
        )

    @abc.abstractmethod
    def _draw(self, wanted: SamplingRequest) -> list[list[int]]:
        """See `sample`."""


class Sampler(Sampling):
    """Draws completions from one model.

    Args:
        model: a causal language model; it is put into evaluation mode while it generates.
        stop_ids: token ids that end a completion; the id stays in the completion, so that ending is trained too.
        pad_id: id used for padding.
        autocast: context manager factory for the forward passes.
        decode: text of token ids, needed where generation pauses at texts.
        splits: where memory runs out, it draws in parts from then on. Not for ranks that each hold a part of the model:
            they all wait for each other's passes.
    """

    def __init__(
        self,
        model: Any,
        stop_ids: Sequence[int],
        pad_id: int,
        autocast: Callable[[], Any],
        decode: TokenDecoder | None = None,
        splits: bool = True,
    ) -> None:
        self._decode = decode
        self._splits = splits
        self._rows_max = 0  # completions at once; 0: no bound was met yet
        self._model = model
        self._stop_ids = torch.tensor(sorted(set(stop_ids)), device=model.device)
        self._pad_id = pad_id
        self._autocast = autocast
        self._shared: bool | None = None

    @property
    def shares_prefill(self) -> bool:
        """Whether the model's cache can be repeated; tried out once, on two short prompts of different length."""
        if self._shared is None:
            with torch.no_grad():
                self._shared = self._try_cache()
        return self._shared

    def _draw(self, wanted: SamplingRequest) -> list[list[int]]:
        training = self._model.training
        self._model.eval()
        try:
            with torch.no_grad(), self._autocast():
                return self._draw_in_parts(wanted)
        finally:
            self._model.train(training)

    def _draw_in_parts(self, wanted: SamplingRequest) -> list[list[int]]:
        """All at once as long as memory suffices; where it does not, each part is halved."""
        drawn: list[list[int]] = []
        left = [wanted]
        while left:
            part = left.pop()
            if 0 < self._rows_max < part.rows:
                left += reversed(part.halve())
                continue
            begun = wanted.generator.get_state()
            try:
                drawn += self._draw_at_once(part)
                continue
            except Exception as error:
                if not self._splits or part.rows == 1 or not is_out_of_memory(error):
                    raise
                self._rows_max = max(half.rows for half in part.halve())
                log.warning("memory ran out: fewer completions at once from now on", rows=self._rows_max)
            release_memory()  # only now: until here the error held on to it
            wanted.generator.set_state(begun)
            left.append(part)
        return drawn

    def _draw_at_once(self, wanted: SamplingRequest) -> list[list[int]]:
        if self.shares_prefill:
            return self._draw_shared(wanted)
        return draw_evenly(self._draw_plainly, wanted, self._stop_ids.tolist(), self._pauses)

    def _draw_shared(self, wanted: SamplingRequest) -> list[list[int]]:
        batch = DecodingBatch(self._model, wanted.prompts, self._pad_id)
        batch.repeat(wanted.group)
        drawn: list[list[int]] = [[] for _ in range(len(wanted.prompts) * wanted.group)]
        for _ in range(wanted.tokens_max):
            wanted.cancellation.check()
            tokens = _draw_tokens(batch.logits, wanted.temperature, wanted.generator)
            stopped = torch.isin(tokens, self._stop_ids).tolist()
            for place, (row, token) in enumerate(zip(batch.rows, tokens.tolist(), strict=True)):
                drawn[row].append(token)
                full = len(drawn[row]) == wanted.rooms[row // wanted.group]
                stopped[place] = stopped[place] or full or self._pauses(drawn[row], wanted.stops)
            if not batch.keep([not ended for ended in stopped], tokens):
                break
        return drawn

    def _draw_plainly(self, wanted: SamplingRequest) -> list[list[int]]:
        stops, sampled = wanted.stops, wanted.temperature > 0
        ids, mask = pad_left(wanted.prompts, self._pad_id, self._model.device)
        pauses = (lambda tokens: self._pauses(tokens, stops)) if stops else None
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
                eos_token_id=self._stop_ids.tolist(),
                pad_token_id=self._pad_id,
                stopping_criteria=StoppingCriteriaList([_Check(wanted.cancellation, pauses, ids.shape[1])]),
                **NEUTRAL,
            )
        drawn = [cut_at(row, self._stop_ids.tolist()) for row in output[:, ids.shape[1] :].tolist()]
        return [self._cut_at_pause(tokens, stops) for tokens in drawn] if stops else drawn

    def _pauses(self, tokens: Sequence[int], stops: tuple[str, ...]) -> bool:
        """Whether the text of the tokens ends with one of `stops`, as far as the last few tokens tell."""
        assert not stops or self._decode is not None, "a sampler that pauses at texts needs `decode`"
        return self._decode is not None and pauses(tokens, stops, self._decode)

    def _cut_at_pause(self, tokens: list[int], stops: tuple[str, ...]) -> list[int]:
        """The tokens up to the first pause; `generate` ends rows one by one, but pads them to one length."""
        ends = (end for end in range(1, len(tokens) + 1) if self._pauses(tokens[:end], stops))
        return tokens[: next(ends, len(tokens))]

    def _try_cache(self) -> bool:
        """Compare two cached steps with the plain forward pass."""
        prompts = [[self._pad_id + 1, self._pad_id + 2, self._pad_id + 3], [self._pad_id + 4]]
        limit = self._model.get_input_embeddings().num_embeddings
        prompts = [[token % limit for token in prompt] for prompt in prompts]
        try:
            batch = DecodingBatch(self._model, prompts, self._pad_id)
            batch.repeat(2)
            tokens = torch.tensor([7, 8, 9, 10], device=self._model.device) % limit
            batch.keep([True] * 4, tokens)
            cached = torch.log_softmax(batch.logits.float(), -1)
            whole = [prompts[row // 2] + [int(token)] for row, token in enumerate(tokens)]
            plain = [self._model(input_ids=torch.tensor([ids], device=tokens.device)).logits[0, -1] for ids in whole]
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            return False
        difference = (cached - torch.log_softmax(torch.stack(plain).float(), -1)).abs().max()
        return bool(difference < (CACHE_TOLERANCE if self._model.dtype == torch.float32 else SHORT_TOLERANCE))


class DecodingBatch:
    """Sequences that are being extended: their cache, their mask, and the logits of the next token."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], pad_id: int) -> None:
        self._model = model
        ids, self._mask = pad_left(prompts, pad_id, model.device)
        self._cache = DynamicCache(config=model.config)
        positions = (self._mask.cumsum(1) - 1).clamp(min=0)
        self.logits = self._forward(ids, positions)
        self._next = self._mask.sum(1)
        self.rows = list(range(len(prompts)))  # of each sequence, its place in the caller's list

    def repeat(self, group: int) -> None:
        """Make `group` sequences of each one."""
        if group > 1:
            self._cache.batch_repeat_interleave(group)
            self.logits = self.logits.repeat_interleave(group, 0)
            self._mask = self._mask.repeat_interleave(group, 0)
            self._next = self._next.repeat_interleave(group, 0)
        self.rows = list(range(len(self.rows) * group))

    def keep(self, still: Sequence[bool], tokens: torch.Tensor) -> bool:
        """Append a token to each sequence, leaving out finished ones; False when none is left."""
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
        output = self._model(
            input_ids=ids,
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits


class _Check(StoppingCriteria):
    """Lets `generate` be cancelled between tokens, and rows end where they pause."""

    def __init__(self, cancellation: Cancellation, pauses: Callable[[Sequence[int]], bool] | None, prompt: int) -> None:
        self._cancellation = cancellation
        self._pauses = pauses
        self._prompt = prompt  # its width

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        self._cancellation.check()
        if self._pauses is None:
            return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        paused = [self._pauses(row) for row in input_ids[:, self._prompt :].tolist()]
        return torch.tensor(paused, dtype=torch.bool, device=input_ids.device)


def pauses(tokens: Sequence[int], stops: tuple[str, ...], decode: TokenDecoder) -> bool:
    """Whether the text of the tokens ends with one of `stops`, as far as the last few tokens tell."""
    return bool(stops) and decode(tokens[-max(map(len, stops)) - 1 :]).endswith(stops)


def draw_evenly(
    draw: Callable[[SamplingRequest], list[list[int]]],
    wanted: SamplingRequest,
    stop_ids: Sequence[int],
    pauses: Callable[[Sequence[int], tuple[str, ...]], bool],
) -> list[list[int]]:
    """Draw with what knows one bound for all rows: as far as the row with the least room, then on with those left."""
    if len(set(wanted.rooms)) == 1:
        return draw(wanted)
    prompts = [list(prompt) for prompt in wanted.prompts for _ in range(wanted.group)]
    rooms = [room for room in wanted.rooms for _ in range(wanted.group)]
    drawn: list[list[int]] = [[] for _ in prompts]
    left = list(range(len(prompts)))
    while left:
        least = min(rooms[row] - len(drawn[row]) for row in left)
        bounds = [least] * len(left)
        asked = [prompts[row] + drawn[row] for row in left]
        given = draw(wanted._replace(prompts=asked, group=1, tokens_max=least, rooms=bounds))
        going = []
        for row, tokens in zip(left, given, strict=True):
            begun, whole = len(drawn[row]), drawn[row] + tokens
            ends = range(begun + 1, len(whole) + 1)  # a text to pause at may begin in what was drawn before
            over = (end for end in ends if whole[end - 1] in stop_ids or pauses(whole[:end], wanted.stops))
            end = next(over, None)
            drawn[row] = whole[:end]
            if end is None and tokens and len(whole) < rooms[row]:
                going.append(row)
        left = going
    return drawn


def draw_seed(generator: torch.Generator) -> int:
    """A seed for whatever does not take the generator itself."""
    return int(torch.randint(2**31, (1,), generator=generator, device=generator.device))


def pad_left(sequences: Sequence[Sequence[int]], pad_id: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids (batch, longest) and their mask, padded on the left."""
    longest = max(map(len, sequences))
    ids = [[pad_id] * (longest - len(sequence)) + list(sequence) for sequence in sequences]
    mask = [[0] * (longest - len(sequence)) + [1] * len(sequence) for sequence in sequences]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def cut_at(tokens: Sequence[int], stop_ids: Sequence[int]) -> list[int]:
    """The tokens up to and with the first stop id."""
    for place, token in enumerate(tokens):
        if token in stop_ids:
            return list(tokens[: place + 1])
    return list(tokens)


def _draw_tokens(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> torch.Tensor:
    """One token for each row; the likeliest at temperature 0. Raises ArithmeticError where logits are no numbers.

    torch's multinomial draws a random number for every token of the vocabulary, which on a CPU takes an eighth of all
    the time of a small model. There, one number for each row is looked up in the sums of the weights.
    """
    if temperature == 0:
        return logits.argmax(-1)
    weights = torch.softmax(logits.float() / temperature, -1)
    if weights.device.type != "cpu":
        return torch.multinomial(weights, 1, generator=generator).squeeze(1)
    sums = weights.cumsum(-1, dtype=torch.float64)
    if not sums[:, -1].isfinite().all():
        raise ArithmeticError("the model's logits are not finite numbers")
    points = torch.rand(len(sums), 1, generator=generator, dtype=torch.float64) * sums[:, -1:]
    return torch.searchsorted(sums, points, right=True).squeeze(1).clamp(max=sums.size(1) - 1)

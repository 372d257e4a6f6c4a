"""Decodes for many requests at once, on the cache of `swarmd.training.sampling.DecodingBatch`.

- Sequences join the batch between any two tokens and leave it when they end: no request waits for the end of another. A
  model whose cache cannot be joined (sliding windows, other states) starts new ones when the batch is done.
- Each request has its own temperature, top_p, seed and stops. Its tokens depend only on its seed and the model, apart
  from rounding, which depends on the rest of the batch.
- Log-probabilities are those of the model at temperature 1 before top_p, as vLLM reports them, from the weights and
  dtype that a trainer computes with.
- The sequences in the batch, the waiting requests, and the tokens in the cache are limited.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from swarmd.errors import ModelUnfit
from swarmd.logger import get_logger
from swarmd.training.cancellation import TokenDecoder
from swarmd.training.footprint import release_memory
from swarmd.training.models.memory import measure_device_memory, read_shape
from swarmd.training.models.model import Policy
from swarmd.training.sampling import DecodingBatch, Sampler, pick_tokens

SEQUENCES_MAX = 64  # in the batch
WAITING_MAX = 256  # requests not yet started
PREFILL_TOKENS_MAX = 8192  # of prompts in one pass, padding included; a single prompt may have more
SCORED_LOGITS_MAX = 1 << 28  # tokens x vocabulary of a scored prompt: 1 GiB in float32
CACHE_SHARE = 0.5  # share of the memory that is free besides the weights
CONTEXT_UNKNOWN = 8192  # context in tokens of a model that does not declare it
STOPPING = "the server is stopping"
INCOMPLETE = "\ufffd"  # character to which half a character's bytes decode

log = get_logger(__name__)
Likely = list[tuple[int, float]]  # token ids and their log-probabilities, likeliest first


class GenerationRequest(NamedTuple):
    """What to draw for a client's request.

    Attributes:
        prompt: token ids.
        tokens_max: limit of each completion; 0 only scores the prompt.
        group: number of completions.
        temperature: 0 takes the likeliest tokens.
        top_p: draw from the likeliest tokens that together have this probability.
        seed: None for a random one.
        stop_ids: token ids that end a completion, and stay in it.
        stop_texts: texts that end a completion, and are cut off it.
        alternatives: number of likeliest tokens to report with each token.
        scores_prompt: whether to compute the log-probabilities of the prompt's tokens.
        reads_text: whether text is needed while it is drawn.
    """

    prompt: Sequence[int]
    tokens_max: int
    group: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop_ids: frozenset[int] = frozenset()
    stop_texts: tuple[str, ...] = ()
    alternatives: int = 0
    scores_prompt: bool = False
    reads_text: bool = False


class TextReader:
    """Decodes tokens as they come, holding back the bytes of an incomplete character."""

    def __init__(self, decode: TokenDecoder) -> None:
        self.text = ""
        self._decode = decode
        self._tokens: list[int] = []
        self._begin = self._end = 0  # range of the last decoded tokens, which may change how the next ones are written

    def add(self, token: int) -> None:
        self._tokens.append(token)
        text, known = self._decode(self._tokens[self._begin :]), len(self._text_before())
        if len(text) > known and not text.endswith(INCOMPLETE):
            self.text += text[known:]
            self._begin, self._end = self._end, len(self._tokens)

    def finish(self) -> None:
        """Decode the rest, even an incomplete character."""
        self.text += self._decode(self._tokens[self._begin :])[len(self._text_before()) :]
        self._begin = self._end = len(self._tokens)

    def _text_before(self) -> str:
        return self._decode(self._tokens[self._begin : self._end])


@dataclass(eq=False)
class Completion:
    """A completion while it is drawn and afterwards. Another thread may read it, and set `cancelled`.

    Attributes:
        request: what it is drawn for.
        notify: called after each token if text is read, and at the end.
        generator: its random numbers.
        text: while it is drawn, only set if text is read; excludes a stop text.
        finish: why it ended: "stop", "length" or "error"; empty while it is drawn.
        failure: what went wrong.
        prompt_logps: of the prompt's tokens after the first, if they are scored.
    """

    request: GenerationRequest
    notify: Callable[[], None]
    generator: torch.Generator
    reader: TextReader | None
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    likeliest: list[Likely] = field(default_factory=list)
    text: str = ""
    finish: str = ""
    failure: str = ""
    cancelled: bool = False
    prompt_logps: list[float] = field(default_factory=list)
    prompt_likeliest: list[Likely] = field(default_factory=list)

    def add(self, token: int, logp: float, likeliest: Likely, decode: TokenDecoder) -> bool:
        """Append a token. Returns whether the completion goes on."""
        wanted = self.request
        self.tokens.append(token)
        self.logps.append(logp)
        self.likeliest.append(likeliest)
        if self.reader is not None:
            self.reader.add(token)
        finish = "stop" if token in wanted.stop_ids else "length" if len(self.tokens) >= wanted.tokens_max else ""
        if finish and self.reader is not None:
            self.reader.finish()
        text = self.reader.text if self.reader is not None else decode(self.tokens) if finish else ""
        found = [place for stop in wanted.stop_texts if (place := text.find(stop, self._search_start(stop))) >= 0]
        if found:
            text, finish = text[: min(found)], "stop"
        self.text = text
        self.finish = finish
        if finish or wanted.reads_text:
            self.notify()
        return not (finish or self.cancelled)

    def _search_start(self, stop: str) -> int:
        """First index at which a stop may begin that was not found before."""
        return max(len(self.text) - len(stop) + 1, 0)

    @property
    def settled_text(self) -> str:
        """The text that can no longer change: its end may still be the beginning of a stop."""
        text = self.text
        if self.finish:
            return text
        stops = self.request.stop_texts
        sizes = (size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
        held = max(sizes, default=0)
        return text[: len(text) - held]

    def fail(self, why: str) -> None:
        self.failure, self.finish = why, "error"
        self.notify()


class Decoder:
    """Draws completions for requests from a model, which it leaves in evaluation mode.

    `submit` may be called from any thread, `step` and `run` from one.

    Attributes:
        context: largest number of tokens of a prompt and its completion.
        vocabulary: number of token ids.
        is_closed: whether drawing has ended.

    Raises ModelUnfit if cached passes of the model differ from whole ones.
    """

    def __init__(self, policy: Policy, sequences_max: int = SEQUENCES_MAX) -> None:
        self.policy = policy
        self.vocabulary = int(policy.model.get_input_embeddings().num_embeddings)
        self.sequences_max = sequences_max
        config = policy.model.config
        shape = read_shape(config, policy.parameter_count)
        token_bytes = 2 * shape.layers * shape.keys * policy.model.dtype.itemsize
        self._cache_tokens = int(CACHE_SHARE * measure_device_memory(policy.device).free / token_bytes)
        self.context = min(shape.context or CONTEXT_UNKNOWN, self._cache_tokens)
        self._waiting: deque[list[Completion]] = deque()
        self._going: list[Completion] = []
        self._batch: DecodingBatch | None = None
        self._wake = threading.Event()
        self.is_closed = False
        if not Sampler(policy).can_share_prefill:
            raise ModelUnfit(
                f"{policy.name} cannot be drawn from here: its cache does not give what whole passes give",
                "Serve it with vLLM",
            )

    def submit(self, request: GenerationRequest, notify: Callable[[], None] = lambda: None) -> list[Completion]:
        """Queue a request and return its completions; `notify` is called in the decoder's thread."""
        group = []
        for number in range(request.group):
            generator = torch.Generator()
            if request.seed is None:
                generator.seed()
            else:
                generator.manual_seed(request.seed + number)
            reads = request.reads_text or bool(request.stop_texts)
            reader = TextReader(self.policy.decode_completion) if reads else None
            group.append(Completion(request, notify, generator, reader))
        self._waiting.append(group)
        self._wake.set()
        if self.is_closed:  # `run` may have ended
            for completion in group:
                completion.fail(STOPPING)
        return group

    @property
    def is_full(self) -> bool:
        """Whether the queue is full."""
        return len(self._waiting) >= WAITING_MAX

    def run(self) -> None:
        """Draw until `close`, then fail what is left."""
        while not self.is_closed:
            self._wake.clear()
            while not self.is_closed and self.step():
                continue
            if not self.is_closed:
                self._wake.wait()
        self._fail(STOPPING)

    def close(self) -> None:
        self.is_closed = True
        self._wake.set()

    def step(self) -> bool:
        """Start waiting requests, and draw a token for each sequence. Returns whether there is more to do."""
        try:
            with torch.inference_mode(), self.policy.autocast():
                self._join_waiting()
                if self._batch is not None:
                    self._draw(self._batch)
        except Exception as error:  # probably out of memory; the next request may be smaller
            log.exception("requests failed")
            self._fail(f"{type(error).__name__}: {str(error)[:200]}", waiting=False)
            release_memory()
        except BaseException:  # such as Ctrl-C in the middle of a pass, after which the cache is useless
            self._fail("interrupted")
            raise
        return bool(self._going or self._waiting)

    def _fail(self, why: str, waiting: bool = True) -> None:
        lost = self._going + [each for group in self._waiting for each in group if waiting]
        if waiting:
            self._waiting.clear()
        self._batch, self._going = None, []
        for completion in lost:
            completion.fail(why)

    # --- starting ---

    def _join_waiting(self) -> None:
        """Read the prompts of waiting requests, as many as fit, and join them to the batch."""
        if self._batch is not None and not self._batch.is_joinable:
            return
        taken = self._take_waiting()
        begun = self._going
        self._going = begun + [each for group in taken for each in group]  # so that they fail with the others
        for group in taken:
            self._score_prompt(group)
        drawn = [group for group in taken if group[0].request.tokens_max > 0]
        self._going = begun + [each for group in drawn for each in group]
        if not drawn:
            return
        prompts = [group[0].request.prompt for group in drawn]
        batch = DecodingBatch(self.policy.model, prompts, self.policy.tokenizer.pad_token_id)
        batch.repeat_sequences(torch.tensor([len(group) for group in drawn], device=batch.logits.device))
        if self._batch is None:
            self._batch = batch
        else:
            self._batch.join(batch)

    def _take_waiting(self) -> list[list[Completion]]:
        """Remove and return the oldest waiting requests that fit: into memory with the batch, and into one pass over
        their prompts."""
        taken: list[list[Completion]] = []
        rows, longest, widest = len(self._going), max(map(_tokens_at_most, self._going), default=0), 0
        while self._waiting:
            group = self._waiting[0]
            if all(each.cancelled for each in group):
                self._waiting.popleft()
                continue
            rows, longest = rows + len(group), max(longest, _tokens_at_most(group[0]))
            widest = max(widest, len(group[0].request.prompt))
            fits = rows <= self.sequences_max and rows * longest <= self._cache_tokens
            if (taken or self._going) and not (fits and widest * (len(taken) + 1) <= PREFILL_TOKENS_MAX):
                break
            taken.append(self._waiting.popleft())
        return taken

    def _score_prompt(self, group: list[Completion]) -> None:
        """Compute the log-probabilities of a prompt, if they are wanted; end a request that wants nothing else."""
        request = group[0].request
        scores, likeliest = list[float](), list[Likely]()
        if request.scores_prompt and len(request.prompt) > 1:
            ids = torch.tensor([request.prompt], device=self.policy.model.device)
            logps = torch.log_softmax(self.policy.model(input_ids=ids, use_cache=False).logits[0, :-1].float(), -1)
            scores = logps.gather(1, ids[0, 1:, None]).squeeze(1).tolist()
            likeliest = _list_likeliest(logps, 0.0, request.alternatives)
        for completion in group:
            completion.prompt_logps, completion.prompt_likeliest = scores, likeliest
            if not request.tokens_max:
                completion.finish = "length"
                completion.notify()

    # --- drawing ---

    def _draw(self, batch: DecodingBatch) -> None:
        """Draw a token for each sequence, and compute the next logits of those that go on."""
        going = self._going
        logits = batch.logits.float()
        norms = logits.logsumexp(-1)
        if not bool(norms.isfinite().all()):
            raise ArithmeticError("the model's logits are not finite numbers")
        tokens = _choose_tokens(logits, going)
        logps = (logits.gather(1, tokens[:, None]).squeeze(1) - norms).tolist()
        likeliest = _list_likeliest(logits, norms[:, None], max(each.request.alternatives for each in going))
        decode = self.policy.decode_completion
        still = [
            completion.add(token, logp, likely[: completion.request.alternatives], decode)
            for completion, token, logp, likely in zip(going, tokens.tolist(), logps, likeliest, strict=True)
        ]
        self._going = [completion for completion, goes_on in zip(going, still, strict=True) if goes_on]
        if not batch.append_tokens(still, tokens):
            self._batch = None
        elif batch.is_joinable and not all(still):
            batch.trim()


def _tokens_at_most(completion: Completion) -> int:
    """Largest number of tokens of prompt and completion."""
    return len(completion.request.prompt) + completion.request.tokens_max


def _choose_tokens(logits: torch.Tensor, going: Sequence[Completion]) -> torch.Tensor:
    """Draw a token for each row (rows,), with the temperature, top_p and random numbers of its request."""
    likeliest = logits.argmax(-1)
    requests = [completion.request for completion in going]
    drawn = [row for row, request in enumerate(requests) if request.temperature > 0]
    if not drawn:
        return likeliest
    device = logits.device
    temperatures = torch.tensor([requests[row].temperature for row in drawn], device=device)
    chosen = logits if len(drawn) == len(going) else logits[drawn]
    weights = torch.softmax(chosen / temperatures[:, None], -1)
    cut = [place for place, row in enumerate(drawn) if requests[row].top_p < 1]
    if cut:
        shares = torch.tensor([requests[drawn[place]].top_p for place in cut], device=device)
        weights[cut] = _keep_likeliest(weights[cut], shares)
    if device.type == "mps":  # it lacks float64
        weights = weights.cpu()
    points = torch.cat([torch.rand(1, generator=going[row].generator, dtype=torch.float64) for row in drawn])
    likeliest[drawn] = pick_tokens(weights, points.to(weights.device)).to(device)
    return likeliest


def _keep_likeliest(weights: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Set to 0 all weights (rows, vocabulary) but the likeliest, at least one, that together have the row's share."""
    ordered, order = weights.sort(-1, descending=True)
    beyond = ordered.cumsum(-1) - ordered >= shares[:, None]
    return torch.zeros_like(weights).scatter(-1, order, ordered.masked_fill(beyond, 0.0))


def _list_likeliest(scores: torch.Tensor, norms: Any, count: int) -> list[Likely]:
    """The `count` likeliest tokens of each row, with their log-probabilities (scores less norms), without those of
    probability 0. `scores`: (rows, vocabulary). `norms`: a number, or (rows, 1)."""
    if not count:
        return [[] for _ in scores]
    values, ids = scores.topk(min(count, scores.size(1)), -1)
    pairs = zip(ids.tolist(), (values - norms).tolist(), strict=True)
    return [[(id, value) for id, value in zip(*pair, strict=True) if value > -torch.inf] for pair in pairs]

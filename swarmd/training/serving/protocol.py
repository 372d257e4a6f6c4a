"""Requests and answers of OpenAI's API and vLLM's.

References: https://platform.openai.com/docs/api-reference (chat, completions, models), and vLLM's
`entrypoints/serve/disagg/protocol.py` for `/inference/v1/generate`. An unknown setting is refused if it would change
what is drawn, else ignored.
"""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import ModelUnfit
from swarmd.swarms.plan import Message
from swarmd.training.models.model import Policy
from swarmd.training.serving.decoder import (
    SCORED_LOGITS_MAX,
    SEQUENCES_MAX,
    Completion,
    Decoder,
    GenerationRequest,
    Likely,
)
from swarmd.training.serving.loading import encode_chat
from swarmd.uvicorn_server import HttpRefusal

ALTERNATIVES_MAX = 20
PROMPTS_MAX = 256  # per request
STOPS_MAX = 16
STOP_CHARACTERS_MAX = 256
COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions
TEMPERATURE_MIN = 1e-5  # below it the likeliest tokens are taken, as in vLLM

# Settings that would change what is drawn, each with the values at which it does not.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "min_p", "min_tokens", "length_penalty"), (0,)),
    "repetition_penalty": (1,),
    "top_k": (0, -1),
    "best_of": (1,),
    "suffix": ("",),
    **dict.fromkeys(("logit_bias", "tools", "functions", "structured_outputs", "bad_words", "features"), ({}, [])),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar", "allowed_token_ids"), ([],)),
    **dict.fromkeys(("use_beam_search", "prompt_logprobs", "audio"), (False,)),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}

Body = TypeVar("Body", bound=msgspec.Struct)
AtLeastZero = Annotated[int, msgspec.Meta(ge=0)]
Alternatives = Annotated[int, msgspec.Meta(ge=0, le=ALTERNATIVES_MAX)]
StopText = Annotated[str, msgspec.Meta(max_length=STOP_CHARACTERS_MAX)]


class DrawingSettings(msgspec.Struct, kw_only=True):
    """Settings of all requests, with the names and defaults of the APIs."""

    max_tokens: AtLeastZero | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=SEQUENCES_MAX)] = 1
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopText | Annotated[list[StopText], msgspec.Meta(max_length=STOPS_MAX)] = []
    stop_token_ids: Annotated[list[int], msgspec.Meta(max_length=STOPS_MAX * 16)] = []
    ignore_eos: bool = False


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class TextSettings(DrawingSettings, kw_only=True):
    """Further settings of requests for text."""

    model: str = ""
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    return_tokens_as_token_ids: bool = False  # vLLM's: tokens in log-probabilities are named like "token_id:7"


class ChatMessage(msgspec.Struct):
    role: Literal["system", "user", "assistant"]
    content: str | list[dict[str, Any]] = ""

    @property
    def text(self) -> str:
        """The content as text. Raises HttpRefusal if it is anything else."""
        if isinstance(self.content, str):
            return self.content
        if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in self.content):
            raise HttpRefusal(400, "messages: a part of the content is not text, and this model reads nothing else")
        return "".join(part["text"] for part in self.content)


class ChatBody(TextSettings, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    max_completion_tokens: AtLeastZero | None = None
    logprobs: bool = False
    top_logprobs: Alternatives = 0


class CompletionBody(TextSettings, kw_only=True):
    """The body of /v1/completions; a prompt is text or token ids."""

    prompt: str | list[Any]
    echo: bool = False
    logprobs: Alternatives | bool | None = None


class GenerateSettings(DrawingSettings, kw_only=True):
    logprobs: Alternatives | None = None


class GenerateBody(msgspec.Struct, kw_only=True):
    """The body of /inference/v1/generate."""

    token_ids: list[int]
    sampling_params: GenerateSettings
    model: str = ""
    stream: bool = False


class AnswerStyle(NamedTuple):
    """How completions are written.

    Attributes:
        kind: prefix of the answer's id.
        logprobs: whether log-probabilities are included.
        by_id: whether tokens are named by their ids.
        echo: whether the prompt is repeated before the completion.
    """

    kind: str
    logprobs: bool
    by_id: bool = False
    echo: bool = False


def read_settings(content: bytes, kind: type[Body]) -> Body:
    """Decode the body of a request. Raises HttpRefusal."""
    try:
        given = msgspec.json.decode(content, type=dict[str, Any])
        inner = given.get("sampling_params")
        if isinstance(inner, dict):
            given["sampling_params"] = _without_nulls(inner)
        return msgspec.convert(_without_nulls(given), kind)
    except DECODE_ERRORS as error:
        raise HttpRefusal(400, f"the body makes no sense: {error}") from None


def _without_nulls(given: Mapping[str, Any]) -> dict[str, Any]:
    """Drop settings that are null. Raises HttpRefusal for an unsupported one."""
    settings = {name: value for name, value in given.items() if value is not None}
    for name, neutral in UNSUPPORTED.items():
        if name in settings and settings[name] not in neutral:
            raise HttpRefusal(400, f"{name} is not supported here: leave it out")
    return settings


def prepare_request(
    settings: DrawingSettings, prompt: Sequence[int], decoder: Decoder, tokens_max: int | None, **more: Any
) -> GenerationRequest:
    """Make the decoder's request. `tokens_max`: limit of a completion; None for all that fits the model's context.
    Raises HttpRefusal if the context is too small, or the prompt has a token that the model lacks."""
    if not prompt:
        raise HttpRefusal(400, "the prompt is empty")
    if not all(0 <= token < decoder.vocabulary for token in prompt):
        raise HttpRefusal(400, f"the prompt has a token that is not from 0 to {decoder.vocabulary - 1}")
    room = decoder.context - len(prompt)
    wanted = room if tokens_max is None else tokens_max
    if room < wanted or (room < 1 and tokens_max is None):
        told = f"{len(prompt)} tokens of the prompt" + (f" and {wanted} of the completion" if tokens_max else "")
        raise HttpRefusal(400, f"this model's maximum context length is {decoder.context} tokens, {told} are more")
    stops = [settings.stop] if isinstance(settings.stop, str) else settings.stop
    ends = () if settings.ignore_eos else decoder.policy.stop_ids
    return GenerationRequest(
        prompt=prompt,
        tokens_max=wanted,
        group=settings.n,
        temperature=settings.temperature if settings.temperature >= TEMPERATURE_MIN else 0.0,
        top_p=settings.top_p,
        seed=settings.seed,
        stop_ids=frozenset({*ends, *settings.stop_token_ids}),
        stop_texts=tuple(filter(None, stops)),
        **more,
    )


def request_chat(body: ChatBody, decoder: Decoder) -> GenerationRequest:
    """Make the decoder's request for a chat. Raises HttpRefusal."""
    try:
        prompt = encode_chat(decoder.policy, [Message(each.role, each.text, trusted=True) for each in body.messages])
    except ModelUnfit as error:
        raise HttpRefusal(400, error.message) from None
    wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    top = body.top_logprobs if body.logprobs else 0
    return prepare_request(body, prompt, decoder, wanted, alternatives=top, reads_text=body.stream)


def request_completions(body: CompletionBody, decoder: Decoder) -> list[GenerationRequest]:
    """Make the decoder's request for each prompt. Raises HttpRefusal."""
    prompts = body.prompt
    one = isinstance(prompts, str) or not prompts or isinstance(prompts[0], int)
    asked: list[Any] = [prompts] if one else list(prompts)
    if len(asked) > PROMPTS_MAX:
        raise HttpRefusal(400, f"a request may have {PROMPTS_MAX} prompts")
    encoded = [_encode_prompt(decoder.policy, prompt) for prompt in asked]
    scored = body.echo and body.logprobs is not None
    if scored and (longest := max(map(len, encoded))) * decoder.vocabulary > SCORED_LOGITS_MAX:
        most = SCORED_LOGITS_MAX // decoder.vocabulary
        raise HttpRefusal(400, f"log-probabilities are computed of {most} tokens of a prompt, this one has {longest}")
    tokens = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    more = {"alternatives": int(body.logprobs or 0), "reads_text": body.stream, "scores_prompt": scored}
    return [prepare_request(body, prompt, decoder, tokens, **more) for prompt in encoded]


def _encode_prompt(policy: Policy, prompt: Any) -> list[int]:
    if isinstance(prompt, str):
        return [int(token) for token in policy.tokenizer.encode(prompt)]
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        return prompt
    raise HttpRefusal(400, "prompt is neither text, nor token ids, nor a list of these")


# --- answers ---


class Piece(NamedTuple):
    """A piece of a completion: its new text, the range of its tokens, and, if it has ended, the reason."""

    text: str
    begin: int
    end: int
    finish: str


class AnswerWriter:
    """Writes the answer to one request for text, whole or in pieces."""

    def __init__(self, style: AnswerStyle, policy: Policy, model: str) -> None:
        self._style = style
        self._policy = policy
        self._head = {"id": f"{style.kind}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self.is_chat = style.kind == "chatcmpl"

    def write_whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """The whole answer."""
        choices = [self._make_choice(index, each, _whole_piece(each)) for index, each in enumerate(completions)]
        kind = "chat.completion" if self.is_chat else "text_completion"
        return self._head | {"object": kind, "choices": choices, "usage": count_usage(completions)}

    def write_tokens(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """The answer of /inference/v1/generate: token ids instead of text."""
        choices = [
            {"index": index, "token_ids": each.tokens, "finish_reason": each.finish}
            | {"logprobs": {"content": self._list_content(each, _whole_piece(each))} if self._style.logprobs else None}
            for index, each in enumerate(completions)
        ]
        return {"request_id": self._head["id"], "choices": choices, "usage": count_usage(completions)}

    def write_piece(self, index: int, completion: Completion, piece: Piece) -> dict[str, Any]:
        """One piece of one completion."""
        choice = self._make_choice(index, completion, piece)
        if self.is_chat:
            delta = choice.pop("message")
            choice["delta"] = {"content": delta["content"]} if piece.begin else delta
        return self._make_piece([choice])

    def write_usage(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """The last piece of a stream, with the usage, if the client asked for it."""
        return self._make_piece([]) | {"usage": count_usage(completions)}

    def _make_piece(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return self._head | {"object": kind, "choices": choices}

    def _make_choice(self, index: int, completion: Completion, piece: Piece) -> dict[str, Any]:
        head: dict[str, Any] = {"index": index, "finish_reason": piece.finish or None, "logprobs": None}
        if self.is_chat:
            if self._style.logprobs:
                head["logprobs"] = {"content": self._list_content(completion, piece)}
            return head | {"message": {"role": "assistant", "content": piece.text}}
        echoed = self._style.echo and not piece.begin
        if self._style.logprobs:
            head["logprobs"] = self._list_columns(completion, piece, echoed)
        before = self._policy.decode_completion(completion.request.prompt) if echoed else ""
        return head | {"text": before + piece.text}

    def _list_content(self, completion: Completion, piece: Piece) -> list[dict[str, Any]]:
        """Log-probabilities in the format of chat completions."""
        return [
            self._describe_token(token, logp) | {"top_logprobs": [self._describe_token(*pair) for pair in likely]}
            for token, logp, likely in _iter_tokens(completion, piece)
        ]

    def _describe_token(self, token: int, logp: float) -> dict[str, Any]:
        name = self._token_text(token)
        return {"token": name, "logprob": logp, "bytes": list(name.encode())}

    def _list_columns(self, completion: Completion, piece: Piece, echoed: bool) -> dict[str, Any]:
        """Log-probabilities in the format of completions, after the prompt's if that is echoed."""
        rows: list[tuple[int, float | None, Any]] = list(_iter_tokens(completion, piece))
        if echoed:
            first, *later = completion.request.prompt
            scored = zip(later, completion.prompt_logps, completion.prompt_likeliest, strict=True)
            rows = [(first, None, None), *scored, *rows]
        names = [self._token_text(token) for token, _, _ in rows]
        ends = list(accumulate(map(len, names)))
        return {
            "tokens": names,
            "token_logprobs": [logp for _, logp, _ in rows],
            "top_logprobs": [
                None if logp is None else {self._token_text(each): value for each, value in [*likely, (token, logp)]}
                for token, logp, likely in rows
            ],
            "text_offset": [0, *ends[:-1]],
        }

    def _token_text(self, token: int) -> str:
        return f"token_id:{token}" if self._style.by_id else str(self._policy.tokenizer.decode([token]))


def _whole_piece(completion: Completion) -> Piece:
    return Piece(completion.text, 0, len(completion.tokens), completion.finish)


def _iter_tokens(completion: Completion, piece: Piece) -> Iterator[tuple[int, float, Likely]]:
    """A piece's tokens, each with its log-probability and the likeliest tokens at its position."""
    parts = (completion.tokens, completion.logps, completion.likeliest)
    return zip(*(each[piece.begin : piece.end] for each in parts), strict=True)


def count_usage(completions: Sequence[Completion]) -> dict[str, int]:
    """Number of tokens read and written; a prompt counts once, however many completions it has."""
    prompts = {id(each.request): len(each.request.prompt) for each in completions}
    read, written = sum(prompts.values()), sum(len(each.tokens) for each in completions)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

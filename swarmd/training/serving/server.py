"""The HTTP server of a model: OpenAI's chat and completions, and vLLM's tokens in, tokens out.

One `Decoder` in a thread of its own draws all requests together. If a client leaves, its completions are cancelled.
docs/MODELS.md describes the server for users.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swarmd import __version__
from swarmd.http_server import Address, stop_signal_future
from swarmd.logger import get_logger
from swarmd.training.serving.decoder import Completion, Decoder, GenerationRequest
from swarmd.training.serving.protocol import (
    AnswerStyle,
    AnswerWriter,
    Body,
    ChatBody,
    CompletionBody,
    GenerateBody,
    Piece,
    TextSettings,
    prepare_request,
    read_settings,
    request_chat,
    request_completions,
)
from swarmd.uvicorn_server import (
    HEALTH,
    UNREAD_S,
    HttpRefusal,
    check_program,
    close_connection,
    json_response,
    make_json_app,
    read_body,
    serve_in_background,
    shrink_send_buffers_of,
)

BODY_BYTES_MAX = 16 << 20
BODY_S = 60.0  # longest time for a request's body to arrive
RETRY_S = 2  # retry-after header while too many requests wait
STOP_S = 5.0  # longest time for open requests after the decoder has stopped
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
}  # by status; for all others it is "server_error"

log = get_logger(__name__)


def describe_error(status: int, error: str) -> dict[str, Any]:
    """An error in the format of OpenAI's clients."""
    return {"message": error, "type": ERROR_TYPES.get(status, "server_error"), "param": None, "code": None}


class ModelApp:
    """The HTTP application. `decoder`: must be run by some thread. `name`: the model's name for clients."""

    def __init__(self, decoder: Decoder, name: str, token: str = "") -> None:
        self._decoder = decoder
        self._name = name
        self._token = token
        self._began_at = int(time.time())

    def app(self) -> ASGIApp:
        routes = [
            Route(HEALTH, self._show_health),
            Route("/v1/models", self._list_models),
            Route("/v1/models/{name:path}", self._show_model),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/completions", self._complete, methods=["POST"]),
            Route("/inference/v1/generate", self._generate, methods=["POST"]),
        ]
        return make_json_app(
            routes, lambda request: check_program(request, self._token), RETRY_S, describe=describe_error
        )

    # --- routes ---

    async def _show_health(self, request: Request) -> Response:
        return json_response(200, {"status": "ok", "version": __version__})

    async def _list_models(self, request: Request) -> Response:
        return json_response(200, {"object": "list", "data": [self._describe_model()]})

    async def _show_model(self, request: Request) -> Response:
        self._require_model(request.path_params["name"])
        return json_response(200, self._describe_model())

    async def _chat(self, request: Request) -> Response:
        body = await self._read(request, ChatBody)
        self._require_model(body.model)
        wanted = await asyncio.to_thread(request_chat, body, self._decoder)
        style = AnswerStyle("chatcmpl", body.logprobs, body.return_tokens_as_token_ids)
        return await self._answer_text(request, body, [wanted], style)

    async def _complete(self, request: Request) -> Response:
        body = await self._read(request, CompletionBody)
        self._require_model(body.model)
        wanted = await asyncio.to_thread(request_completions, body, self._decoder)
        scored = body.logprobs is not None and body.logprobs is not False
        style = AnswerStyle("cmpl", scored, body.return_tokens_as_token_ids, body.echo)
        return await self._answer_text(request, body, wanted, style)

    async def _generate(self, request: Request) -> Response:
        body = await self._read(request, GenerateBody)
        self._require_model(body.model)
        if body.stream:
            raise HttpRefusal(400, "stream is not supported here: leave it out")
        settings = body.sampling_params
        wanted = prepare_request(
            settings, body.token_ids, self._decoder, settings.max_tokens, alternatives=settings.logprobs or 0
        )
        style = AnswerStyle("generate", settings.logprobs is not None, by_id=True)
        drawing = self._start_drawing([wanted])
        completions = await drawing.finish(request)
        return json_response(200, AnswerWriter(style, self._decoder.policy, self._name).write_tokens(completions))

    # --- helpers of routes ---

    async def _read(self, request: Request, kind: type[Body]) -> Body:
        content = await read_body(request, BODY_BYTES_MAX, BODY_S)
        return await asyncio.to_thread(read_settings, content, kind)

    def _require_model(self, name: str) -> None:
        """Raise HttpRefusal for a model that is not served; a request need not name one."""
        if name not in ("", self._name):
            raise HttpRefusal(404, f"the model {name[:200]!r} does not exist, here is {self._name!r}")

    def _describe_model(self) -> dict[str, Any]:
        limits = {"max_model_len": self._decoder.context}
        return {"id": self._name, "object": "model", "created": self._began_at, "owned_by": "swarmd"} | limits

    def _start_drawing(self, wanted: Sequence[GenerationRequest]) -> "DrawingTask":
        if self._decoder.is_full:
            raise HttpRefusal(503, "too many requests wait already")
        return DrawingTask(self._decoder, wanted)

    async def _answer_text(
        self, request: Request, body: TextSettings, wanted: Sequence[GenerationRequest], style: AnswerStyle
    ) -> Response:
        writer = AnswerWriter(style, self._decoder.policy, self._name)
        drawing = self._start_drawing(wanted)
        if body.stream:
            return EventStream(write_events(drawing, writer, body.stream_options.include_usage, style.logprobs))
        completions = await drawing.finish(request)
        return json_response(200, await asyncio.to_thread(writer.write_whole, completions))


class DrawingTask:
    """The completions of one HTTP request while they are drawn, used from the event loop."""

    def __init__(self, decoder: Decoder, wanted: Sequence[GenerationRequest]) -> None:
        loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        self._decoder = decoder

        def notify() -> None:
            loop.call_soon_threadsafe(self._changed.set)

        self.completions = [each for request in wanted for each in decoder.submit(request, notify)]

    async def wait(self) -> bool:
        """Wait for new tokens. Returns whether all completions are finished. Raises HttpRefusal if one has failed."""
        await self._changed.wait()
        self._changed.clear()
        failed = next((each.failure for each in self.completions if each.failure), "")
        if failed:
            raise HttpRefusal(503 if self._decoder.is_closed else 500, failed)
        return all(each.finish for each in self.completions)

    async def finish(self, request: Request) -> Sequence[Completion]:
        """Wait until all are finished; cancel them if the client leaves. Raises HttpRefusal."""
        waiting = asyncio.ensure_future(self._wait_for_all())
        leaving = asyncio.ensure_future(_wait_until_left(request.receive))
        try:
            await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise HttpRefusal(400, "the client has left")
            await waiting
        finally:
            self.cancel()
            for task in (waiting, leaving):
                task.cancel()
        return self.completions

    async def _wait_for_all(self) -> None:
        while not await self.wait():
            continue

    def cancel(self) -> None:
        """Cancel unfinished completions."""
        for completion in self.completions:
            completion.cancelled = True


async def _wait_until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


async def write_events(
    drawing: DrawingTask, writer: AnswerWriter, usage: bool, logprobs: bool
) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of all completions as they are drawn, as server-sent events; an error is the last one."""
    pieces = [Piece("", 0, 0, "") for _ in drawing.completions]  # the last piece sent of each, with all text so far
    try:
        done = False
        while not done:
            done = await drawing.wait()
            for index, (completion, last) in enumerate(zip(drawing.completions, pieces, strict=True)):
                finish, end, text = completion.finish, len(completion.likeliest), completion.settled_text
                news = finish or len(text) > len(last.text) or (logprobs and end > last.end)
                if last.finish or not news:
                    continue
                piece = Piece(text[len(last.text) :], last.end, end, finish)
                yield _write_event(writer.write_piece(index, completion, piece))
                pieces[index] = piece._replace(text=text)
        if usage:
            yield _write_event(writer.write_usage(drawing.completions))
        yield b"data: [DONE]\n\n"
    except HttpRefusal as refusal:
        yield _write_event({"error": describe_error(refusal.status, str(refusal))})
    finally:
        drawing.cancel()


def _write_event(content: Any) -> bytes:
    return b"data: %s\n\n" % msgspec.json.encode(content)


class EventStream(StreamingResponse):
    """Server-sent events; a client that stops reading is disconnected."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(UNREAD_S):
                await send(message)

        shrink_send_buffers_of(scope)
        try:
            async with contextlib.aclosing(self._events):
                await super().__call__(scope, receive, send_in_time)
        except TimeoutError:
            await close_connection(scope)


async def run_server(decoder: Decoder, name: str, listen: Address, token: str) -> None:
    """Serve until SIGTERM or SIGINT. Raises AddressInUse."""
    stopped = stop_signal_future()
    drawing = threading.Thread(target=decoder.run, name="decoder", daemon=True)
    async with serve_in_background(ModelApp(decoder, name, token).app(), listen, STOP_S) as url:
        drawing.start()
        policy = decoder.policy
        log.info("listening on %s/v1 with %s (%s, %s)", url, name, policy.device, policy.precision.description)
        await stopped
        log.info("stopping")
        decoder.close()
        await asyncio.to_thread(drawing.join)

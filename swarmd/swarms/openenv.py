"""A WebSocket client for OpenEnv's environment servers, without OpenEnv's package.

Messages are JSON (openenv.core.env_server.types): `{"type": "reset" or "step", "data": {...}}` is answered with
`{"type": "observation", "data": {"observation": {...}, "reward": ..., "done": ...}}`, or with type "error" and
`message` and `code` as its data. Each connection has its own environment. Each node chooses its own server.

`OpenEnvEpisode` is one rollout, as the trainer's driver of conversations calls it: `reset`, `act` with each text of the
model, `reward`, `close`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import msgspec

from swarmd.config import Section
from swarmd.errors import SwarmError
from swarmd.swarms.plan import Message, Question

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
CONNECT_S = 30.0
ANSWER_S = 60.0
CLOSE_S = 1.0
MESSAGE_BYTES_MAX = 1024 * 1024
OF_THE_MODEL = ("EXECUTION_ERROR", "VALIDATION_ERROR")  # errors of a step that are shown to the model

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class OpenEnvOptions(Section, frozen=True):
    """`swarm.options.openenv`: how to map texts to actions and observations to texts."""

    action: Name = "message"  # field of the action that gets the model's text
    observation: Annotated[str, msgspec.Meta(max_length=256)] = ""  # as "messages.0.content"; empty: all, as JSON


def make_endpoint(url: str) -> str:
    """The WebSocket URL for sessions of a server. Raises ValueError for an invalid address."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise ValueError(f"{url!r} is not the address of a server, such as http://127.0.0.1:8000")
    return parts._replace(scheme=SCHEMES[parts.scheme], path=f"{parts.path.rstrip('/')}/ws").geturl()


class OpenEnvEpisode:
    """One rollout. Methods raise SwarmError if the server cannot be reached or fails.

    Args:
        url: of the server.
        messages: of the question.
        columns: of the question's row, passed to `reset` as far as it takes them.
        seed: passed to `reset`.
    """

    def __init__(
        self, url: str, options: OpenEnvOptions, messages: Sequence[Message], columns: Mapping[str, Any], seed: int
    ) -> None:
        self._url, self._options, self._messages = url, options, messages
        self._start = {**columns, "seed": seed}
        self._stack = contextlib.ExitStack()
        self._connection: ClientConnection | None = None
        self._reward = 0.0
        self._is_done = False

    def reset(self, question: Question | None = None) -> list[Message]:
        """The rollout's first messages; the last one ends with the first observation."""
        from websockets.exceptions import InvalidHandshake, InvalidURI
        from websockets.sync.client import connect

        self.close()
        self._reward = 0.0
        try:
            opened = connect(
                make_endpoint(self._url), open_timeout=CONNECT_S, close_timeout=CLOSE_S, max_size=MESSAGE_BYTES_MAX
            )
            self._connection = self._stack.enter_context(opened)
        except (OSError, InvalidHandshake, InvalidURI) as error:
            raise SwarmError(
                f"the OpenEnv server {self._url} cannot be reached: {error}",
                "Start it, or correct swarm.options.openenv_url",
            ) from error
        observation = self._request("reset", self._start)
        *before, last = self._messages
        return [*before, Message(last.role, f"{last.content}\n{observation}", last.trusted)]

    def act(self, text: str) -> str | None:
        """Send a turn of the model as an action. Returns the observation; None if the episode is done."""
        if self._is_done:
            return None
        observation = self._request("step", {self._options.action: text.strip()})
        return None if self._is_done else observation

    def reward(self) -> float:
        """The last reward that the environment gave, as in TRL's examples; 0 if it gave none."""
        return self._reward

    def close(self) -> None:
        """Close the connection, which ends the environment."""
        from websockets.exceptions import WebSocketException

        if self._connection is not None:
            with contextlib.suppress(OSError, WebSocketException):
                self._connection.send(json.dumps({"type": "close"}))
            self._stack.close()
            self._connection = None

    def _request(self, kind: str, data: Mapping[str, Any]) -> str:
        """Send a request. Returns the observation as text."""
        from websockets.exceptions import WebSocketException

        assert self._connection is not None
        try:
            self._connection.send(json.dumps({"type": kind, "data": data}))
            answer = json.loads(self._connection.recv(ANSWER_S))
            told, given = answer["type"], answer["data"]
            if told == "error" and kind == "step" and given.get("code") in OF_THE_MODEL:
                return json.dumps({"error": given["message"]})
            if told != "observation":
                raise self._failed(kind, given.get("message", answer))
            self._is_done = bool(given.get("done"))
            if given.get("reward") is not None:
                self._reward = float(given["reward"])
            return self._read_text(given["observation"])
        except (OSError, TimeoutError, WebSocketException) as error:
            raise self._failed(kind, error or type(error).__name__) from error
        except (ValueError, TypeError, KeyError, LookupError, AttributeError) as error:
            raise self._failed(kind, f"its answer is not OpenEnv's: {type(error).__name__}: {error}") from error

    def _failed(self, kind: str, reason: object) -> SwarmError:
        return SwarmError(f"the OpenEnv server {self._url} failed at {kind}: {reason}", "Its own log says more")

    def _read_text(self, observation: Any) -> str:
        """The part of an observation that the options select, as text."""
        found = observation
        for part in self._options.observation.split(".") if self._options.observation else ():
            try:
                found = found[int(part)] if isinstance(found, list) else found[part]
            except (LookupError, TypeError, ValueError) as error:
                raise SwarmError(
                    f"swarm.options.openenv: an observation has no {self._options.observation!r}: "
                    f"{json.dumps(observation)[:200]}",
                    "Name one of its fields, or leave `observation` out",
                ) from error
        return found if isinstance(found, str) else json.dumps(found)

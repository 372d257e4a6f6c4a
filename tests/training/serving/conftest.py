"""A served model behind a real socket, and the plain forward pass that its answers are compared with."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import torch

from swarmd.config import TrainingConfig
from swarmd.http_server import Address
from swarmd.training.models.model import Policy
from swarmd.training.serving.decoder import Decoder
from swarmd.training.serving.loading import choose_directory, load_chosen
from swarmd.training.serving.server import ModelApp
from swarmd.uvicorn_server import serve_in_background

CALL_S = 60.0
NAME = "tiny"


class Serving:
    """A server in a thread."""

    def __init__(self, decoder: Decoder, token: str = "") -> None:
        self.decoder = decoder
        self.url = ""
        self._token = token
        self._ready = threading.Event()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._drawing = threading.Thread(target=decoder.run, daemon=True)
        self._thread.start()
        self._drawing.start()
        assert self._ready.wait(CALL_S)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with serve_in_background(
            ModelApp(self.decoder, NAME, self._token).app(), Address("127.0.0.1", 0), 1.0
        ) as self.url:
            self._ready.set()
            await self._ended.wait()

    def close(self) -> None:
        self.decoder.close()
        self._drawing.join(CALL_S)
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(CALL_S)
        assert not self._thread.is_alive() and not self._drawing.is_alive()

    def post(self, path: str, body: Any, **more: Any) -> requests.Response:
        return requests.post(self.url + path, json=body, timeout=CALL_S, **more)

    def ask(self, path: str, **body: Any) -> Any:
        """The JSON of an answer that must be one."""
        answer = self.post(path, body)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="session")
def served(llama: Path) -> Policy:
    return load_chosen(choose_directory(llama, TrainingConfig(device="cpu")))


@pytest.fixture(scope="session")
def server(served: Policy) -> Iterator[Serving]:
    running = Serving(Decoder(served))
    yield running
    running.close()


@pytest.fixture
def serve(served: Policy) -> Iterator[Callable[..., Serving]]:
    """Further servers."""
    running: list[Serving] = []

    def start(token: str = "", **settings: Any) -> Serving:
        running.append(Serving(Decoder(served, **settings), token))
        return running[-1]

    yield start
    for each in running:
        each.close()


def score(policy: Policy, prompt: list[int], tokens: list[int]) -> list[float]:
    """Log-probabilities of a completion by one plain forward pass."""
    ids = torch.tensor([prompt + tokens])
    with torch.no_grad():
        logs = torch.log_softmax(policy.model(input_ids=ids).logits[0].float(), -1)
    return [float(logs[len(prompt) + place - 1, token]) for place, token in enumerate(tokens)]

"""The client of OpenEnv's servers, against a small server of its messages, and (`--soak`) OpenEnv's own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.server import ServerConnection, serve

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.errors import SwarmError
from swarmd.swarms.file import FilePlan
from swarmd.swarms.openenv import OpenEnvEpisode, OpenEnvOptions
from swarmd.swarms.plan import Message
from tests.swarms.making import take, write_rows

PROMPT = (Message("user", "Play."),)


def answer(session: ServerConnection) -> None:
    """One environment: find the last digit of the seed."""
    number = 0
    for line in session:
        message = json.loads(line)
        if message == {"type": "close"}:
            return
        kind, data = message["type"], message["data"]
        observation: dict[str, Any] = {"text": "Guess a digit."}
        done, reward = False, None
        if kind == "reset":
            number = data["seed"] % 10
        elif data["message"] == "leave":
            return
        elif data["message"] == "babble":
            session.send("[]")
            continue
        elif not data["message"].isdigit():
            told = {"message": f"not a digit: {data['message']}", "code": "EXECUTION_ERROR"}
            session.send(json.dumps({"type": "error", "data": told}))
            continue
        else:
            done = int(data["message"]) == number
            observation, reward = {"text": "larger", "all": [{"seen": "larger"}]}, float(done)
        content = {"observation": observation, "reward": reward, "done": done}
        session.send(json.dumps({"type": "observation", "data": content}))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve(answer, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()


def open_episode(url: str, observation: str = "text", seed: int = 13) -> OpenEnvEpisode:
    return OpenEnvEpisode(url, OpenEnvOptions(observation=observation), PROMPT, {"level": 2}, seed)


def test_a_rollout_goes_on_until_the_environment_is_done(url: str) -> None:
    episode = open_episode(url)
    assert episode.reset() == [Message("user", "Play.\nGuess a digit.")]
    assert episode.act("1") == "larger"
    assert episode.reward() == 0.0
    assert episode.act(" 3\n") is None
    assert episode.act("3") is None
    assert episode.reward() == 1.0
    episode.reset()
    assert episode.reward() == 0.0
    episode.close()
    episode.close()


def test_what_the_environment_refuses_is_told_to_the_model(url: str) -> None:
    episode = open_episode(url)
    episode.reset()
    assert episode.act("x") == '{"error": "not a digit: x"}'
    assert episode.act("1") == "larger"
    episode.close()


@pytest.mark.parametrize(("turn", "told"), [("leave", "failed at step"), ("babble", "its answer is not OpenEnv's")])
def test_a_server_that_fails_ends_the_rollout(url: str, turn: str, told: str) -> None:
    episode = open_episode(url)
    episode.reset()
    with pytest.raises(SwarmError, match=told):
        episode.act(turn)
    episode.close()


def test_a_server_that_is_not_there_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(SwarmError, match="cannot be reached"):
            open_episode(f"http://127.0.0.1:{taken.getsockname()[1]}").reset()


@pytest.mark.parametrize(
    ("observation", "text"), [("all.0.seen", "larger"), ("", '{"text": "larger", "all": [{"seen": "larger"}]}')]
)
def test_options_name_what_is_shown_of_an_observation(url: str, observation: str, text: str) -> None:
    episode = open_episode(url, "")
    episode.reset()
    episode = open_episode(url)
    episode.reset()
    episode._options = OpenEnvOptions(observation=observation)
    assert episode.act("1") == text
    episode._options = OpenEnvOptions(observation="none.1")
    with pytest.raises(SwarmError, match=r"an observation has no 'none\.1'"):
        episode.act("1")
    episode.close()


def test_a_plan_opens_them_if_it_is_told_the_server(url: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "q.jsonl", [{"prompt": f"Game {n}."} for n in range(20)])
    options = {"data": "q.jsonl", "openenv": {"observation": "text"}}
    swarm = SwarmConfig("s", kind="file", options={**options, "openenv_url": url})
    plan = FilePlan(swarm, TrainingConfig(), tmp_path)
    (question,) = take(plan, 1)
    episode = plan.open_environment(question)
    assert episode.reset(question)[-1].content == f"{question.messages[-1].content}\nGuess a digit."
    episode.close()
    plan = FilePlan(SwarmConfig("s", kind="file", options=options), TrainingConfig(), tmp_path)
    with pytest.raises(SwarmError, match=r"openenv_url does not name one"):
        plan.open_environment(question)


SERVER = """\
import sys

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    message: str


class Hint(Observation):
    text: str


class Guessing(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.number = seed % 10
        return Hint(text="Guess a digit.")

    def step(self, action, timeout_s=None, **kwargs):
        guess = int(action.message)
        return Hint(text="larger", done=guess == self.number, reward=float(guess == self.number))

    @property
    def state(self):
        return State()


uvicorn.run(create_fastapi_app(Guessing, Guess, Hint, max_concurrent_envs=4), port=int(sys.argv[1]))
"""


@pytest.mark.soak
@pytest.mark.parametrize("package", ["openenv==0.10.0", "openenv-core==0.3.0"])
def test_openenvs_own_server_answers_alike(tmp_path: Path, package: str) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "own"], check=True)
    python = tmp_path / "own" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([python, "-c", SERVER, str(port)])
    try:
        episode = open_episode(f"http://127.0.0.1:{port}")
        deadline = time.monotonic() + 60
        while True:
            try:
                messages = episode.reset()
                break
            except SwarmError:
                assert time.monotonic() < deadline and server.poll() is None
                time.sleep(0.5)
        assert messages == [Message("user", "Play.\nGuess a digit.")]
        assert (episode.act("1"), episode.reward()) == ("larger", 0.0)
        assert "invalid literal" in str(episode.act("x"))
        assert (episode.act("3"), episode.reward()) == (None, 1.0)
        episode.close()
    finally:
        server.kill()
        server.wait()

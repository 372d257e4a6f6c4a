"""The kind `verifiers`: an unmodified taskset of verifiers 0.4, installed in its own environment and confined.

- One process under that environment's interpreter serves all rollouts (`swarmd.sandbox.verifiers_harness`).
- A question is a task of the taskset, identified on the wire by the hash of its `Task.key`: a peer finds the
  task with this key in its own taskset, and reruns and scores the rollout. Peers with another version of the taskset or
  other settings refuse each other's groups (`config-digest`).
- One agent with one conversation is trained. A rollout that opens a second conversation fails.

docs/swarms/verifiers.md describes the options.
"""

from __future__ import annotations

import importlib.resources
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.errors import RecordRejected, SwarmError
from swarmd.sandbox.service import ConfinedService, ServiceFailed, find_places, service_command
from swarmd.swarms.conversation import ConversationPlan, EnvironmentFailed
from swarmd.swarms.options import VerifiersOptions, decode_options
from swarmd.swarms.plan import Material, Message, Question, Score, Split, StageId, hash_number, split_of
from swarmd.swarms.rollouts import Reference

VERSION = "0.4.0"  # of verifiers: other versions may have another interface
CLOSE_S = 2.0  # for the process to close a rollout
KEY = "key"  # key in a question's entry: its `Task.key`


class VerifiersPlan(ConversationPlan):
    """A taskset of verifiers 0.4 as it is installed.

    Raises:
        SwarmError: the options are wrong, there is no such environment, or the taskset cannot be loaded in it, is of
        another version, has several agents, or no task to train on.
        SandboxUnavailable: the taskset cannot be confined on this machine.
    """

    resets_prompt = True

    def __init__(self, swarm: SwarmConfig, training: TrainingConfig | None = None, home: Path | None = None) -> None:
        if swarm.tasks:
            raise SwarmError('swarm.tasks does not go with the kind "verifiers"', "The taskset has its own")
        self._options = options = decode_options(swarm.options, VerifiersOptions)
        self.limits = options.turns
        self._swarm = swarm.id
        self._service = start_harness(options, home or Path())
        hello = self._read_hello(options)
        versions = json.dumps(hello["versions"], sort_keys=True)
        settings = json.dumps([options.taskset, dict(options.config), options.tasks], sort_keys=True)
        self._digest = f"{hash_number('verifiers', versions, settings, bits=63):016x}"
        self._hung: set[int] = set()  # rollouts closed during a request
        self._keys: dict[int, str] = {}  # `Task.key` by its number on the wire
        for key in hello["tasks"]:
            self._keys.setdefault(hash_number("verifiers", key), key)
        sides = {number: split_of(options.taskset, key) for number, key in self._keys.items()}
        self._training = [number for number, side in sides.items() if side == "train"]
        self._sides: Mapping[int, Split] = sides
        if not self._training:
            raise SwarmError(f"no task of {options.taskset} is on the training side of the split", "It has too few")

    def _read_hello(self, options: VerifiersOptions) -> Mapping[str, Any]:
        """The process's first message, which describes the taskset."""
        try:
            hello = self._service.read_hello()
        except ServiceFailed as error:
            told = f"the taskset {options.taskset} cannot be loaded: {error}"
            raise SwarmError(told, install_fix(options)) from error
        version = next((each for name, each in hello["versions"].items() if name != "verifiers"), "")
        if options.version and version != options.version:
            told = f"{options.taskset} is of version {version or '(none)'}, this swarm has {options.version}"
            raise SwarmError(told, install_fix(options))
        if len(hello["agents"]) != 1:
            raise SwarmError(
                f"{options.taskset} has the agents {', '.join(hello['agents'])}: only one can be trained",
                "Choose a taskset of one agent",
            )
        return hello

    @property
    def tasks(self) -> tuple[str, ...]:
        return (self._options.taskset,)

    def begin(self, is_cancelled: Callable[[], bool]) -> None:
        """See `Plan.begin`. Tools that have hung since the last stage are killed with their process."""
        if self._hung:
            self._hung.clear()
            self._service.restart()

    def complete_prompt(self, question: Question) -> Question:
        """See `Plan.complete_prompt`. The process's start is not charged to the rollout."""
        try:
            self._service.read_hello()
        except ServiceFailed as error:
            raise EnvironmentFailed(str(error)) from error
        return super().complete_prompt(question)

    def open_environment(self, question: Question) -> HarnessRollout:
        return HarnessRollout(self._service, str(question.entry[KEY]), self._hung)

    def draw(self, place: StageId, material: Material) -> Iterator[Question]:
        """See `Plan.draw`: all training tasks in an order specific to this node's stage, then again."""
        seed = self._stage_seed(place)
        for repetition in itertools.count():
            order = sorted(self._training)
            Random(hash_number("order", seed, repetition)).shuffle(order)
            yield from (self._make_question(number, seed) for number in order)

    def hold_out(self, task: str, count: int) -> list[Question]:
        chosen = sorted(number for number, side in self._sides.items() if side == "held-out")
        return [self._make_question(number, 0) for number in chosen[:count]]

    def regenerate(self, reference: Reference, place: StageId, material: Material) -> Question:
        """See `Plan.regenerate`.

        Raises:
            RecordRejected: `unknown-task`, `config-digest`, `source` (these questions have no sources), `seed` (of
            another stage), `index` (no task here has this key), or `held-out`.
        """
        peer = place.peer
        if reference.task != self._options.taskset:
            raise RecordRejected("unknown-task", f"{peer} has the taskset {reference.task!r}")
        if reference.config_digest != self._digest:
            raise RecordRejected("config-digest", f"{peer} has another version of the taskset, or other settings")
        if reference != reference.base:
            raise RecordRejected("source", f"{peer} sent a question that is made of other texts")
        if reference.seed != self._stage_seed(place):
            raise RecordRejected("seed", f"{peer} sent a question under a seed that is not of its stage")
        if reference.index not in self._keys:
            raise RecordRejected("index", f"{peer} sent a task whose key no task here has")
        if self._sides[reference.index] != "train":
            raise RecordRejected("held-out", f"{peer} sent a task that is held out")
        return self._make_question(reference.index, reference.seed)

    def _stage_seed(self, place: StageId) -> int:
        return hash_number("questions", self._swarm, place.peer, place.round, place.stage, self._digest)

    def _make_question(self, number: int, seed: int) -> Question:
        key = self._keys[number]
        reference = Reference(self._options.taskset, self._digest, seed, number)
        return Question(reference, (Message("user", key),), {KEY: key})


class HarnessRollout:
    """One rollout in the taskset's process; see `swarmd.swarms.conversation.Environment`."""

    _numbers = itertools.count()

    def __init__(self, service: ConfinedService, key: str, hung: set[int]) -> None:
        self._service = service
        self._key = key
        self._hung = hung
        self._is_asked = False  # whether a request is unanswered
        self._number = next(HarnessRollout._numbers)

    def reset(self, question: Question) -> list[dict[str, str]]:
        given: list[dict[str, str]] = self._request("open", key=self._key)
        return given

    def act(self, text: str) -> str | None:
        given: str | None = self._request("act", text=text)
        return given

    def reward(self) -> Score:
        given = self._request("reward")
        return Score(given["reward"], min(max(given["reward"], 0.0), 1.0), format=1.0, parts=given["parts"])

    def close(self) -> None:
        """Close the rollout. If that takes too long, it would block all others, so the process is restarted."""
        if self._is_asked:
            self._hung.add(self._number)
        try:
            self._service.request({"do": "close", "rollout": self._number}, CLOSE_S)
        except ServiceFailed:
            self._service.restart()

    def _request(self, what: str, **more: str) -> Any:
        self._is_asked = True
        try:
            return self._service.request({"do": what, "rollout": self._number, **more})
        except ServiceFailed as error:
            raise EnvironmentFailed(str(error)) from error
        finally:
            self._is_asked = False


def start_harness(options: VerifiersOptions, home: Path) -> ConfinedService:
    """Start the process that serves the taskset. Raises SwarmError or SandboxUnavailable."""
    environment = home / Path(options.environment).expanduser()
    interpreter = environment.absolute() / "bin" / "python"
    if not interpreter.is_file():
        raise SwarmError(f"there is no environment with verifiers in {environment}", install_fix(options))
    source = importlib.resources.files("swarmd.sandbox").joinpath("verifiers_harness.py").read_text(encoding="utf-8")
    arguments = [options.taskset, json.dumps(dict(options.config)), str(options.tasks), str(options.memory_bytes)]
    places = find_places(interpreter, home)
    return ConfinedService(service_command(interpreter, source, arguments, places, options.sandbox))


def install_fix(options: VerifiersOptions) -> str:
    place, package = options.environment, options.taskset.rpartition("/")[2]
    package += f"=={options.version}" if options.version else ""
    return f"python3 -m venv {place} && {place}/bin/pip install verifiers=={VERSION} {package}"

"""Tasksets of verifiers, run unchanged in a confined process of their own environment; and without that environment."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from swarmd.config import SwarmConfig
from swarmd.errors import RecordRejected, SandboxUnavailable, SwarmError
from swarmd.paths import NodeDirectory
from swarmd.sandbox.service import find_places
from swarmd.swarms.plan import NO_MATERIAL, Question, Score, StageId
from swarmd.swarms.registry import make_plan, needs_sandbox
from swarmd.swarms.rollouts import decode_rollouts
from swarmd.swarms.verifiers import VerifiersPlan
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from swarmd.training.models.model import Policy, load_policy
from swarmd.training.turns import make_turn_sampler
from tests.programs import path_of
from tests.training.conftest import make_config, train_stage
from tests.training.test_turns import Script

TASKSETS = Path(__file__).parent / "tasksets"
PLACE = StageId("a", 0, 0)
Maker = Callable[..., VerifiersPlan]


def test_without_its_environment_the_kind_says_how_to_make_it(tmp_path: Path) -> None:
    swarm = SwarmConfig(id="x", kind="verifiers", options={"taskset": "gsm8k", "version": "1.2"})
    with pytest.raises(SwarmError, match="no environment") as raised:
        make_plan(swarm, home=tmp_path)
    assert raised.value.fix.endswith("verifiers/bin/pip install verifiers==0.4.0 gsm8k==1.2")
    assert needs_sandbox(swarm)


def test_an_environment_that_holds_the_nodes_data_is_refused(tmp_path: Path) -> None:
    interpreter = Path(os.path.realpath(sys.executable))
    with pytest.raises(SandboxUnavailable, match="in which the data directory"):
        find_places(interpreter, Path("/usr/lib/node"))


@pytest.fixture(scope="module")
def environment() -> Path:
    """The environment with verifiers, which finds the tests' tasksets as if they were installed."""
    place = path_of("verifiers").parents[1]
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "swarmd-tests.pth").write_text(f"{TASKSETS}\n")
    return place


@pytest.fixture(scope="module")
def make(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """Makes plans, one of each taskset: to load one takes seconds."""
    home, made = tmp_path_factory.mktemp("home"), dict[str, VerifiersPlan]()
    (home / "swarm.pem").write_text("secret")

    def make_once(taskset: str, **options: Any) -> VerifiersPlan:
        name = f"{taskset} {options}"
        if name not in made:
            given = {"taskset": taskset, "environment": str(environment), "tasks": 100, **options}
            plan = make_plan(SwarmConfig(id="x", kind="verifiers", options=given), home=home)
            assert isinstance(plan, VerifiersPlan)
            made[name] = plan
        return made[name]

    return make_once


def find_question(plan: VerifiersPlan, words: str) -> Question:
    """A question of the training side that ends with these words, as the model is shown it."""
    for _, question in zip(range(200), plan.draw(PLACE, NO_MATERIAL), strict=False):
        shown = plan.complete_prompt(question)
        if shown.messages[-1].content == words:
            return shown
    raise AssertionError(words)


def converse(policy: Policy, plan: VerifiersPlan, question: Question, *turns: str) -> tuple[str, Score]:
    script = Script(policy, *[[turn] for turn in turns])
    sampler = make_turn_sampler(plan, policy, script, 900, 1.0)  # type: ignore[arg-type]
    (drawn,) = sampler.complete_questions([question], [[1]], 1, torch.Generator(), Cancellation())
    assert drawn.score is not None
    return drawn.text, drawn.score


@pytest.fixture(scope="module")
def policy() -> Policy:
    from swarmd.config import TrainingConfig

    return load_policy(TrainingConfig(device="cpu"))


@pytest.mark.needs("verifiers", "unshare")
def test_one_turn_is_scored_by_the_tasks_rewards(make: Maker) -> None:
    plan = make("swarmd_sums")
    question = next(iter(plan.draw(PLACE, NO_MATERIAL)))
    shown = plan.complete_prompt(question)
    left, right = shown.messages[-1].content.rstrip("=").split("+")
    scores = plan.score(question, [str(int(left) + int(right)), "no idea"])
    assert [(score.reward, score.parts) for score in scores] == [
        (1.25, {"right": 1.0, "short": 0.25}),
        (0.0, {"right": 0.0, "short": 0.0}),
    ]


@pytest.mark.needs("verifiers", "unshare")
def test_a_peer_finds_the_task_again_by_its_key(make: Maker) -> None:
    plan = make("swarmd_sums")
    question = next(iter(plan.draw(PLACE, NO_MATERIAL)))
    assert plan.regenerate(question.reference, PLACE, NO_MATERIAL) == question
    held_out = plan.hold_out("swarmd_sums", 3)
    assert len(held_out) == 3
    with pytest.raises(RecordRejected) as refused:
        plan.regenerate(question.reference, StageId("b", 0, 0), NO_MATERIAL)
    assert refused.value.reason == "seed"


@pytest.mark.needs("verifiers", "unshare")
def test_tools_are_called_and_their_state_counts(make: Maker, policy: Policy) -> None:
    plan = make("swarmd_tools")
    question = find_question(plan, "one")
    assert "<tools>" not in question.messages[0].content and '"name": "look_up"' in question.messages[0].content
    call = '<tool_call>{"name": "look_up", "arguments": {"word": "one"}}</tool_call>'
    text, score = converse(policy, plan, question, call, "uno")
    assert text == f"{call}<tool_response>\nuno\n</tool_response>uno"
    assert score.parts == {"said": 1.0, "looked_up": 0.5}
    _, score = converse(policy, plan, question, "uno")
    assert score.parts == {"said": 1.0, "looked_up": 0.0}


@pytest.mark.needs("verifiers", "unshare")
def test_an_environment_may_be_the_user(make: Maker, policy: Policy) -> None:
    plan = make("swarmd_guessing")
    question = next(plan.complete_prompt(each) for each in plan.draw(PLACE, NO_MATERIAL))
    assert question.messages[-1].content == "Guess a digit."
    text, score = converse(policy, plan, question, *map(str, range(5)))
    assert "larger" in text or score.reward == 1.0


@pytest.mark.needs("verifiers", "unshare")
def test_of_a_taskset_without_end_the_first_tasks_are_taken(make: Maker) -> None:
    plan = make("swarmd_endless", tasks=30)
    assert len(plan._keys) == 30


@pytest.mark.needs("verifiers", "unshare")
def test_a_taskset_of_two_agents_is_refused(make: Maker) -> None:
    with pytest.raises(SwarmError, match="the agents first, second: only one can be trained"):
        make("swarmd_two_agents")


@pytest.mark.needs("verifiers", "unshare")
def test_a_taskset_that_is_not_installed_is_named_with_the_way_to_get_it(make: Maker) -> None:
    with pytest.raises(SwarmError, match="'swarmd_missing' not found") as raised:
        make("swarmd_missing")
    assert "pip install verifiers==0.4.0 swarmd_missing" in raised.value.fix


@pytest.mark.needs("verifiers", "unshare")
def test_a_tool_that_hangs_costs_its_rollout_alone(make: Maker, policy: Policy) -> None:
    plan = make("swarmd_tools", turns={"seconds": 3.0})
    question = find_question(plan, "one")
    call = '<tool_call>{{"name": "look_up", "arguments": {{"word": "{}"}}}}</tool_call>'
    script = Script(policy, [call.format("stuck"), call.format("one")], ["uno"])
    sampler = make_turn_sampler(plan, policy, script, 900, 1.0)  # type: ignore[arg-type]
    stuck, good = sampler.complete_questions([question], [[1]], 2, torch.Generator(), Cancellation())
    assert stuck.score and stuck.score.failed and not any(stuck.own)
    assert good.score and good.score.reward == 1.5
    before = plan._service._process
    plan.begin(lambda: False)
    assert plan._service._process is not before, "what still hangs ends before the next stage"


@pytest.mark.needs("verifiers", "unshare")
def test_a_hostile_taskset_gets_no_further_than_its_rollout(make: Maker) -> None:
    """Twenty tries, each in a reward, which runs in the process itself; what spins costs the process."""
    plan = make("swarmd_hostile", turns={"seconds": 4.0})
    question = next(iter(plan.draw(PLACE, NO_MATERIAL)))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        for attack in (
            *(f"network {port}", "network 53", "network 80", "fork", "run", f"kill {os.getpid()}"),
            *(
                "read /etc/passwd",
                "read /etc/shadow",
                "read /proc/1/environ",
                f"read {__file__}",
                "read /scratch/../etc/group",
            ),
            *("list /proc", "list /dev", "list /home", "list /etc/ssl", "write /usr/x", "write /lib/x", "write /x"),
            *("memory 99999999999", "threads"),
        ):
            (score,) = plan.score(question, [attack])
            assert score.failed and score.reward == 0, attack
    assert plan.score(question, ["nothing"])[0].reward == 1.0
    assert plan.score(question, ["spin"])[0].failed
    assert plan.score(question, ["nothing"])[0].reward == 1.0, "in a new process"


@pytest.fixture
def make_node(tmp_path: Path, make: Maker) -> Iterator[Callable[[str, str], TrainingEngine]]:
    made: list[TrainingEngine] = []

    def make_engine(peer: str, taskset: str) -> TrainingEngine:
        config = make_config(completion_tokens=40, prompt_tokens=400, held_out_questions=2)
        made.append(TrainingEngine(config, NodeDirectory(tmp_path / peer), peer, make(taskset)))
        return made[-1]

    yield make_engine
    for engine in made:
        engine.close()


@pytest.mark.needs("verifiers", "unshare")
@pytest.mark.parametrize("taskset", ["swarmd_sums", "swarmd_guessing"])
def test_nodes_train_on_a_taskset_and_on_each_others_rollouts(
    make_node: Callable[[str, str], TrainingEngine], taskset: str
) -> None:
    one, other = make_node("a", taskset), make_node("b", taskset)
    published = train_stage(other, 0)
    body = other._blobs.get(published.rollouts.digest)
    one._blobs.put(body)
    event = train_stage(one, 1, rollouts=(published.rollouts,))
    assert published.held_out is not None and event.rejected == ()
    assert len(decode_rollouts(body).groups) == published.rollouts.groups > 0


UPSTREAM = {  # tasksets of verifiers' own repository: words of a task, turns that answer it
    "scratchpad": ('word="charlie"', '{"name": "scratchpad_roundtrip", "arguments": {"word": "charlie"}}', "charlie"),
    "glossary": ('"Alan Turing"', '{"name": "facts_lookup", "arguments": {"name": "Alan Turing"}}', ""),
}


@pytest.mark.soak
@pytest.mark.needs("verifiers", "unshare")
@pytest.mark.parametrize("taskset", list(UPSTREAM))
def test_tasksets_of_verifiers_repository_run_unchanged(
    make: Maker, policy: Policy, environment: Path, taskset: str
) -> None:
    checkout = os.environ.get("VERIFIERS_CHECKOUT")
    if not checkout:
        pytest.skip("VERIFIERS_CHECKOUT names no checkout of github.com/PrimeIntellect-ai/verifiers")
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / f"swarmd-{taskset}.pth").write_text(f"{Path(checkout).resolve()}/environments/{taskset}\n")
    words, call, last = UPSTREAM[taskset]
    plan = make(taskset)
    asked = [plan.complete_prompt(each) for _, each in zip(range(40), plan.draw(PLACE, NO_MATERIAL), strict=False)]
    asked += [plan.complete_prompt(each) for each in plan.hold_out(taskset, 40)]
    question = next((each for each in asked if words in each.messages[-1].content), asked[0])
    script = [f"<tool_call>{call}</tool_call>", last or "I do not know."]
    text, score = converse(policy, plan, question, *script)
    assert "<tool_response>" in text and not score.failed
    assert score.reward == (1.0 if last and words in question.messages[-1].content else 0.0)


@pytest.mark.soak
@pytest.mark.needs("verifiers", "unshare")
def test_twenty_rollouts_a_second(make: Maker) -> None:
    plan = make("swarmd_sums")
    question = plan.complete_prompt(next(iter(plan.draw(PLACE, NO_MATERIAL))))
    plan.score(question, ["1"])
    begun = time.process_time(), time.monotonic()
    scores = plan.score(question, ["1"] * 200)
    assert not any(score.failed for score in scores)
    assert 200 / (time.monotonic() - begun[1]) >= 20

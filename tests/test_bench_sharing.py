"""The benchmark `sharing`: that it runs, that peers' groups are trained on, and that its figures are what they say."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from bench import learning, sharing, worked
from bench.sharing import HOSTILE, LONER, MAIN, STALE, STEPS, VARIANTS, Outcome, Swarm, make_arms, make_rows
from bench.specialists import FIRST, SECOND, SKILLS, WORKED_TOKENS, Goal, draw_lessons, make_plan, teach
from swarmd.config import TrainingConfig
from swarmd.core.events import StageTrained
from swarmd.training.embedded.recipe import build_tokenizer, list_questions, make_policy
from swarmd.training.engine import TrainingEngine
from swarmd.training.library_logging import quieten

quieten()
EMBEDDED = [Path("embedded")] * 2


def run_slice(directory: Path, settings: Mapping[str, Any]) -> Swarm:
    """Two rounds of two nodes with the embedded model, under the words that it knows."""
    small = {"steps": 1, "generations": 4}
    swarm = Swarm(directory, EMBEDDED, 0, {**settings, **small}, FIRST)
    assert all(0 <= swarm.train(round) <= 1 for round in range(2))
    return swarm


def test_a_swarm_trains_on_what_its_peers_published_and_a_loner_does_not(tmp_path: Path) -> None:
    arms = make_arms()
    shared = run_slice(tmp_path / "swarm", arms["4/4"])
    assert shared.peer_groups > 0
    loner = run_slice(tmp_path / "loner", arms[LONER])
    assert loner.peer_groups == 0
    assert 0.5 < shared.tokens / loner.tokens < 2  # as many completions


def test_a_poisoned_swarm_has_one_peer_more_and_looks_for_its_payload(tmp_path: Path) -> None:
    swarm = run_slice(tmp_path, make_arms()["4/4 poisoned"])
    assert [ref.peer for ref in swarm._published[-1]] == ["node-0", "node-1", "hostile"]
    assert swarm.look_for_payload() == [0.0, 0.0]


def test_arms_fill_a_batch_and_have_own_groups_in_it() -> None:
    assert set(MAIN) <= set(make_arms()) >= {f"4/4 {name}" for name in VARIANTS}
    for settings in make_arms().values():
        training = TrainingConfig(**{key: value for key, value in settings.items() if key not in (HOSTILE, STALE)})
        assert training.peer_questions + training.replay_questions < 8


def outcome(arm: str, seed: int, held_out: list[list[float]], reward: float = 0.2) -> Outcome:
    before = [[0.8 if node == skill else 0.02 for skill in range(4)] for node in range(4)]
    return Outcome(arm, seed, reward, [reward] * STEPS, held_out, before, 9 if arm != LONER else 0, 1000, 1.0)


def test_a_skill_is_lost_where_it_was_and_is_no_more() -> None:
    kept = [[0.5] * 4 for _ in range(4)]
    gone = [[0.01, 0.5, 0.5, 0.5], *kept[1:]]
    elsewhere = [kept[0], [0.01, 0.5, 0.5, 0.5], *kept[2:]]  # never had it
    assert outcome("4/4", 0, kept).lost == outcome("4/4", 0, elsewhere).lost == []
    assert outcome("4/4", 0, gone).lost == ["0:digits_reverse"]
    assert outcome("4/4", 0, gone).worst_node == pytest.approx(0.3775)


def test_the_goal_is_of_every_seed_and_of_every_skill() -> None:
    kept = [[0.5] * 4 for _ in range(4)]
    loner = [outcome(LONER, 0, kept), outcome(LONER, 1, kept)]
    good = [outcome("4/4", 0, kept, 0.4), outcome("4/4", 1, kept, 0.5)]
    rows = {row.what: row for row in make_rows("4/4", good, loner)}
    assert rows["4/4: cumulative reward"].met is True
    assert rows["4/4: skills lost by nodes that had them"].met is True
    weak = [good[0], outcome("4/4", 1, [[0.0] * 4, *kept[1:]], 0.3)]
    rows = {row.what: row for row in make_rows("4/4", weak, loner)}
    assert rows["4/4: cumulative reward"].met is False
    assert rows["4/4: skills lost by nodes that had them"].met is False
    assert msgspec.json.decode(msgspec.json.encode(weak[1]), type=Outcome) == weak[1]


def test_outcomes_of_longer_answers_are_not_taken_for_those_of_short_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sharing` and `worked` have outcomes of one form, which may stand in one file."""
    ran: list[int] = []

    def run_arm(directory: Path, models: object, arm: str, seed: int, rounds: int, tokens: int) -> Outcome:
        ran.append(tokens)
        return msgspec.structs.replace(short, answer_tokens=tokens)

    short = outcome(LONER, 0, [[0.5] * 4 for _ in range(4)])
    monkeypatch.setattr(sharing, "run_arm", run_arm)
    for module in (sharing, worked):
        monkeypatch.setattr(module, "build_specialists", lambda *_, **__: [])
        told: list[Outcome] = []
        list(module.run(tmp_path, [LONER], [0], STEPS, told.append, [short]))
        assert ran == [each.answer_tokens for each in told]
    assert ran == [WORKED_TOKENS]
    list(worked.run(tmp_path, [LONER], [0], STEPS, known=[short, *told]))
    assert ran == [WORKED_TOKENS]


def test_specialists_are_taught_right_answers_in_both_phrasings() -> None:
    torch.manual_seed(0)
    plans = [make_plan(FIRST), make_plan(SECOND, SKILLS[0])]
    policy = make_policy(build_tokenizer(list_questions(*plans)), 32)
    batch = next(draw_lessons(policy, [(plans[0], 0.25), (plans[1], 0.75)], 0))
    texts = [(policy.decode_completion(prompt), policy.decode_completion(target)) for prompt, target, _ in batch]
    backwards = [(prompt, answer) for prompt, answer in texts if "backwards" in prompt]
    assert (len(texts), len(backwards)) == (48, 36)
    for prompt, answer in backwards:
        number = "".join(character for character in prompt if character.isdigit())
        assert answer == f"<answer>{number[::-1]}</answer>"
    before = [parameter.clone() for parameter in policy.model.parameters()]
    teach(policy, iter([batch] * 3), plans[1], Goal(1e-3, 3, 1.0, 3))
    assert not all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def test_learning_measures_before_the_first_step_and_after_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the default settings learn is in test_engine.py; here they are smaller."""
    small = {"steps": 1, "questions": 4, "generations": 4, "peer_questions": 2, "held_out_questions": 8}
    monkeypatch.setattr(learning, "TrainingConfig", functools.partial(TrainingConfig, **small))
    told: list[StageTrained] = []
    train = TrainingEngine.train

    def note(engine: TrainingEngine, *arguments: Any) -> StageTrained:
        told.append(train(engine, *arguments))
        return told[-1]

    monkeypatch.setattr(TrainingEngine, "train", note)
    accuracies = learning.learn(tmp_path / "nodes", "learning-test", 2, 2)
    before = [event.held_out_before for event in told[:2]]
    after = [event.held_out for event in told]
    means = [sum(map(float, pair)) / 2 for pair in (before, after[:2], after[2:])]  # type: ignore[arg-type]
    assert accuracies == pytest.approx(means) and accuracies[0] > 0
    assert len({event.rollouts.peer for event in told}) == 2 and len(set(after)) > 1
    assert [event.round for event in told] == [0, 0, 1, 1]
    assert all(event.peer_groups > 0 for event in told[2:]), "each trains on what the other published"
    assert not (tmp_path / "nodes").exists()

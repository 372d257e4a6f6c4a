"""Stages on the real trainer: state that lives on, cancellation, restarts, peers, failures."""

from __future__ import annotations

import errno
import itertools
import json
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from swarmd.config import SwarmConfig
from swarmd.errors import CheckpointFailed, PlanFailed, SwarmError, TrainingDiverged
from swarmd.paths import NodeDirectory
from swarmd.swarms.plan import NO_MATERIAL, Material, Message, Question, Score, StageId, decode_scored_groups
from swarmd.swarms.reasoning_gym import DigitsPlan
from swarmd.swarms.registry import make_plan
from swarmd.swarms.rollouts import decode_rollouts
from swarmd.training import checkpoints, trainer
from swarmd.training.cancellation import Cancellation, Cancelled
from swarmd.training.engine import TrainingEngine
from swarmd.training.evaluation import Accuracy
from swarmd.training.groups import Scorer
from swarmd.training.models.device import Precision
from swarmd.training.sampling import BaseSampler, TurnCompletion
from swarmd.worker.messages import ProgressMessage
from tests.log_capture import capture_logs
from tests.training.conftest import after_a_step, make_config, order, train_stage
from tests.training.test_sampling import AfterTokens

Maker = Callable[..., TrainingEngine]


def optimizer_steps(engine: TrainingEngine) -> int:
    """What AdamW itself counts."""
    states = list(engine._trainer.optimizer.state.values())
    return int(states[0]["step"]) if states else 0


def weights(engine: TrainingEngine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in engine.policy.model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_two_stages_and_a_restart(make_engine: Maker) -> None:
    engine = make_engine()
    first = train_stage(engine, 0)
    assert first.steps == 2 and first.tokens > 0 and first.held_out is not None and first.held_out_before is not None
    assert 0 <= first.reward <= 1.2
    optimizer = engine._trainer.optimizer
    second = train_stage(engine, 1)
    assert second.held_out_before is None
    assert engine._trainer.optimizer is optimizer and optimizer_steps(engine) == engine.steps == 4

    again = make_engine()
    assert optimizer_steps(again) == again.steps == 4
    assert same(weights(again), weights(engine))
    for round in (0, 1):
        repeated = train_stage(again, round)
        assert repeated == (first, second)[round]
    assert again.steps == 4, "a stage that has a checkpoint is not trained again"
    on_and_on = train_stage(engine, 2)
    shutil.rmtree(engine.checkpoint_directory(on_and_on))
    otherwise = {"seconds": 0, "times": None, "ledger": None}  # tokens of the stage drawn twice count twice
    repeated = train_stage(again, 2)
    assert msgspec.structs.replace(repeated, **otherwise) == msgspec.structs.replace(on_and_on, **otherwise)
    assert same(weights(again), weights(engine)), "a restarted node goes on as if nothing had happened"


def test_a_stage_tells_what_it_is_at(make_engine: Maker) -> None:
    engine = make_engine(questions=2)
    told: list[ProgressMessage] = []
    engine.train(order(0), Cancellation(), told.append)
    assert [what for what, _ in itertools.groupby(progress.what for progress in told)] == [
        "beginning the stage",
        "measuring held-out accuracy",
        "reading what peers published",
        "training",
        "measuring held-out accuracy",
        "writing the checkpoint",
    ]
    held_out = 4 * len(engine._plan.tasks)
    measured = [(each.done, each.total) for each in told if each.what.startswith("measuring") and not each.note]
    assert {each for each in measured if each[1]} == {(done, held_out) for done in range(0, held_out, 4)}
    notes = [each.note for each in told if each.what == "training"]
    assert {"drawing 0 of 10 tokens", "scoring completions", "pass 1 of 1 through the model"} <= set(notes)
    steps = [each for each in told if each.what == "training" and not each.note]
    assert [(each.done, each.total) for each in steps] == [(0, 2), (1, 2), (2, 2)]
    assert {"tokens_per_s", "eta_s", "reward"} <= steps[1].figures.keys() and steps[1].figures["eta_s"] > 0
    after = told[told.index(steps[2]) + 1 :]
    assert after and all("eta_s" not in each.figures and each.figures["reward"] >= 0 for each in after)
    told.clear()
    engine.train(order(1), Cancellation(), told.append)
    assert not told[0].figures
    last = next(each for each in told if each.what == "training" and each.done == 2)
    assert last.figures["eta_s"] > 0, "by the stage before it knows what comes after the steps"


def test_a_stage_after_one_that_could_not_be_put_back_begins_at_the_checkpoint_all_the_same(
    make_engine: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(replay_questions=0)
    train_stage(engine, 0)
    restore = engine._progress.restore

    def fail(touched: bool) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def break_off(progress: ProgressMessage) -> None:
        if progress.what == "training" and progress.done:
            raise RuntimeError("in the middle of the stage")

    monkeypatch.setattr(engine._progress, "restore", fail)
    with pytest.raises(OSError, match="Input/output"):
        engine.train(order(1), Cancellation(), break_off)
    with pytest.raises(OSError, match="Input/output"):
        train_stage(engine, 1)
    monkeypatch.setattr(engine._progress, "restore", restore)
    other = make_engine(replay_questions=0)
    shutil.rmtree(other.checkpoint_directory(train_stage(other, 1)))
    train_stage(engine, 1)
    assert engine.steps == other.steps == 4 and same(weights(engine), weights(other))


def test_rollouts_are_in_the_store_when_a_stage_is_reported(make_engine: Maker) -> None:
    engine = make_engine(share_groups=5)
    event = train_stage(engine, 0)
    body = engine._blobs.get(event.rollouts.digest)
    assert len(body) == event.rollouts.size_bytes
    rollouts = decode_rollouts(body)
    assert (rollouts.peer, rollouts.round, len(rollouts.groups)) == ("a", 0, 5)
    shutil.rmtree(engine._blobs.directory)
    assert engine._blobs.get(train_stage(engine, 0).rollouts.digest) == body, "and are put back from the checkpoint"


def test_peers_groups_are_trained_on_and_what_all_came_to_is_kept_in_words(make_engine: Maker) -> None:
    one, other = make_engine("a", questions=3), make_engine("b", questions=3)
    published = train_stage(other, 0).rollouts
    body = other._blobs.get(published.digest)
    one._blobs.put(body)
    train_stage(one, 0)
    event = train_stage(one, 1, rollouts=(published,))
    assert 0 < event.peer_groups <= published.groups, "each once; some may stand in for own flat ones"
    assert event.rejected == ()
    scored = decode_scored_groups(one._blobs.get(event.scored))
    theirs = [group for group in scored if group.peer == "b"]
    assert {group.index for group in theirs} <= {group.index for group in decode_rollouts(body).groups}
    assert len(theirs) == published.groups
    assert {(group.round, group.stage) for group in theirs} == {(0, 0)}
    own = decode_rollouts(one._blobs.get(event.rollouts.digest)).groups
    assert [(each.task, each.index) for each in scored if each.peer == "a"] == [(each.task, each.index) for each in own]
    for group in scored:
        assert group.question and group.truth and len(group.rewards) == len(group.right) == 4
        assert all(right == (reward >= 1.0) for reward, right in zip(group.rewards, group.right, strict=True))
    missing = msgspec.structs.replace(published, digest="0" * 64, round=1)
    assert train_stage(one, 2, rollouts=(missing,)).rejected == (("missing", published.groups),)


def test_cancelled_in_the_middle_of_generation(make_engine: Maker) -> None:
    engine = make_engine()
    train_stage(engine, 0)
    before = weights(engine)
    cancellation = AfterTokens(1 << 30)

    def ask_soon(progress: ProgressMessage) -> None:
        if progress.what == "training" and progress.done == 1 and not progress.note:
            cancellation.looks = 3  # one at the end of this step, two in the generation of the next

    with pytest.raises(Cancelled):
        engine.train(order(1), cancellation, ask_soon)
    assert engine.abandoned_steps == 3, "the second step of the stage was never taken"
    assert same(weights(engine), before) and optimizer_steps(engine) == engine.steps == 2
    assert train_stage(engine, 1).steps == 2
    assert optimizer_steps(engine) == 4


def test_cancelled_between_steps_of_the_first_stage(make_engine: Maker) -> None:
    engine = make_engine(held_out_questions=0)
    before = weights(engine)
    cancellation = Cancellation()
    with pytest.raises(Cancelled):
        engine.train(order(0), cancellation, after_a_step(cancellation))
    assert same(weights(engine), before) and engine.steps == 0 and optimizer_steps(engine) == 0
    assert train_stage(engine, 0).steps == 2


def test_the_plan_can_look_at_the_cancellation_of_its_stage(
    make_engine: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, cancellation = make_engine(), Cancellation()
    looks: list[Callable[[], bool]] = []
    seen: list[bool] = []
    score = engine._plan.score

    def ask_then_score(question: Question, completions: Sequence[str]) -> Sequence[Score]:
        seen.append(looks[-1]())
        cancellation.request()
        seen.append(looks[-1]())
        return score(question, completions)

    monkeypatch.setattr(engine._plan, "begin", looks.append)
    monkeypatch.setattr(engine._plan, "score", ask_then_score)
    with pytest.raises(Cancelled):
        engine.train(order(0), cancellation)
    assert seen[:2] == [False, True], "told before the first figures are taken"
    monkeypatch.setattr(engine._plan, "score", score)
    assert train_stage(engine, 0).steps == 2 and not looks[-1](), "and anew for each stage"


def test_no_batch_reaches_the_next_stage(make_engine: Maker) -> None:
    """TRL reuses its buffered batch when a stage ends between two generations: every step must ask for a new one."""
    engine = make_engine(steps=3, held_out_questions=0)
    engine._trainer.num_iterations = 2  # as a user of TRL would set it: each batch is trained on twice
    asked: list[int] = []
    inner = engine._next_batch

    def count() -> dict[str, Any]:
        asked.append(engine.steps)
        return inner()

    engine._next_batch = count  # type: ignore[method-assign]
    train_stage(engine, 0)
    train_stage(engine, 1)
    assert asked == [0, 2, 3, 5], "steps 3 begins a stage and generates, though step 2's batch had one use left"
    assert engine._trainer._buffered_inputs is None


def test_a_damaged_newest_checkpoint(make_engine: Maker) -> None:
    engine = make_engine()
    first = train_stage(engine, 0)
    after_first = weights(engine)
    (engine.checkpoint_directory(train_stage(engine, 1)) / "model.safetensors").write_bytes(b"")
    again = make_engine()
    assert same(weights(again), after_first) and again.steps == 2
    assert train_stage(again, 0) == first
    assert train_stage(again, 1).steps == 2 and again.steps == 4
    assert make_engine().steps == 4


def test_no_room_for_a_checkpoint(make_engine: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointFailed, match="bytes free"):
        train_stage(make_engine("full", free_bytes_min=1 << 60), 0)


def test_a_stage_that_cannot_be_written_is_not_trained_over(
    make_engine: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is lost as long as the process lives: not by the stages that fail, nor once there is room again."""
    engine = make_engine()
    train_stage(engine, 0)
    engine.wait_until_saved()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_weights", _raise_no_space)
        trained, after = train_stage(engine, 1), weights(engine)
        for _ in range(2):
            with pytest.raises(CheckpointFailed, match="No space left"):
                train_stage(engine, 2)
            assert same(weights(engine), after) and optimizer_steps(engine) == 4
        with capture_logs() as logs:
            engine.close()
        assert "what it has learnt ends with this process" in logs[-1]["event"]
    assert train_stage(engine, 1) == trained
    assert train_stage(engine, 2).steps == 2 and engine.steps == 6
    assert make_engine().steps == 6


def test_a_stage_asked_for_while_it_is_written_is_answered(make_engine: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, begun = make_engine(), threading.Event()
    write = checkpoints.write_weights

    def write_late(given: dict[str, torch.Tensor], file: checkpoints.HashingFile) -> None:
        begun.wait(0.5)
        write(given, file)

    monkeypatch.setattr(checkpoints, "write_weights", write_late)
    assert train_stage(engine, 0) == train_stage(engine, 0) and engine.steps == 2


def test_a_report_waits_for_no_disk_and_a_step_does(make_engine: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is what the stage came to, though the next one is begun beside it; and nothing is copied."""
    engine = make_engine()
    writes, steps = threading.Event(), threading.Event()
    write, settle = checkpoints.write_weights, engine._step_callback.before_step

    def write_when_told(given: dict[str, torch.Tensor], file: checkpoints.HashingFile) -> None:
        assert writes.wait(60)
        own = engine.policy.model.state_dict()
        assert all(tensor.data_ptr() == own[name].data_ptr() for name, tensor in given.items())
        write(given, file)

    def step() -> None:
        steps.set()
        settle()

    monkeypatch.setattr(checkpoints, "write_weights", write_when_told)
    monkeypatch.setattr(engine._step_callback, "before_step", step)
    writes.set()
    train_stage(engine, 0)
    engine.wait_until_saved()
    writes.clear()
    written: list[checkpoints.Checkpoint] = []
    engine.train(order(1), Cancellation(), written=written.append)
    after, steps_after = weights(engine), optimizer_steps(engine)
    steps.clear()
    with ThreadPoolExecutor(1) as thread:
        next_stage = thread.submit(train_stage, engine, 2)
        assert steps.wait(60)
        assert same(weights(engine), after) and not written
        writes.set()
        assert next_stage.result().steps == 2
    assert same(written[0].read_weights(), after) and not same(weights(engine), after)
    moments = written[0].read_optimizer()["optimizer"]["state"]
    assert int(moments[0]["step"]) == steps_after == 4


def _raise_no_space(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_another_model_begins_anew(make_engine: Maker, llama: Path) -> None:
    train_stage(make_engine(), 0)
    other = make_engine(model=str(llama), prompt_tokens=500, completion_tokens=6)
    assert other.steps == 0
    assert train_stage(other, 0).steps == 2 and other.steps == 2, "the other model's checkpoint is no answer"
    assert make_engine(model=str(llama), prompt_tokens=500, completion_tokens=6).steps == 2


def test_questions_that_do_not_fit(make_engine: Maker) -> None:
    with pytest.raises(SwarmError, match=r"training\.prompt_tokens = 5"):
        train_stage(make_engine(prompt_tokens=5, held_out_questions=0), 0)


def test_questions_that_are_passed_over_are_counted_and_told_once(
    make_engine: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(held_out_questions=0, prompt_tokens=100)
    draw = engine._plan.draw

    def draw_long(place: StageId, material: Material) -> Iterator[Question]:
        for question in draw(place, material):
            long = Message("user", question.messages[-1].content * 20)
            yield msgspec.structs.replace(question, messages=(long,))
            yield question

    monkeypatch.setattr(engine._plan, "draw", draw_long)
    shown: list[dict[str, float]] = []
    with capture_logs() as lines:
        engine.train(order(0), Cancellation(), lambda progress: shown.append(progress.figures))
    told = [each for each in lines if "passed over" in each["event"]]
    assert len(told) == 1 and told[0]["questions"] == max(each.get("prompts_too_long", 0) for each in shown) > 0
    assert told[0]["longest"] > told[0]["prompt_tokens"] == 100


def test_a_reward_function_that_always_fails_ends_the_stage_in_its_own_words(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n} + 1 = ?", "answer": str(n + 1)} for n in range(40)]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "mine.py").write_text("def right(**_):\n    raise KeyError('no such column')\n")
    options = {"data": "q.jsonl", "reward_funcs": ["mine:right"]}
    config = make_config(held_out_questions=0)
    config = msgspec.structs.replace(config, swarm=SwarmConfig("test", kind="file", options=options))
    plan = make_plan(config.swarm, config.training, tmp_path)
    engine = TrainingEngine(config, NodeDirectory(tmp_path / "a"), "a", plan)
    with pytest.raises(PlanFailed, match=r"mine:right failed at all .*KeyError: 'no such column' \(mine\.py, line 2\)"):
        train_stage(engine, 0)


def test_a_plan_whose_questions_come_to_an_end_is_told(make_engine: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(held_out_questions=0)
    draw = engine._plan.draw
    monkeypatch.setattr(engine._plan, "draw", lambda *where: itertools.islice(draw(*where), 1))
    with pytest.raises(SwarmError, match=r"DigitsPlan\.draw has no more questions for round 0, stage 0"):
        train_stage(engine, 0)


def test_a_gradient_is_scaled_down_to_its_bound(make_engine: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    def moments(node: str, bound: float) -> float:
        """The norm of Adam's first moments: a mean of gradients, none longer than the bound."""
        monkeypatch.setattr(trainer, "GRAD_NORM_MAX", bound)
        engine = make_engine(node)
        train_stage(engine, 0)
        state = engine._trainer.optimizer.state.values()
        return float(torch.linalg.vector_norm(torch.stack([each["exp_avg"].norm() for each in state])))

    assert 0 < moments("a", 1e-4) <= 1e-4 < moments("b", 1e3)


def test_a_stage_whose_gradient_is_no_number_is_not_kept(make_engine: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its last step, behind which nothing is drawn any more that would show it."""
    engine = make_engine(held_out_questions=0)
    train_stage(engine, 0)
    before, steps = weights(engine), engine.steps

    def spoil(advantages: torch.Tensor, rewards: Sequence[float], group: int) -> torch.Tensor:
        return advantages * (torch.nan if engine.steps > steps else 1)

    monkeypatch.setattr("swarmd.training.trainer.clear_zero_variance_advantages", spoil)
    with pytest.raises(TrainingDiverged, match="step 2"):
        train_stage(engine, 1)
    assert engine.steps == steps and same(weights(engine), before)
    monkeypatch.undo()
    assert train_stage(engine, 1).steps == 2
    assert all(bool(tensor.isfinite().all()) for tensor in weights(engine).values())


def test_it_learns(make_engine: Maker) -> None:
    """One default stage on held-out questions: not proof of much, but nothing broken learns."""
    engine = make_engine(steps=40, questions=16, generations=8, held_out_questions=48)
    event = train_stage(engine, 0)
    assert event.held_out_before is not None and event.held_out is not None
    assert event.held_out_before < 0.3
    assert event.held_out > event.held_out_before + 0.15


@pytest.mark.parametrize("numbers", ["mixed", "bfloat16"])
def test_short_numbers(make_engine: Maker, monkeypatch: pytest.MonkeyPatch, numbers: str) -> None:
    """What an accelerator does by default (bfloat16 passes over float32 weights), and weights in bfloat16."""
    from swarmd.training.models import model

    if numbers == "mixed":
        monkeypatch.setattr(model, "choose_precision", lambda *_: Precision("float32", mixed=True))
    engine = make_engine(dtype="auto" if numbers == "mixed" else "bfloat16")
    assert engine.policy.precision.mixed is (numbers == "mixed")
    assert engine._sampler.can_share_prefill
    before = weights(engine)
    event = train_stage(engine, 0)
    assert engine._trainer._packs is True
    assert event.steps == 2 and not same(before, weights(engine))
    assert all(torch.isfinite(tensor).all() for tensor in weights(engine).values())


def test_a_task_that_falls_is_told_and_drawn_more_after_a_restart_too(make_engine: Maker) -> None:
    engine = make_engine(steps=1, own_questions=32)
    tasks = engine._plan.tasks
    measured = iter([0.9, 0.9, 0.1])
    engine._measure_accuracy = lambda cancellation: {  # type: ignore[method-assign]
        task: Accuracy(next(measured) if task == tasks[0] else 0.5, 1.0, 64) for task in tasks
    }
    steady, fell = train_stage(engine, 0), train_stage(engine, 1)
    assert {skill.task for skill in steady.skills} == set(tasks)
    assert not any(skill.fallen or skill.weight > 1 for skill in steady.skills)
    assert [(skill.task, skill.held_out) for skill in fell.skills if skill.fallen] == [(tasks[0], 0.1)]
    assert fell.skills[0].weight > 2

    asked: dict[bool, Counter[str]] = {}
    for guarded in (True, False):
        again = make_engine(steps=1, own_questions=32, held_out_every=3)
        again._skills.guarded = guarded
        drawn = asked[guarded] = Counter[str]()
        again._plan.learn = lambda question, scores, drawn=drawn: drawn.update([question.task])  # type: ignore
        train_stage(again, 2 if guarded else 3)
    assert asked[True][tasks[0]] > asked[False][tasks[0]] * 1.3, asked


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Lengths of the prompts of each batch."""
    batches: list[list[int]] = []
    draw = BaseSampler.sample

    def note(self: Any, prompts: Sequence[Sequence[int]], *args: Any, **kwargs: Any) -> Any:
        batches.append([len(prompt) for prompt in prompts])
        return draw(self, prompts, *args, **kwargs)

    monkeypatch.setattr(BaseSampler, "sample", note)
    return batches


def test_as_many_are_drawn_together_as_completions_in_a_step(
    make_engine: Callable[..., TrainingEngine], drawn: list[list[int]]
) -> None:
    engine = make_engine(questions=3, generations=2, held_out_questions=16)
    assert engine._measure_accuracy(Cancellation()).keys() == set(engine._plan.tasks)
    assert max(map(len, drawn)) == 6
    assert sum(map(len, drawn)) == 16 * len(engine._plan.tasks)


class Frail(DigitsPlan):
    """A plan with mistakes."""

    def score(self, question: Question, completions: Sequence[str]) -> list[Score]:
        if any(text.startswith("6") for text in completions):
            sys.exit("a six")
        return [Score(1.0, 1.0, 1.0) for _ in completions]


def test_a_plan_that_raises_over_own_completions_costs_these_alone() -> None:
    plan = Frail(SwarmConfig(id="test"))
    question = next(plan.draw(StageId("a", 0, 0), NO_MATERIAL))
    scorer = Scorer(plan)
    drawn = [TurnCompletion([1], [1], text) for text in ("5", "6", "7")]
    for _ in range(2):
        group = scorer.make_group(question, [1], drawn)
        assert (group.rewards, [score.failed for score in group.scores]) == ([1, 0, 1], [False, True, False])
    with capture_logs() as told:
        scorer.log_failures()
        scorer.log_failures()
    assert [line["failures"] for line in told] == [{question.task: 2}]
    assert "tests.training.test_engine.Frail.score raised SystemExit: a six (test_engine.py, line " in told[0]["plan"]


def test_a_plan_whose_scores_always_fail_is_trained_on_and_told_in_each_stage(
    make_engine: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    monkeypatch.setattr(engine._plan, "score", lambda *_: 1 // 0)
    with capture_logs() as told:
        event = train_stage(engine, 0)
    assert (event.reward, event.held_out) == (0, 0)
    failed = [line["event"] for line in told if line["log_level"] == "warning"]
    assert failed.count("scorers failed, the completions count as wrong") == 1


def test_the_method_of_a_plan_that_raises_is_named(make_engine: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    def learn(self: DigitsPlan, *_: object) -> None:
        raise KeyError("level")

    engine = make_engine(held_out_questions=0)
    monkeypatch.setattr(DigitsPlan, "learn", learn)
    with pytest.raises(PlanFailed, match=r"DigitsPlan\.learn raised KeyError: 'level' \(test_engine\.py, line \d+\)"):
        train_stage(engine, 0)
    monkeypatch.undo()
    assert train_stage(engine, 0).steps == 2

"""What real trainers say became of their tokens, against what was really drawn, also if they are killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from swarmd.core import token_ledger
from swarmd.core.events import CheckpointWritten, Event, StageTrained, TrainerReady, TrainingCancelled
from swarmd.core.values import StageTokens, TokenLedger
from swarmd.paths import NodeDirectory
from swarmd.training.cancellation import Cancellation, Cancelled
from swarmd.training.engine import TrainingEngine
from swarmd.training.sampling import TurnCompletion, TurnSampler
from swarmd.training.token_counter import TokenCounter
from swarmd.worker.messages import ObservedMessage, PerformMessage
from tests.training.conftest import StartWorker, after_a_step, make_config, order, train_stage
from tests.training.trainer_process import LOAD_S, Worker

Maker = Callable[..., TrainingEngine]
STORM_S = 1200.0


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each completion that any model has drawn for questions, with those of held-out ones."""
    lengths: list[int] = []
    complete = TurnSampler.complete_questions

    def record(*args: Any) -> list[TurnCompletion]:
        completions = complete(*args)
        lengths.extend(sum(each.own) for each in completions)
        return completions

    monkeypatch.setattr(TurnSampler, "complete_questions", record)
    return lengths


def classes_of(tokens: StageTokens) -> int:
    return tokens.trained + tokens.flat + tokens.set_aside + tokens.shared + tokens.cancelled


def read_ledger(event: StageTrained) -> StageTokens:
    assert event.ledger is not None
    return event.ledger


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("loss", ["success-gated", "filtered"])
def test_each_token_is_in_one_class(make_engine: Maker, drawn: list[int], loss: str, overlap: int) -> None:
    """With more own questions than a batch has room for."""
    settings = {"own_questions": 6, "own_questions_max": 8, "peer_loss": loss, "overlap": overlap}
    settings |= {"held_out_questions": 0, "share_groups": 3}
    a, b = make_engine("a", **settings), make_engine("b", **settings)
    first = train_stage(b)
    drawn.clear()
    a._blobs.put(b._blobs.get(first.rollouts.digest))
    tokens = read_ledger(train_stage(a, 1, (first.rollouts,)))
    assert tokens.generated == sum(drawn) == classes_of(tokens) == tokens.drawn
    assert tokens.trained and tokens.flat and tokens.cancelled == 0
    assert [each.peer for each in tokens.teachers] in ([], ["b"])


def test_held_out_questions_are_not_counted(make_engine: Maker) -> None:
    engine = make_engine("a", held_out_questions=8)
    event = train_stage(engine)
    assert read_ledger(event).generated == event.tokens == engine.tokens_drawn


def test_memory_that_runs_out_costs_what_is_drawn_once_more(make_engine: Maker) -> None:
    engine, raised = make_engine("a", held_out_questions=0), []
    sampler: Any = engine._sampler
    note = sampler.note

    def run_out(words: str) -> None:
        note(words)
        if words.startswith("drawing 2 ") and not raised:
            raised.append(words)
            raise MemoryError

    sampler.note = run_out
    tokens = read_ledger(train_stage(engine))
    assert raised and tokens.cancelled == 2 * 4 * 4
    assert tokens.generated == classes_of(tokens)


def test_a_stage_that_is_given_up_is_cancelled_and_the_next_is_not(make_engine: Maker) -> None:
    engine = make_engine("a", held_out_questions=0, steps=4)
    cancellation = Cancellation()
    with pytest.raises(Cancelled):
        engine.train(order(0), cancellation, after_a_step(cancellation))
    lost = engine.tokens_drawn
    ledger = token_ledger.count_given_up(TokenLedger(), lost)
    ledger = token_ledger.count_stage(ledger, (0, 0), read_ledger(train_stage(engine)))
    assert lost and ledger.cancelled == lost and token_ledger.difference(ledger) == 0
    assert ledger.generated == engine.tokens_drawn


def fold(ledger: TokenLedger, event: Event, done: list[tuple[int, int]]) -> TokenLedger:
    """As the core's rules do."""
    match event:
        case TrainerReady():
            return token_ledger.count_start(ledger, event.drawn, event.restored)
        case TrainingCancelled():
            return token_ledger.count_given_up(ledger, event.drawn)
        case CheckpointWritten():
            return token_ledger.count_checkpoint(ledger, (event.round, event.stage))
        case StageTrained() if event.ledger is not None and (event.round, event.stage) not in done:
            done.append((event.round, event.stage))
            return token_ledger.count_stage(ledger, done[-1], event.ledger)
    return ledger


def read_until_end(worker: Worker) -> None:
    """Read what a dead worker has left in its pipe, as the daemon does."""
    with pytest.raises(AssertionError, match="no message"):
        while True:
            worker.receive(5.0)


@pytest.mark.parametrize("seconds", [0.0, pytest.param(STORM_S, marks=[pytest.mark.soak, pytest.mark.timeout(1500)])])
def test_a_storm_of_kills_loses_no_token(start: StartWorker, tmp_path: Path, seconds: float) -> None:
    """SIGKILL in the middle of stages: the classes add up to what the file says was drawn, to the token."""
    random, ledger, done, kills = Random(seconds), TokenLedger(), list[tuple[int, int]](), 0
    config = make_config(threads=1, steps=3, held_out_questions=0)
    counter = NodeDirectory(tmp_path / "data").checkpoints
    until = time.monotonic() + seconds
    while not kills or time.monotonic() < until:
        worker = start(config)
        worker.expect(TrainerReady, LOAD_S)
        for _ in range(random.randint(0, 2)):
            worker.send(PerformMessage(order(len(done) + len(worker_stages(worker)))))
            worker.expect(StageTrained)
        before = TokenCounter(counter).drawn
        worker.send(PerformMessage(order(len(done) + len(worker_stages(worker)))))
        while TokenCounter(counter).drawn == before:
            time.sleep(0.002)
        if kills:  # the first one comes before the stage can end
            time.sleep(random.uniform(0.0, 0.2))
        os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait(10)
        read_until_end(worker)
        kills += 1
        for message in worker.seen:
            if isinstance(message, ObservedMessage):
                ledger = fold(ledger, message.event, done)
        assert token_ledger.difference(ledger) == 0
    worker = start(config)
    ready = worker.expect(TrainerReady, LOAD_S)
    ledger = fold(ledger, ready, done)
    assert ready.drawn == TokenCounter(counter).drawn == ledger.generated
    assert token_ledger.difference(ledger) == 0 and ledger.cancelled + ledger.stale > 0
    print(f"{kills} kills, {len(done)} stages: {ledger}")


def worker_stages(worker: Worker) -> set[int]:
    """Rounds that this process has trained."""
    events = [message.event for message in worker.seen if isinstance(message, ObservedMessage)]
    return {event.round for event in events if isinstance(event, StageTrained)}

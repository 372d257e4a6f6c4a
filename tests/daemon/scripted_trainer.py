"""A trainer without a model: its answers are drawn by chance, all else is as the real trainer has it.

Its questions are drawn by the swarm's own plan, and scored by it; what peers wrote is read, made again and judged; a
stage is trained once, and asked again, answered with what was kept of it; it can be cancelled between its steps. It
imports no torch, so it is ready in half a second. For whole nodes in tests of network, chain and rounds, where it does
not matter what a model learns. What it makes of a stage trained anew is never what it made before, as with a model.
"""

import itertools
import math
import random
from collections import Counter, defaultdict
from pathlib import Path

import anyio
import msgspec

from swarmd.config import Config, decode
from swarmd.core.commands import CancelTraining, Train
from swarmd.core.events import StageTrained, TrainerReady, TrainingCancelled
from swarmd.core.values import Judgement, RolloutsRef
from swarmd.errors import RecordRejected
from swarmd.eventlog.blobs import BlobStore
from swarmd.paths import NodeDirectory
from swarmd.swarms.plan import Material, Outcome, Question, StageId
from swarmd.swarms.registry import make_plan
from swarmd.swarms.rollouts import VERSION, Group, Rollouts, decode_rollouts, encode_rollouts
from swarmd.worker.child import Inbox, Outbox, run_worker
from swarmd.worker.messages import StartMessage, StopMessage

STEP_S = 0.1  # the time that an optimiser step takes, in which it can be cancelled or killed


class ScriptedTrainer:
    """A node's trainer: its plan, what it keeps, and chance in place of a model."""

    def __init__(self, config: Config, paths: NodeDirectory, peer: str) -> None:
        self._config = config
        self._peer = peer
        self._plan = make_plan(config.swarm, config.training, paths.root)
        self._blobs = BlobStore(paths.blobs)
        self._kept = paths.root / "scripted"
        self._kept.mkdir(exist_ok=True)

    def recall(self, order: Train) -> StageTrained | None:
        """What was made of this stage before, if it was."""
        file = self._file(order)
        if not file.exists():
            return None
        return msgspec.structs.replace(msgspec.json.decode(file.read_bytes(), type=StageTrained), command=order.id)

    def _file(self, order: Train) -> Path:
        return self._kept / f"{order.round}-{order.stage}.json"

    def make(self, order: Train) -> StageTrained:
        """Read what peers wrote, answer this stage's questions, and keep what came of it."""
        material, judged, rejected = self._read(order)
        place = StageId(self._peer, order.round, order.stage)
        drawn = itertools.islice(self._plan.draw(place, material), self._config.training.questions)
        asked = {question.reference.base: question for question in drawn}
        groups, rewards = zip(*map(self._answer, asked.values()), strict=True)
        total = sum(itertools.chain(*rewards))
        event = StageTrained(
            order.id,
            order.round,
            order.stage,
            total / sum(map(len, rewards)),
            self._publish(place, groups),
            steps=self._config.training.steps,
            tokens=sum(len(text) for group in groups for text in group.completions),
            seconds=STEP_S * self._config.training.steps,
            peer_groups=sum(map(len, judged.values())),
            rejected=tuple(sorted(rejected.items())),
            judged=tuple(Judgement(peer, self._plan.judge(judged[peer])) for peer in sorted(judged)),
        )
        new = self._file(order).with_suffix(".new")
        new.write_bytes(msgspec.json.encode(event))
        new.rename(self._file(order))
        return event

    def _read(self, order: Train) -> tuple[Material, dict[str, list[Outcome]], Counter[str]]:
        """The material that the order names; peers' groups of the preceding stage; how many were refused, and why."""
        material, judged, rejected = Material(), defaultdict(list), Counter[str]()
        for ref in sorted((*order.context, *order.rollouts), key=lambda ref: (ref.round, ref.stage)):
            fresh = ref in order.rollouts
            try:
                groups = decode_rollouts(self._blobs.get(ref.digest)).groups
            except RecordRejected as error:
                rejected[error.reason] += fresh
                continue
            for group in groups:
                try:
                    outcome = self._understand(ref, group, material)
                except RecordRejected as error:
                    rejected[error.reason] += fresh
                    continue
                material.add(outcome)
                if fresh and ref.peer != self._peer:
                    judged[ref.peer].append(outcome)
        return material, judged, +rejected

    def _understand(self, ref: RolloutsRef, group: Group, material: Material) -> Outcome:
        """A group under this node's own question and truth. Raises RecordRejected."""
        if len(group.completions) != self._config.training.generations:
            raise RecordRejected("group-size", f"{ref.peer} sent a group of {len(group.completions)}")
        where = StageId(ref.peer, ref.round, ref.stage)
        question = self._plan.regenerate(group.reference, where, material)
        return Outcome(where, question, group.completions, tuple(self._plan.score(question, group.completions)))

    def _answer(self, question: Question) -> tuple[Group, list[float]]:
        """A group, some of it right by chance, and what each completion is worth."""
        truth, count = str(question.entry.get("answer", "")), self._config.training.generations
        texts = tuple(f"<answer>{random.choice((truth, random.randint(0, 99)))}</answer>" for _ in range(count))
        rewards = [score.reward for score in self._plan.score(question, texts)]
        assert all(map(math.isfinite, rewards)), rewards
        reference = question.reference
        named = (reference.task, reference.config_digest, reference.seed, reference.index)
        return Group(*named, texts, (), reference.sources), rewards

    def _publish(self, place: StageId, groups: tuple[Group, ...]) -> RolloutsRef:
        stage = (place.round, place.stage)
        shared = groups[: self._config.training.share_groups]
        body = encode_rollouts(Rollouts(VERSION, self._config.swarm.id, self._peer, *stage, shared))
        return RolloutsRef(self._peer, *stage, self._blobs.put(body), len(body), len(shared))


async def train(
    trainer: ScriptedTrainer, order: Train, steps: int, outbox: Outbox, cancelled: anyio.CancelScope
) -> None:
    """One stage, with the pace of a trainer; between its steps it can be cancelled."""
    event = trainer.recall(order)
    with cancelled:
        for done in range(0 if event else steps):
            outbox.report_progress("training", done, steps, figures={"tokens_per_s": 1.0})
            await anyio.sleep(STEP_S)
    if cancelled.cancelled_caught:
        outbox.report_event(TrainingCancelled(order.id, order.round, order.stage))
    else:
        outbox.report_event(event or await anyio.to_thread.run_sync(trainer.make, order))


async def main(start: StartMessage, outbox: Outbox, inbox: Inbox) -> None:
    config = decode(start.config)
    trainer = ScriptedTrainer(config, NodeDirectory(Path(start.data_dir)), start.peer)
    outbox.report_event(TrainerReady("cpu", "scripted", 1))
    running: dict[str, anyio.CancelScope] = {}
    async with anyio.create_task_group() as tasks:
        async for message in inbox:
            if isinstance(message, StopMessage):
                tasks.cancel_scope.cancel()
                return
            if isinstance(message.command, CancelTraining):
                running.pop(message.command.train, anyio.CancelScope()).cancel()
            elif isinstance(message.command, Train) and message.command.id not in running:
                scope = running[message.command.id] = anyio.CancelScope()
                tasks.start_soon(train, trainer, message.command, config.training.steps, outbox, scope)


if __name__ == "__main__":
    anyio.run(run_worker, main)

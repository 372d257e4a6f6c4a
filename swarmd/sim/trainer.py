"""A simulated node's trainer worker: it takes time, fails, hangs, dies, and writes a checkpoint after reporting a
stage."""

import math
from typing import Any

from swarmd.core import events
from swarmd.core.commands import CancelTraining, Command, Train
from swarmd.core.values import PeerTokens, PeerWeights, RolloutsRef, Skill, StageTokens, WeightsCause
from swarmd.sim.machine import SimCheckpoint
from swarmd.sim.processes import SimWorker

ORPHAN_S = 0.5  # a trainer whose daemon was killed notices within this time, and may save a checkpoint meanwhile
WRITE_S = 2.0  # for a checkpoint, in the background
LOAD_S = (0.5, 4.0)
MEASURE_S = 0.1  # to evaluate a peer's weights, before the first step
STEP_S = 0.5  # cancellation takes effect between two steps
FULL_CHANCE = 0.5  # that a checkpoint does not fit on a nearly full disk
TOKENS_PER_S = 50.0  # drawn while a stage is trained
SAVE_S = 3.0  # evaluation at the end of a stage, which no cancellation stops


class SimTrainerWorker(SimWorker):
    kind = "trainer"
    running: Train | None = None
    writing: SimCheckpoint | None = None
    finish_at = math.inf
    drawing_since: float | None = None  # when it began to draw tokens for a stage
    hangs = False

    def start(self) -> None:
        if self.random.random() >= self.world.fault_chance("slow_start"):
            takes = self.node.settings.catch_up_rounds or self.node.settings.average_rounds
            digest = "a" * 64 if takes else ""
            restored = max(self.node.disk.checkpoints, default=None)
            kind = ("cpu", "embedded", 1)
            ready = events.TrainerReady(
                *kind, architecture=digest, tokenizer=digest, restored=restored, drawn=self.node.disk.drawn
            )
            self.call_later(self.random.uniform(*LOAD_S), self.send_event, ready)

    def perform(self, command: Command) -> None:
        if isinstance(command, Train):
            self._handle_train(command)
        elif isinstance(command, CancelTraining):
            self._handle_cancel(command)

    def _handle_train(self, command: Train) -> None:
        if self.running is not None and self.running.id == command.id:
            return
        if self.running is not None:
            self.node.fail_run(f"{command.id} was sent while the trainer is at {self.running.id}")
        self.running = command
        if self._has_checkpoint(command):
            self._schedule_finish(self.random.uniform(0.01, 0.3), command)
        elif self.random.random() < self.world.fault_chance("trainer_failure"):
            self.call_later(self.random.uniform(0.1, 5.0), self._fail_stage, command)
        else:
            self._begin_stage(command)

    def _has_checkpoint(self, command: Train) -> bool:
        return (command.round, command.stage) in self.node.disk.checkpoints

    def terminate(self) -> None:
        """End the process; tokens drawn until now stay counted."""
        self._stop_drawing()
        super().terminate()

    def _stop_drawing(self) -> int:
        """Stop drawing; count and return the tokens that the present stage has drawn."""
        drawn = 0 if self.drawing_since is None else int((self.world.now - self.drawing_since) * TOKENS_PER_S)
        self.drawing_since = None
        self.node.disk.drawn += drawn
        return drawn

    def _begin_stage(self, command: Train) -> None:
        self.drawing_since = self.world.now
        if command.weights is not None:
            self.call_later(MEASURE_S, self._report_measured_weights, command, command.weights)
        self.hangs = self.random.random() < self.world.fault_chance("trainer_hang")
        if not self.hangs:
            self._schedule_finish(self.random.lognormvariate(math.log(self.node.pace_s), 0.25), command)

    def _report_measured_weights(self, command: Train, weights: PeerWeights) -> None:
        """Report at random whether a peer's weights, or the average with them, are good enough."""
        if self.running is not command:
            return
        if self.random.random() < 0.5:
            better = 0.25 if weights.averaged else 0.5
            self.send_event(events.WeightsAdopted(command.id, command.round, command.stage, weights, 0.25, better))
        else:
            cause: WeightsCause = "worse" if weights.averaged else "no-better"
            self.send_event(events.WeightsRefused(command.id, cause, "", weights.peer, 0.25, 0.125))

    def _schedule_finish(self, delay_s: float, command: Train) -> None:
        self.finish_at = self.world.now + delay_s
        self.call_later(delay_s, self._finish_stage, command)

    def _fail_stage(self, command: Train, reason: str = "out of memory") -> None:
        if self.running is command:
            self._stop_drawing()
            self.running, self.finish_at = None, math.inf
            self.send_event(events.CommandFailed(command.id, reason))

    def _finish_stage(self, command: Train) -> None:
        if self.running is not command:
            return
        if self.node.disk.is_nearly_full and not self._has_checkpoint(command) and self.random.random() < FULL_CHANCE:
            self._fail_stage(command, "no space left for the checkpoint")
            return
        self._write_checkpoint()  # of the stage before: the weights change with the next step
        checkpoint = self.make_checkpoint(command)
        if self.random.random() < self.world.fault_chance("trainer_crash"):
            if self.random.random() < 0.5:
                self.node.disk.save_checkpoint(checkpoint)
            self.supervisor.break_process(self, "killed before its report")
            return
        self.running, self.finish_at = None, math.inf
        self.writing = checkpoint
        self.call_later(WRITE_S, self._write_checkpoint)
        self.send_event(
            events.StageTrained(
                command.id,
                command.round,
                command.stage,
                checkpoint.reward,
                checkpoint.rollouts,
                steps=20,
                ledger=checkpoint.ledger,
                **(make_measurements(checkpoint) if self.world.profile.measures else {}),
            )
        )

    def make_checkpoint(self, command: Train) -> SimCheckpoint:
        """Return a stage's saved checkpoint, or a new one."""
        disk, place = self.node.disk, (command.round, command.stage)
        known = disk.checkpoints.get(place)
        if known is not None:
            return known
        if place <= self.node.state.done:
            self.node.fail_run(f"round {place[0]}, stage {place[1]} counts and was trained again")
        disk.trained.add(place)
        reward = round(self.random.random(), 6)
        rollouts = RolloutsRef(self.node.peer, *place, f"{self.random.getrandbits(64):016x}", 4096, 16)
        return SimCheckpoint(*place, reward, rollouts, self._make_ledger())

    def _make_ledger(self) -> StageTokens:
        """Return the current stage's token counts; a third is in zero-variance groups."""
        drawn = self._stop_drawing()
        flat, shared = drawn // 3, drawn // 5
        peers = (PeerTokens("otto", drawn // 2),) if drawn > 1 else ()
        trained = drawn - flat - shared
        return StageTokens(self.node.disk.drawn, drawn, trained=trained, flat=flat, shared=shared, teachers=peers)

    def _write_checkpoint(self) -> None:
        """Write the checkpoint of the last stage, if it is not on disk yet."""
        if self.writing is not None:
            written, self.writing = self.writing, None
            self.node.disk.save_checkpoint(written)
            self.send_event(events.CheckpointWritten(written.round, written.stage, written.rollouts.digest))

    def _handle_cancel(self, command: CancelTraining) -> None:
        """Answer a cancellation; sometimes also one that comes too late."""
        running = self.running
        if running is not None and running.id == command.train:
            if not self.hangs and self.finish_at - self.world.now > SAVE_S:
                self.call_later(self.random.uniform(0.0, STEP_S), self._finish_cancel, running)
        elif self.random.random() < 0.5:
            _, round, stage = command.train.split("/")
            self.call_later(0.001, self.send_event, events.TrainingCancelled(command.id, int(round), int(stage)))

    def _finish_cancel(self, train: Train) -> None:
        if self.running is train:
            self._stop_drawing()
            self.running, self.finish_at = None, math.inf
            self.send_event(events.TrainingCancelled(train.id, train.round, train.stage, 7, self.node.disk.drawn))

    def on_daemon_gone(self) -> None:
        """End soon after the daemon's death, possibly after saving a checkpoint."""
        if self.writing is not None and self.random.random() < 0.5:
            self.node.disk.save_checkpoint(self.writing)
        if self.running is not None and self.finish_at - self.world.now < ORPHAN_S:
            self.node.disk.save_checkpoint(self.make_checkpoint(self.running))
        self.terminate()


def make_measurements(checkpoint: SimCheckpoint) -> dict[str, Any]:
    """Derive measurements from the reward, so that a stage reported again has the same ones."""
    share = checkpoint.reward
    fallen = Skill("sort", share / 2, 64, 0.9, True, 2.5)
    return {"held_out": (share + share / 2) / 2, "skills": (fallen, Skill("reverse", share, 64, share))}

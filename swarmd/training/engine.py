"""The engine: trains stages on one persistent trainer and makes each durable beside what follows its report.

Before an optimiser step changes the weights, the stage before is on disk (`swarmd.training.checkpoints`).
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from swarmd.config import Config
from swarmd.core.commands import Train
from swarmd.core.events import StageTrained, WeightsAdopted, WeightsRefused
from swarmd.core.evidence import is_barred_by
from swarmd.core.values import PeerWeights
from swarmd.errors import CheckpointFailed, SwarmdError, SwarmError
from swarmd.eventlog.blobs import Blobs
from swarmd.logger import get_logger
from swarmd.paths import NodeDirectory
from swarmd.results.trackers import Trackers
from swarmd.swarms.plan import NO_MATERIAL, Plan, Question, StageId, check_plan, draw_questions, hash_number
from swarmd.swarms.truths import check_truths
from swarmd.training.cancellation import Cancellation, Cancelled
from swarmd.training.checkpoint_files import CHECKPOINTS_KEPT, newest_bytes
from swarmd.training.checkpoints import Checkpoint, Checkpoints, TrainingState, Written
from swarmd.training.drawing_copy import make_drawing_copy
from swarmd.training.evaluation import Accuracy, SkillGuard, favour, mean_accuracy, measure_held_out
from swarmd.training.footprint import is_out_of_memory, measure_peak_bytes, release_memory
from swarmd.training.groups import Collected, PeerGroups, Scorer, judge_peers
from swarmd.training.kl import make_reference
from swarmd.training.lr_schedule import StepCallback
from swarmd.training.models.memory import GIB, estimate_need, measure_room, read_shape
from swarmd.training.models.model import check_context, check_tokens, load_policy
from swarmd.training.passes import PassSizes
from swarmd.training.peer_weights import adopt, forget_attempts
from swarmd.training.plan_failures import naming_failures
from swarmd.training.progress import ProgressSink, StageProgress
from swarmd.training.ranks import ALONE, OtherRanks, Ranks, check_parts, check_together
from swarmd.training.schedule import PeerSchedule, Replay, bound_peer, count_ranks, take_part
from swarmd.training.stage import Stage, figures_of, keep_scored, name_stage, publish, step_figures
from swarmd.training.trainer import SwarmTrainer, make_trainer
from swarmd.training.vllm_sampler import make_sampler
from swarmd.training.warm_up import make_examples, teach_form
from swarmd.worker.messages import EventSink

log = get_logger(__name__)


class TrainingEngine:
    """Everything a trainer process holds.

    Args:
        config: of the node.
        paths: of its data directory.
        peer: this node's peer id, under which its rollouts are published and its questions drawn.
        plan: the swarm.
        ranks: this process's place among those that train the model together.
        crew: the others, where this is the first of several.

    Raises:
        ModelError: the model cannot be loaded or is too small for the configured lengths.
        SwarmError: the swarm's rounds have another number of stages than the plan, or the plan says of itself what
            cannot be.
    """

    def __init__(
        self,
        config: Config,
        paths: NodeDirectory,
        peer: str,
        plan: Plan,
        ranks: Ranks = ALONE,
        crew: OtherRanks | None = None,
    ) -> None:
        if plan.stages != config.swarm.stages:
            raise SwarmError(
                f"swarm.stages is {config.swarm.stages}, but a round of {config.swarm.kind} has {plan.stages}",
                f"Set swarm.stages = {plan.stages}",
            )
        check_plan(plan)
        self._config = config
        self._ranks = ranks
        self._crew = crew
        self._training = ranks.share_of(config.training)
        self._plan = plan
        self._peer = peer
        self._blobs = Blobs(paths.blobs)
        self.policy = load_policy(config.training)
        check_context(self.policy, config.training.prompt_tokens, config.training.completion_tokens)
        check_tokens(self.policy)
        if untried := check_truths(plan, self.policy.rewrite):
            log.info("whether right answers are paid was not tried", reason=untried)
        self._scorer = Scorer(plan)
        self._checkpoints = Checkpoints(paths.checkpoints, CHECKPOINTS_KEPT)
        self._pace = StepCallback(config.training)
        self._replay = Replay()
        self._skills = SkillGuard()
        self._measured: dict[str, Accuracy] = {}  # accuracy of the weights after `_measured_at` steps, if it is known
        self._measured_at = 0
        self._stage: Stage | None = None
        self._activity = StageProgress()
        self._drawing_s = 0.0  # in this stage, what scores completions included
        self._steps_to_tell = 2  # until it is told what a stage takes: the first one makes the optimiser's moments
        self._rest_s = 0.0  # from the steps' end to the checkpoint's, in the last stage
        self._spoilt = False  # whether a stage has failed, and so has what puts the last checkpoint back
        self._touched = False  # whether the weights may be others than the last checkpoint's before a stage is open
        self._peer_weights = paths.peer_weights
        self._reference = make_reference(
            self.policy, config.training, paths.root, peer, lambda: self._pace.cancellation
        )
        self._sizes = PassSizes(paths.checkpoints, self._training, self.policy)
        copy = make_drawing_copy(self.policy, config.training)
        self._trainer = self._make_trainer()
        check_parts(ranks.gather(self._trainer.args.per_device_train_batch_size))
        self._sampler = make_sampler(self.policy, config.training, self._trainer, lambda: self.steps, paths.vllm, copy)
        self._scorer.note = self._sampler.note = self._activity.note
        self._progress = TrainingState(
            self.policy,
            plan,
            self._pace,
            self._checkpoints,
            lambda: self._trainer.optimizer,
            config.training.optimizer,
            self._skills,
        )
        self.trackers = Trackers()  # none, unless somebody puts some here
        self.abandoned_steps = 0  # step count when the last stage was given up
        with naming_failures(plan):
            self._progress.restore(touched=False)
        self.loaded_digest = self._digest_loaded()  # of the weights that the first stage begins with

    def _digest_loaded(self) -> str:
        """The digest of the weights as they are, computed only where something has changed them since they were read.

        A checkpoint does, TRL shortens the adapters of a quantised model, and DeepSpeed shortens weights.
        """
        policy = self.policy
        changed = self.steps or policy.numbers.adapters or policy.sharding.is_sharded
        return policy.digest_now() if changed else policy.digest

    @property
    def reward_max(self) -> float | None:
        """The most that a completion can be worth, as the plan says."""
        return self._plan.reward_max

    @property
    def steps(self) -> int:
        """Optimiser steps since the node began."""
        return self._pace.steps

    @property
    def restored(self) -> tuple[int, int] | None:
        """Round and stage after which the weights were written that were loaded last; None: they are the model's."""
        return self._progress.restored

    def settle(self) -> None:
        """Wait until the last stage is on disk, or try once more to write it. Raises CheckpointFailed."""
        self._progress.settle()

    def close(self) -> None:
        """Have the last stage on disk before this process ends; what it costs if that cannot be is logged."""
        try:
            self.settle()
        except SwarmdError as error:
            log.error("the last stage is not on disk: what it has learnt ends with this process", reason=str(error))

    def place_of(self, event: StageTrained) -> Path:
        """The directory of a stage's checkpoint, once that is whole. Raises CheckpointFailed."""
        self.settle()
        return self._checkpoints.place(event.round, event.stage)

    @property
    def weights_digest(self) -> str:
        """Of the weights as they are now; where the ranks hold parts, all ask together."""
        return self.policy.digest_now()

    def train(
        self,
        order: Train,
        cancellation: Cancellation,
        report: ProgressSink = lambda progress: None,
        observe: EventSink = lambda _: None,
        written: Written = lambda checkpoint: None,
    ) -> StageTrained:
        """Train a stage, store its rollouts, begin to write its checkpoint, and return the report of it.

        `written` is called in another thread once the checkpoint is on disk, before another can take its place.

        A stage whose checkpoint exists is not trained again. When anything goes wrong, or it is cancelled, the model is
        what the last checkpoint holds: a stage counts whole or not at all.

        Raises:
            Cancelled: it was cancelled.
            CheckpointFailed: no space for this stage's checkpoint, or none for that of the one before, which must be
                on disk first; that one's weights stay.
            SwarmError: the tasks do not fit the configuration.
        """
        self._activity.sink = report
        self._activity.start("beginning the stage")
        if self._spoilt:
            self._put_back(touched=True)
        done = self._progress.find(order)
        if done is not None:
            return self._answer_again(done, order, written)
        self._check_space()
        try:
            return self._train_whole(order, cancellation, observe, written)
        except Exception as error:
            if not self._cut_smaller(error) or self._crew is not None:  # other ranks wait for this one: all start anew
                raise
        self._trainer.accelerator.free_memory()  # of the old optimiser: what links vLLM to the trainer outlives it
        self._trainer = self._make_trainer()
        self._put_back(touched=True)
        try:
            return self._train_whole(order, cancellation, observe, written)
        except Exception as error:
            self._cut_smaller(error)
            raise

    def _cut_smaller(self, error: Exception) -> bool:
        """Where memory ran out: smaller passes from now on, also for the next process. False where there are none."""
        if not is_out_of_memory(error) or not self._sizes.shrink():
            return False
        gc.unfreeze()  # the trainer with the larger passes is to go, too
        return True

    def _train_whole(
        self, order: Train, cancellation: Cancellation, observe: EventSink, written: Written
    ) -> StageTrained:
        """Train the stage, or be what the last checkpoint holds."""
        replay = self._replay.copy()
        try:
            with naming_failures(self._plan):
                self._plan.begin(lambda: cancellation.is_asked)
                trained = self._train_anew(order, cancellation, observe, written)
            self._end_attempts(order)
            return trained
        except BaseException as error:
            if isinstance(error, Cancelled):
                self._end_attempts(order)
            self.abandoned_steps = self.steps
            if self._crew is None:  # several ranks all end, and begin anew
                self._replay = replay
                self._put_back(touched=self._stage is not None or self._touched)
                self.trackers.rewind(self.steps)
            raise
        finally:
            self._stage, self._touched = None, False
            self._sampler.release()
            release_memory()

    def _put_back(self, touched: bool) -> None:
        """Be what the last checkpoint holds. Raises what hinders that; then the next stage does so before it begins."""
        self._spoilt = True
        self._progress.restore(touched)
        self._spoilt = False

    def _make_trainer(self) -> SwarmTrainer:
        trainer = make_trainer(
            self.policy,
            self._training,
            self._checkpoints.directory,
            lambda prompts, trainer: self._next_batch(),
            self._pace,
            self._sizes,
            self._reference,
        )
        trainer.note = self._activity.note
        return trainer

    def _answer_again(self, checkpoint: Checkpoint, order: Train, written: Written) -> StageTrained:
        self._blobs.put(checkpoint.read_rollouts())
        log.info("stage answered from its checkpoint", round=order.round, stage=order.stage)
        written(checkpoint)
        return msgspec.structs.replace(checkpoint.meta.event, command=order.id)

    def assist(self, order: Train, cancellation: Cancellation) -> None:
        """Take this rank's part in a stage that the first rank trains, and be what it saves.

        Where memory runs out here, the ranks of the next life cut smaller.
        """
        self._plan.begin(lambda: cancellation.is_asked)
        if self.steps == 0:
            self._skills.note(self._measure(cancellation))
        try:
            stage, _ = self._open_stage(order, cancellation)
            self._stage = stage
            self._take_steps(stage, order)
        except Exception as error:
            self._cut_smaller(error)
            raise
        self._skills.note(self._measure_if_due(order, cancellation))
        self._progress.assist()
        self._ranks.gather(None)  # the checkpoint is written
        self._stage = None
        release_memory()

    def _take_steps(self, stage: Stage, order: Train) -> None:
        """Train, and bring together what the ranks have generated."""
        memory = self._plan.read_memory()
        self._trainer.tell_held = stage.aside.add
        self._trainer.run_stage(self._training.steps, self._seed("shuffle", order))
        stage.end_steps()
        if self._ranks.size == 1:
            return
        parts = self._ranks.gather(stage.part)
        if not self.policy.sharding.is_sharded:
            check_together(self._ranks.gather(self.policy.digest_now()))
        self._plan.load_memory(memory)
        for rank, part in enumerate(parts):
            for question, scores in part.learnt:
                self._plan.learn(question, scores)
            if rank != self._ranks.rank:
                stage.join(part)

    def _train_anew(
        self, order: Train, cancellation: Cancellation, observe: EventSink, written: Written
    ) -> StageTrained:
        if self._crew is not None:
            self._crew.start_stage(order)
        untrained = self._measure(cancellation) if self.steps == 0 else {}
        self._skills.note(untrained)
        before = mean_accuracy(untrained)
        if self.steps == 0 and self._training.warm_up == "form" and order.weights is None:
            self._warm_up(order, cancellation)
        if order.weights is not None:
            self._touched = True
            known = untrained or (self._measured if self._measured_at == self.steps else {})
            self.settle()
            observe(self._begin_from_peer(order, order.weights, known, cancellation))
        stage, collected = self._open_stage(order, cancellation)
        self._stage, self._drawing_s = stage, 0.0
        self._pace.cancellation = cancellation
        first = self.steps

        def tell() -> None:
            done, steps = self.steps - first, self._training.steps
            self._activity.count(done, steps, figures_of(stage, done, steps, self._rest_s))

        self._pace.report = tell
        self._pace.log = lambda logs: self.trackers.log(self.steps, logs | step_figures(stage))
        self._activity.enter("training", self._training.steps)
        self._take_steps(stage, order)
        trained_s = stage.seconds
        self._tell_taken(trained_s)
        measured = self._measure_if_due(order, cancellation)
        self._skills.note(measured)
        self._measured, self._measured_at = measured, self.steps
        rollouts, body = publish(stage, self._blobs)
        event = StageTrained(
            command=order.id,
            round=order.round,
            stage=order.stage,
            reward=stage.reward,
            rollouts=rollouts,
            steps=self._training.steps,
            tokens=stage.tokens,
            seconds=trained_s,
            peer_groups=stage.peer_groups,
            held_out=mean_accuracy(measured),
            held_out_before=before,
            rejected=tuple(sorted(collected.rejected.items())),
            judged=judge_peers(self._plan, collected.judged),
            scored=keep_scored(stage, collected, self._plan, self._blobs),
            set_aside=stage.aside.summarize(self.policy.decode_completion),
            skills=self._skills.tell() if measured else (),
            flat=stage.flatness.summarize(),
        )
        self._scorer.report()
        self._sizes.grow()
        self._activity.enter("writing the checkpoint")
        self._progress.save(event, body, written)
        if self._crew is not None:  # all ranks go on together, and from the checkpoint where one of them fails
            self.settle()
        self._ranks.gather(None)
        self._rest_s = stage.seconds - trained_s
        self.trackers.log(self.steps, name_stage(event, stage.tally.stage, self._sizes.measure_peak()))
        return event

    def _begin_from_peer(
        self, order: Train, weights: PeerWeights, known: dict[str, Accuracy], cancellation: Cancellation
    ) -> WeightsAdopted | WeightsRefused:
        """Adopt the weights that the order names, or not.

        Args:
            known: accuracy of the own weights by task, if it is known already.
        """
        own, place = known or self._measure(cancellation), self._place(weights)
        event = adopt(order, place, self.policy, own, self._skills.best, lambda: self._measure(cancellation))
        if isinstance(event, WeightsAdopted) and not weights.averaged:  # the optimiser's moments are of other weights
            self._progress.reset_optimizer()
        return event

    def _warm_up(self, order: Train, cancellation: Cancellation) -> None:
        """Show the model where answers stand, before the node's first step."""
        self._touched = True
        self._activity.enter("drawing examples of the form")
        questions = draw_questions(self._plan, StageId(self._peer, order.round, order.stage), NO_MATERIAL)
        seed = self._seed("warm-up", order)
        parts = (self._plan, self.policy, self._sampler, self._training, questions, seed, cancellation)
        examples = make_examples(*parts)
        if not examples:
            log.warning("there is no warm-up: where this swarm looks for answers is not known", tasks=self._plan.tasks)
            return
        self._activity.enter("warming up the form")
        teach_form(self.policy, self._trainer.optimizer, examples, cancellation, self._activity.count)
        self._progress.reset_optimizer()

    def _end_attempts(self, order: Train) -> None:
        if order.weights is not None:
            forget_attempts(self._place(order.weights))

    def _place(self, weights: PeerWeights) -> Path:
        """The file of a peer's weights."""
        return self._peer_weights / f"{weights.digest}.safetensors"

    def _open_stage(self, order: Train, cancellation: Cancellation) -> tuple[Stage, Collected]:
        self._activity.enter("reading what peers published")
        training = self._training
        swarm = self._config.swarm.id
        peers = PeerGroups(swarm, training, self.policy, self._plan, self._scorer, self._peer)
        collected = peers.collect(order, self._blobs.get, self._seed("peers", order), cancellation)
        self._replay.forget(lambda group: any(is_barred_by(each, group.peer, group.round) for each in order.barred))
        place, rank, ranks = StageId(self._peer, order.round, order.stage), self._ranks.rank, self._ranks.size
        authors = len({ref.peer for ref in order.rollouts} - {self._peer})
        drawn = draw_questions(self._plan, place, collected.material)
        favoured = self._skills.weights if self._plan.stages == 1 else {}  # later stages ask of each thing once
        stage = Stage(
            swarm,
            place,
            training,
            self.policy,
            self._plan,
            self._sampler,
            self._scorer,
            islice(favour(drawn, favoured, self._seed("skills", order)), rank, None, ranks),
            PeerSchedule(
                take_part(collected.groups, rank, ranks, count_ranks(training, authors, ranks)),
                training.steps,
                training.peer_questions,
                bound_peer(training, authors),
                self._skills.weights,
            ),
            self._seed("sampling" if rank == 0 else f"sampling/{rank}", order),
            cancellation,
            replay=self._replay,
            bare=self._draw_bare(place) if order.stage else None,
            weights=self._skills.weights,
        )
        return stage, collected

    def _draw_bare(self, place: StageId) -> Iterator[Question]:
        """This rank's questions of a node that knows of nobody: peers can make none of them longer.

        Only asked for does the plan begin to draw them.
        """
        yield from islice(draw_questions(self._plan, place, NO_MATERIAL), self._ranks.rank, None, self._ranks.size)

    def _next_batch(self) -> dict[str, Any]:
        assert self._stage is not None
        begun = time.perf_counter()
        with self.policy.sharding.whole():
            batch = self._stage.next_batch()
        self._sampler.release()
        self._drawing_s += time.perf_counter() - begun
        return batch

    def _tell_taken(self, trained_s: float) -> None:
        """Log once what a stage takes, as soon as it takes all that later ones will."""
        before, self._steps_to_tell = self._steps_to_tell, self._steps_to_tell - self._training.steps
        if not before > 0 >= self._steps_to_tell:
            return
        policy = self.policy
        shape, room = read_shape(policy.model.config, policy.parameters), measure_room(policy.device)
        numbers = (policy.numbers.weights, policy.mixed)
        need = estimate_need(shape, self._training, policy.device, *numbers, room.total)
        log.info(
            "what a stage takes",
            peak_gib=round((self._sizes.measure_peak() or measure_peak_bytes()) / GIB, 2),
            foretold_gib=round(need.total / GIB, 2),
            pass_tokens=self._sizes.count_tokens(),
            drawing_s=round(self._drawing_s, 1),
            learning_s=round(trained_s - self._drawing_s, 1),
        )

    def _measure_if_due(self, order: Train, cancellation: Cancellation) -> dict[str, Accuracy]:
        """What `_measure` gives, in the rounds that the configuration has it measured in."""
        return self._measure(cancellation) if (order.round + 1) % self._training.held_out_every == 0 else {}

    def _measure(self, cancellation: Cancellation) -> dict[str, Accuracy]:
        """Accuracy on held-out questions by task, nothing where none are configured; the first rank asks for all."""
        if not self._training.held_out_questions:
            return {}
        parts = (self.policy, self._sampler, self._plan, self._training)
        completions = self._training.questions * self._training.generations
        self._activity.enter("measuring held-out accuracy")
        tell = self._activity.count
        with self.policy.sharding.whole():
            measured = measure_held_out(*parts, completions, cancellation, tell) if self._ranks.rank == 0 else {}
        return self._ranks.gather(measured)[0]

    def _seed(self, purpose: str, order: Train) -> int:
        return hash_number(
            purpose, self._config.swarm.id, self._peer, order.round, order.stage, self._training.seed, bits=63
        )

    def _check_space(self) -> None:
        """Raise CheckpointFailed when there is no room for the stage's checkpoint."""
        directory = self._checkpoints.directory
        needed = self._config.storage.free_bytes_min + newest_bytes(directory)
        if shutil.disk_usage(directory).free < needed:
            self.settle()  # what is being written takes the place of an older one in the end
        if (free := shutil.disk_usage(directory).free) < needed:
            raise CheckpointFailed(
                f"no space for a checkpoint in {directory}: {free} bytes free, {needed} needed",
                "Free space there or lower storage.free_bytes_min; the stage will be trained then",
            )

"""The engine: trains stages on one persistent trainer and writes a checkpoint of each.

- A stage is reported before its checkpoint is on disk, and written while the next work begins. It is on disk before an
  optimiser step changes the weights again (`swarmd.training.checkpoints`).
- If a stage fails or is cancelled, weights, optimiser and plan go back to the last checkpoint.
- If several ranks train one model, any failure ends all their processes; they restart from the checkpoint.
"""

import gc
import shutil
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from swarmd.config import Config, usual_peer_questions
from swarmd.core.commands import Train
from swarmd.core.events import StageTrained, WeightsAdopted, WeightsRefused
from swarmd.core.evidence import is_banned_by
from swarmd.core.values import PeerWeights, TrainerTimes
from swarmd.errors import CheckpointFailed, SwarmdError, SwarmError
from swarmd.eventlog.blobs import BlobStore
from swarmd.logger import get_logger
from swarmd.paths import NodeDirectory
from swarmd.results.trackers import Trackers
from swarmd.swarms.plan import NO_MATERIAL, Plan, Question, StageId, check_plan, draw_questions, hash_number
from swarmd.swarms.truths import check_truths
from swarmd.training.cancellation import Cancellation, Cancelled
from swarmd.training.checkpoint_files import CHECKPOINTS_KEPT, measure_newest_checkpoint
from swarmd.training.checkpoints import Checkpoint, CheckpointStore, OnWritten, TrainingState
from swarmd.training.drawing_copy import make_sampling_copy
from swarmd.training.evaluation import Accuracy, SkillGuard, mean_accuracy, measure_held_out, thin_by_weight
from swarmd.training.footprint import is_out_of_memory, measure_peak_bytes, release_memory
from swarmd.training.groups import CollectedGroups, PeerGroupCollector, Scorer, judge_peers
from swarmd.training.kl import make_reference
from swarmd.training.lengths import split_by_length
from swarmd.training.lr_schedule import StepCallback
from swarmd.training.models.files import check_context
from swarmd.training.models.memory import GIB, estimate_need, measure_device_memory, read_shape
from swarmd.training.models.model import check_tokenizer, load_policy
from swarmd.training.overlap import DrawingThread
from swarmd.training.passes import PassSizes
from swarmd.training.peer_weights import adopt_peer_weights, forget_attempts
from swarmd.training.plan_failures import name_plan_failures
from swarmd.training.progress import ProgressSink, StageProgress
from swarmd.training.ranks import ALONE, RankGroup, RankInfo, check_equal_rows, check_equal_weights
from swarmd.training.schedule import (
    PeerSchedule,
    ReplayBuffer,
    count_peer_ranks,
    groups_per_peer_max,
    select_rank_groups,
)
from swarmd.training.stage import (
    Stage,
    progress_metrics,
    publish_rollouts,
    stage_metrics,
    step_metrics,
    store_scored_groups,
)
from swarmd.training.stage_timer import StageTimer, count_idle_cores
from swarmd.training.token_counter import TokenCounter
from swarmd.training.trainer import SwarmTrainer, make_trainer
from swarmd.training.vllm_sampler import make_sampler
from swarmd.training.warm_up import make_examples, teach_form
from swarmd.worker.messages import EventSink

log = get_logger(__name__)


class TrainingEngine:
    """A trainer process's model, trainer, plan and checkpoints.

    Args:
        config: of the node.
        paths: of its data directory.
        peer: this node's peer id, which determines its questions and under which its rollouts are published.
        plan: of the swarm.
        ranks: this process's rank among those that train the model together.
        rank_group: the other ranks, if this is the first of several.

    Raises:
        ModelError: the model cannot be loaded, or its context is too short for the configured lengths.
        SwarmError: the plan's number of stages is not `swarm.stages`, or the plan contradicts itself.
    """

    def __init__(
        self,
        config: Config,
        paths: NodeDirectory,
        peer: str,
        plan: Plan,
        ranks: RankInfo = ALONE,
        rank_group: RankGroup | None = None,
    ) -> None:
        if plan.stages != config.swarm.stages:
            raise SwarmError(
                f"swarm.stages is {config.swarm.stages}, but a round of {config.swarm.kind} has {plan.stages}",
                f"Set swarm.stages = {plan.stages}",
            )
        check_plan(plan)
        self._config = config
        self._ranks = ranks
        self._rank_group = rank_group
        self._training = ranks.rank_config(config.training)
        self._plan = plan
        self._peer = peer
        self._blobs = BlobStore(paths.blobs)
        self.policy = load_policy(config.training)
        lengths = (config.training.prompt_tokens, config.training.completion_tokens)
        check_context(self.policy.name, self.policy.context, *lengths)
        check_tokenizer(self.policy)
        plan.use_tokenizer(self.policy.encode_text)
        if untried := check_truths(plan, self.policy.round_trip_text):
            log.info("whether right answers are paid was not tried", reason=untried)
        self._scorer = Scorer(plan)
        self._checkpoints = CheckpointStore(paths.checkpoints, CHECKPOINTS_KEPT)
        self._step_callback = StepCallback(config.training)
        self._timer = self._make_timer(config.training.vllm.mode)
        self._replay, self._skills = ReplayBuffer(), SkillGuard()
        self._measured: dict[str, Accuracy] = {}  # accuracy of the weights after `_measured_at` steps, if known
        self._measured_at = 0
        self._stage: Stage | None = None
        self._activity = StageProgress()
        self._drawing_s = 0.0  # in this stage, scoring included
        self._steps_until_report = 2  # steps until costs are logged: the first step allocates the optimiser's moments
        self._after_steps_s = 0.0  # in the last stage, between the last step and the checkpoint
        self._needs_restore = False  # whether restoring the last checkpoint after a failed stage failed too
        self._may_differ = False  # whether weights may have changed since the last checkpoint though no stage is open
        self._peer_weights = paths.peer_weights
        self._reference = make_reference(
            self.policy, config.training, paths.root, peer, lambda: self._step_callback.cancellation
        )
        self._sizes = PassSizes(paths.checkpoints, self._training, self.policy)
        copy, self._trainer = make_sampling_copy(self.policy, config.training), self._make_trainer()
        check_equal_rows(ranks.gather(self._trainer.args.per_device_train_batch_size))
        self._sampler = make_sampler(self.policy, config.training, self._trainer, lambda: self.steps, paths.vllm, copy)
        self._tokens = self._sampler.tokens = TokenCounter(paths.checkpoints, ranks.rank)
        self._scorer.note = self._sampler.note = self._activity.set_note
        self._overlaps = self._can_overlap(config.training.overlap)
        self._scorer.timer = self._sampler.timer = self._timer
        self._progress = TrainingState(
            self.policy,
            plan,
            self._step_callback,
            self._checkpoints,
            lambda: self._trainer.optimizer,
            config.training.optimizer,
            self._skills,
        )
        self.trackers = Trackers()  # none, until the worker sets them
        self.abandoned_steps = 0  # step count when the last stage was abandoned
        with name_plan_failures(plan):
            self._progress.restore(touched=False)
        self._tokens.raise_to(self._progress.drawn)
        self.loaded_digest = self._digest_current_weights()  # of the weights with which the first stage begins

    def _make_timer(self, vllm_mode: str) -> StageTimer:
        timer = self._step_callback.timer
        timer.idle_cores = count_idle_cores(self.policy.parameter_count, self.policy.device)
        timer.elsewhere = self.policy.device != "cpu" or vllm_mode == "server"
        return timer

    def _can_overlap(self, overlap: int) -> bool:
        """Whether completions are drawn ahead; if they should be but cannot, a warning says why."""
        if overlap and not self._sampler.can_freeze:
            log.warning("nothing is drawn ahead: no room for a copy, a Mac, or a model that only `generate` draws from")
        return overlap > 0 and self._sampler.can_freeze

    def _digest_current_weights(self) -> str:
        """Digest of the present weights, computed only if they may have changed since they were read.

        Restoring a checkpoint changes them; TRL casts the adapters of a quantised model, and DeepSpeed casts weights.
        """
        policy = self.policy
        changed = self.steps or policy.precision.adapters or policy.sharding.is_sharded
        return policy.digest_current_weights() if changed else policy.digest

    @property
    def reward_max(self) -> float | None:
        """Largest reward of a completion, according to the plan."""
        return self._plan.reward_max

    @property
    def steps(self) -> int:
        """Optimiser steps since the node began."""
        return self._step_callback.steps

    @property
    def restored_stage(self) -> tuple[int, int] | None:
        """Round and stage of the checkpoint that was loaded last; None if there was none."""
        return self._progress.restored

    @property
    def tokens_drawn(self) -> int:
        """Tokens drawn for training since the node began."""
        return self._tokens.drawn

    def wait_until_saved(self) -> None:
        """Wait until the last stage is on disk; if writing failed, try once more. Raises CheckpointFailed."""
        self._progress.wait_until_saved()

    def close(self) -> None:
        """Wait until the last stage is on disk, before this process ends. A failure is logged."""
        try:
            self.wait_until_saved()
        except SwarmdError as error:
            log.error("the last stage is not on disk: what it has learnt ends with this process", reason=str(error))

    def checkpoint_directory(self, event: StageTrained) -> Path:
        """Directory of a stage's checkpoint; waits until it is on disk. Raises CheckpointFailed."""
        self.wait_until_saved()
        return self._checkpoints.checkpoint_directory(event.round, event.stage)

    def train(
        self,
        order: Train,
        cancellation: Cancellation,
        report: ProgressSink = lambda progress: None,
        observe: EventSink = lambda _: None,
        written: OnWritten = lambda checkpoint: None,
    ) -> StageTrained:
        """Train a stage, store its rollouts, start writing its checkpoint, and return its report.

        A stage whose checkpoint exists is not trained again. After a failure or a cancellation the model is that of the
        last checkpoint: a stage counts entirely or not at all.

        Args:
            written: called in another thread once the checkpoint is on disk, before another replaces it.

        Raises:
            Cancelled: the stage was cancelled.
            CheckpointFailed: there is no space for this stage's checkpoint, or for that of the stage before, which must
                be on disk first; its weights stay.
            SwarmError: the tasks do not fit the configuration.
        """
        self._timer.start()
        self._activity.sink = report
        self._activity.start_stage("beginning the stage")
        if self._needs_restore:
            self._restore_checkpoint(touched=True)
        done = self._progress.find_checkpoint(order)
        if done is not None:
            return self._answer_from_checkpoint(done, order, written)
        self._check_space()
        try:
            return self._train_or_restore(order, cancellation, observe, written)
        except Exception as error:
            if (
                not self._shrink_passes(error) or self._rank_group is not None
            ):  # the other ranks wait for this one, so all processes must end
                raise
        self._trainer.accelerator.free_memory()  # of the old optimiser; a vLLM engine keeps the trainer alive
        self._trainer = self._make_trainer()
        self._restore_checkpoint(touched=True)
        try:
            return self._train_or_restore(order, cancellation, observe, written)
        except Exception as error:
            self._shrink_passes(error)
            raise

    def _shrink_passes(self, error: Exception) -> bool:
        """If memory ran out, use smaller passes from now on, also in the next process. Returns False if they cannot
        shrink."""
        if not is_out_of_memory(error) or not self._sizes.shrink():
            return False
        gc.unfreeze()  # so that the trainer with the larger passes is collected
        return True

    def _train_or_restore(
        self, order: Train, cancellation: Cancellation, observe: EventSink, written: OnWritten
    ) -> StageTrained:
        """Train the stage; if that fails, go back to the last checkpoint and raise."""
        replay = self._replay.copy()
        try:
            with name_plan_failures(self._plan):
                self._plan.begin(lambda: cancellation.is_requested)
                trained = self._train_stage(order, cancellation, observe, written)
            self._reset_adoption_attempts(order)
            return trained
        except BaseException as error:
            if isinstance(error, Cancelled):
                self._reset_adoption_attempts(order)
            self.abandoned_steps = self.steps
            if self._rank_group is None:  # several ranks all end and restart
                self._replay = replay
                self._restore_checkpoint(touched=self._stage is not None or self._may_differ)
                self.trackers.rewind(self.steps)
            raise
        finally:
            self._stage, self._may_differ = None, False
            self._sampler.release()
            release_memory()

    def _restore_checkpoint(self, touched: bool) -> None:
        """Go back to the last checkpoint. If that fails, the next stage tries again before it begins."""
        self._needs_restore = True
        self._progress.restore(touched)
        self._needs_restore = False

    def _make_trainer(self) -> SwarmTrainer:
        trainer = make_trainer(
            self.policy,
            self._training,
            self._checkpoints.directory,
            lambda prompts, trainer: self._next_batch(),
            self._step_callback,
            self._sizes,
            self._reference,
        )
        trainer.note = self._activity.set_note
        return trainer

    def _answer_from_checkpoint(self, checkpoint: Checkpoint, order: Train, written: OnWritten) -> StageTrained:
        self._blobs.put(checkpoint.read_rollouts())
        log.info("stage answered from its checkpoint", round=order.round, stage=order.stage)
        written(checkpoint)
        return msgspec.structs.replace(checkpoint.meta.event, command=order.id)

    def assist_stage(self, order: Train, cancellation: Cancellation) -> None:
        """Take this rank's part in a stage that the first rank trains and saves. If memory runs out here, the next
        processes of all ranks use smaller passes."""
        self._plan.begin(lambda: cancellation.is_requested)
        if self.steps == 0:
            self._skills.record_measurement(self._measure_accuracy(cancellation))
        try:
            stage, _ = self._open_stage(order, cancellation)
            self._stage = stage
            self._take_steps(stage, order)
        except Exception as error:
            self._shrink_passes(error)
            raise
        self._skills.record_measurement(self._measure_accuracy_if_due(order, cancellation))
        self._progress.assist_save()
        self._ranks.gather(None)  # the checkpoint is written
        self._stage = None
        release_memory()

    def _take_steps(self, stage: Stage, order: Train) -> None:
        """Take the stage's optimiser steps, then merge the statistics of all ranks."""
        memory = self._plan.read_memory()
        self._trainer.report_masked = stage.mask_stats.add
        seed = self._derive_seed("shuffle", order)
        drawn_before = self._tokens.drawn
        with self._timer.time("loop"), self._tokens.counting(stage.token_classes):
            if self._overlaps:
                with DrawingThread.running(self.policy.device, stage.cancellation) as thread:
                    self._trainer.before_passes = lambda: stage.draw_ahead(thread)
                    self._trainer.run_stage(self._training.steps, seed)
                self._sampler.release()  # so that the trained weights are measured next
            else:
                self._trainer.run_stage(self._training.steps, seed)
        stage.finish_steps()
        if self._ranks.size == 1:
            return
        parts = self._ranks.gather(stage.rank_output)
        if not self.policy.sharding.is_sharded:
            check_equal_weights(self._ranks.gather(self.policy.digest_current_weights()))
        self._plan.load_memory(memory)
        for rank, part in enumerate(parts):
            for question, scores in part.learnt:
                self._plan.learn(question, scores)
            if rank != self._ranks.rank:
                stage.merge_rank_output(part)
        self._tokens.raise_to(drawn_before + stage.token_classes.generated)

    def _train_stage(
        self, order: Train, cancellation: Cancellation, observe: EventSink, written: OnWritten
    ) -> StageTrained:
        if self._rank_group is not None:
            self._rank_group.start_stage(order)
        untrained = self._measure_accuracy(cancellation) if self.steps == 0 else {}
        self._skills.record_measurement(untrained)
        before = mean_accuracy(untrained)
        if self.steps == 0 and self._training.warm_up == "form" and order.weights is None:
            with self._timer.time("prepare"):
                self._warm_up(order, cancellation)
        if order.weights is not None:
            self._may_differ = True
            known = untrained or (self._measured if self._measured_at == self.steps else {})
            with self._timer.time("checkpoint"):
                self.wait_until_saved()
            observe(self._adopt_peer_weights(order, order.weights, known, cancellation))
        with self._timer.time("prepare"):
            stage, collected = self._open_stage(order, cancellation)
        self._stage, self._drawing_s = stage, 0.0
        self._step_callback.cancellation = cancellation
        first = self.steps

        def report_step() -> None:
            done, steps = self.steps - first, self._training.steps
            self._activity.report_count(done, steps, progress_metrics(stage, done, steps, self._after_steps_s))

        self._step_callback.report = report_step
        self._step_callback.log = lambda logs: self.trackers.log(self.steps, logs | step_metrics(stage))
        self._activity.start_activity("training", self._training.steps)
        self._take_steps(stage, order)
        trained_s = stage.elapsed_seconds
        self._log_cost(trained_s)
        measured = self._measure_accuracy_if_due(order, cancellation)
        self._skills.record_measurement(measured)
        self._measured, self._measured_at = measured, self.steps
        with self._timer.time("prepare"):
            rollouts, body = publish_rollouts(stage, self._blobs)
            event = StageTrained(
                command=order.id,
                round=order.round,
                stage=order.stage,
                reward=stage.mean_reward,
                rollouts=rollouts,
                steps=self._training.steps,
                tokens=stage.tokens,
                seconds=trained_s,
                peer_groups=stage.peer_group_count,
                held_out=mean_accuracy(measured),
                held_out_before=before,
                rejected=tuple(sorted(collected.rejected.items())),
                judged=judge_peers(self._plan, collected.judged),
                scored=store_scored_groups(stage, collected, self._plan, self._blobs),
                set_aside=stage.mask_stats.summarize(self.policy.decode_completion),
                skills=self._skills.list_skills() if measured else (),
                flat=stage.flatness.summarize(),
                staleness=stage.staleness,
                times=self._read_times(stage, collected),
                ledger=stage.count_tokens(self._tokens.drawn, rollouts.groups),
            )
        self._scorer.log_failures()
        self._sizes.grow()
        self._activity.start_activity("writing the checkpoint")
        self._progress.save(event, body, written)
        if self._rank_group is not None:  # the other ranks may go on only once the checkpoint is there to restart from
            self.wait_until_saved()
        self._ranks.gather(None)
        self._after_steps_s = stage.elapsed_seconds - trained_s
        self.trackers.log(self.steps, stage_metrics(event, stage.metrics.stage, self._sizes.measure_peak_vram()))
        return event

    def _read_times(self, stage: Stage, collected: CollectedGroups) -> TrainerTimes:
        """The stage's times by part, and the numbers of groups."""
        return msgspec.structs.replace(
            self._timer.read(),
            own_groups=stage.metrics.stage.groups - stage.metrics.stage.flat,
            peer_groups=len(collected.groups),
            trained_groups=stage.trained_groups * self._ranks.size,
        )

    def _adopt_peer_weights(
        self, order: Train, weights: PeerWeights, known: dict[str, Accuracy], cancellation: Cancellation
    ) -> WeightsAdopted | WeightsRefused:
        """Adopt the weights that the order names, or refuse them. `known`: accuracy of this node's weights by task;
        empty if it must be measured."""
        own = known or self._measure_accuracy(cancellation)
        event = adopt_peer_weights(
            order,
            self._peer_weights,
            self.policy,
            own,
            self._skills.best_accuracies,
            lambda: self._measure_accuracy(cancellation),
        )
        if isinstance(event, WeightsAdopted) and not weights.averaged:  # the moments belong to other weights
            self._progress.reset_optimizer()
        return event

    def _warm_up(self, order: Train, cancellation: Cancellation) -> None:
        """Teach the model, before the node's first step, where to write answers."""
        self._may_differ = True
        self._activity.start_activity("drawing examples of the form")
        questions = draw_questions(self._plan, StageId(self._peer, order.round, order.stage), NO_MATERIAL)
        seed = self._derive_seed("warm-up", order)
        parts = (self._plan, self.policy, self._sampler, self._training, questions, seed, cancellation)
        examples = make_examples(*parts)
        if not examples:
            log.warning("there is no warm-up: where this swarm looks for answers is not known", tasks=self._plan.tasks)
            return
        self._activity.start_activity("warming up the form")
        teach_form(self.policy, self._trainer.optimizer, examples, cancellation, self._activity.report_count)
        self._progress.reset_optimizer()

    def _reset_adoption_attempts(self, order: Train) -> None:
        if order.weights is not None:
            forget_attempts(self._peer_weights, order.weights)

    def _open_stage(self, order: Train, cancellation: Cancellation) -> tuple[Stage, CollectedGroups]:
        self._activity.start_activity("reading what peers published")
        training = self._training
        swarm = self._config.swarm.id
        peers = PeerGroupCollector(swarm, training, self.policy, self._plan, self._scorer, self._peer)
        with self._timer.time("judge"):
            collected = peers.collect(order, self._blobs.get, self._derive_seed("peers", order), cancellation)
            groups, long = split_by_length(collected.groups)
        self._replay.drop_groups(
            lambda group: any(is_banned_by(each, group.peer, group.round) for each in order.barred)
        )
        place, rank, ranks = StageId(self._peer, order.round, order.stage), self._ranks.rank, self._ranks.size
        slots = -(-(order.peer_questions or usual_peer_questions(self._config.training)) // ranks)
        authors = len({ref.peer for ref in order.rollouts} - {self._peer})
        drawn = draw_questions(self._plan, place, collected.material)
        # later stages ask about each thing only once
        favoured = self._skills.sampling_weights if self._plan.stages == 1 else {}
        stage = Stage(
            swarm,
            place,
            training,
            self.policy,
            self._plan,
            self._sampler,
            self._scorer,
            islice(thin_by_weight(drawn, favoured, self._derive_seed("skills", order)), rank, None, ranks),
            PeerSchedule(
                select_rank_groups(groups, rank, ranks, count_peer_ranks(slots, authors, ranks)),
                training.steps,
                slots,
                groups_per_peer_max(slots, authors),
                self._skills.sampling_weights,
            ),
            self._derive_seed("sampling" if rank == 0 else f"sampling/{rank}", order),
            Cancellation(cancellation),
            replay=self._replay,
            bare=self._draw_without_material(place) if order.stage else None,
            weights=self._skills.sampling_weights,
            first_step=self.steps,
            long=long if rank == 0 else (),
        )
        return stage, collected

    def _draw_without_material(self, place: StageId) -> Iterator[Question]:
        """Yield this rank's questions without peers' material, so that peers cannot make them longer. The plan draws
        each one only when it is needed."""
        yield from islice(draw_questions(self._plan, place, NO_MATERIAL), self._ranks.rank, None, self._ranks.size)

    def _next_batch(self) -> dict[str, Any]:
        assert self._stage is not None
        started = time.perf_counter()
        with self._timer.time("prepare"), self.policy.sharding.gather_weights():
            batch = self._stage.next_batch()
        if not self._overlaps:
            self._sampler.release()
        self._drawing_s += time.perf_counter() - started
        return batch

    def _log_cost(self, trained_s: float) -> None:
        """Log once what a stage takes, as soon as later ones will take the same."""
        before, self._steps_until_report = self._steps_until_report, self._steps_until_report - self._training.steps
        if not before > 0 >= self._steps_until_report:
            return
        policy = self.policy
        shape, room = read_shape(policy.model.config, policy.parameter_count), measure_device_memory(policy.device)
        precision = (policy.precision.weights, policy.precision.mixed)
        need = estimate_need(shape, self._training, policy.device, *precision, room.total)
        log.info(
            "what a stage takes",
            peak_gib=round((self._sizes.measure_peak_vram() or measure_peak_bytes()) / GIB, 2),
            foretold_gib=round(need.total / GIB, 2),
            pass_tokens=self._sizes.tokens_per_pass(),
            drawing_s=round(self._drawing_s, 1),
            learning_s=round(trained_s - self._drawing_s, 1),
        )

    def _measure_accuracy_if_due(self, order: Train, cancellation: Cancellation) -> dict[str, Accuracy]:
        """`_measure_accuracy` if the configuration has accuracy measured in this round; else nothing."""
        return self._measure_accuracy(cancellation) if (order.round + 1) % self._training.held_out_every == 0 else {}

    def _measure_accuracy(self, cancellation: Cancellation) -> dict[str, Accuracy]:
        """Accuracy on held-out questions by task; empty if none are configured. The first rank measures for all."""
        if not self._training.held_out_questions:
            return {}
        parts = (self.policy, self._sampler, self._plan, self._training)
        completions = self._training.questions * self._training.generations
        self._activity.start_activity("measuring held-out accuracy")
        tell = self._activity.report_count
        with self._timer.time("evaluation"), self.policy.sharding.gather_weights():
            measured = measure_held_out(*parts, completions, cancellation, tell) if self._ranks.rank == 0 else {}
        return self._ranks.gather(measured)[0]

    def _derive_seed(self, purpose: str, order: Train) -> int:
        return hash_number(
            purpose, self._config.swarm.id, self._peer, order.round, order.stage, self._training.seed, bits=63
        )

    def _check_space(self) -> None:
        """Raise CheckpointFailed if there is no space for the stage's checkpoint."""
        directory = self._checkpoints.directory
        needed = self._config.storage.free_bytes_min + measure_newest_checkpoint(directory)
        if shutil.disk_usage(directory).free < needed:
            self.wait_until_saved()  # once it is written, it replaces an older one
        if (free := shutil.disk_usage(directory).free) < needed:
            raise CheckpointFailed(
                f"no space for a checkpoint in {directory}: {free} bytes free, {needed} needed",
                "Free space there or lower storage.free_bytes_min; the stage will be trained then",
            )

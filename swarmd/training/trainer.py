"""TRL's `GRPOTrainer` as one engine for all stages, with these differences.

* A stage is one call of `train()` on the same trainer, so the optimiser stays. What TRL would carry over to the next
stage is cleared. * Groups whose rewards are all equal teach nothing. They leave the batch before the forward pass. *
TRL does not accumulate gradients: a step is one batch, which `training_step` computes in as few passes as memory allows
(`swarmd.training.passes`), each packed without padding and with every prompt once (`swarmd.training.packed`). The loss
is a sum over tokens divided by all tokens of the batch, so the sum over passes is exact. Several processes that train
one model together use TRL's own passes, with the same number of rows in each.

Written against TRL 1.16: `_generate_and_score_completions`, `_get_per_token_logps_and_entropies`, `_buffered_inputs`
and `_step` are private there, and `_get_grad_norm` in transformers 5.23.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.distributed.tensor import DTensor
from transformers.trainer_callback import PrinterCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from swarmd.config import Optimizer, TrainingConfig
from swarmd.core.values import TrainerPart
from swarmd.errors import TrainingDiverged
from swarmd.logger import get_logger
from swarmd.training.footprint import is_out_of_memory
from swarmd.training.kl import KlReference, clamp_reference_logps
from swarmd.training.lr_schedule import StepCallback
from swarmd.training.masking import (
    PEER_KEY,
    UNTRUSTED_KEY,
    MaskCounts,
    add_peer_columns,
    clear_zero_variance_advantages,
    count_masked,
    drop_negative_foreign_advantages,
    find_raised_tokens,
    mask_untrusted,
    weight_by_importance_ratio,
)
from swarmd.training.models.adapters import cast_adapters_to_float32
from swarmd.training.models.device import synchronize
from swarmd.training.models.model import Policy
from swarmd.training.models.parallelism import Kind, find_parallelism
from swarmd.training.models.sharding import Sharding, ZeroTrainerMixin, set_up_deepspeed, shard_model
from swarmd.training.packed import can_pack, compute_packed_logps, number_prompts, prepare_packing
from swarmd.training.passes import PassSizes
from swarmd.training.progress import NoteSink
from swarmd.training.stage_timer import StageTimer

GRAD_NORM_MAX = 1.0  # a step's gradient is scaled down to this norm
ADAM_BETAS = (0.9, 0.99)
OPTIMIZERS: dict[Optimizer, str] = {"adamw": "adamw_torch_fused", "adamw_8bit": "adamw_8bit"}  # by transformers' names
TOLERANCE = 1e-2  # largest difference of log-probabilities between the packed and TRL's own computation
SHORT_TOLERANCE = 0.5  # the same for bfloat16 and float16
COMPARED_ROWS = 16  # completions on which the two are compared
TIMED_MAX = 5  # runs of each: a single one says little on a busy machine
SLOWER_MAX = 1.25  # times TRL's time that packing may take: times of milliseconds are not exact
SHARDED = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}  # else whole gradients stay between passes
REWARD_KEY = "swarm_reward"

RolloutFunc = Callable[[list[Any], Any], dict[str, Any]]
log = get_logger(__name__)
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # silences TRL's warning about rollout_func


def make_trainer(
    policy: Policy,
    training: TrainingConfig,
    directory: Path,
    rollout: RolloutFunc,
    step_callback: StepCallback,
    sizes: PassSizes,
    reference: KlReference | None = None,
) -> "SwarmTrainer":
    """Make the trainer of this process.

    Args:
        directory: required by TRL; nothing is written there.
        rollout: returns the groups of the next batch, see `swarmd.training.stage.Stage.next_batch`.
        step_callback: reports steps and cancels between them.
        sizes: how batches are split into forward and backward passes.
        reference: for the KL term, see `swarmd.training.kl.make_reference`.
    """
    parallelism = find_parallelism(training)
    if parallelism.kind == "zero":
        set_up_deepspeed()
    prepare_packing(policy.model)
    trainer = SwarmTrainer(
        model=policy.model,
        processing_class=policy.tokenizer,
        args=_make_grpo_config(policy, training, directory, sizes, parallelism.kind),
        reward_funcs=read_reward,
        train_dataset=Dataset.from_list([{"prompt": ""}]),
        rollout_func=rollout,
        callbacks=[step_callback],
    )
    trainer.sizes, trainer.row_tokens = sizes, training.prompt_tokens + training.completion_tokens
    trainer.beta, trainer.ref_model = training.beta, reference  # made with 0, so that TRL loads no model of its own
    trainer.remove_callback(PrinterCallback)
    trainer.timer = step_callback.timer
    trainer.peer_floor = training.peer_floor
    cast_adapters_to_float32(policy.model)
    policy.sharding = trainer.sharding = shard_model(trainer, parallelism)
    step_callback.optimizer = trainer.optimizer
    return trainer


def _make_grpo_config(
    policy: Policy, training: TrainingConfig, directory: Path, sizes: PassSizes, kind: Kind
) -> GRPOConfig:
    """Make TRL's settings."""
    batch = training.questions * training.generations
    width = training.prompt_tokens + training.completion_tokens
    rows = batch if training.processes == 1 else sizes.rows_per_pass(batch, width)
    return GRPOConfig(
        output_dir=str(directory),
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=batch // rows,
        steps_per_generation=batch // rows,
        num_generations=training.generations,
        max_completion_length=training.completion_tokens,
        temperature=training.temperature,
        learning_rate=training.learning_rate,
        lr_scheduler_type="constant",
        adam_beta1=ADAM_BETAS[0],
        adam_beta2=ADAM_BETAS[1],
        max_grad_norm=GRAD_NORM_MAX,
        beta=0.0,  # else TRL loads a reference model of its own
        epsilon=training.clip_low,
        epsilon_high=training.clip_high,
        loss_type="dapo",
        max_steps=1,
        use_cpu=policy.device == "cpu",
        bf16=policy.precision.mixed,
        fp16=False,
        optim=OPTIMIZERS[training.optimizer],
        gradient_checkpointing=sizes.recompute,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        shuffle_dataset=False,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,
        accelerator_config=SHARDED if kind == "fsdp" else None,
        logging_strategy="steps",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=training.seed,
    )


def read_reward(completions: Sequence[str], **columns: Any) -> list[float | None]:
    """TRL's reward function: return the rewards already computed with the groups."""
    return list(columns[REWARD_KEY])


class SwarmTrainer(ZeroTrainerMixin, GRPOTrainer):
    """`GRPOTrainer` for stages; see the module's docstring."""

    args: Any  # a GRPOConfig
    model: Any
    ref_model: Any  # a KlReference
    optimizer: Any
    peer_floor: float = 0.0
    report_masked: Callable[[dict[int, MaskCounts]], None] = staticmethod(lambda masked: None)
    note: NoteSink = staticmethod(lambda words: None)
    before_passes: Callable[[], None] = staticmethod(lambda: None)  # called when a step's batch is ready
    _pass: dict[str, Any] | None = None  # the pass whose loss is being computed
    sharding: Sharding = Sharding()
    timer: StageTimer
    sizes: PassSizes
    row_tokens: int  # largest number of tokens of a prompt and its completion
    passes = 1  # in the last step
    _gradient_norm = math.nan  # in the last step
    _packs: bool | None = None  # whether packing agrees with TRL and is as fast; None until tried

    def run_stage(self, steps: int, seed: int) -> None:
        """Take `steps` optimiser steps on what the rollout function returns. `seed`: for the global generator, with
        which TRL shuffles completions. Raises whatever the rollout function raises, Cancelled included; the trainer can
        be used again afterwards."""
        self._buffered_inputs = None
        self._step = 0
        self.train_dataset = [{"prompt": ""}] * (steps * self.args.generation_batch_size // self.num_generations)
        self.args.max_steps = steps
        torch.manual_seed(seed)
        try:
            self.train()
        finally:
            self._buffered_inputs = None
            self._metrics["train"].clear()
            self.optimizer.zero_grad(set_to_none=True)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        group: Any = self.num_generations
        rewards = [float(row[REWARD_KEY]) for row in inputs]  # the rollout function's columns are there
        batch["advantages"] = clear_zero_variance_advantages(batch["advantages"], rewards, group)
        add_peer_columns(batch, inputs)
        if not self.beta:
            batch = self._drop_zero_variance_groups(batch)
        return drop_negative_foreign_advantages(batch)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Any:
        """Compute the gradients of a step, in passes that fit into memory. Returns the loss."""
        if self.accelerator.num_processes > 1:
            step: Any = super().training_step
            rows = self.args.per_device_train_batch_size
            with (
                self.timer.time("gradients"),
                self.sizes.measure_pass(rows, rows * self.row_tokens, self._missing_gradient_bytes()),
            ):
                return step(model, inputs, num_items_in_batch)
        model.train()
        with self.timer.time(self._forward_part):
            return self._compute_gradients(model, self._prepare_inputs(inputs))

    @property
    def _forward_part(self) -> TrainerPart:
        return "forward" if self.accelerator.device.type == "cpu" else "gradients"

    @property
    def _backward_part(self) -> TrainerPart:
        return "backward" if self.accelerator.device.type == "cpu" else "gradients"

    def _compute_gradients(self, model: Any, batch: dict[str, Any]) -> torch.Tensor:
        """Add up the gradients of a batch, pass by pass. Returns the loss."""
        input_ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        attention_mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        keep = batch["completion_ids"].size(1)
        if self._packs is None:
            self.note("finding the fastest way through the model")
            self._packs = self._is_packing_usable(input_ids, attention_mask, keep)
        self.before_passes()
        total = torch.zeros((), device=self.accelerator.device)
        self.passes = 0
        parts = self._split_passes(input_ids, attention_mask, keep)
        for rows, tokens in parts:
            self.note(f"pass {self.passes + 1} of {len(parts)} through the model")
            with self.sizes.measure_pass(len(rows), tokens, self._missing_gradient_bytes()):
                with self.compute_loss_context_manager():
                    loss = self.compute_loss(model, take_rows(batch, rows))
                with self.timer.time(self._backward_part):
                    self.accelerator.backward(loss)
            total += loss.detach()
            self.passes += 1
        self._step += 1
        return total

    def _split_passes(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int
    ) -> list[tuple[torch.Tensor, int]]:
        """Rows of each pass over a batch, and the number of tokens that the model computes for them."""
        if not self._packs:
            rows = self.sizes.rows_per_pass(len(input_ids), input_ids.size(1))
            parts = torch.split(torch.arange(len(input_ids), device=input_ids.device), rows)
            return [(part, part.numel() * input_ids.size(1)) for part in parts]
        prompts = number_prompts(input_ids, attention_mask, keep)
        return self.sizes.split_batch(prompts, attention_mask[:, :-keep].sum(1), attention_mask[:, -keep:].sum(1))

    def _missing_gradient_bytes(self) -> int:
        """Bytes of the gradients that the first pass of a step will allocate."""
        missing = (each for each in self.model.parameters() if each.requires_grad and each.grad is None)
        return sum(each.numel() * each.element_size() for each in missing)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        compute: Any = super()._compute_loss
        self._pass = dict(inputs)  # a copy, because the reference's log-probabilities are clamped in it
        try:
            return compute(model, self._pass)
        finally:
            self._pass = None

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        """TRL's hook before the optimiser's step. Raises TrainingDiverged if the gradient is not finite."""
        measure: Any = super()._get_grad_norm
        with self.timer.time(self._backward_part):  # it waits for the accelerator
            norm = measure(*args, **kwargs)
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            self._gradient_norm = math.nan if norm is None else float(norm)
        if norm is not None and not math.isfinite(self._gradient_norm):
            raise TrainingDiverged(
                f"the gradient of step {self.state.global_step + 1} of the stage is not a number",
                "If it happens again, lower training.learning_rate, or raise training.temperature",
            )
        return norm

    def _drop_zero_variance_groups(self, batch: dict[str, Any]) -> dict[str, Any]:
        """`drop_zero_variance_groups`, but ranks keep the same number of completions and average over the tokens of all
        ranks."""
        chunks: int = self.args.steps_per_generation
        group: Any = self.num_generations
        if self.accelerator.num_processes == 1:
            return drop_zero_variance_groups(batch, group, chunks)
        informative = torch.tensor(count_informative(batch, group), device=batch["advantages"].device)
        batch = drop_zero_variance_groups(batch, group, chunks, int(self.accelerator.gather(informative).max()))
        batch["num_items_in_batch"] = self.accelerator.gather(count_loss_tokens(batch)).sum()
        return batch

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """`_compute_logps`, but in the loss peers' untrusted tokens have no gradient."""
        computed = self._compute_logps(model, *args, **kwargs)
        if self._pass is None or model is self.ref_model:
            return computed
        clamp_reference_logps(self._pass, computed[0])
        logps = self._mask_untrusted(computed[0], computed[1], self._pass)
        for name, value in weight_by_importance_ratio(self._pass, computed[0]).items():
            self._metrics["train"][name].append(value)
        return logps, *computed[1:]

    def _mask_untrusted(self, logps: torch.Tensor, entropies: torch.Tensor, part: dict[str, Any]) -> torch.Tensor:
        """Remove the gradients of peers' masked tokens from the log-probabilities of a pass."""
        if not bool(part[PEER_KEY].any()):
            return logps
        untrusted = part[UNTRUSTED_KEY] & find_raised_tokens(part)
        logps, masked = mask_untrusted(logps, entropies, untrusted, self.peer_floor)
        self.report_masked(count_masked(part, masked))
        return logps

    def _compute_logps(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Compute log-probabilities packed if that is possible and was found to agree, else as TRL does."""
        reference: Any = self.ref_model
        if model is reference:
            return reference(input_ids, attention_mask, logits_to_keep), None, None
        plain_text = not args and not any(
            value for name, value in kwargs.items() if name not in ("batch_size", "compute_entropy")
        )
        if self._packs and plain_text:
            return *self._compute_packed_logps(input_ids, attention_mask, logits_to_keep), None
        if self._pass is None:  # a whole batch, without gradients
            kwargs["batch_size"] = self.sizes.rows_per_pass(len(input_ids), input_ids.size(1))
        plain = super()._get_per_token_logps_and_entropies
        return plain(model, input_ids, attention_mask, logits_to_keep, *args, **kwargs)

    def _compute_packed_logps(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies of the rows of one pass, or of a whole batch pass by pass."""
        whole = torch.arange(len(input_ids), device=input_ids.device)
        parts = [whole] if self._pass else [rows for rows, _ in self._split_passes(input_ids, attention_mask, keep)]
        with self.accelerator.autocast():
            computed = [
                compute_packed_logps(self.model, input_ids[rows], attention_mask[rows], keep, self.temperature)
                for rows in parts
            ]
        logps, entropies = (torch.cat(each) for each in zip(*computed, strict=True))
        back = torch.argsort(torch.cat(parts))
        return logps[back], entropies[back]

    @torch.no_grad()
    def _is_packing_usable(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int) -> bool:
        """Whether packing agrees with TRL on some rows, in log-probabilities and entropies, and is about as fast."""
        if not can_pack(self.model):
            return False
        rows = torch.argsort(number_prompts(input_ids, attention_mask, keep), stable=True)[:COMPARED_ROWS]
        input_ids, attention_mask = input_ids[rows], attention_mask[rows]
        plain = super()._get_per_token_logps_and_entropies
        computations: list[Callable[[], Any]] = [
            lambda: plain(self.model, input_ids, attention_mask, keep, compute_entropy=True),
            lambda: compute_packed_logps(self.model, input_ids, attention_mask, keep, self.temperature),
        ]
        try:
            with self.accelerator.autocast():
                (expected, packed), (plain_s, packed_s) = compare_computations(*computations)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            log.info("passes are not packed", reason=str(error)[:200])
            return False
        written = attention_mask[:, -keep:].bool()
        difference = max(float((a - b)[written].abs().max()) for a, b in zip(packed, expected[:2], strict=True))
        exact = self.args.bf16 is False and self.model.dtype == torch.float32
        agrees = difference <= (TOLERANCE if exact else SHORT_TOLERANCE)
        fast = packed_s <= SLOWER_MAX * plain_s
        if not agrees or not fast:
            log.info("passes are not packed", difference=difference, packed_s=packed_s, plain_s=plain_s)
        return agrees and fast


def compare_computations(
    first: Callable[[], Any], second: Callable[[], Any]
) -> tuple[tuple[Any, Any], tuple[float, float]]:
    """Results of two computations, and each one's shortest time in seconds.

    Both are repeated, up to `TIMED_MAX` times, until the second is not slower. On an accelerator each first runs once
    untimed, to load and compile.
    """
    if torch.accelerator.is_available():
        first(), second()
    seconds = [math.inf, math.inf]
    results: list[Any] = [None, None]
    for _ in range(TIMED_MAX):
        for place, compute in enumerate((first, second)):
            synchronize()
            started = time.perf_counter()
            results[place] = compute()
            synchronize()
            seconds[place] = min(seconds[place], time.perf_counter() - started)
        if seconds[1] <= seconds[0]:
            break
    return (results[0], results[1]), (seconds[0], seconds[1])


def count_informative(batch: dict[str, Any], group: int) -> int:
    """Number of completions in groups whose advantages are not all zero."""
    return int((batch["advantages"].view(-1, group).abs() > 0).any(1).sum()) * group


def count_loss_tokens(batch: dict[str, Any]) -> torch.Tensor:
    """Number of tokens over which the loss is averaged: those that the model wrote."""
    tokens: torch.Tensor = (batch["completion_mask"] * batch.get("tool_mask", 1)).sum()
    return tokens


def drop_zero_variance_groups(batch: dict[str, Any], group: int, chunks: int, at_least: int = 0) -> dict[str, Any]:
    """Drop groups whose advantages are all zero from a batch.

    Completions of such groups stay only to make at least `at_least` completions, and a number that splits into `chunks`
    equal parts of at least one.
    """
    advantages = batch["advantages"]
    informative = (advantages.view(-1, group).abs() > 0).any(1).repeat_interleave(group)
    wanted = max(math.ceil(max(int(informative.sum()), at_least) / chunks), 1) * chunks
    if wanted >= len(informative):
        return batch
    rows = torch.argsort(informative.int(), descending=True, stable=True)[:wanted].sort().values
    kept = take_rows(batch, rows)
    kept["num_items_in_batch"] = count_loss_tokens(kept)
    return kept


def take_rows(batch: dict[str, Any], rows: torch.Tensor) -> dict[str, Any]:
    """Select rows of TRL's batch; entries without rows stay."""
    size = len(batch["advantages"])
    return {
        key: value[rows] if isinstance(value, torch.Tensor) and value.ndim and len(value) == size else value
        for key, value in batch.items()
    }

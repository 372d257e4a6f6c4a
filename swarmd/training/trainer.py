"""TRL's `GRPOTrainer` as one engine for all stages, and the three things done differently at the seams it offers.

* A stage is one call of `train()` on the same trainer, so the optimiser lives on; what TRL keeps between calls and must
  not reach the next stage is cleared.
* Groups whose rewards are all equal teach nothing; they leave the batch before the forward pass.
* The prompt is computed once for its group in training too, not once for every completion.

Written against TRL 1.16: `_generate_and_score_completions`, `_get_per_token_logps_and_entropies`, `_buffered_inputs`
and `_step` are private there, and `_get_grad_norm` in transformers 5.23.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.distributed.tensor import DTensor
from transformers import DynamicCache, PreTrainedModel
from transformers.trainer_callback import PrinterCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from swarmd.config import Optimizer, TrainingConfig
from swarmd.errors import TrainingDiverged
from swarmd.logger import get_logger
from swarmd.training.kl import KlReference, bound_reference, use_reference
from swarmd.training.lr_schedule import StepCallback
from swarmd.training.masking import (
    DOUBT_KEY,
    PEER_KEY,
    Counts,
    count_held,
    find_raised,
    hold_back,
    keep_positive,
    mark_rows,
    silence_flat,
)
from swarmd.training.models.adapters import lengthen_adapters
from swarmd.training.models.model import Policy
from swarmd.training.passes import computes_twice, count_rows
from swarmd.training.ranks import SpreadKind, find_spread
from swarmd.training.sharding import Holding, ZeroSeams, hold, set_up_deepspeed

GRAD_NORM_MAX = 1.0  # a step's gradient is scaled down to this norm
ADAM_BETAS = (0.9, 0.99)
OPTIMIZERS: dict[Optimizer, str] = {"adamw": "adamw_torch_fused", "adamw_8bit": "adamw_8bit"}  # by transformers' names
SHARED_LOGITS_MAX = 1 << 26  # completion tokens x vocabulary up to which logits are held whole
SHARED_TOLERANCE = 1e-2  # largest difference of log-probabilities between the shared and TRL's own computation
SHORT_TOLERANCE = 0.5  # the same where the computation is in bfloat16 or float16
SHARDED = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}  # else whole gradients stay from pass to pass
REWARD_KEY = "swarm_reward"

RolloutFunc = Callable[[list[Any], Any], dict[str, Any]]
log = get_logger(__name__)
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is used knowingly


def make_trainer(
    policy: Policy,
    training: TrainingConfig,
    directory: Path,
    rollout: RolloutFunc,
    pace: StepCallback,
    reference: KlReference | None = None,
    micro_rows: int = 0,
) -> SwarmTrainer:
    """The one trainer of this process.

    Args:
        directory: TRL wants one; nothing is written there.
        rollout: gives the groups of the next batch, see `swarmd.training.stage.Stage.next_batch`.
        pace: reports steps and cancels between them.
        reference: of the KL term, see `swarmd.training.kl.make_reference`.
        micro_rows: completions in one forward and backward pass, a divisor of those in a step; 0: by the model's size.
    """
    spread = find_spread(training)
    if spread.kind == "zero":
        set_up_deepspeed()
    micro_rows = micro_rows or count_rows(training, policy.parameters)
    trainer = SwarmTrainer(
        model=policy.model,
        processing_class=policy.tokenizer,
        args=_read_arguments(policy, training, directory, micro_rows, spread.kind),
        reward_funcs=read_reward,
        train_dataset=Dataset.from_list([{"prompt": ""}]),
        rollout_func=rollout,
        callbacks=[pace],
    )
    use_reference(trainer, training.beta, reference)
    trainer.remove_callback(PrinterCallback)
    trainer.peer_floor = training.peer_floor
    lengthen_adapters(policy.model)
    policy.holding = trainer.holding = hold(trainer, spread)
    pace.optimizer = trainer.optimizer
    return trainer


def _read_arguments(
    policy: Policy, training: TrainingConfig, directory: Path, micro_rows: int, kind: SpreadKind
) -> GRPOConfig:
    """What TRL is told."""
    batch = training.questions * training.generations
    return GRPOConfig(
        output_dir=str(directory),
        per_device_train_batch_size=micro_rows,
        gradient_accumulation_steps=batch // micro_rows,
        steps_per_generation=batch // micro_rows,
        num_generations=training.generations,
        max_completion_length=training.completion_tokens,
        temperature=training.temperature,
        learning_rate=training.learning_rate,
        lr_scheduler_type="constant",
        adam_beta1=ADAM_BETAS[0],
        adam_beta2=ADAM_BETAS[1],
        max_grad_norm=GRAD_NORM_MAX,
        beta=0.0,  # else TRL loads a reference of its own; see use_reference
        epsilon=training.clip_low,
        epsilon_high=training.clip_high,
        loss_type="dapo",
        max_steps=1,
        use_cpu=policy.device == "cpu",
        bf16=policy.mixed,
        fp16=False,
        optim=OPTIMIZERS[training.optimizer],
        gradient_checkpointing=computes_twice(training, policy.parameters),
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
    """TRL's reward function: the rewards were computed with the groups and travel beside them."""
    return list(columns[REWARD_KEY])


class SwarmTrainer(ZeroSeams, GRPOTrainer):
    """`GRPOTrainer` for stages; see the module's text."""

    args: Any  # a GRPOConfig
    optimizer: Any
    peer_floor: float = 0.0
    tell_held: Callable[[dict[int, Counts]], None] = staticmethod(lambda held: None)
    _pass: dict[str, Any] | None = None  # the part of the batch that the loss is taken of just now
    holding: Holding = Holding()
    _gradient_norm = math.nan  # of the last step
    _shared: bool | None = None  # whether the shared computation agrees with TRL's; None until tried

    def run_stage(self, steps: int, seed: int) -> None:
        """Take optimiser steps on what the rollout function gives.

        Args:
            steps: how many.
            seed: of the global generator, which TRL uses to shuffle completions.

        Raises whatever the rollout function raises, Cancelled included; the trainer can be used again afterwards.
        """
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
        rewards = [float(row[REWARD_KEY]) for row in inputs]  # TRL puts the rollout function's columns there
        batch["advantages"] = silence_flat(batch["advantages"], rewards, group)
        mark_rows(batch, inputs)
        if not self.beta:
            batch = self._drop_flat_groups(batch)
        return keep_positive(batch)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        compute: Any = super()._compute_loss
        self._pass = dict(inputs)  # the reference's probabilities are bounded in it
        try:
            return compute(model, self._pass)
        finally:
            self._pass = None

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        """Before the optimiser's step. Raises TrainingDiverged: a step along such a gradient would be kept for ever."""
        measure: Any = super()._get_grad_norm
        norm = measure(*args, **kwargs)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        self._gradient_norm = math.nan if norm is None else float(norm)
        if norm is not None and not math.isfinite(self._gradient_norm):
            raise TrainingDiverged(
                f"the gradient of step {self.state.global_step + 1} of the stage is no number",
                "If it happens again, lower training.learning_rate, or raise training.temperature",
            )
        return norm

    def _drop_flat_groups(self, batch: dict[str, Any]) -> dict[str, Any]:
        """As `drop_flat_groups`; several ranks keep equally many completions, and average over the tokens of all."""
        chunks: int = self.args.steps_per_generation
        group: Any = self.num_generations
        if self.accelerator.num_processes == 1:
            return drop_flat_groups(batch, group, chunks)
        telling = torch.tensor(count_telling(batch, group), device=batch["advantages"].device)
        batch = drop_flat_groups(batch, group, chunks, int(self.accelerator.gather(telling).max()))
        batch["num_items_in_batch"] = self.accelerator.gather(count_tokens(batch)).sum()
        return batch

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """What `_compute_logps` gives; in the loss, peers' tokens for which nothing vouches have no gradient."""
        computed = self._compute_logps(model, *args, **kwargs)
        if self._pass is None or model is self.ref_model:
            return computed
        bound_reference(self._pass, computed[0])
        return self._hold_back(computed[0], computed[1], self._pass), *computed[1:]

    def _hold_back(self, logps: torch.Tensor, entropies: torch.Tensor, part: dict[str, Any]) -> torch.Tensor:
        """Log-probabilities of a pass without gradient at peers' tokens that do not count."""
        if not bool(part[PEER_KEY].any()):
            return logps
        doubtful = part[DOUBT_KEY] & find_raised(part)
        logps, held = hold_back(logps, entropies, doubtful, self.peer_floor)
        self.tell_held(count_held(part, held))
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
        """TRL's own computation, or the shared one where it applies and has been found to agree."""
        reference: Any = self.ref_model
        if model is reference:
            return reference.log_probabilities(input_ids, attention_mask, logits_to_keep), None, None
        plain = super()._get_per_token_logps_and_entropies
        if not self._may_share(model, input_ids, logits_to_keep, args, kwargs):
            return plain(model, input_ids, attention_mask, logits_to_keep, *args, **kwargs)
        if self._shared is None:
            with torch.no_grad():
                expected = plain(model, input_ids, attention_mask, logits_to_keep, compute_entropy=True)
                self._shared = self._agrees(expected, model, input_ids, attention_mask, logits_to_keep)
        if not self._shared:
            return plain(model, input_ids, attention_mask, logits_to_keep, *args, **kwargs)
        with self.accelerator.autocast():
            return *compute_shared(model, input_ids, attention_mask, logits_to_keep, self.temperature), None

    def _may_share(self, model: Any, input_ids: torch.Tensor, logits_to_keep: int, args: Any, kwargs: Any) -> bool:
        policy = isinstance(model, PreTrainedModel) or hasattr(model, "peft_config")
        if not policy or self.holding.is_sharded or self._shared is False:
            return False  # several ranks share gradients, and gather weights, through the wrapped model only
        plain_text = not args and all(
            value is None or key in ("batch_size", "compute_entropy") or value is False for key, value in kwargs.items()
        )
        logits = input_ids.size(0) * logits_to_keep * getattr(model.config, "vocab_size", 1 << 30)
        small = logits <= SHARED_LOGITS_MAX and not self.args.gradient_checkpointing
        return plain_text and small

    def _agrees(
        self, expected: Any, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int
    ) -> bool:
        """Compare once with TRL's own log-probabilities and entropies on a real batch."""
        mask = attention_mask[:, -logits_to_keep:].bool()
        try:
            with self.accelerator.autocast():
                got = compute_shared(model, input_ids, attention_mask, logits_to_keep, self.temperature)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            log.info("prompts are not shared in training", reason=str(error)[:200])
            return False
        difference = max(float((a - b)[mask].abs().max()) for a, b in zip(got, expected[:2], strict=True))
        exact = self.args.bf16 is False and model.dtype == torch.float32
        agrees = difference <= (SHARED_TOLERANCE if exact else SHORT_TOLERANCE)
        if not agrees:
            log.info("prompts are not shared in training", difference=difference)
        return agrees


def count_telling(batch: dict[str, Any], group: int) -> int:
    """Completions in groups whose advantages are not all zero."""
    return int((batch["advantages"].view(-1, group).abs() > 0).any(1).sum()) * group


def count_tokens(batch: dict[str, Any]) -> torch.Tensor:
    """Tokens that the loss is averaged over: the models' own."""
    tokens: torch.Tensor = (batch["completion_mask"] * batch.get("tool_mask", 1)).sum()
    return tokens


def drop_flat_groups(batch: dict[str, Any], group: int, chunks: int, at_least: int = 0) -> dict[str, Any]:
    """The batch without groups whose advantages are all zero.

    So many completions of flat groups stay that there are `at_least` so many, and that they split into `chunks` equal
    parts, one each.
    """
    advantages = batch["advantages"]
    telling = (advantages.view(-1, group).abs() > 0).any(1).repeat_interleave(group)
    wanted = max(math.ceil(max(int(telling.sum()), at_least) / chunks), 1) * chunks
    if wanted >= len(telling):
        return batch
    rows = torch.argsort(telling.int(), descending=True, stable=True)[:wanted].sort().values
    kept = {
        key: value[rows] if isinstance(value, torch.Tensor) and value.ndim and len(value) == len(advantages) else value
        for key, value in batch.items()
    }
    kept["num_items_in_batch"] = count_tokens(kept)
    return kept


def compute_shared(
    model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies (batch, keep) of the last `keep` tokens, each distinct prompt computed once.

    Gradients flow through the prompt's keys and values. Prompts are padded on the left, completions on the right.
    """
    width = input_ids.size(1) - keep
    prompts = torch.cat([input_ids[:, :width], attention_mask[:, :width]], 1)
    distinct, place = torch.unique(prompts, dim=0, return_inverse=True)
    ids, mask = distinct[:, :width], distinct[:, width:]
    cache = DynamicCache(config=model.config)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    backbone = (model.get_base_model() if hasattr(model, "peft_config") else model).base_model
    first = backbone(
        input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
    ).last_hidden_state[place, -1:]
    cache.batch_select_indices(place)
    completion = input_ids[:, width:]
    hidden = first
    if keep > 1:
        ahead = mask.sum(1)[place, None] + torch.arange(keep - 1, device=ids.device)
        rest = backbone(
            input_ids=completion[:, :-1],
            attention_mask=attention_mask[:, :-1],
            position_ids=ahead,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        hidden = torch.cat([first, rest], 1)
    logs = torch.log_softmax(model.get_output_embeddings()(hidden).float() / temperature, -1)
    entropies = -(logs.detach().exp() * logs.detach()).sum(-1)
    return logs.gather(2, completion[..., None]).squeeze(2), entropies

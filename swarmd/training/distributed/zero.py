"""DeepSpeed's ZeRO: ranks that hold parts of the optimiser's moments and of gradients, in stage 3 of the weights too.

One DeepSpeed engine lives as long as the trainer. transformers would make a new one for each call of `train()`, so it
is made here and put back where `train()` looks for it.

Written against DeepSpeed 0.19 and transformers 5.23: `_prepare_for_training`, `_hp_optimizer_states_linked` and
`_lazy_init_hp_params_optimizer_state` are private there.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

MOMENTS = ("exp_avg", "exp_avg_sq")


def set_up_deepspeed() -> None:
    """Import DeepSpeed without what it would compile on a CPU for faster exchange, to be called before it starts.

    That takes a compiler and minutes, writes to standard output and the home directory, and hangs for ever behind a
    process that was killed meanwhile.
    """
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # type: ignore[attr-defined]


class ZeroParts:
    """What the ranks hold under ZeRO; see `swarmd.training.distributed.sharding.Holding`.

    Args:
        trainer: transformers', with its optimiser and not trained yet.
        stage: 2 or 3.
    """

    is_sharded = True

    def __init__(self, trainer: Any, stage: int) -> None:
        accelerator = trainer.accelerator
        accelerator.state.deepspeed_plugin.hf_ds_config.trainer_config_finalize(trainer.args, trainer.model, 1)
        self._stage = stage
        self._model = trainer.model
        self._groups = [dict(group) for group in trainer.optimizer.param_groups]  # ZeRO joins what is in each to one
        self._numbers = {
            id(weight): weight.dtype for weight in trainer.model.parameters()
        }  # the engine may shorten them
        self.engine, self.optimizer = accelerator.prepare(trainer.model, trainer.optimizer)
        self._stepper = accelerator.deepspeed_engine_wrapped
        self._zero = self.optimizer.optimizer
        self.hide(accelerator)

    def hide(self, accelerator: Any) -> None:
        """Before a call of `train()`, which would begin by destroying the engine."""
        accelerator.deepspeed_engine_wrapped = None

    def show(self, accelerator: Any) -> None:
        """Give accelerate the DeepSpeed engine back while `train()` runs."""
        accelerator.deepspeed_engine_wrapped = self._stepper
        accelerator._models, accelerator._optimizers = [self.engine], [self.optimizer]

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        if self._stage < 3:
            yield
            return
        import deepspeed
        from trl.models.utils import add_hooks, remove_hooks

        offload = self.engine.optimizer.parameter_offload
        with deepspeed.zero.GatheredParameters(list(self._model.parameters()), modifier_rank=None):
            remove_hooks(self.engine)  # they gather and cut each layer, on all ranks at once
            offload.fwd_pre_hook.remove()  # compares the order of the layers with the other ranks'
            try:
                yield
            finally:
                add_hooks(self.engine)
                offload.fwd_pre_hook = self._model.register_forward_pre_hook(
                    lambda module, inputs: offload.get_param_coordinator().reset_step(), prepend=True
                )

    def shape(self, weight: torch.Tensor) -> torch.Size:
        return torch.Size(getattr(weight, "ds_shape", weight.shape))

    def read(self, weight: torch.Tensor) -> torch.Tensor:
        from deepspeed.utils import safe_get_full_fp32_param

        if not weight.requires_grad:
            return weight
        whole: torch.Tensor = safe_get_full_fp32_param(weight)
        return whole.detach().view(self.shape(weight)).to(self._numbers[id(weight)]).cpu()

    def write(self, weight: torch.Tensor, value: torch.Tensor) -> None:
        import deepspeed
        from deepspeed.utils import safe_set_full_fp32_param

        if not hasattr(weight, "ds_id"):
            weight.copy_(value)
        else:
            with deepspeed.zero.GatheredParameters([weight], modifier_rank=0):
                if torch.distributed.get_rank() == 0:
                    weight.copy_(value)
        safe_set_full_fp32_param(weight, value.to(weight.device, torch.float32))

    def read_optimizer(self, optimizer: Any) -> dict[str, Any]:
        from deepspeed.utils import safe_get_full_optimizer_state

        adam, groups, places = self._zero.optimizer, [], iter(range(len(self._weights)))
        left = iter(adam.param_groups)
        for group in self._groups:  # those without weights are not in ZeRO
            bare = {**adam.param_groups[0], "weight_decay": group["weight_decay"]}
            settings = next(left) if group["params"] else bare
            groups.append({**settings, "params": [next(places) for _ in group["params"]]})
        begun = [adam.state[flat] for flat in self._flats if adam.state.get(flat)]
        if not begun:
            return {"state": {}, "param_groups": groups}
        self._link()
        state = {}
        for place, weight in enumerate(self._weights):
            moments = {name: safe_get_full_optimizer_state(weight, name) for name in MOMENTS}
            whole = {name: moment.view(self.shape(weight)).cpu().clone() for name, moment in moments.items()}
            state[place] = {"step": begun[0]["step"].clone(), **whole}
        return {"state": state, "param_groups": groups}

    def load_optimizer(self, optimizer: Any, state: Mapping[str, Any]) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state

        adam, moments = self._zero.optimizer, state["state"]
        adam.state.clear()
        kept_groups = [group for group in state["param_groups"] if group["params"]]
        for group, kept in zip(adam.param_groups, kept_groups, strict=True):
            group.update({key: value for key, value in kept.items() if key != "params"})
        if not moments:
            self._zero._hp_optimizer_states_linked = False
            return
        step = next(iter(moments.values()))["step"]
        for flat in self._flats:
            adam.state[flat] = {"step": step.clone(), **{name: torch.zeros_like(flat) for name in MOMENTS}}
        self._link()
        for place, weight in enumerate(self._weights):
            for name in MOMENTS:
                safe_set_full_optimizer_state(weight, moments[place][name].to(weight.device), name)

    @property
    def _weights(self) -> list[Any]:
        """All that is trained, in the order of torch's own state."""
        return [weight for group in self._groups for weight in group["params"]]

    @property
    def _flats(self) -> list[torch.Tensor]:
        """This rank's parts of the weights in float32, one tensor for each group, by which AdamW knows its moments."""
        zero = self._zero
        return list(zero.fp32_partitioned_groups_flat if self._stage == 3 else zero.single_partition_of_fp32_groups)

    def _link(self) -> None:
        """Have stage 2 know which moments are of which weight; by itself it does so for the first group only."""
        if self._stage < 3:
            self._zero._hp_optimizer_states_linked = False
            self._zero._lazy_init_hp_params_optimizer_state()


class ZeroSeams:
    """A mixin in front of `GRPOTrainer`: `train()` goes on with the engine that there is."""

    accelerator: Any
    callback_handler: Any
    holding: Any

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, *rest: Any) -> Any:
        if not isinstance(self.holding, ZeroParts):
            return super()._prepare_for_training(max_steps, train_dataloader, *rest)  # type: ignore[misc]
        self.holding.show(self.accelerator)
        self.lr_scheduler: Any = None
        self._created_lr_scheduler = False
        self.create_scheduler(num_training_steps=max_steps)  # type: ignore[attr-defined]
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = train_dataloader
        return self.holding.engine, train_dataloader

    def train(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().train(*args, **kwargs)  # type: ignore[misc]
        finally:
            if isinstance(self.holding, ZeroParts):
                self.holding.hide(self.accelerator)

"""How the ranks of a node hold the model: each all of it, or each a part of every layer (FSDP, ZeRO).

- Sharded, a rank holds its part of the weights, of their gradients and of the optimiser's moments. A pass gathers one
  layer after another, on all ranks at once. Ranks that generate do not keep step with each other, so all weights are
  gathered once for a batch of completions, and sharded again before training on it.
- Checkpoints and digests are those of a whole model: one rank can load what several wrote, and the reverse. Code that
  gathers or shards is called by all ranks together.
- FSDP is torch's `fully_shard` ("FSDP2"). accelerate would call it from the same configuration file, but not on CPUs,
  and transformers' trainer would shard the model again for every stage.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from swarmd.training.models.parallelism import Parallelism

MOMENTS = ("exp_avg", "exp_avg_sq")


def set_up_deepspeed() -> None:
    """Import DeepSpeed without its faster CPU communication, which it would compile. Call it before DeepSpeed starts.

    Compiling needs a compiler and takes minutes, writes to standard output and the home directory, and hangs forever if
    a process was killed meanwhile.
    """
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # type: ignore[attr-defined]


class Sharding:
    """How a rank holds the model. In this class: all of it, as with only one rank.

    Within `whole` any rank may run the model forward as often as it likes, and weights do not change. Weights and the
    optimiser's state are read and written as a whole, without gradients.
    """

    is_sharded = False  # whether each rank holds only a part, if only of the moments

    def gather_weights(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def full_shape(self, weight: torch.Tensor) -> torch.Size:
        return weight.shape

    def read_full_weight(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.detach()

    def write_full_weight(self, weight: torch.Tensor, value: torch.Tensor) -> None:
        weight.copy_(value)

    def read_optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        return dict(optimizer.state_dict())

    def load_optimizer_state(self, optimizer: Any, state: Mapping[str, Any]) -> None:
        optimizer.load_state_dict(state)


class ZeroSharding(Sharding):
    """Sharding by DeepSpeed's ZeRO, for a trainer that has its optimiser and has not trained yet."""

    is_sharded = True

    def __init__(self, trainer: Any, stage: int) -> None:
        accelerator = trainer.accelerator
        accelerator.state.deepspeed_plugin.hf_ds_config.trainer_config_finalize(trainer.args, trainer.model, 1)
        self._stage = stage
        self._model = trainer.model
        self._groups = [dict(group) for group in trainer.optimizer.param_groups]  # ZeRO flattens each group
        self._numbers = {
            id(weight): weight.dtype for weight in trainer.model.parameters()
        }  # the engine may cast them to fewer bits
        self.engine, self.optimizer = accelerator.prepare(trainer.model, trainer.optimizer)
        self._stepper = accelerator.deepspeed_engine_wrapped
        self._zero = self.optimizer.optimizer
        self.hide_engine(accelerator)

    def hide_engine(self, accelerator: Any) -> None:
        """Hide the engine from accelerate outside `train()`, which would otherwise destroy it first."""
        accelerator.deepspeed_engine_wrapped = None

    def show_engine(self, accelerator: Any) -> None:
        """Give accelerate the DeepSpeed engine back while `train()` runs."""
        accelerator.deepspeed_engine_wrapped = self._stepper
        accelerator._models, accelerator._optimizers = [self.engine], [self.optimizer]

    @contextlib.contextmanager
    def gather_weights(self) -> Iterator[None]:
        if self._stage < 3:
            yield
            return
        import deepspeed
        from trl.models.utils import add_hooks, remove_hooks

        offload = self.engine.optimizer.parameter_offload
        with deepspeed.zero.GatheredParameters(list(self._model.parameters()), modifier_rank=None):
            remove_hooks(self.engine)  # they gather and shard each layer, on all ranks at once
            offload.fwd_pre_hook.remove()  # it compares the order of layers with the other ranks'
            try:
                yield
            finally:
                add_hooks(self.engine)
                offload.fwd_pre_hook = self._model.register_forward_pre_hook(
                    lambda module, inputs: offload.get_param_coordinator().reset_step(), prepend=True
                )

    def full_shape(self, weight: torch.Tensor) -> torch.Size:
        return torch.Size(getattr(weight, "ds_shape", weight.shape))

    def read_full_weight(self, weight: torch.Tensor) -> torch.Tensor:
        from deepspeed.utils import safe_get_full_fp32_param

        if not weight.requires_grad:
            return weight
        whole: torch.Tensor = safe_get_full_fp32_param(weight)
        return whole.detach().view(self.full_shape(weight)).to(self._numbers[id(weight)]).cpu()

    def write_full_weight(self, weight: torch.Tensor, value: torch.Tensor) -> None:
        import deepspeed
        from deepspeed.utils import safe_set_full_fp32_param

        if not hasattr(weight, "ds_id"):
            weight.copy_(value)
        else:
            with deepspeed.zero.GatheredParameters([weight], modifier_rank=0):
                if torch.distributed.get_rank() == 0:
                    weight.copy_(value)
        safe_set_full_fp32_param(weight, value.to(weight.device, torch.float32))

    def read_optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        from deepspeed.utils import safe_get_full_optimizer_state

        adam, groups, places = self._zero.optimizer, [], iter(range(len(self._weights)))
        left = iter(adam.param_groups)
        for group in self._groups:  # ZeRO lacks groups without weights
            bare = {**adam.param_groups[0], "weight_decay": group["weight_decay"]}
            settings = next(left) if group["params"] else bare
            groups.append({**settings, "params": [next(places) for _ in group["params"]]})
        begun = [adam.state[flat] for flat in self._flat_shards if adam.state.get(flat)]
        if not begun:
            return {"state": {}, "param_groups": groups}
        self._link_moments()
        state = {}
        for place, weight in enumerate(self._weights):
            moments = {name: safe_get_full_optimizer_state(weight, name) for name in MOMENTS}
            whole = {name: moment.view(self.full_shape(weight)).cpu().clone() for name, moment in moments.items()}
            state[place] = {"step": begun[0]["step"].clone(), **whole}
        return {"state": state, "param_groups": groups}

    def load_optimizer_state(self, optimizer: Any, state: Mapping[str, Any]) -> None:
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
        for flat in self._flat_shards:
            adam.state[flat] = {"step": step.clone(), **{name: torch.zeros_like(flat) for name in MOMENTS}}
        self._link_moments()
        for place, weight in enumerate(self._weights):
            for name in MOMENTS:
                safe_set_full_optimizer_state(weight, moments[place][name].to(weight.device), name)

    @property
    def _weights(self) -> list[Any]:
        """All trained weights, in the order of torch's own state."""
        return [weight for group in self._groups for weight in group["params"]]

    @property
    def _flat_shards(self) -> list[torch.Tensor]:
        """This rank's parts of the weights in float32, one tensor for each group; AdamW's moments have them as keys."""
        zero = self._zero
        return list(zero.fp32_partitioned_groups_flat if self._stage == 3 else zero.single_partition_of_fp32_groups)

    def _link_moments(self) -> None:
        """Link moments to weights under stage 2, which itself does so only for the first group."""
        if self._stage < 3:
            self._zero._hp_optimizer_states_linked = False
            self._zero._lazy_init_hp_params_optimizer_state()


class ZeroTrainerMixin:
    """A mixin before `GRPOTrainer`: makes `train()` keep using the existing engine."""

    accelerator: Any
    callback_handler: Any
    sharding: Any

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, *rest: Any) -> Any:
        if not isinstance(self.sharding, ZeroSharding):
            return super()._prepare_for_training(max_steps, train_dataloader, *rest)  # type: ignore[misc]
        self.sharding.show_engine(self.accelerator)
        self.lr_scheduler: Any = None
        self._created_lr_scheduler = False
        self.create_scheduler(num_training_steps=max_steps)  # type: ignore[attr-defined]
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = train_dataloader
        return self.sharding.engine, train_dataloader

    def train(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().train(*args, **kwargs)  # type: ignore[misc]
        finally:
            if isinstance(self.sharding, ZeroSharding):
                self.sharding.hide_engine(self.accelerator)


class FsdpSharding(Sharding):
    """Sharding by FSDP, in place: every rank holds its part of each layer's parameters. `model`: whole, on this rank's
    device; the ranks' process group must exist. `gathers_again`: whether a layer is gathered again for its backward
    pass instead of kept since the forward pass."""

    is_sharded = True

    def __init__(self, model: Any, gathers_again: bool) -> None:
        self._root = model
        names = set(
            getattr(model, "_no_split_modules", None) or ()
        )  # layers that transformers does not split between devices
        self._layers = [module for module in model.modules() if type(module).__name__ in names]
        self._gathers_again = gathers_again
        device = next(model.parameters()).device.type  # torch would choose the GPUs even for ranks on the CPU
        mesh = init_device_mesh(device, (torch.distributed.get_world_size(),))
        for layer in self._layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=gathers_again)
        fully_shard(model, mesh=mesh, reshard_after_forward=False)  # the rest: embeddings and output

    @contextlib.contextmanager
    def gather_weights(self) -> Iterator[None]:
        for module in (self._root, *self._layers):
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()
        try:
            yield
        finally:
            for module in (self._root, *self._layers):
                module.reshard()
            for layer in self._layers:
                layer.set_reshard_after_forward(self._gathers_again, recurse=False)

    def read_full_weight(self, weight: torch.Tensor) -> torch.Tensor:
        if not isinstance(weight, DTensor):
            return weight.detach()
        whole: torch.Tensor = weight.detach().full_tensor()  # type: ignore[attr-defined]  # detach gives a DTensor
        return whole.cpu()

    def write_full_weight(self, weight: torch.Tensor, value: torch.Tensor) -> None:
        weight.copy_(_shard_like(value, weight))

    def read_optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        return _map_moments(optimizer.state_dict(), lambda place, moment: self.read_full_weight(moment))

    def load_optimizer_state(self, optimizer: Any, state: Mapping[str, Any]) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

        def shard_moment(place: int, moment: torch.Tensor) -> torch.Tensor:
            weight = parameters[place]
            return _shard_like(moment, weight) if moment.shape == weight.shape else moment

        optimizer.load_state_dict(_map_moments(state, shard_moment))


def _shard_like(whole: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Shard a tensor that every rank has like a weight; returns this rank's part."""
    if not isinstance(weight, DTensor):
        return whole
    here = whole.to(weight.device, weight.dtype)
    return distribute_tensor(here, weight.device_mesh, weight.placements, src_data_rank=None)


def _map_moments(state: Mapping[str, Any], change: Callable[[int, torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    """Copy an optimiser's state, changing each tensor by `change`, which gets the index of its parameter."""
    changed = {
        place: {
            name: change(place, value) if isinstance(value, torch.Tensor) else value for name, value in moments.items()
        }
        for place, moments in state["state"].items()
    }
    return {**state, "state": changed}


def shard_model(trainer: Any, parallelism: Parallelism) -> Sharding:
    """Create a trainer's optimiser, and shard its model if configured."""
    if parallelism.kind == "replicas":
        trainer.create_optimizer()
        return Sharding()
    if parallelism.kind == "zero":
        trainer.create_optimizer()
        parts = ZeroSharding(trainer, 3 if parallelism.weights > 1 else 2)
        trainer.optimizer, trainer.model_wrapped = parts.optimizer, parts.engine
        return parts
    shards = FsdpSharding(trainer.model, parallelism.weights > 1)
    trainer.create_optimizer()
    trainer.is_distributed_loading_by_transformers = True  # transformers' flag for models that are already sharded
    trainer.accelerator.prepare_model(trainer.model, device_placement=False, evaluation_mode=True)
    trainer.model._is_accelerate_prepared = True  # else each stage would wrap the forward pass again
    return shards

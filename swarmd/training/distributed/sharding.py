"""How the ranks of a node hold the model: each the whole of it, or each a part of every layer (FSDP, ZeRO).

Sharded, a rank holds its part of the weights, of their gradients and of the optimiser's moments. A pass gathers one
layer after the other, on all ranks at once. Ranks that generate do not keep step with each other, so all weights are
gathered once for a batch of completions and are parts again before it is trained on.

Checkpoints and digests are those of a whole model: one written by several ranks is taken up by one, and the other way
round. What makes a whole of parts, or parts of a whole, is called by all ranks together.

FSDP is torch's `fully_shard` ("FSDP2"). accelerate would call it from the same configuration file, but not on CPUs, and
transformers' trainer would have it cut the model anew for every stage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from swarmd.training.distributed.parallelism import Parallelism
from swarmd.training.distributed.zero import ZeroParts


class Holding(Protocol):
    """What the engine asks of either way."""

    @property
    def is_sharded(self) -> bool:
        """Whether each rank holds a part only, be it of the moments alone."""

    def whole(self) -> AbstractContextManager[None]:
        """While it lasts, any rank may run the model forward as often as it likes, and the weights do not change."""

    def shape(self, weight: torch.Tensor) -> torch.Size:
        """Of a weight as a whole."""

    def read(self, weight: torch.Tensor) -> torch.Tensor:
        """A weight as a whole, without its gradient."""

    def write(self, weight: torch.Tensor, value: torch.Tensor) -> None:
        """Put a whole value into a weight."""

    def read_optimizer(self, optimizer: Any) -> dict[str, Any]:
        """The optimiser's state, its moments whole."""

    def load_optimizer(self, optimizer: Any, state: Mapping[str, Any]) -> None:
        """Put back what `read_optimizer` gave, or what torch's own `state_dict` did."""


class Replicas:
    """Every rank holds the whole model, or there is but one."""

    is_sharded = False

    def whole(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def shape(self, weight: torch.Tensor) -> torch.Size:
        return weight.shape

    def read(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.detach()

    def write(self, weight: torch.Tensor, value: torch.Tensor) -> None:
        weight.copy_(value)

    def read_optimizer(self, optimizer: Any) -> dict[str, Any]:
        return dict(optimizer.state_dict())

    def load_optimizer(self, optimizer: Any, state: Mapping[str, Any]) -> None:
        optimizer.load_state_dict(state)


class Shards:
    """Every rank holds its part of each layer's parameters; done to the model in place.

    Args:
        model: whole, on this rank's device; the ranks' process group is there.
        gathers_again: whether a layer is gathered anew for its backward pass, and not kept from the forward pass on.
    """

    is_sharded = True

    def __init__(self, model: Any, gathers_again: bool) -> None:
        self._root = model
        self._layers = list(find_layers(model))
        self._gathers_again = gathers_again
        device = next(model.parameters()).device.type  # not what torch would take: a CPU's ranks on a machine with GPUs
        mesh = init_device_mesh(device, (torch.distributed.get_world_size(),))
        for layer in self._layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=gathers_again)
        fully_shard(model, mesh=mesh, reshard_after_forward=False)  # what no layer has: embeddings and output

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
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

    def shape(self, weight: torch.Tensor) -> torch.Size:
        return weight.shape

    def read(self, weight: torch.Tensor) -> torch.Tensor:
        if not isinstance(weight, DTensor):
            return weight.detach()
        whole: torch.Tensor = weight.detach().full_tensor()  # type: ignore[attr-defined]  # detach gives a DTensor
        return whole.cpu()

    def write(self, weight: torch.Tensor, value: torch.Tensor) -> None:
        weight.copy_(_cut_like(value, weight))

    def read_optimizer(self, optimizer: Any) -> dict[str, Any]:
        return _map_moments(optimizer.state_dict(), lambda place, moment: self.read(moment))

    def load_optimizer(self, optimizer: Any, state: Mapping[str, Any]) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

        def cut(place: int, moment: torch.Tensor) -> torch.Tensor:
            weight = parameters[place]
            return _cut_like(moment, weight) if moment.shape == weight.shape else moment

        optimizer.load_state_dict(_map_moments(state, cut))


def _cut_like(whole: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that every rank has, cut as a weight is."""
    if not isinstance(weight, DTensor):
        return whole
    here = whole.to(weight.device, weight.dtype)
    return distribute_tensor(here, weight.device_mesh, weight.placements, src_data_rank=None)


def _map_moments(state: Mapping[str, Any], change: Callable[[int, torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    """A copy of an optimiser's state with each tensor changed, given the place of its parameter."""
    changed = {
        place: {
            name: change(place, value) if isinstance(value, torch.Tensor) else value for name, value in moments.items()
        }
        for place, moments in state["state"].items()
    }
    return {**state, "state": changed}


def find_layers(model: Any) -> Iterator[Any]:
    """The model's layers: the modules that transformers does not split between devices."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return (module for module in model.modules() if type(module).__name__ in names)


def hold(trainer: Any, spread: Parallelism) -> Holding:
    """Give a trainer its optimiser, and cut its model where it is to be spread."""
    if spread.kind == "replicas":
        trainer.create_optimizer()
        return Replicas()
    if spread.kind == "zero":
        trainer.create_optimizer()
        parts = ZeroParts(trainer, 3 if spread.weights > 1 else 2)
        trainer.optimizer, trainer.model_wrapped = parts.optimizer, parts.engine
        return parts
    shards = Shards(trainer.model, spread.weights > 1)
    trainer.create_optimizer()
    trainer.is_distributed_loading_by_transformers = True  # its word for models that are in parts already
    trainer.accelerator.prepare_model(trainer.model, device_placement=False, evaluation_mode=True)
    trainer.model._is_accelerate_prepared = True  # else each stage would wrap its forward pass once more
    return shards

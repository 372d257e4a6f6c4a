"""The KL term's reference: always the model that the node began with, here or in a reference server.

TRL 1.16 loads a reference of its own when its `beta` is above 0. `SwarmTrainer` is made with 0, so it loads none, and
is given the weight and a `KlReference` afterwards: TRL then asks for the log-probabilities of its `ref_model`, and
those come from here. Only with adapters and no server is it left to TRL, which switches them off for its reference:
the base does not train, so it is what the node began with.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from swarmd.config import TrainingConfig
from swarmd.errors import ConfigError
from swarmd.http_server import load_token
from swarmd.training.cancellation import CancellationSource
from swarmd.training.models.model import Policy
from swarmd.training.reference.client import ReferenceClient, ReferenceServerAddress
from swarmd.training.reference.scoring import Frozen, freeze
from swarmd.training.reference.scoring import ReferenceScorer as FrozenReference

REFERENCE_KEY = "ref_per_token_logps"  # TRL's, of a batch
GAP_MAX = 10.0  # nats that a token may be likelier to the reference; further is as far


class KlReference(Protocol):
    """Whatever stands in TRL's `ref_model`."""

    def log_probabilities(self, ids: torch.Tensor, mask: torch.Tensor, keep: int) -> torch.Tensor:
        """Log-probabilities (batch, keep) of the last `keep` tokens, 0 where the mask is 0."""


class FrozenCopy:
    """A copy of the policy as it is now, which stays so.

    Args:
        policy: to copy.
        temperature: that logits are divided by.
    """

    def __init__(self, policy: Policy, temperature: float) -> None:
        model = freeze(copy.deepcopy(policy.model))
        model.__dict__.pop("forward", None)  # one that TRL has put there computes with the policy's own weights
        self._reference = FrozenReference(Frozen(model, policy.device, policy.mixed))
        self._temperature = temperature

    def log_probabilities(self, ids: torch.Tensor, mask: torch.Tensor, keep: int) -> torch.Tensor:
        """See `KlReference`."""
        return self._reference.log_probabilities(ids, mask, keep, self._temperature)


def make_reference(
    policy: Policy, training: TrainingConfig, root: Path, name: str, cancellation: CancellationSource
) -> KlReference | None:
    """The reference of a node; None where there is none, or adapters are switched off instead.

    To be called while the policy has the weights that the node began with: before a checkpoint is loaded.

    Args:
        root: the data directory, where a token's file lies.
        name: of this node, for the ids of its jobs.
        cancellation: gives that of the running stage.

    Raises:
        ConfigError: the server's URL or token is unusable, or the policy's numbers cannot be a server's.
    """
    if not training.beta:
        return None
    if not training.reference.url:
        return FrozenCopy(policy, training.temperature) if isinstance(policy.model, PreTrainedModel) else None
    if getattr(policy.model, "is_quantized", False) or training.quantization != "none":
        raise ConfigError(
            "training.reference.url is set, but a quantised model is no other's reference",
            "Leave training.reference.url empty: the adapters are switched off for the reference",
        )
    server = ReferenceServerAddress(training.reference.url, load_token(training.reference.token, root))
    return ReferenceClient(server, policy.frozen_digest or policy.digest, training.temperature, name, cancellation)


def use_reference(trainer: Any, beta: float, reference: KlReference | None) -> None:
    """Have a trainer that was made with TRL's beta at 0 train with a KL term of weight `beta`."""
    trainer.beta = beta
    trainer.ref_model = reference


def bound_reference(batch: dict[str, Any], now: torch.Tensor) -> None:
    """Have the reference's log-probabilities in a batch of TRL's lie no more than `GAP_MAX` above those of the policy.

    TRL computes exp(gap) - gap - 1. From some 18 nats on float32 has no digits left for anything but exp(gap), and from
    88 on that is infinite. What the policy draws itself lies so far less than once in e**`GAP_MAX` tokens; peers can
    write what only the reference would.

    Args:
        now: log-probabilities under the policy as it is, (rows, tokens).
    """
    if REFERENCE_KEY in batch:
        batch[REFERENCE_KEY] = torch.minimum(batch[REFERENCE_KEY], now.detach() + GAP_MAX)

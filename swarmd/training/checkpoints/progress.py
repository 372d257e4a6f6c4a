"""What a stage changes, saved whole and put back whole: weights, optimiser, steps, and what the plan has learnt."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import torch

from swarmd.core.commands import Train
from swarmd.core.events import StageTrained
from swarmd.errors import SwarmError
from swarmd.logger import get_logger
from swarmd.swarms.plan import Plan
from swarmd.training.checkpoints.checkpoint import Checkpoint, Checkpoints
from swarmd.training.evaluation import SkillGuard
from swarmd.training.lr_schedule import StepCallback
from swarmd.training.models.model import Policy, read_base

log = get_logger(__name__)


class TrainingState:
    """The state of one node's training, in memory and in its checkpoints.

    Args:
        policy: whose weights are trained, as it was loaded.
        plan: may have a memory of its own.
        pace: counts the steps.
        checkpoints: where it is kept.
        optimizer: gives the one in use, with no step taken yet.
        optimizer_name: as the configuration names it.
        skills: what is known of held-out accuracies.
    """

    def __init__(
        self,
        policy: Policy,
        plan: Plan,
        pace: StepCallback,
        checkpoints: Checkpoints,
        optimizer: Callable[[], Any],
        optimizer_name: str,
        skills: SkillGuard,
    ) -> None:
        self._policy = policy
        self._plan = plan
        self._pace = pace
        self._checkpoints = checkpoints
        self._optimizer = optimizer
        self._optimizer_name = optimizer_name
        self._skills = skills
        self._fresh_optimizer = policy.holding.read_optimizer(optimizer())
        self._fresh_memory = plan.read_memory()
        self._base = policy.copy_weights() if policy.is_small else None

    def find(self, order: Train) -> Checkpoint | None:
        """The checkpoint of this stage, if it was trained from the same model."""
        checkpoint = self._checkpoints.find(order.round, order.stage)
        return checkpoint if checkpoint is not None and self._fits(checkpoint) else None

    def _fits(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.meta.model == self._policy.digest

    def assist(self) -> None:
        """Take this rank's part in `save`, which the first one does."""
        if self._policy.holding.is_sharded:
            for _ in self._policy.walk_weights():
                pass
            self._policy.holding.read_optimizer(self._optimizer())

    def save(self, event: StageTrained, body: bytes) -> StageTrained:
        """Make a stage durable; its report with the checkpoint's digest. Raises CheckpointFailed, SwarmError."""
        weights = self._policy.trained_weights()
        optimizer = {
            "optimizer": self._policy.holding.read_optimizer(self._optimizer()),
            "rng": torch.get_rng_state(),
            "memory": check_plain(self._plan.read_memory()),
            "skills": self._skills.read(),
            "fresh_from": self._pace.fresh_from,
        }
        policy = self._policy
        saved = self._checkpoints.save(
            weights,
            optimizer,
            body,
            event,
            self._pace.steps,
            policy.digest,
            policy.describe,
            self._optimizer_name,
        )
        return saved.event

    def restore(self, touched: bool) -> None:
        """Be what the newest whole checkpoint holds, or as at the beginning.

        Args:
            touched: whether the weights may differ from those that were loaded.
        """
        checkpoint = next((each for each in self._checkpoints.whole() if self._fits(each)), None)
        if checkpoint is None:
            self._begin_anew(touched)
            return
        self._policy.load_weights(checkpoint.read_weights())
        state = checkpoint.read_optimizer()
        self._pace.steps = checkpoint.meta.steps
        self._pace.fresh_from = state["fresh_from"]
        self._load_optimizer(checkpoint, state["optimizer"])
        torch.set_rng_state(state["rng"])
        self._plan.load_memory(state["memory"])
        self._skills.load(state["skills"])
        log.info("checkpoint loaded", path=str(checkpoint.directory), digest=checkpoint.digest, steps=self._pace.steps)

    def reset_optimizer(self) -> None:
        """Begin the optimiser's moments anew: they were another model's. Steps go on, the rate is warmed up."""
        self._policy.holding.load_optimizer(self._optimizer(), self._fresh_optimizer)
        self._pace.fresh_from = self._pace.steps

    def _load_optimizer(self, checkpoint: Checkpoint, state: dict[str, Any]) -> None:
        """Load the optimiser's state; that of another kind would be taken without a word, and fail at the next step."""
        written = checkpoint.meta.optimizer
        if written == self._optimizer_name:
            self._policy.holding.load_optimizer(self._optimizer(), state)
            return
        self.reset_optimizer()
        log.warning(
            "the checkpoint was written with another optimiser: its moments begin anew, the weights are kept",
            path=str(checkpoint.directory),
            written=written,
            now=self._optimizer_name,
        )

    def _begin_anew(self, touched: bool) -> None:
        if touched:
            self._policy.load_weights(self._base if self._base is not None else read_base(self._policy))
        self._policy.holding.load_optimizer(self._optimizer(), self._fresh_optimizer)
        self._plan.load_memory(self._fresh_memory)
        self._skills.load({})
        self._pace.steps = self._pace.fresh_from = 0


def check_plain(memory: Mapping[str, Any]) -> dict[str, Any]:
    """What a plan remembers, as a dictionary that a checkpoint gives back.

    Raises:
        SwarmError: it holds more than plain values; read as checkpoints are, without running what stands there, it
            would end this process and every one after it.
    """
    plain, written = dict(memory), io.BytesIO()
    try:
        torch.save(plain, written)
        written.seek(0)
        torch.load(written, weights_only=True)
    except (pickle.PickleError, TypeError, AttributeError, RecursionError) as error:
        raise SwarmError(
            "what the plan remembers cannot be kept in a checkpoint",
            "Plan.read_memory gives texts, numbers, truth values, and lists and dictionaries of them",
        ) from error
    return plain

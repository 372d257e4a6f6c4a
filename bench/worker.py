"""The trainer worker with parts of it switched off, to measure what they bring: `python -m bench.worker PART ...`.

Parts: `shared-prompts` computes the prompt once for its group, in generation and in training; `flat-groups` drops flat
groups before the forward pass. What is named is switched off; TRL's and transformers' own ways take its place.
"""

from __future__ import annotations

import sys
from typing import Any

import anyio

from bench import half_flat
from swarmd.training.worker import main
from swarmd.worker.child import run_worker


def switch_off_shared_prompts() -> None:
    """Generate with transformers' `generate`, train with TRL's forward pass."""
    from swarmd.training.sampling import Sampler
    from swarmd.training.trainer import SwarmTrainer

    Sampler.can_share_prefill = property(lambda sampler: False)  # type: ignore[assignment, method-assign]
    SwarmTrainer._packs = False


def switch_off_flat_groups() -> None:
    """Train on all groups."""
    from swarmd.training.trainer import SwarmTrainer

    def keep(trainer: SwarmTrainer, batch: dict[str, Any]) -> dict[str, Any]:
        return batch

    SwarmTrainer._drop_zero_variance_groups = keep  # type: ignore[method-assign, assignment]


PARTS = {"shared-prompts": switch_off_shared_prompts, "flat-groups": switch_off_flat_groups}

if __name__ == "__main__":
    for part in sys.argv[1:]:
        PARTS[part]()
    half_flat.make_known()
    anyio.run(run_worker, main)

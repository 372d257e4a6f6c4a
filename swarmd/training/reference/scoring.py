"""Log-probabilities of completions under a frozen model."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from swarmd.config import TrainingConfig
from swarmd.training.models.model import digest_weights, load_frozen

BATCH_TOKENS_MAX = 1 << 14  # tokens of one forward pass, padding included
BATCH_LOGITS_MAX = 1 << 26  # completion tokens x vocabulary of one forward pass; 256 MiB in float32


def load_reference(training: TrainingConfig) -> "ReferenceScorer":
    """Load a model, without training it, in the dtype in which a trainer with these settings holds it. Raises as
    `load_frozen`. `training`: only `model`, `revision`, `device`, `dtype` and `threads` count."""
    frozen = load_frozen(training)
    return ReferenceScorer(frozen.model, frozen.device, frozen.precision.mixed)


def freeze_model(model: Any) -> Any:
    """Turn off a model's dropout and gradients."""
    return model.eval().requires_grad_(False)


@dataclass(eq=False)
class ReferenceScorer:
    """Scores batches with a frozen model, in parts of similar length that fit into memory."""

    model: Any  # PreTrainedModel; its own annotations are too loose for strict typing
    device: str
    mixed: bool  # float32 weights, bfloat16 forward passes

    @property
    def vocabulary_size(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def context_tokens(self) -> int | None:
        """Longest sequence in tokens, if the model declares it."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    @cached_property
    def digest(self) -> str:
        """Digest of the model's weights, see `digest_weights`."""
        return digest_weights(self.model)

    def log_probabilities(
        self, ids: torch.Tensor, mask: torch.Tensor, keep: int, temperature: float = 1.0
    ) -> torch.Tensor:
        """Log-probabilities (batch, keep), float32, of the last `keep` tokens; 0 where the mask is 0.

        Args:
            ids: (batch, width); prompts padded on the left, completions on the right.
            mask: the same shape, 0 for padding.
            keep: columns of the completion, fewer than `width`.
            temperature: divides the logits.
        """
        results = torch.zeros(ids.size(0), keep, device=ids.device)
        if not keep:
            return results
        with torch.inference_mode(), torch.autocast(self.device, torch.bfloat16, enabled=self.mixed):
            for rows, left, right in self._split_by_length(mask, keep):
                part = slice(left, ids.size(1) - keep + right)
                logs = self._score_part(ids[rows, part], mask[rows, part], right, temperature)
                results[rows, :right] = logs.to(results.device)
        return results * mask[:, -keep:]

    def _split_by_length(self, mask: torch.Tensor, keep: int) -> Iterator[tuple[torch.Tensor, int, int]]:
        """Groups of rows with similar length: the rows, the first column that any of them uses, and their longest
        completion."""
        prompts, completions = mask[:, :-keep].sum(1).tolist(), mask[:, -keep:].sum(1).tolist()
        order = sorted(range(len(prompts)), key=lambda row: (completions[row], prompts[row]))
        part: list[int] = []
        longest = (0, 0)
        for row in (row for row in order if completions[row]):
            grown = max(longest[0], prompts[row]), max(longest[1], completions[row])
            if part and not self._fits_in_memory(len(part) + 1, *grown):
                yield torch.tensor(part, device=mask.device), mask.size(1) - keep - longest[0], longest[1]
                part, grown = [], (prompts[row], completions[row])
            part.append(row)
            longest = grown
        if part:
            yield torch.tensor(part, device=mask.device), mask.size(1) - keep - longest[0], longest[1]

    def _fits_in_memory(self, rows: int, prompt: int, completion: int) -> bool:
        tokens = rows * (prompt + completion) <= BATCH_TOKENS_MAX
        return tokens and rows * (completion + 1) * self.vocabulary_size <= BATCH_LOGITS_MAX

    def _score_part(self, ids: torch.Tensor, mask: torch.Tensor, keep: int, temperature: float) -> torch.Tensor:
        """Score one part; returns (batch, keep). The output head is computed only where it predicts a completion."""
        ids, mask = ids.to(self.device), mask.to(self.device)
        positions = (mask.long().cumsum(1) - 1).clamp(min=0)
        selects = "logits_to_keep" in inspect.signature(type(self.model).forward).parameters
        selected = {"logits_to_keep": keep + 1} if selects else {}
        logits = self.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, **selected
        ).logits[:, -keep - 1 : -1]
        logs = torch.log_softmax(logits.float() / temperature, -1)
        return logs.gather(2, ids[:, -keep:, None]).squeeze(2)

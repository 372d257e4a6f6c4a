"""How many tokens of a step go through the model in one forward and backward pass.

* A pass is limited in tokens. Each kind of device has a size beyond which larger passes are hardly faster; a prompt
does not count, since a group that is split computes it again. Below that size free memory decides. The memory of a
token is estimated from the model's shape, and on an accelerator measured from the first pass on. * If memory still runs
out, the limit is halved. If a single completion is too much, activations are recomputed instead of kept. Both also hold
for the next process; the limit recovers slowly. * `training.micro_questions` also limits the groups of a pass;
`training.gradient_checkpointing` can fix whether activations are recomputed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch

from swarmd.bounds import DECODE_ERRORS
from swarmd.config import TrainingConfig
from swarmd.files import replace_durably
from swarmd.logger import get_logger
from swarmd.training.models.memory import (
    FREE_SHARE,
    activation_bytes_per_token,
    find_saturating_tokens,
    measure_device_memory,
    read_shape,
)
from swarmd.training.models.model import Policy

KEPT = "passes.json"
GROWTH = 8  # the limit grows by 1/8 with each stage
COUNTING = ("cuda", "xpu")  # devices on which torch counts memory

log = get_logger(__name__)


class SavedSizes(msgspec.Struct, frozen=True):
    """The sizes with which the next process starts."""

    tokens_max: int
    recompute: bool


class PassSizes:
    """Splits batches into passes, and adapts to the memory that they take.

    Args:
        directory: of the file with the sizes for the next process.
        training: settings of this process.
        policy: the model.
    """

    def __init__(self, directory: Path, training: TrainingConfig, policy: Policy) -> None:
        self._path = directory / KEPT
        self._device = device = policy.device
        shape = read_shape(policy.model.config, policy.parameter_count)
        number_bytes = policy.precision.dtype.itemsize
        self._ceiling = find_saturating_tokens(device, policy.parameter_count)
        self._rows_max = training.micro_questions * training.generations
        self._may_recompute = training.gradient_checkpointing == "auto"
        kept = self._load()
        self._tokens_max = kept.tokens_max if 0 < kept.tokens_max < self._ceiling else self._ceiling
        width = training.prompt_tokens + training.completion_tokens
        fits = width * activation_bytes_per_token(
            shape, number_bytes, policy.precision.mixed, False
        ) <= FREE_SHARE * measure_free(device)
        self.recompute = training.gradient_checkpointing == "on" or (
            self._may_recompute and (kept.recompute or not fits)
        )
        self._token_bytes = activation_bytes_per_token(shape, number_bytes, policy.precision.mixed, self.recompute)
        self._measured_tokens = 0  # of the largest pass measured
        self._last = (0, 0)  # rows and tokens of the last pass
        self._peak_bytes = 0  # before the pass last measured

    def _load(self) -> SavedSizes:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=SavedSizes)
        except (OSError, *DECODE_ERRORS):
            return SavedSizes(self._ceiling, False)  # then memory runs out once more

    def _save(self) -> None:
        """Save the sizes for the next process. If that fails, only the next process has to find them again."""
        try:
            replace_durably(self._path, msgspec.json.encode(SavedSizes(self._tokens_max, self.recompute)))
        except OSError as error:
            log.warning("the size of passes is not kept", path=str(self._path), reason=str(error))

    def shrink(self) -> bool:
        """Use smaller passes from now on, because memory ran out. Returns False if they cannot be smaller."""
        rows, tokens = self._last
        if rows > 1:
            self._tokens_max = max(min(self._tokens_max, tokens) // 2, 1)
        elif rows == 1 and self._may_recompute and not self.recompute:
            self.recompute = True
        else:
            return False
        log.warning("memory ran out: smaller passes from now on", tokens=self._tokens_max, recompute=self.recompute)
        self._last = (0, 0)
        self._save()
        return True

    def grow(self) -> None:
        """Let passes grow back towards the usual size, after a successful stage."""
        if self._tokens_max < self._ceiling:
            self._tokens_max = min(self._tokens_max + self._tokens_max // GROWTH + 1, self._ceiling)
            self._save()

    def tokens_per_pass(self, prompt: int = 0) -> int:
        """Tokens that a pass may have now, including one prompt of `prompt` tokens."""
        usual = self._tokens_max == self._ceiling
        return max(min(self._tokens_max + prompt * usual, self._count_fitting_tokens()), 1)

    def _count_fitting_tokens(self) -> int:
        return int(FREE_SHARE * measure_free(self._device) / self._token_bytes)

    def rows_per_pass(self, batch: int, width: int) -> int:
        """Completions per pass if a batch of rows of at most `width` tokens is split into equal passes."""
        usual = self._tokens_max == self._ceiling  # then only memory decides, since much of the width may be padding
        tokens = self._count_fitting_tokens() if usual else self.tokens_per_pass()
        bound = min(max(tokens // width, 1), self._rows_max or batch, batch)
        return next(rows for rows in range(bound, 0, -1) if batch % rows == 0)

    def split_batch(
        self, prompts: torch.Tensor, prompt_tokens: torch.Tensor, tokens: torch.Tensor
    ) -> list[tuple[torch.Tensor, int]]:
        """Rows and tokens of each pass, which has at least one row. Rows of one prompt are adjacent.

        Args:
            prompts: (rows,) a number for each distinct prompt.
            prompt_tokens: (rows,) tokens of the row's prompt, which a pass computes only once.
            tokens: (rows,) tokens of the row's completion.
        """
        budget, rows_max = self.tokens_per_pass(int(prompt_tokens.max())), self._rows_max or len(prompts)
        passes: list[tuple[list[int], int]] = []
        before = -1
        for row in torch.argsort(prompts, stable=True).tolist():
            prompt, shared, own = int(prompts[row]), int(prompt_tokens[row]), int(tokens[row])
            added = own if prompt == before else own + shared
            rows, taken = passes.pop() if passes else ([], 0)
            if rows and (taken + added > budget or len(rows) >= rows_max):
                passes.append((rows, taken))
                rows, taken, added = [], 0, own + shared
            passes.append(([*rows, row], taken + added))
            before = prompt
        return [(torch.tensor(rows, device=prompts.device), taken) for rows, taken in passes]

    def measure_peak_vram(self) -> int:
        """Peak bytes of an accelerator that tensors have taken so far; 0 on a processor."""
        if self._device not in COUNTING:
            return 0
        return max(self._peak_bytes, int(getattr(torch, self._device).max_memory_allocated()))

    @contextmanager
    def measure_pass(self, rows: int, tokens: int, kept: int) -> Iterator[None]:
        """Record the size of the pass computed in the block, and the memory that it takes.

        Args:
            rows: completions in the pass.
            tokens: in the pass.
            kept: bytes that stay allocated afterwards: gradients that the pass makes.
        """
        self._last = (rows, tokens)
        if self._device not in COUNTING:
            yield
            return
        memory = getattr(torch, self._device)
        self._peak_bytes = self.measure_peak_vram()
        memory.reset_peak_memory_stats()
        before = memory.memory_allocated()
        yield
        taken = memory.max_memory_allocated() - before - kept
        # The fixed part of the memory matters least in the largest pass, so that pass counts.
        if taken > 0 and tokens >= self._measured_tokens:
            self._token_bytes, self._measured_tokens = taken / tokens, tokens


def measure_free(device: str) -> int:
    """Bytes that a pass could use: those free on the device, and those that torch holds unused."""
    free = measure_device_memory(device).free
    if device in COUNTING:
        memory = getattr(torch, device)
        free += int(memory.memory_reserved()) - int(memory.memory_allocated())
    return free

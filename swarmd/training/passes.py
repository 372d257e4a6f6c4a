"""How much of a step goes through the model in one forward and backward pass.

* A pass is bounded in tokens. Each kind of device has a size beyond which larger passes are hardly faster, a prompt
  not counted, since a group that is cut computes it again; below it, the free memory decides. What a token takes is
  foretold from the model's shape; on an accelerator it is measured from the first pass on.
* Where memory runs out nevertheless, the bound is halved. Where one completion is too much for a pass, its activations
  are computed twice instead of being kept. Both hold for the next process, too; the bound comes back slowly.
* `training.micro_questions` bounds the groups of a pass beside that, `training.gradient_checkpointing` decides the
  second way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch

from swarmd.bounds import DECODE_ERRORS
from swarmd.config import TrainingConfig
from swarmd.files import replace_durably
from swarmd.logger import get_logger
from swarmd.training.models.memory import FREE_SHARE, find_tokens_max, measure_room, read_shape, token_bytes
from swarmd.training.models.model import Policy

KEPT = "passes.json"
GROWTH = 8  # the bound grows by one part in this many with each stage
COUNTING = ("cuda", "xpu")  # devices whose memory torch counts

log = get_logger(__name__)


class KeptSizes(msgspec.Struct, frozen=True):
    """What the next process begins with."""

    tokens_max: int
    recompute: bool


class PassSizes:
    """Splits batches into passes, and learns from what they take.

    Args:
        directory: where is kept what the next process begins with.
        training: the settings of this process.
        policy: the model.
    """

    def __init__(self, directory: Path, training: TrainingConfig, policy: Policy) -> None:
        self._path = directory / KEPT
        self._device = device = policy.device
        shape = read_shape(policy.model.config, policy.parameters)
        number_bytes = policy.numbers.dtype.itemsize
        self._ceiling = find_tokens_max(device, policy.parameters)
        self._rows_max = training.micro_questions * training.generations
        self._may_recompute = training.gradient_checkpointing == "auto"
        kept = self._load()
        self._tokens_max = kept.tokens_max if 0 < kept.tokens_max < self._ceiling else self._ceiling
        width = training.prompt_tokens + training.completion_tokens
        fits = width * token_bytes(shape, number_bytes, policy.mixed, False) <= FREE_SHARE * measure_free(device)
        self.recompute = training.gradient_checkpointing == "on" or (
            self._may_recompute and (kept.recompute or not fits)
        )
        self._token_bytes = token_bytes(shape, number_bytes, policy.mixed, self.recompute)
        self._measured_tokens = 0  # of the largest pass that was measured
        self._last = (0, 0)  # rows and tokens of the pass before
        self._peak_bytes = 0  # before the pass that was measured last

    def _load(self) -> KeptSizes:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=KeptSizes)
        except (OSError, *DECODE_ERRORS):
            return KeptSizes(self._ceiling, False)  # only a shortcut: without it memory runs out once more

    def _keep(self) -> None:
        """For the next process. What cannot be kept costs it a try, and this one nothing."""
        try:
            replace_durably(self._path, msgspec.json.encode(KeptSizes(self._tokens_max, self.recompute)))
        except OSError as error:
            log.warning("the size of passes is not kept", path=str(self._path), reason=str(error))

    def shrink(self) -> bool:
        """After memory ran out: smaller passes from now on. False where they cannot be smaller."""
        rows, tokens = self._last
        if rows > 1:
            self._tokens_max = max(min(self._tokens_max, tokens) // 2, 1)
        elif rows == 1 and self._may_recompute and not self.recompute:
            self.recompute = True
        else:
            return False
        log.warning("memory ran out: smaller passes from now on", tokens=self._tokens_max, recompute=self.recompute)
        self._last = (0, 0)
        self._keep()
        return True

    def grow(self) -> None:
        """After a stage that went well: back towards the usual size."""
        if self._tokens_max < self._ceiling:
            self._tokens_max = min(self._tokens_max + self._tokens_max // GROWTH + 1, self._ceiling)
            self._keep()

    def count_tokens(self, prompt: int = 0) -> int:
        """Tokens that a pass may have now, one prompt of so many included."""
        usual = self._tokens_max == self._ceiling
        return max(min(self._tokens_max + prompt * usual, self._count_fitting()), 1)

    def _count_fitting(self) -> int:
        return int(FREE_SHARE * measure_free(self._device) / self._token_bytes)

    def count_rows(self, batch: int, width: int) -> int:
        """Completions in each of equally large passes over a batch whose rows are padded to at most `width` tokens."""
        usual = self._tokens_max == self._ceiling  # then memory alone decides: much of the width may be padding
        tokens = self._count_fitting() if usual else self.count_tokens()
        bound = min(max(tokens // width, 1), self._rows_max or batch, batch)
        return next(rows for rows in range(bound, 0, -1) if batch % rows == 0)

    def split(
        self, prompts: torch.Tensor, prompt_tokens: torch.Tensor, tokens: torch.Tensor
    ) -> list[tuple[torch.Tensor, int]]:
        """The rows of each pass and its tokens; those of one prompt are beside each other, and a pass has one at least.

        Args:
            prompts: (rows,) a number for each distinct prompt.
            prompt_tokens: (rows,) tokens of the row's prompt, which a pass computes once.
            tokens: (rows,) of the row's completion.
        """
        budget, rows_max = self.count_tokens(int(prompt_tokens.max())), self._rows_max or len(prompts)
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

    def measure_peak(self) -> int:
        """The most bytes of an accelerator that tensors have had so far; 0 on a processor."""
        if self._device not in COUNTING:
            return 0
        return max(self._peak_bytes, int(getattr(torch, self._device).max_memory_allocated()))

    @contextmanager
    def measure(self, rows: int, tokens: int, kept: int) -> Iterator[None]:
        """Note the size of a pass, and what it takes.

        Args:
            rows: completions in it.
            tokens: in it.
            kept: bytes that stay when it is over: of gradients that were not there before.
        """
        self._last = (rows, tokens)
        if self._device not in COUNTING:
            yield
            return
        memory = getattr(torch, self._device)
        self._peak_bytes = self.measure_peak()
        memory.reset_peak_memory_stats()
        before = memory.memory_allocated()
        yield
        taken = memory.max_memory_allocated() - before - kept
        # What each pass takes whatever its size weighs less the larger it is, so the largest one says most.
        if taken > 0 and tokens >= self._measured_tokens:
            self._token_bytes, self._measured_tokens = taken / tokens, tokens


def measure_free(device: str) -> int:
    """Bytes that a pass could have: of the device, and of what torch holds of it unused."""
    free = measure_room(device).free
    if device in COUNTING:
        memory = getattr(torch, device)
        free += int(memory.memory_reserved()) - int(memory.memory_allocated())
    return free

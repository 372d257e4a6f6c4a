"""A copy of the policy from which completions are drawn: in bfloat16 if the device computes that faster.

The policy keeps its dtype, and is copied before each batch. Completions carry the log-probabilities by which they were
drawn, so that the loss can correct for the difference (`swarmd.training.masking.weight_by_importance_ratio`). A
bfloat16 copy is tried out once: it must be faster than the policy, with nearly the same distribution. It holds no
memory while gradients are computed: filling it again takes about as long as one token of a batch.

With `training.overlap` completions are drawn while gradients are computed, from a copy that is one step old. Then there
is always a copy, in the policy's own dtypes if bfloat16 does not pay, and it keeps its memory during a stage.
"""

import copy
import math
import time
from collections.abc import Callable
from typing import Any

import torch

from swarmd.config import TrainingConfig
from swarmd.logger import get_logger
from swarmd.training.models.device import can_sample_in_bfloat16, needs_copy
from swarmd.training.models.memory import NUMBER_BYTES, measure_device_memory
from swarmd.training.models.model import Policy

FASTER = 0.8  # largest share of the policy's time: a smaller gain is not worth the memory
DIVERGENCE_MAX = 0.02  # nats per token, of the copy's distribution from the policy's
ROOM_SHARE = 0.25  # largest share of the free memory
ROWS, TOKENS, RUNS = 8, 4, 3  # sequences, tokens in each, and repetitions of the trial

log = get_logger(__name__)


class SamplingCopy:
    """A copy of the policy's model. It shares untrained weights, such as those under adapters, unless their dtype
    differs. `policy`: before TRL has replaced methods of its model. `is_short`: whether float32 becomes bfloat16."""

    def __init__(self, policy: Policy, is_short: bool = True) -> None:
        self.is_short = is_short
        known: dict[int, Any] = {id(buffer): buffer for buffer in policy.model.buffers()}
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []  # the copy's weight and the policy's
        for weight in policy.model.parameters():
            known[id(weight)] = weight
            dtype = torch.bfloat16 if is_short and weight.dtype == torch.float32 else weight.dtype
            if weight.requires_grad or weight.dtype != dtype:
                own = torch.nn.Parameter(weight.detach().to(dtype, copy=True), requires_grad=False)
                known[id(weight)] = own
                self._pairs.append((own, weight))
        self.model: Any = copy.deepcopy(policy.model, known).eval()

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the policy's present weights."""
        for own, weight in self._pairs:
            if not own.numel():
                own.data = weight.detach().to(own.dtype, copy=True)
            elif weight.requires_grad:
                own.copy_(weight)

    def release(self) -> None:
        """Free the weights until the next `refresh`."""
        for own, _ in self._pairs:
            own.data = own.new_empty(0)


def make_sampling_copy(policy: Policy, training: TrainingConfig) -> SamplingCopy | None:
    """Make and try out a copy; None if completions should be drawn from the policy itself."""
    shorter = can_sample_in_bfloat16(training, policy.device, policy.precision, policy.parameter_count)
    if not shorter and not needs_copy(training, policy.device):
        return None
    trained = sum(each.numel() * each.element_size() for each in policy.model.parameters() if each.requires_grad)
    taken = NUMBER_BYTES["bfloat16"] * policy.parameter_count if shorter else trained
    if taken > ROOM_SHARE * measure_device_memory(policy.device).free:
        log.info("there is no room for a copy to draw from")
        return None
    if shorter and (made := _try_short(policy)) is not None:
        return made
    return SamplingCopy(policy, is_short=False) if needs_copy(training, policy.device) else None


def _try_short(policy: Policy) -> SamplingCopy | None:
    """Make a copy in bfloat16; None if it is not faster, or its distribution differs."""
    made = SamplingCopy(policy)
    vocabulary = policy.model.get_input_embeddings().num_embeddings
    ids = torch.arange(ROWS * TOKENS, device=policy.device).view(ROWS, TOKENS) % vocabulary
    policy.model.eval()
    with torch.no_grad():
        with policy.autocast():
            plain, plain_s = _time_call(lambda: policy.model(input_ids=ids).logits)
        short, short_s = _time_call(lambda: made.model(input_ids=ids).logits)
    policy.model.train()
    expected = torch.log_softmax(plain.float(), -1)
    divergence = float((expected.exp() * (expected - torch.log_softmax(short.float(), -1))).sum(-1).mean())
    taken = short_s <= FASTER * plain_s and divergence <= DIVERGENCE_MAX
    log.info("drawing in bfloat16", taken=taken, seconds=short_s, policy_s=plain_s, divergence=divergence)
    return made if taken else None


def _time_call(compute: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, float]:
    """Return the result, and the shortest of RUNS times in seconds."""
    least = math.inf
    for _ in range(RUNS):
        begun = time.perf_counter()
        result = compute()
        if result.device.type != "cpu":
            torch.accelerator.synchronize()
        least = min(least, time.perf_counter() - begun)
    return result, least

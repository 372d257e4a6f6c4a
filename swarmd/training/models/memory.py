"""How much memory training a model takes, by arithmetic, and how much is free, by measurement.

The terms are those of docs/MODELS.md. What a transformer layer keeps for its backward pass is counted as in Korthikanti
et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), here for layers with a gated linear unit
and without the attention matrix, which sdpa and FlashAttention do not keep.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import psutil

from swarmd.config import Optimizer, TrainingConfig
from swarmd.training.models.vllm_mode import choose_vllm
from swarmd.training.ranks import find_spread

GIB = 2**30
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # of a layer like Llama's
SLACK = 1.1  # what allocators lose to rounding and fragmentation
CONTEXT_BYTES = {"cuda": GIB // 2, "xpu": GIB // 2, "mps": GIB // 4, "cpu": 64 * 2**20}  # beside the tensors
NUMBER_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
QUANTIZED_BYTES = {"8bit": 1.02, "4bit": 0.53}  # of a weight, with its share of the scales
MOMENT_BYTES: dict[Optimizer, float] = {
    "adamw_8bit": 1.02
}  # of each of the two moments; AdamW's have the weights' own numbers
LOGITS_TILE = 1 << 13  # logits of a token that are held at once
WHOLE_LAYERS = 3  # of a model in parts: one in use, the next, and the gradients of one
VLLM_SPARE_BYTES = GIB  # activations and graphs of a colocated vLLM
VLLM_SHARE = (0.05, 0.9)  # bounds on its part of a device


class ModelShape(msgspec.Struct, frozen=True):
    """What the arithmetic needs to know of a model."""

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    queries: int  # width of all query heads together
    keys: int  # width of all key heads together
    tied: bool  # the embedding is the output layer too
    context: int = 0  # tokens; 0: unknown
    quantized: str = ""  # "4bit" or "8bit" where the files themselves are

    @property
    def embeddings(self) -> int:
        """Parameters that no quantisation touches."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    def adapter_parameters(self, rank: int, targets: tuple[str, ...]) -> int:
        """Of low-rank adapters on the named layers."""
        ends = {"q_proj": self.queries, "k_proj": self.keys, "v_proj": self.keys, "o_proj": self.queries}
        widths = [
            self.hidden + ends.get(name, self.intermediate if name in ("gate_proj", "up_proj", "down_proj") else 0)
            for name in targets
        ]
        return self.layers * rank * sum(widths)


class MemoryNeed(msgspec.Struct, frozen=True):
    """Bytes that training takes on one device, by what they are for. Passes and generation take turns."""

    weights: int  # where the ranks hold parts, this one's, as are gradients and optimizer
    gradients: int
    optimizer: int
    gathered: int  # the whole weights, while completions are drawn from a model in parts
    layers: int  # weights and gradients of the layers that are whole at a time in a pass of such a model
    reference: int  # a second copy of the weights, for the KL term
    drawing: int  # a copy in bfloat16 to draw completions from, made where there is room for it
    passes: int  # activations and logits of one forward and backward pass
    generation: int  # keys, values and logits of all completions drawn together
    vllm: int  # what a colocated vLLM takes
    context: int  # of the device, and what the libraries keep

    @property
    def total(self) -> int:
        return self.least + int(self.drawing * SLACK)

    @property
    def least(self) -> int:
        """Without the copy to draw from."""
        turns = max(self.passes + self.layers, self.generation + self.gathered)
        tensors = self.weights + self.gradients + self.optimizer + self.reference + turns
        return int(tensors * SLACK) + self.vllm + self.context


class DeviceMemory(msgspec.Struct, frozen=True):
    """Measured memory of a device, in bytes."""

    device: str
    free: int
    total: int
    limit: str = ""  # what bounds it, where that is not the device itself: the path of a control group


def estimate_need(shape: ModelShape, training: TrainingConfig, device: str, weights: str, mixed: bool) -> MemoryNeed:
    """What training takes.

    Args:
        weights: torch's name of the numbers the weights are held in.
        mixed: whether forward passes are in bfloat16 whatever the weights are.

    Raises:
        ConfigError: `training.accelerate` names a file that cannot be used.
    """
    from swarmd.training.models.device import Precision, draws_shorter  # torch, which not every caller needs

    spread = find_spread(training)
    size = NUMBER_BYTES[weights]
    numbers = Precision(weights, mixed, training.quantization, training.lora.rank > 0)
    shorter = draws_shorter(training, device, numbers, shape.parameters)
    held = _weight_bytes(shape, training.quantization, size)
    rank = training.lora.rank
    trained = shape.adapter_parameters(rank, training.lora.targets or PROJECTIONS) if rank else shape.parameters
    trained_size = 4.0 if rank else size
    copied = training.beta > 0 and not rank and not training.reference.url
    vllm = choose_vllm(training, device).mode
    whole = held + (trained * trained_size if rank else 0)
    in_parts = spread.weights > 1
    whole_at_a_time = WHOLE_LAYERS * whole / shape.layers + shape.embeddings * size
    return MemoryNeed(
        weights=int(whole / spread.weights),
        gradients=int(trained * trained_size / spread.gradients),
        optimizer=int(2 * trained * MOMENT_BYTES.get(training.optimizer, trained_size) / spread.moments),
        gathered=int(whole) if in_parts else 0,
        layers=int(whole_at_a_time) if in_parts else 0,
        reference=int(held) if copied else 0,
        drawing=int(2.0 * (trained if weights == "bfloat16" else shape.parameters)) if shorter else 0,
        passes=int(_pass_bytes(shape, training, size, mixed)),
        generation=0 if vllm != "off" else int(_generation_bytes(shape, training, size, mixed)),
        vllm=vllm_bytes(shape, training) if vllm == "colocate" else 0,
        context=CONTEXT_BYTES[device],
    )


def _weight_bytes(shape: ModelShape, quantization: str, size: float) -> float:
    quantization = shape.quantized or quantization
    if quantization == "none":
        return shape.parameters * size
    return (shape.parameters - shape.embeddings) * QUANTIZED_BYTES[quantization] + shape.embeddings * size


def token_bytes(shape: ModelShape, size: float, mixed: bool, recompute: bool) -> float:
    """Activations that a token of a pass keeps. A layer has six hidden widths, queries, keys, values, and its MLP's.

    Args:
        size: bytes of a weight.
        mixed: whether passes are in bfloat16 over float32 weights.
        recompute: whether layers are computed again in the backward pass; then one of them is held at a time.
    """
    size = 3.0 if mixed else size  # some in bfloat16, norms and sums in float32
    layer = (6 * shape.hidden + 3 * shape.queries + 3 * shape.keys + 4 * shape.intermediate) * size
    return shape.hidden * size * shape.layers + 2 * layer if recompute else layer * shape.layers


def _pass_bytes(shape: ModelShape, training: TrainingConfig, size: float, mixed: bool) -> float:
    """Of the smallest pass: one completion with its prompt, and the logits of one tile in float32 with gradients."""
    tokens = training.prompt_tokens + training.completion_tokens
    activations = tokens * token_bytes(shape, size, mixed, training.gradient_checkpointing != "off")
    return activations + 12.0 * training.completion_tokens * min(shape.vocabulary, LOGITS_TILE)


def _generation_bytes(shape: ModelShape, training: TrainingConfig, size: float, mixed: bool) -> float:
    """Keys and values of all completions of a step, and the logits of one token of each."""
    sequences = training.questions * training.generations
    tokens = training.prompt_tokens + training.completion_tokens
    size = 2.0 if mixed else size
    cache = 2.0 * shape.layers * shape.keys * tokens * sequences * size
    return cache * (1 + 1 / shape.layers) + 12.0 * sequences * shape.vocabulary  # a layer is copied when it grows


def vllm_bytes(shape: ModelShape, training: TrainingConfig) -> int:
    """What a colocated vLLM takes: 16-bit weights and the cache of all completions."""
    tokens = training.prompt_tokens + training.completion_tokens
    cache = 4.0 * shape.layers * shape.keys * tokens * training.questions * training.generations
    return int(_weight_bytes(shape, training.quantization, 2.0) + cache) + VLLM_SPARE_BYTES


def vllm_share(shape: ModelShape, training: TrainingConfig, total: int) -> float:
    """The part of a device of `total` bytes that a colocated vLLM is given."""
    wanted = vllm_bytes(shape, training) / max(total, 1)
    return min(max(wanted, VLLM_SHARE[0]), VLLM_SHARE[1])


def read_shape(config: Any, parameters: int) -> ModelShape:
    """The shape in a transformers configuration; what it does not say is taken as in a Llama."""
    text = config.get_text_config()
    hidden = int(text.hidden_size)
    heads = int(getattr(text, "num_attention_heads", 1))
    width = int(getattr(text, "head_dim", None) or hidden // heads)
    groups = int(getattr(text, "num_key_value_heads", None) or heads)
    declared = getattr(config, "quantization_config", None)
    declared = declared if isinstance(declared, dict) else getattr(declared, "to_dict", dict)()
    quantized = "4bit" if declared.get("load_in_4bit") else "8bit" if declared.get("load_in_8bit") else ""
    return ModelShape(
        parameters,
        int(text.num_hidden_layers),
        hidden,
        int(getattr(text, "intermediate_size", None) or 4 * hidden),
        int(text.vocab_size),
        heads * width,
        groups * width,
        bool(getattr(config, "tie_word_embeddings", False)),
        int(getattr(text, "max_position_embeddings", None) or 0),
        quantized,
    )


def measure_room(device: str) -> DeviceMemory:
    """Free and total memory of a device; on a CPU within the limits of the process's control groups too."""
    if device in ("cuda", "xpu"):
        import torch

        free, total = getattr(torch, device).mem_get_info()
        return DeviceMemory(device, int(free), int(total))
    host = measure_host(device)
    if device == "mps":  # shares the host's memory, up to a bound of its own
        import torch

        total = int(torch.mps.recommended_max_memory())
        return DeviceMemory(device, max(min(total - int(torch.mps.driver_allocated_memory()), host.free), 0), total)
    return host


def measure_host(
    device: str = "cpu", root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> DeviceMemory:
    """Free memory of the machine, or what the nearest limit of a control group leaves."""
    memory = psutil.virtual_memory()
    room = DeviceMemory(device, int(memory.available), int(memory.total))
    for group in _control_groups(root, own):
        limit = _read_number(group / "memory.max") or _read_number(group / "memory.limit_in_bytes")
        used = _read_number(group / "memory.current") or _read_number(group / "memory.usage_in_bytes") or 0
        if limit is None or limit >= memory.total:
            continue
        free = max(limit - used + _reclaimable(group), 0)
        if free < room.free:
            room = DeviceMemory(device, free, limit, str(group))
    return room


def _control_groups(root: Path, own: Path) -> list[Path]:
    """Directories of this process's memory control groups, from its own up to the root; of both versions."""
    try:
        lines = own.read_text().splitlines()
    except OSError:  # no Linux
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory") and "memory" not in controllers.split(","):
            continue
        base = root / "memory" if controllers else root
        place = base / path.lstrip("/")
        found += [place, *(parent for parent in place.parents if parent == base or base in parent.parents)]
    return found


def _reclaimable(group: Path) -> int:
    """Bytes of the page cache in the group that the kernel drops when they are wanted."""
    try:
        rows = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(rows.get("inactive_file") or rows.get("total_inactive_file") or 0)


def _read_number(path: Path) -> int | None:
    """The number in a file of a control group; None where there is no file or it says "max"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None

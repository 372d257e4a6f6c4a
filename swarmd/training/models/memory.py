"""Estimates how much memory training a model takes, and measures how much is free.

docs/MODELS.md explains the terms. What a transformer layer keeps for its backward pass is counted as in Korthikanti et
al., "Reducing Activation Recomputation in Large Transformer Models" (2022), for layers with a gated linear unit and
without the attention matrix, which sdpa and FlashAttention do not keep.
"""

from pathlib import Path
from typing import Any

import msgspec
import psutil

from swarmd.config import Optimizer, TrainingConfig
from swarmd.training.models.parallelism import find_parallelism

GIB = 2**30
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # in a Llama layer
SLACK = 1.1  # factor for what allocators waste on short-lived memory
CONTEXT_BYTES = {"cuda": GIB // 2, "xpu": GIB // 2, "mps": GIB // 4, "cpu": 64 * 2**20}  # per device, besides tensors
PROCESS_BYTES = 475 * 2**20  # Python, torch, transformers and TRL, which share memory with a processor's tensors
ADAPTER_LIBRARY_BYTES = 55 * 2**20  # PEFT, bitsandbytes, and the parts of torch that only they import
# Factors for a pass's activations on a processor, where malloc leaves gaps: most under adapters, which free sums among
# what stays. Passes of SmolLM2 under adapters took 633 MiB to keep 380, and 2,690 to keep 1,637.
GAPS, ADAPTED_GAPS = 1.2, 1.6
TOKENS_MAX = {"cpu": 1 << 8, "mps": 1 << 13}  # per pass: larger ones are hardly faster
LIGHT_TOKENS_MAX = 1 << 9  # on a processor, for a model so small that the fixed costs of a pass matter
ACCELERATOR_TOKENS_MAX = 1 << 15
FREE_SHARE = 0.5  # share of the free memory for a pass: other processes may need some meanwhile
NUMBER_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
QUANTIZED_BYTES = {"8bit": 1.02, "4bit": 0.53}  # per weight, scales included
MOMENT_BYTES: dict[Optimizer, float] = {
    "adamw_8bit": 1.02
}  # per parameter, for each of the two moments; AdamW's have the weights' dtype
LOGITS_TILE = 1 << 13  # logits held at once for each token
WHOLE_LAYERS = 3  # layers of a sharded model gathered at once: one in use, the next, and the gradients of one
VLLM_SPARE_BYTES = GIB  # for activations and graphs of a colocated vLLM
VLLM_SHARE = (0.05, 0.9)  # bounds of vLLM's share of a device


class ModelShape(msgspec.Struct, frozen=True):
    """The dimensions of a model from which memory is estimated."""

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    queries: int  # width of all query heads together
    keys: int  # width of all key heads together
    tied: bool  # whether the embedding is the output layer, too
    context: int = 0  # tokens; 0: unknown
    quantized: str = ""  # "4bit" or "8bit" if the files are quantised; else empty

    @property
    def embedding_parameters(self) -> int:
        """Parameters of embedding and output layer, which are not quantised."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    def adapter_parameters(self, rank: int, targets: tuple[str, ...]) -> tuple[int, int]:
        """Numbers of trained and of frozen parameters of low-rank adapters on the named layers."""
        outputs = {"q_proj": self.queries, "k_proj": self.keys, "v_proj": self.keys}
        outputs |= dict.fromkeys(("gate_proj", "up_proj"), self.intermediate)
        inputs = {"o_proj": self.queries, "down_proj": self.intermediate}
        trained, fixed = (sum(widths.get(name, self.hidden) for name in targets) for widths in (outputs, inputs))
        return self.layers * rank * trained, self.layers * rank * fixed


class MemoryNeed(msgspec.Struct, frozen=True):
    """Bytes that training takes on one device, by purpose. Passes and drawing take turns unless they overlap."""

    weights: int  # of one rank, if ranks hold parts; likewise gradients and optimizer
    optimizer: int
    reference: int  # a second copy of the weights, for the KL term
    gradients: int  # allocated by a step's passes, freed at its end
    passes: int  # activations and logits of one forward and backward pass of usual size
    smallest_pass: int  # the same for one completion, with activations recomputed unless configured off
    layers: int  # weights and gradients of the layers that a pass gathers at once from a sharded model
    generation: int  # keys, values and logits of all completions drawn together
    gathered: int  # all weights, gathered while completions are drawn from a sharded model
    drawing: int  # the copy from which completions are drawn, if it fits
    vllm: int  # what a colocated vLLM takes
    context: int  # of the device, and memory that libraries hold
    process: int  # held by the process in the same memory before it loads anything
    overlaps: bool = False  # completions are drawn while a step is trained, if the copy fits

    @property
    def total(self) -> int:
        """Peak of the whole process in a stage."""
        held = self.weights + self.optimizer + self.reference + self.vllm + self.context + self.process
        return held + (
            self.training_bytes + self.generating_bytes
            if self.overlaps
            else max(self.training_bytes, self.generating_bytes)
        )

    @property
    def training_bytes(self) -> int:
        """Additional bytes while a step is trained."""
        return self.gradients + int(SLACK * (self.passes + self.layers))

    @property
    def generating_bytes(self) -> int:
        """Additional bytes while completions are drawn."""
        return self.drawing + int(SLACK * (self.generation + self.gathered))

    @property
    def minimum_bytes(self) -> int:
        """Least bytes that must be free: with the smallest passes, and without the copy to draw from."""
        return msgspec.structs.replace(self, passes=self.smallest_pass, drawing=0, process=0, overlaps=False).total


class DeviceMemory(msgspec.Struct, frozen=True):
    """Measured memory of a device, in bytes."""

    device: str
    free: int
    total: int
    limit: str = ""  # path of the control group that limits it, if one does


def estimate_need(
    shape: ModelShape, training: TrainingConfig, device: str, weights: str, mixed: bool, free: int = 0
) -> MemoryNeed:
    """Estimate the memory that training takes.

    Args:
        weights: torch's name of the dtype in which the weights are held.
        mixed: whether forward passes are in bfloat16 whatever the weights are.
        free: bytes of the device, of which passes use a part; 0: as many as they can use.

    Raises:
        ConfigError: `training.accelerate` names a file that cannot be used.
    """
    from swarmd.training.models.device import (  # imports torch, which not every caller needs
        Precision,
        can_sample_in_bfloat16,
        choose_vllm,
        needs_copy,
    )

    parallelism = find_parallelism(training)
    size = NUMBER_BYTES[weights]
    precision = Precision(weights, mixed, training.quantization, training.lora.rank > 0)
    shorter = can_sample_in_bfloat16(training, device, precision, shape.parameters)
    held = _weight_bytes(shape, training.quantization, size)
    rank = training.lora.rank
    adapters = shape.adapter_parameters(rank, training.lora.targets or PROJECTIONS)
    trained = adapters[0] if rank else shape.parameters
    trained_size = 4.0 if rank else size
    copied = training.beta > 0 and not rank and not training.reference.url
    vllm = choose_vllm(training, device).mode
    whole = held + sum(adapters) * trained_size
    in_parts = parallelism.weights > 1
    whole_at_a_time = WHOLE_LAYERS * whole / shape.layers + shape.embedding_parameters * size
    resident = int(whole / parallelism.weights)
    optimizer = int(2 * trained * MOMENT_BYTES.get(training.optimizer, trained_size) / parallelism.moments)
    gradients = int(trained * trained_size / parallelism.gradients)
    passes, smallest = (
        int(_pass_bytes(shape, training, device, size, mixed, tokens, recompute))
        for tokens, recompute in (
            (_default_pass_tokens(shape, training, device), training.gradient_checkpointing == "on"),
            (training.prompt_tokens + training.completion_tokens, training.gradient_checkpointing != "off"),
        )
    )
    if shorter:
        copy_bytes = 2.0 * (trained if weights == "bfloat16" else shape.parameters)
    else:
        copy_bytes = trained_size * trained * needs_copy(training, device)
    room = FREE_SHARE * (free - resident - optimizer - gradients) if free else passes
    libraries = ADAPTER_LIBRARY_BYTES if rank or training.optimizer in MOMENT_BYTES else 0
    return MemoryNeed(
        weights=resident,
        optimizer=optimizer,
        reference=int(held) if copied else 0,
        gradients=gradients,
        passes=max(int(min(passes, room)), smallest),
        smallest_pass=smallest,
        layers=int(whole_at_a_time) if in_parts else 0,
        generation=0 if vllm != "off" else int(_generation_bytes(shape, training, device, size, shorter or mixed)),
        gathered=int(whole) if in_parts else 0,
        drawing=int(copy_bytes),
        vllm=vllm_bytes(shape, training) if vllm == "colocate" else 0,
        context=CONTEXT_BYTES[device],
        process=PROCESS_BYTES + libraries if device == "cpu" else 0,
        overlaps=training.overlap > 0,
    )


def _weight_bytes(shape: ModelShape, quantization: str, size: float) -> float:
    quantization = shape.quantized or quantization
    if quantization == "none":
        return shape.parameters * size
    return (shape.parameters - shape.embedding_parameters) * QUANTIZED_BYTES[
        quantization
    ] + shape.embedding_parameters * size


def find_saturating_tokens(device: str, parameters: int) -> int:
    """Tokens of a pass, besides its longest prompt, beyond which passes are hardly faster."""
    from swarmd.training.models.device import LIGHT_PARAMETERS_MAX  # imports torch, which not every caller needs

    light = device == "cpu" and parameters <= LIGHT_PARAMETERS_MAX
    return LIGHT_TOKENS_MAX if light else TOKENS_MAX.get(device, ACCELERATOR_TOKENS_MAX)


def _default_pass_tokens(shape: ModelShape, training: TrainingConfig, device: str) -> int:
    """Tokens of a pass if memory does not limit it: at most those of a step."""
    questions = min(training.micro_questions or training.questions, training.questions)
    batch = questions * (training.prompt_tokens + training.generations * training.completion_tokens)
    return min(batch, find_saturating_tokens(device, shape.parameters) + training.prompt_tokens)


def activation_bytes_per_token(
    shape: ModelShape, size: float, mixed: bool, recompute: bool, keys: float = 2.0
) -> float:
    """Bytes of activations that a token of a packed pass keeps in all layers.

    A layer keeps: its input, the normalised input and the sum, each twice (6 hidden widths); queries, attention output,
    and that in the row's order (3 query widths); keys and values, which are repeated for all query heads, and for each
    completion include those of its prompt; both halves of the gated unit, the activation and the product (4 MLP
    widths).

    Args:
        size: bytes of a weight.
        mixed: whether passes are in bfloat16 over float32 weights.
        recompute: whether layers are computed again in the backward pass; then only one is held at a time.
        keys: keys and values that attention reads per token of the row; a prompt's count again for each completion.
    """
    size = 3.0 if mixed else size  # some in bfloat16, norms and sums in float32
    attention = 3 * shape.queries + 2 * shape.queries * keys
    layer = (6 * shape.hidden + attention + 4 * shape.intermediate) * size
    return shape.hidden * size * shape.layers + 2 * layer if recompute else layer * shape.layers


def _pass_bytes(
    shape: ModelShape, training: TrainingConfig, device: str, size: float, mixed: bool, tokens: int, recompute: bool
) -> float:
    """Bytes of a pass with `tokens` tokens: activations, the logits of one tile with their gradients, and the gradient
    of the output layer, which TRL sums up in float32 before it is added to the others."""
    prompt, completion = training.prompt_tokens, training.completion_tokens
    keys = prompt + max((tokens - prompt) / completion, 1) * (prompt + completion)
    activations = tokens * activation_bytes_per_token(shape, size, mixed, recompute, keys / tokens)
    logits = 12.0 * tokens * min(shape.vocabulary, LOGITS_TILE)
    if device == "cpu":
        activations *= ADAPTED_GAPS if training.lora.rank else GAPS
    if training.lora.rank:  # the output layer then has no gradient
        # Quantised weights are dequantised layer by layer.
        quantized = (shape.quantized or training.quantization) != "none"
        whole = (shape.parameters - shape.embedding_parameters) / shape.layers * size if quantized else 0.0
        return activations + logits + whole
    head = 4.0 * shape.vocabulary * shape.hidden
    # The embedding's gradient is as large and comes last. On a processor it cannot reuse the memory of activations,
    # which was freed in small pieces.
    ends = 2 if device == "cpu" else 1
    return activations + logits + ends * head


def _generation_bytes(shape: ModelShape, training: TrainingConfig, device: str, size: float, shorter: bool) -> float:
    """Bytes of the keys and values of a step's completions, and the logits and probabilities of one token of each."""
    sequences = training.questions * training.generations
    tokens = training.prompt_tokens + training.completion_tokens
    cache = 2.0 * shape.layers * shape.keys * tokens * sequences * (2.0 if shorter else size)
    # A layer's cache grows by copying. On a processor the freed pieces are too small for later ones, which wastes half
    # of the memory.
    copies = 2.0 if device == "cpu" else 1 + 1 / shape.layers
    return cache * copies + 20.0 * sequences * shape.vocabulary


def vllm_bytes(shape: ModelShape, training: TrainingConfig) -> int:
    """Bytes that a colocated vLLM takes: 16-bit weights and the cache of all completions."""
    tokens = training.prompt_tokens + training.completion_tokens
    cache = 4.0 * shape.layers * shape.keys * tokens * training.questions * training.generations
    return int(_weight_bytes(shape, training.quantization, 2.0) + cache) + VLLM_SPARE_BYTES


def vllm_share(shape: ModelShape, training: TrainingConfig, total: int) -> float:
    """The share of a device with `total` bytes that a colocated vLLM gets."""
    wanted = vllm_bytes(shape, training) / max(total, 1)
    return min(max(wanted, VLLM_SHARE[0]), VLLM_SHARE[1])


def read_shape(config: Any, parameters: int) -> ModelShape:
    """Read the shape from a transformers configuration; missing values are as in Llama."""
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


def measure_device_memory(device: str) -> DeviceMemory:
    """Free and total memory of a device; on a CPU within the limits of the process's control groups."""
    if device in ("cuda", "xpu"):
        import torch

        free, total = getattr(torch, device).mem_get_info()
        return DeviceMemory(device, int(free), int(total))
    host = measure_host(device)
    if device == "mps":  # shares the host's memory, up to its own limit
        import torch

        total = int(torch.mps.recommended_max_memory())
        return DeviceMemory(device, max(min(total - int(torch.mps.driver_allocated_memory()), host.free), 0), total)
    return host


def measure_host(
    device: str = "cpu", root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> DeviceMemory:
    """Free memory of the machine, or within the tightest limit of a control group."""
    memory = psutil.virtual_memory()
    room = DeviceMemory(device, int(memory.available), int(memory.total))
    for group in _control_groups(root, own):
        limit = _read_number(group / "memory.max") or _read_number(group / "memory.limit_in_bytes")
        used = _read_number(group / "memory.current") or _read_number(group / "memory.usage_in_bytes") or 0
        if limit is None or limit >= memory.total:
            continue
        free = max(limit - used + _reclaimable_bytes(group), 0)
        if free < room.free:
            room = DeviceMemory(device, free, limit, str(group))
    return room


def _control_groups(root: Path, own: Path) -> list[Path]:
    """Directories of this process's memory control groups, of both versions, from its own up to the root."""
    try:
        lines = own.read_text().splitlines()
    except OSError:  # not Linux
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


def _reclaimable_bytes(group: Path) -> int:
    """Bytes of the group's page cache that the kernel can reclaim."""
    try:
        rows = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(rows.get("inactive_file") or rows.get("total_inactive_file") or 0)


def _read_number(path: Path) -> int | None:
    """The number in a control group's file; None if there is no file, or it says "max"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None

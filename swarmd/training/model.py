"""The policy: which model is loaded, on which device, in which numbers, and how text becomes tokens for it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import psutil
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from swarmd.config import TrainingConfig
from swarmd.errors import ConfigError, ModelError
from swarmd.swarms.plan import Message
from swarmd.swarms.text import TAGS, escape_markers
from swarmd.training.source import locate_model

TRAINING_BYTES_PER_PARAMETER = 16  # float32 weights, gradients and AdamW's two moments
LIGHT_PARAMETERS_MAX = 10_000_000  # up to here one torch thread is faster than several


class Policy(msgspec.Struct, eq=False):
    """A loaded model with all that is needed to generate with it and train it."""

    name: str
    model: Any  # PreTrainedModel; its own annotations are too loose for strict typing
    tokenizer: Any  # PreTrainedTokenizerBase
    device: str
    mixed: bool  # float32 weights, bfloat16 forward passes
    digest: str  # of the weights as loaded
    markers: tuple[str, ...]  # texts that the tokenizer turns into control tokens

    @property
    def parameters(self) -> int:
        return int(sum(parameter.numel() for parameter in self.model.parameters()))

    @property
    def stop_ids(self) -> list[int]:
        """Ids that end a completion: the tokenizer's and whatever the model itself declares."""
        declared = self.model.generation_config.eos_token_id
        declared = [declared] if isinstance(declared, int) else list(declared or [])
        return sorted({int(self.tokenizer.eos_token_id), *declared})

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """For forward passes in bfloat16 over float32 weights, where that is how the model runs."""
        return torch.autocast(self.device, torch.bfloat16) if self.mixed else contextlib.nullcontext()

    def encode_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a chat up to where the completion begins; text that is not trusted is escaped first."""
        chat = [
            {"role": m.role, "content": m.content if m.trusted else escape_markers(m.content, self.markers)}
            for m in messages
        ]
        ids = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
        return [int(token) for token in ids]

    def encode_completion(self, text: str, cut: bool, tokens_max: int) -> list[int]:
        """Token ids of a peer's completion, with the end token unless it was cut; control tokens in it stay text."""
        ids = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)[:tokens_max]
        if not cut and len(ids) < tokens_max:
            ids.append(self.tokenizer.eos_token_id)
        return [int(token) for token in ids]

    def decode_completion(self, tokens: Sequence[int]) -> str:
        """Text of a completion without control tokens; answer tags stay."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def load_policy(training: TrainingConfig) -> Policy:
    """Load the model that the configuration names.

    Raises:
        ModelError: no such model, no tokenizer or chat template, no such device, or too little memory to train it.
    """
    source = locate_model(training.model)
    device = choose_device(training.device)
    check_memory(source, training.model, device)
    tokenizer = load_tokenizer(source, training.model)
    dtype, mixed = choose_dtype(training.dtype, device)
    model = _guard(training.model, lambda: AutoModelForCausalLM.from_pretrained(source, dtype=dtype))
    model.to(device)
    choose_threads(training.threads, model)
    model.config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return Policy(training.model, model, tokenizer, device, mixed, digest_weights(model), find_markers(tokenizer))


def choose_device(wanted: str) -> str:
    """The accelerator there is, or the wanted one. Raises ConfigError when that is not there."""
    present = [name for name in ("cuda", "xpu", "mps") if _is_present(name)]
    if wanted == "auto":
        return present[0] if present else "cpu"
    if wanted != "cpu" and wanted not in present:
        raise ConfigError(f"training.device is {wanted!r}, but torch finds none", 'Set training.device = "auto"')
    return wanted


def _is_present(name: str) -> bool:
    module = torch.backends.mps if name == "mps" else getattr(torch, name, None)
    return bool(module and module.is_available())


def choose_dtype(wanted: str, device: str) -> tuple[torch.dtype, bool]:
    """Numbers of the weights, and whether forward passes are bfloat16 all the same.

    `auto` keeps float32 weights everywhere, because small updates vanish in shorter numbers.
    """
    if wanted == "auto":
        return torch.float32, device == "xpu" or (device == "cuda" and torch.cuda.is_bf16_supported())
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[wanted], False


def choose_threads(wanted: int, model: Any) -> None:
    """Set torch's threads; small models run fastest on one."""
    light = model.num_parameters() <= LIGHT_PARAMETERS_MAX
    if wanted or light:
        torch.set_num_threads(wanted or 1)


def check_memory(source: str, name: str, device: str) -> None:
    """Raise ModelError when training the model needs more memory than is free."""
    make: Any = AutoModelForCausalLM
    config = _guard(name, lambda: AutoConfig.from_pretrained(source))
    with torch.device("meta"):
        shape = _guard(name, lambda: make.from_config(config))
    needed = shape.num_parameters() * TRAINING_BYTES_PER_PARAMETER
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else psutil.virtual_memory().available
    if needed > free:
        raise ModelError(
            f"training {name} takes at least {needed / 2**30:.1f} GiB on {device}, {free / 2**30:.1f} GiB are free",
            "Choose a smaller model or free memory",
        )


def load_tokenizer(source: str, name: str) -> Any:
    """The model's tokenizer, padding on the left. Raises ModelError when it lacks something training needs."""
    tokenizer = _guard(name, lambda: AutoTokenizer.from_pretrained(source, padding_side="left"), "the tokenizer of ")
    if not tokenizer.chat_template:
        raise ModelError(
            f"the tokenizer of {name} has no chat template", "Use an instruction-tuned model or add chat_template.jinja"
        )
    if tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer of {name} has no end token", "Set eos_token in its tokenizer_config.json")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _guard(name: str, load: Callable[[], Any], what: str = "") -> Any:
    """Run a loader of transformers; whatever it raises becomes a ModelError with the first line of its message."""
    try:
        return load()
    except MemoryError:
        raise
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"{what}{name} cannot be loaded: {first.rstrip('.')}",
            "Check training.model; a Hugging Face id needs the network or a filled cache",
        ) from error


def find_markers(tokenizer: Any) -> tuple[str, ...]:
    """Texts that must not reach the tokenizer from outside: its added tokens and the answer tags."""
    added = (str(token) for token in tokenizer.added_tokens_decoder.values())
    return tuple(sorted({text for text in added if text.strip()} | set(TAGS)))


def digest_weights(model: Any) -> str:
    """SHA-256 over names and values of all parameters, as float32."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()

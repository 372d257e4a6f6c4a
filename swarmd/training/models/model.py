"""The policy: loads a model for a device and dtype, tries it out, and turns text into tokens for it.

- A model is trained only after a trial: generation, a loss and its gradients must be finite on this device. If 16-bit
  dtypes fail, float32 is used; the first attention implementation that works is used.
- Untrusted text cannot become control tokens.
"""

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from jinja2 import TemplateError, TemplateSyntaxError
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from swarmd.config import TrainingConfig
from swarmd.errors import ConfigError, ModelError, ModelUnfit
from swarmd.logger import get_logger
from swarmd.swarms.plan import Message
from swarmd.swarms.text import TAGS, escape_markers
from swarmd.training.models import adapters
from swarmd.training.models.device import (
    LIGHT_PARAMETERS_MAX,
    Precision,
    choose_device,
    choose_precision,
    list_attention_candidates,
    name_device,
    set_thread_count,
)
from swarmd.training.models.files import check_quantization, list_weights, missing_template_error
from swarmd.training.models.gguf_file import read_gguf_config, resolve_model_directory
from swarmd.training.models.hub import fetch_commit
from swarmd.training.models.loading import call_loader, read_model
from swarmd.training.models.memory import GIB, ModelShape, estimate_need, measure_device_memory, read_shape
from swarmd.training.models.pool import CHOICE, check_fit, encode_choice
from swarmd.training.models.remembered import DigestCache
from swarmd.training.models.sharding import Sharding
from swarmd.training.models.source import (
    AUTO,
    MAIN,
    WITHOUT_CODE,
    compare_weights,
    find_configured_model,
    find_directory,
    hub_revision_of,
    is_gguf,
    list_embedded,
    locate_configured,
    locate_model,
    prefer_cache,
    require_model,
)

TOKENS = 4  # length of the trial's prompt
_DRAWN = 2  # completion tokens in the trial, enough to use the key-value cache once

_QUESTION = "12"  # digits, which every chat model's tokenizer has
_SHOWN_CHARACTERS = 160

log = get_logger(__name__)


class Policy(msgspec.Struct, eq=False):
    """A loaded model with what is needed to generate with it and to train it."""

    name: str
    model: Any  # PreTrainedModel, or PeftModel under adapters; their own annotations are too loose for strict typing
    tokenizer: Any  # PreTrainedTokenizerBase
    device: str
    digest: str  # of the weights as loaded
    markers: tuple[str, ...]  # texts that the tokenizer would turn into control tokens
    precision: Precision = Precision("float32")
    attention: str = ""
    frozen_digest: str = ""  # digest of the weights under adapters; empty without adapters
    fixed: Mapping[str, torch.Tensor] = {}  # adapters' frozen matrices, by PEFT's names
    size: int = 0  # parameters before quantisation and adapters; 0: count them
    revision: str = ""  # of the model on the Hub
    other_weights: str = ""  # how the weights differ from those that the recipe names by digest; empty if not
    sharding: Sharding = Sharding()  # how ranks hold the model; all of them read and write weights together
    loads: int = 0  # number of calls of `load_weights`

    @property
    def parameter_count(self) -> int:
        """The model's number of parameters, as before quantisation and without adapters."""
        return self.size or int(sum(parameter.numel() for parameter in self.model.parameters()))

    @property
    def stop_ids(self) -> list[int]:
        """Ids that end a completion: the tokenizer's, and those that the model declares."""
        declared = self.model.generation_config.eos_token_id
        declared = [declared] if isinstance(declared, int) else list(declared or [])
        return sorted({int(self.tokenizer.eos_token_id), *declared})

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Context for forward passes: bfloat16 over float32 weights, if the model runs so."""
        return torch.autocast(self.device, torch.bfloat16) if self.precision.mixed else contextlib.nullcontext()

    def encode_prompt(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a chat, up to where the completion begins; untrusted text is escaped first. Raises ModelUnfit if
        the chat template refuses it, as some refuse system messages."""
        ids = self._apply_template(messages, tokenize=True, return_dict=False)
        return [int(token) for token in ids]

    def encode_answer(self, answer: Message) -> list[int]:
        """Token ids of a message that follows a turn of the model, from after the token that ended that turn to the
        beginning of the next turn. Raises as `encode_prompt`."""
        place = "\N{WHITE SQUARE}turn\N{WHITE SQUARE}"
        before = (Message("user", "?"), Message("assistant", place))
        text = self._apply_template((*before, answer), tokenize=False).partition(place)[2]
        ids = [int(token) for token in self.tokenizer.encode(text, add_special_tokens=False)]
        return ids[1:] if ids and ids[0] in self.stop_ids else ids

    def _apply_template(self, messages: Sequence[Message], **how: Any) -> Any:
        chat = [
            {"role": m.role, "content": m.content if m.trusted else escape_markers(m.content, self.markers)}
            for m in messages
        ]
        try:
            return self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, **how)
        except TemplateSyntaxError as error:
            raise ModelUnfit(
                f"the chat template of {self.name} is not valid Jinja: {error.message} (line {error.lineno})",
                "Mend or copy its chat template again",
            ) from error
        except TemplateError as error:
            roles = ", ".join(each["role"] for each in chat)
            raise ModelUnfit(
                f"the chat template of {self.name} refuses a chat of {roles}: {error}",
                "Train another model, or copy it to a directory and mend its chat_template.jinja",
            ) from error

    def encode_completion(self, text: str, cut: bool, tokens_max: int) -> list[int]:
        """Token ids of a peer's completion, with an end token unless it was cut; control tokens in it stay text."""
        ids = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)[:tokens_max]
        if not cut and len(ids) < tokens_max:
            ids.append(self.tokenizer.eos_token_id)
        return [int(token) for token in ids]

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""
        return [int(token) for token in self.tokenizer.encode(text, add_special_tokens=False)]

    def round_trip_text(self, text: str) -> str:
        """Encode and decode a text, to see it as the model can write it."""
        return self.decode_completion(self.encode_text(text))

    def decode_completion(self, tokens: Sequence[int]) -> str:
        """Decode a completion without control tokens, but with answer tags."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def trained_weights(self) -> dict[str, torch.Tensor]:
        """The weights that training changes, by name: all, or adapters' B under PEFT's names. Tied weights have only
        their first name."""
        return dict(self.walk_weights())

    def saved_weights(self) -> dict[str, torch.Tensor]:
        """The weights that a checkpoint holds: those that training changes, and the frozen parts of adapters that PEFT
        needs."""
        return {**self.fixed, **self.trained_weights()}

    def walk_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Iterate over `trained_weights`, gathering one at a time from a sharded model."""
        seen: set[int] = set()
        for name, weight in self._trained_parameters().items():
            if id(weight) not in seen:
                seen.add(id(weight))
                yield name, self.sharding.read_full_weight(weight)

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Load the result of `trained_weights` or `saved_weights`; tied weights may be missing. Raises ModelError for
        other names, shapes, or frozen matrices."""
        own, fixed = self._trained_parameters(), weights.keys() & self.fixed.keys()
        if other := sorted(name for name in fixed if not torch.equal(weights[name], self.fixed[name])):
            raise ModelError(f"the checkpoint was trained with other adapters than {self.name} has here: {other[:3]}")
        weights = {name: weight for name, weight in weights.items() if name not in fixed}
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or ())
        missing = sorted(own.keys() - weights.keys() - tied)
        shared = own.keys() & weights.keys()
        wrong = sorted(name for name in shared if self.sharding.full_shape(own[name]) != weights[name].shape)
        foreign = [*sorted(weights.keys() - own.keys()), *wrong]
        if missing or foreign:
            raise ModelError(
                f"the checkpoint does not fit {self.name}: {(missing + foreign)[:3]} are missing, foreign or "
                "of another shape",
                "Set training.model, revision and lora to what they were, or begin a new node",
            )
        with torch.no_grad():
            for name, value in weights.items():
                self.sharding.write_full_weight(own[name], value)
        self.loads += 1

    def _trained_parameters(self) -> dict[str, torch.Tensor]:
        if not self.precision.adapters:
            return dict(self.model.state_dict(keep_vars=True))
        return dict(adapters.trained_matrices(self.model))

    def copy_weights(self) -> dict[str, torch.Tensor]:
        """A copy of `trained_weights` in the machine's memory."""
        return {name: weight.cpu().clone() for name, weight in self.walk_weights()}

    @property
    def context(self) -> int | None:
        """The model's context in tokens, if its configuration says so."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    @property
    def is_small(self) -> bool:
        """Whether the trained weights are small enough to keep a copy of them."""
        return self.precision.adapters or self.parameter_count <= LIGHT_PARAMETERS_MAX

    def write_model_files(self, directory: Path) -> None:
        """Write the files that transformers, or PEFT on the base, needs to load the trained weights as a model."""
        if self.precision.adapters:
            settings = self.model.peft_config[adapters.ADAPTER]
            settings.base_model_name_or_path = self.name
            settings.revision = self.revision or None
            settings.save_pretrained(directory)
        else:
            self.model.config.save_pretrained(directory)
            self.model.generation_config.save_pretrained(directory)
        plain = isinstance(self.tokenizer.chat_template, str)  # several would go into a directory of their own
        self.tokenizer.save_pretrained(directory, save_jinja_files=plain)
        (directory / CHOICE).write_bytes(encode_choice(self.name))

    def digest_current_weights(self) -> str:
        """SHA-256 of the present weights; frozen ones under adapters count as loaded."""
        weights = sorted({**self.fixed, **self._trained_parameters()}.items())
        return _hash_weights(
            ((name, self.sharding.read_full_weight(weight)) for name, weight in weights), self.frozen_digest
        )

    @property
    def fixed_digest(self) -> str:
        """SHA-256 of what adapters build on: the weights under them, and their frozen matrices."""
        return _hash_weights(sorted(self.fixed.items()), self.frozen_digest)


def load_policy(training: TrainingConfig) -> Policy:
    """Load the model that the configuration names, in a dtype and with an attention that were tried out. If the chosen
    16-bit dtype does not work on this device, float32 is used, and the log says so.

    Raises:
        ModelError: no such model, no tokenizer or chat template, or too little memory to train it.
        ConfigError: no such device, a package is missing, or a setting does not go with the model.
    """
    require_model(training)  # asks the Hub once, while transformers would retry for a minute
    source = prefer_cache(resolve_model_directory(locate_configured(training)), hub_revision_of(training))
    device = choose_device(training.device)
    # cuDNN plans attention anew for each shape (about 27 ms), and each decoded token has another shape.
    torch.backends.cuda.enable_cudnn_sdp(False)
    shape = read_model_shape(source, training.model, hub_revision_of(training))
    tokenizer = load_tokenizer(source, training.model, hub_revision_of(training))
    if shape.quantized and shape.quantized != training.quantization:
        raise ConfigError(
            f"the files of {training.model} are quantised to {shape.quantized}, training.quantization is "
            f"{training.quantization!r}",
            f'Set training.quantization = "{shape.quantized}" and training.lora.rank, or take the plain model',
        )
    wanted = choose_precision(training, device)
    plain = Precision("float32", False, wanted.quantization, wanted.adapters)
    reason = ""
    for precision in dict.fromkeys((wanted, plain)):
        check_fit(training.model, shape, training, precision, device)
        for attention in list_attention_candidates(training.attention, device, precision):
            loaded = _try_load(source, training, shape, device, precision, attention, tokenizer)
            if isinstance(loaded, Policy):
                if precision != wanted:
                    log.warning("float32 is used instead", wanted=wanted.description, device=device, reason=reason)
                loaded.size = shape.parameters
                loaded.other_weights = compare_weights(training, source)
                if loaded.other_weights:
                    log.warning("this node begins from other weights than its swarm", reason=loaded.other_weights)
                return loaded
            reason = loaded
            log.info(
                "does not work here", precision=precision.description, attention=attention, device=device, reason=reason
            )
    raise ModelUnfit(
        f"{training.model} does not work on {device}: {reason}",
        "Set training.device, training.dtype, training.attention or training.quantization to others, or take "
        "other files of it: their values may be damaged",
    )


def _try_load(
    source: str,
    training: TrainingConfig,
    shape: ModelShape,
    device: str,
    precision: Precision,
    attention: str,
    tokenizer: Any,
) -> Policy | str:
    """Load and try out the model. Returns it, or why it does not work this way. Raises ModelError if no other way would
    help."""
    remembered = DigestCache(find_directory(source, training.revision), name_device(device), precision)
    try:
        model = call_loader(training.model, lambda: _read_model(source, training, shape, device, precision, attention))
    except ModelError as error:
        cause = error.__cause__
        if isinstance(cause, ImportError | ValueError) and re.search("attention|attn", str(cause), re.IGNORECASE):
            return first_line(cause)
        raise
    set_thread_count(training.threads, model)
    model.config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    digest = remembered.get_or_compute("weights", lambda: digest_weights(model))
    if precision.adapters:
        model = adapters.add_adapters(model, training.lora)
    policy = Policy(
        training.model, model, tokenizer, device, digest, list_escaped_texts(tokenizer), precision, attention
    )
    policy.revision = hub_revision_of(training)
    if precision.adapters:
        policy.frozen_digest, policy.fixed = digest, adapters.fixed_matrices(model)
        policy.digest = policy.digest_current_weights()
    trial = f"{policy.digest} with {attention}"
    if not remembered.get(trial):
        reason = smoke_test_model(policy.model, policy.autocast)
        if reason:
            return reason
        remembered.put(trial, policy.digest)
    policy.model.train()  # the state in which `smoke_test_model` would leave it
    return policy


class FrozenModel(NamedTuple):
    """An untrained model in evaluation mode, in the dtype in which a trainer with its settings holds it."""

    model: Any
    source: str  # its directory, or its id on the Hub
    device: str
    precision: Precision


def load_frozen(training: TrainingConfig) -> FrozenModel:
    """Load the model that the configuration names, without training it. Raises ModelError: there is no such model, it
    cannot be loaded, or its weights take more memory than is free; ConfigError: there is no such device."""
    name, commit = training.model, hub_revision_of(training)
    if find_configured_model(training) is None:
        fetch_commit(name, training.revision, list_embedded())  # once, while transformers would retry for a minute
    source = prefer_cache(resolve_model_directory(locate_configured(training)), commit)
    device = choose_device(training.device)
    shape = read_model_shape(source, name, commit)
    if shape.quantized:
        quantization: Any = shape.quantized
        training = msgspec.structs.replace(training, quantization=quantization)
    precision = choose_precision(training, device)
    needed = estimate_need(shape, training, device, precision.weights, precision.mixed).weights
    free = measure_device_memory(device).free
    if needed > free:
        raise ModelUnfit(
            f"the weights of {name} take {needed / GIB:.1f} GiB in {precision.description} on {device}, "
            f"{free / GIB:.1f} GiB are free",
            "Choose a smaller model, a shorter dtype or another device, or free memory",
        )
    model = call_loader(name, lambda: _read_model(source, training, shape, device, precision))
    set_thread_count(training.threads, model)
    return FrozenModel(model.eval().requires_grad_(False), source, device, precision)


def _read_model(
    source: str,
    training: TrainingConfig,
    shape: ModelShape,
    device: str,
    precision: Precision,
    attention: str | None = None,
) -> Any:
    place: dict[str, Any] = {}
    if precision.quantization != "none":
        settings = adapters.make_quantization_config(precision)
        place = {"device_map": {"": device}} | ({} if shape.quantized else {"quantization_config": settings})
    settings = {"dtype": precision.dtype, "attn_implementation": attention}
    model = read_model(training.model, source, hub_revision_of(training), **settings, **place)
    return model if place else model.to(device)


def read_base_weights(policy: Policy) -> dict[str, torch.Tensor]:
    """Read all weights from the policy's files again, into the machine's memory."""
    source = prefer_cache(resolve_model_directory(locate_model(policy.name)), policy.revision)
    dtype = policy.precision.dtype
    model = call_loader(policy.name, lambda: read_model(policy.name, source, policy.revision, dtype=dtype))
    return dict(model.state_dict())


def check_loadable(training: TrainingConfig, has_system: bool = False) -> None:
    """Check from its files that a model on this machine can be loaded. Its weights are read one by one.

    Args:
        has_system: whether questions have a system message.

    Raises:
        ModelError: transformers does not know its architecture, it is not a language model, its files have other
            weights than its configuration describes, or it lacks a tokenizer.
        ConfigError: it lacks the layers that `training.lora.targets` names.
    """
    if training.model == AUTO or (source := find_configured_model(training)) is None or is_gguf(str(source)):
        return
    config, empty = _make_weightless_model(str(source), training.model)
    tokenizer = load_tokenizer(str(source), training.model)
    if not getattr(config, "quantization_config", None):
        empty = call_loader(training.model, lambda: read_model(training.model, str(source), device_map={"": "meta"}))
        _require_finite_weights(training.model, source)
    markers = list_escaped_texts(tokenizer)
    check_tokenizer(Policy(training.model, empty, tokenizer, device="meta", digest="", markers=markers), has_system)
    if training.lora.targets:
        adapters.choose_targets(empty, training.lora)


def _require_finite_weights(name: str, directory: Path) -> None:
    """Raise ModelUnfit for non-finite weights in safetensors, as a trainer does after loading."""
    for path in list_weights(directory):
        if path.suffix != ".safetensors":
            continue
        with safe_open(path, "pt") as weights:
            for key in weights.keys():  # noqa: SIM118  # it is not a mapping
                value = weights.get_tensor(key)
                if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                    raise ModelUnfit(
                        f"{key} of {name} holds values that are not finite", "Take other files of it: training diverged"
                    )


def read_model_shape(source: str, name: str, revision: str = "") -> ModelShape:
    """The shape of a model, from its configuration alone. Raises ModelError if that cannot be read."""
    config, empty = _make_weightless_model(source, name, revision)
    return call_loader(name, lambda: read_shape(config, empty.num_parameters()))  # type: ignore[no-any-return]


def _make_weightless_model(source: str, name: str, revision: str = "") -> tuple[Any, Any]:
    """A model's configuration, and the model without weights. Raises ModelError."""
    make: Any = AutoModelForCausalLM
    if is_gguf(source):
        config = read_gguf_config(Path(source))
    else:
        config = call_loader(
            name, lambda: AutoConfig.from_pretrained(source, revision=revision or MAIN, **WITHOUT_CODE)
        )
    _check_architecture(name, config)
    _check_config(name, config.get_text_config())
    with torch.device("meta"):
        return config, call_loader(name, lambda: make.from_config(config, **WITHOUT_CODE))


def _check_architecture(name: str, config: Any) -> None:
    """Raise ModelUnfit for an encoder, which transformers would load as a causal model that it was never trained to
    be."""
    what = f"{name} cannot be trained here: its architecture, {config.model_type}, is"
    fix = "Take a model that continues texts: its config.json names a ...ForCausalLM, as those of Qwen, Llama and Gemma"
    if getattr(config, "is_encoder_decoder", False):
        raise ModelUnfit(f"{what} an encoder with a decoder, which turns one text into another", fix)
    if config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False):
        raise ModelUnfit(f"{what} an encoder, which fills gaps in a text and cannot write one", fix)


def _check_config(name: str, config: Any) -> None:
    """Raise ModelUnfit for settings that transformers accepts though they fail later or make no sense."""
    check_quantization(name, getattr(config, "quantization_config", None) or {})
    vocabulary, pad = getattr(config, "vocab_size", 0), getattr(config, "pad_token_id", None)
    if pad is not None and pad >= vocabulary:
        raise ModelUnfit(
            f"config.json of {name} pads with token {pad}, and has tokens from 0 to {vocabulary - 1}",
            "Set pad_token_id there to null, or to the one of its tokenizer",
        )
    if getattr(config, "num_hidden_layers", 1) < 1:
        raise ModelUnfit(f"config.json of {name} describes a model without layers", "Copy it again")


def load_tokenizer(source: str, name: str, revision: str = "", chats: bool = True) -> Any:
    """Load the model's tokenizer, padding on the left. Raises ModelError if it lacks something that training needs;
    without `chats` it may lack a chat template."""
    load: Any = AutoTokenizer.from_pretrained
    pinned = revision or MAIN
    tokenizer = call_loader(
        name, lambda: load(source, revision=pinned, padding_side="left", **WITHOUT_CODE), "the tokenizer of "
    )
    if chats and not tokenizer.chat_template:
        raise missing_template_error(name)
    if isinstance(tokenizer.chat_template, dict) and "default" not in tokenizer.chat_template:
        raise ModelUnfit(
            f"the tokenizer of {name} has several chat templates, and none is the default",
            f"Name one of them default: {', '.join(sorted(tokenizer.chat_template))}",
        )
    if tokenizer.eos_token_id is None:
        raise ModelUnfit(f"the tokenizer of {name} has no end token", "Set eos_token in its tokenizer_config.json")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def check_tokenizer(policy: Policy, has_system: bool = False) -> None:
    """Raise ModelUnfit if the tokenizer does not fit the model.

    - A question, with a system message if `has_system`, must reach the model through the chat template.
    - The end tokens in the model's settings must exist.
    - Text must not become tokens without an embedding: the first such token, even a peer's, would end each stage.
      Special tokens count only if they are used, since text never becomes them.
    """
    tokenizer, embeddings = policy.tokenizer, policy.model.get_input_embeddings().num_embeddings
    before = [Message("system", "Be brief.", trusted=True)] if has_system else []
    prompt = policy.encode_prompt([*before, Message("user", _QUESTION)])
    if _QUESTION not in tokenizer.decode(prompt):
        raise ModelUnfit(
            f"what the tokenizer of {policy.name} makes of a question does not hold it: {_QUESTION!r} becomes "
            f"{tokenizer.decode(prompt)[:_SHOWN_CHARACTERS]!r}",
            "Put the model's own tokenizer and chat template beside it",
        )
    if ends := [id for id in policy.stop_ids if not 0 <= id < embeddings]:
        raise ModelUnfit(
            f"{policy.name} ends completions at token {ends[0]}, by its config.json or generation_config.json, and has "
            f"tokens from 0 to {embeddings - 1}",
            "Set eos_token_id there to the one of its tokenizer",
        )
    used = {tokenizer.eos_token_id, tokenizer.pad_token_id, *prompt}
    unused = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special} - used
    beyond = sorted(text for text, id in tokenizer.get_vocab().items() if id >= embeddings and id not in unused)
    if beyond:
        raise ModelUnfit(
            f"the tokenizer of {policy.name} has tokens for which the model has no embedding: {', '.join(beyond[:3])}",
            "Put the model's own tokenizer beside it, or another eos_token or pad_token into tokenizer_config.json",
        )


def list_escaped_texts(tokenizer: Any) -> tuple[str, ...]:
    """Texts that are escaped in untrusted input: the tokenizer's added tokens and the answer tags."""
    added = (str(token) for token in tokenizer.added_tokens_decoder.values())
    return tuple(sorted({text for text in added if text.strip()} | set(TAGS)))


def digest_weights(model: Any) -> str:
    """SHA-256 over names and values of all weights, floating-point ones as float32."""
    return _hash_weights(sorted(model.state_dict().items()))


def _hash_weights(weights: Iterable[tuple[str, torch.Tensor]], before: str = "") -> str:
    digest = hashlib.sha256(before.encode())
    for name, tensor in weights:
        digest.update(name.encode())
        plain = tensor.detach().cpu()
        plain = plain.float() if plain.is_floating_point() else plain
        digest.update(plain.contiguous().numpy().tobytes())
    return digest.hexdigest()


def smoke_test_model(model: Any, autocast: Callable[[], contextlib.AbstractContextManager[Any]]) -> str:
    """Generate, and compute a loss and its gradients, on a few tokens. Returns why that fails, or "".

    RL Swarm's nodes with 16-bit weights on CPUs died of a RuntimeError in their first step, or trained on NaN. Weights
    and random generators do not change. Raises the errors of running out of memory.
    """
    try:
        return _find_nonfinite_weight(model) or _try_generation(model, autocast) or _try_gradients(model, autocast)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {first_line(error)}"
    finally:
        model.zero_grad(set_to_none=True)


def _find_nonfinite_weight(model: Any) -> str:
    """Name a weight that is not finite: a few tokens would not show it in an embedding."""
    for name, weight in model.state_dict().items():
        if weight.is_floating_point() and not bool(torch.isfinite(weight).all()):
            return f"{name} holds values that are not finite"
    return ""


def _try_generation(model: Any, autocast: Callable[[], contextlib.AbstractContextManager[Any]]) -> str:
    model.eval()
    ids = _make_probe_tokens(model)
    with torch.no_grad(), autocast():
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=_DRAWN,
            min_new_tokens=_DRAWN,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
    finite = all(bool(torch.isfinite(logits).all()) for logits in output.logits)
    return "" if finite else "its logits are not finite"


def _try_gradients(model: Any, autocast: Callable[[], contextlib.AbstractContextManager[Any]]) -> str:
    model.train()
    ids = _make_probe_tokens(model)
    with autocast():
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    norms = [parameter.grad.float().norm() for parameter in model.parameters() if parameter.grad is not None]
    return "" if bool(torch.isfinite(torch.stack([loss.detach().float(), *norms])).all()) else "NaN in its gradients"


def _make_probe_tokens(model: Any) -> torch.Tensor:
    vocabulary = model.get_input_embeddings().num_embeddings
    return torch.tensor([[token % vocabulary for token in range(11, 11 + TOKENS)]], device=model.device)


def first_line(error: BaseException) -> str:
    """First line of an error's message without its full stop; its type if there is no message."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__

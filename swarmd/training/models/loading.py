"""Loads models by transformers so that they have exactly the weights of their files, or are refused with the reason.

- transformers makes up weights that a file lacks, and drops those it does not know, with only a warning. Here both are
  errors that name the weights, the likely cause and the fix. All weights are read by `read_model`.
- Harmless differences are accepted: a tied head, whether it is in the file or not, weights that the architecture itself
  says to ignore, and masks and frequencies that older versions saved as buffers.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from swarmd.errors import ModelError, ModelUnfit, SwarmdError
from swarmd.training.models.files import adapters_beside_weights_error, explain_wrapped_weights
from swarmd.training.models.hub import explain_hub, find_hub_error
from swarmd.training.models.source import MAIN, WITHOUT_CODE, list_embedded

NAMED_MAX = 3  # weights named in an error
# buffers that older versions of transformers saved and this one computes
_COMPUTED = re.compile(
    r"(^|\.)((attn|self_attn|attention)\.(bias|masked_bias|causal_mask)|position_ids|rotary_emb\.inv_freq)$"
)
_OTHER_HEADS = re.compile(r"^(score|classifier|classification_head|v_head|value_head|reward_head|qa_outputs)\.")
_CHECKPOINT = {"model", "model_state_dict", "state_dict", "optimizer", "optimizer_state_dict", "epoch", "step"}
_HEADS = re.compile(r"^(lm_head|embed_out)\.")


def read_model(name: str, source: str, revision: str = "", **settings: Any) -> Any:
    """Load a model from a directory or the Hub by transformers, without dropout. Errors call it `name`. Raises
    ModelUnfit: its files have other weights than its configuration describes; Exception: whatever transformers raises,
    which `explain_failure` explains."""
    load: Any = AutoModelForCausalLM.from_pretrained
    model, found = load(
        source,
        revision=revision or MAIN,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are reported with the others
        **settings,
        **WITHOUT_CODE,
    )
    if model._hf_peft_config_loaded:  # transformers loaded adapters without any message
        raise adapters_beside_weights_error(name)
    check_loaded(name, found["missing_keys"], found["unexpected_keys"], found["mismatched_keys"])
    _disable_dropout(model)
    return model


def _disable_dropout(model: Any) -> None:
    """Turn dropout off: with it, training would compute other probabilities than the completions were drawn by."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "attention_dropout", None), float):  # the rate is passed to a function
            module.attention_dropout = 0.0


def check_loaded(
    name: str,
    missing: Iterable[str],
    unexpected: Iterable[str],
    misshapen: Iterable[tuple[str, tuple[int, ...], tuple[int, ...]]],
) -> None:
    """Raise ModelUnfit unless exactly the model's weights were loaded. `missing`: names that the model has but the
    files lack. `unexpected`: the reverse. `misshapen`: name, shape in the files, shape in the model."""
    lost = sorted(missing)
    foreign = sorted(key for key in unexpected if not _COMPUTED.search(key))
    wrong = sorted(misshapen)
    if not (lost or foreign or wrong):
        return
    shapes = [f"{key} is {list(found)} instead of {list(wanted)}" for key, found, wanted in wrong]
    told = (
        _describe_names(lost, "is missing", "are missing"),
        _describe_names(foreign, "is not the model's", "are not the model's"),
        _describe_names(shapes, "has another shape", "have other shapes"),
    )
    raise ModelUnfit(
        f"the files of {name} do not hold the weights that its config.json describes: {'; '.join(filter(None, told))}",
        _find_fix(lost, foreign, wrong),
    )


def _describe_names(names: list[str], one: str, many: str) -> str:
    if not names:
        return ""
    some = ", ".join(names[:NAMED_MAX]) + (", ..." if len(names) > NAMED_MAX else "")
    return f"{len(names)} {one if len(names) == 1 else many} ({some})"


def _find_fix(lost: list[str], foreign: list[str], wrong: list[Any]) -> str:
    """The likely cause, and what to do, judging by the names alone."""
    if wrapped := explain_wrapped_weights(foreign):
        return wrapped
    if _CHECKPOINT & set(foreign):
        return "It is a checkpoint of training, not a model: load it with what wrote it, and save with save_pretrained"
    if any(_OTHER_HEADS.match(key) for key in foreign):
        return "It was saved as a classifier or reward model: take the language model that it was made of"
    prefixes = (key.removesuffix(own) for key in foreign for own in lost if key.endswith(f".{own}"))
    if prefix := next(prefixes, ""):
        return f"The names of its weights have {prefix!r} too many in front: save the inner model with save_pretrained"
    if lost and all(_HEADS.match(key) for key in lost) and not (foreign or wrong):
        return (
            "If its output head is its embedding, set tie_word_embeddings to true in its config.json; else save it "
            "as AutoModelForCausalLM, with its head"
        )
    if wrong:
        return "Its config.json is another model's, or was changed: put the one that belongs to the weights beside them"
    return "Copy all of its files again, or put the config.json that belongs to the weights beside them"


def call_loader(name: str, load: Callable[[], Any], what: str = "") -> Any:
    """Call a loader of transformers; turn its exceptions into a ModelError that explains them."""
    try:
        return load()
    except (MemoryError, torch.OutOfMemoryError, SwarmdError):
        raise
    except Exception as error:
        raise explain_failure(name, error, what) from error


def explain_failure(name: str, error: Exception, what: str = "") -> ModelError:
    """Explain an exception of transformers; `what` is put before the model's name if only a part of it was read."""
    if (found := find_hub_error(error)) is not None:
        return explain_hub(found, name, shipped=list_embedded())
    said = [line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()]
    reason = " ".join(said[: 2 if said and said[0].endswith(":") else 1]) or type(error).__name__
    if "trust_remote_code" in str(error):
        return ModelUnfit(
            f"{what}{name} cannot be loaded: it brings Python code of its own (auto_map), which is never run",
            "Take a model of an architecture that transformers knows itself",
        )
    fix = "Check training.model and training.revision, and that all of its files are there and whole"
    if "does not recognize this architecture" in str(error):
        fix = f"transformers {transformers.__version__} does not know it: take another model, or a newer transformers"
    if re.search("^Validation error for field|^Class validation error", str(error)):
        fix = "Correct that in its config.json, or copy the file again"
    if what and isinstance(error, KeyError | TypeError | AttributeError):
        reason = f"{type(error).__name__}: {error}"
        fix = "Copy or download its tokenizer.json and tokenizer_config.json again"
    elif isinstance(error, KeyError) and "Missing required keys" in str(error):
        reason, fix = str(error.args[0]), "Correct that in its config.json, or copy the file again"
    elif isinstance(error, KeyError):
        reason = f"its config.json names {error}, which transformers {transformers.__version__} does not know"
    if "Couldn't instantiate the backend tokenizer" in str(error):
        reason = "it has no tokenizer.json, and of an older kind not all of the files"
        fix = "Copy its tokenizer.json, or its tokenizer.model, or save it again: `tokenizer.save_pretrained(DIR)`"
    if "Should have a `model_type` key" in str(error):
        reason, fix = "its config.json has no model_type", "Copy or download config.json again"
    if "Unrecognized configuration class" in str(error):
        reason, fix = "it is not a causal language model", "Take a model whose config.json names a ...ForCausalLM"
    if "Weights only load failed" in str(error):
        reason = "its pytorch_model.bin holds other objects than weights, which may be code and are never run"
        fix = "Save the model with save_pretrained, which writes safetensors"
    return ModelError(f"{what}{name} cannot be loaded: {reason}", fix)

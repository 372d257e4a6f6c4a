"""Chooses the model to serve, and loads it as a trainer does, without what only training needs.

A checkpoint of whole weights is a model directory. One of adapters names its base as the node's configuration did, and
is loaded on it without merging, so that log-probabilities are those of the trainer.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from safetensors.torch import load_file

from swarmd.config import LoraConfig, TrainingConfig
from swarmd.errors import CheckpointDamaged, ModelError
from swarmd.installed import import_optional
from swarmd.swarms.plan import Message
from swarmd.training.checkpoint_files import find_newest_complete, list_checkpoints, verify_checkpoint
from swarmd.training.checkpoints import WEIGHTS
from swarmd.training.models.files import ADAPTERS
from swarmd.training.models.model import Policy, list_escaped_texts, load_frozen, load_tokenizer
from swarmd.training.models.pool import CHOICE, read_choice
from swarmd.training.models.source import hub_revision_of


class ChosenModel(NamedTuple):
    """What to load. `training`: names the model, or the base under adapters. `adapters`: the checkpoint that holds
    them, if there are any."""

    training: TrainingConfig
    adapters: Path | None = None


def choose_checkpoint(checkpoints: Path, training: TrainingConfig) -> ChosenModel:
    """The newest complete checkpoint of a node with this configuration. Raises ModelError if there is none."""
    newest = find_newest_complete(checkpoints)
    if newest is None:
        damaged = list_checkpoints(checkpoints)
        raise ModelError(
            f"no checkpoint in {checkpoints} is complete" if damaged else f"there is no checkpoint in {checkpoints}",
            "A node writes one after each stage: wait for the first, or name a model directory",
        )
    return choose_directory(newest, training)


def choose_directory(directory: Path, training: TrainingConfig) -> ChosenModel:
    """The model in a directory, which may be a checkpoint. Raises ModelError: it is a damaged checkpoint; ConfigError:
    its model.json is damaged."""
    settings = directory / ADAPTERS
    if not settings.is_file() or not (directory / WEIGHTS).is_file():
        return ChosenModel(msgspec.structs.replace(training, model=str(directory), revision="", lora=LoraConfig()))
    try:
        verify_checkpoint(directory)
    except CheckpointDamaged as error:
        raise ModelError(error.message, "Name another checkpoint, or the node's directory") from error
    described = msgspec.json.decode(settings.read_bytes())
    choice = read_choice(directory / CHOICE)
    base = choice.model if choice is not None else described["base_model_name_or_path"]
    lora = msgspec.structs.replace(training.lora, rank=described["r"])
    revision = training.revision or described["revision"] or ""
    changed: dict[str, Any] = {"model": base, "revision": revision, "lora": lora}
    return ChosenModel(msgspec.structs.replace(training, **changed), directory)


def load_chosen(chosen: ChosenModel) -> Policy:
    """Load a model to draw from. Its tokenizer may lack a chat template. Raises ModelError: as `load_frozen`, or the
    adapters do not fit their base; ConfigError: there is no such device, or PEFT is missing."""
    training = msgspec.structs.replace(chosen.training, processes=1, accelerate="")
    frozen = load_frozen(training)
    source = frozen.source if chosen.adapters is None else str(chosen.adapters)
    revision = hub_revision_of(training) if chosen.adapters is None else ""
    tokenizer = load_tokenizer(source, training.model, revision, chats=False)
    model = (
        frozen.model if chosen.adapters is None else _add_saved_adapters(frozen.model, training.model, chosen.adapters)
    )
    markers = list_escaped_texts(tokenizer)
    return Policy(training.model, model.eval(), tokenizer, frozen.device, "", markers, frozen.precision)


def _add_saved_adapters(model: Any, base: str, checkpoint: Path) -> Any:
    """Add the adapters of a checkpoint to their base. Raises ConfigError without PEFT, and ModelError if they do not
    fit."""
    peft = import_optional("peft", "lora", f"the adapters in {checkpoint}")
    model = peft.get_peft_model(model, peft.LoraConfig.from_pretrained(str(checkpoint)))
    saved = load_file(checkpoint / WEIGHTS)
    own = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    shapes, found = ({name: weight.shape for name, weight in each.items()} for each in (own, saved))
    if other := sorted(name for name in shapes.keys() | found.keys() if shapes.get(name) != found.get(name)):
        raise ModelError(
            f"the adapters in {checkpoint} do not fit {base}: {other[:3]} are missing, or not the model's",
            "Put the model there that they were trained on",
        )
    peft.set_peft_model_state_dict(model, saved)
    return model


def encode_chat(policy: Policy, messages: Sequence[Message]) -> list[int]:
    """Token ids of a chat; without a chat template those of the texts alone, one per line, for the model to continue.
    Raises ModelUnfit if the template refuses the chat."""
    if policy.tokenizer.chat_template:
        return policy.encode_prompt(messages)
    return [int(token) for token in policy.tokenizer.encode("\n".join(each.content for each in messages))]

"""Models that a swarm's recipe names: what a manifest says of them, and where those who join find them.

- A model of the Hub is named with its commit, any other with the digest of its weights, so that all nodes begin alike.
- A model directory is named as `./NAME`: it is handed out beside the manifest, as a file of questions is.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import typer

from swarmd.config import DIGEST, TrainingConfig
from swarmd.errors import HubUnreachable, ManifestError
from swarmd.manifest import HANDED_OUT, ManifestRecipe
from swarmd.training.models.files import digest_weights, list_weights
from swarmd.training.models.hub import ask_hub
from swarmd.training.models.source import (
    AUTO,
    compare_weights,
    find_snapshot,
    is_directory,
    is_gguf,
    is_local,
    list_embedded,
    require_model,
)


def settle_model(training: TrainingConfig) -> TrainingConfig:
    """The settings with the model as a manifest can name it, and with its revision; what a start refuses is refused.

    Raises:
        ManifestError: no manifest can name it.
        ModelError: it is not there, or cannot be trained.
        ConfigError: the revision does not go with it.
    """
    if training.model == AUTO:
        return training
    if is_gguf(training.model):
        raise ManifestError(
            f"no manifest names a GGUF file, such as {training.model}: weights are handed out as model directories",
            "Name the directory into which the file is read, as `swarmd local` says in a log; or a model of the Hub",
        )
    try:
        snapshot = find_snapshot(training)
        if snapshot is not None:
            require_model(training)
        elif not training.revision:
            return _pinned(training, ask_hub(training.model, "", list_embedded()))
    except HubUnreachable as error:
        typer.echo(f"note: the manifest names no commit of {training.model}, so members take what is newest when they")
        typer.echo(f"    join: {error.message}. Set training.revision to one")
        return training
    if snapshot is None:
        return training
    if not is_local(training.model):
        return _pinned(training, snapshot.name)
    if not list_weights(snapshot):
        raise ManifestError(f"{snapshot} has no weights", "Name a directory that save_pretrained wrote")
    settled = msgspec.structs.replace(training, revision=training.revision or DIGEST + digest_weights(snapshot))
    if is_directory(training.model):
        settled = msgspec.structs.replace(settled, model=str(snapshot.resolve()))
    return settled


def _pinned(training: TrainingConfig, commit: str) -> TrainingConfig:
    """With the commit as revision where none is named. A colocated vLLM is told the model's name alone."""
    if training.revision or training.vllm.mode == "colocate":
        return training
    return msgspec.structs.replace(training, revision=commit)


def find_model(recipe: ManifestRecipe, manifest: Path, data: Path) -> str:
    """Where the model lies that a manifest names: in the data directory, or beside the manifest.

    Returns:
        A path, or the name as the manifest has it if the model is not handed out.

    Raises:
        ManifestError: it is handed out, and is in neither place.
    """
    if not recipe.model.startswith(HANDED_OUT):
        return recipe.model
    name = recipe.model.removeprefix(HANDED_OUT)
    for directory in (data, manifest.parent):
        place = (directory / name).resolve()
        if place.is_dir():
            settings = TrainingConfig(model=str(place), revision=recipe.revision)
            if differ := compare_weights(settings, str(find_snapshot(settings))):
                typer.echo(f"note: this node would begin from other weights than its swarm: {differ}")
            return str(place)
    raise ManifestError(
        f"the swarm trains the model directory {name}, which is not beside {manifest}",
        f"Get {name} from whoever gave you the manifest, put it beside it, and run the command again",
    )

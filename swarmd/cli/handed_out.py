"""Files that a manifest refers to without containing them, questions and a model: how they get to nodes that join.

- A manifest has the question file's name and the digest of its rows; for a model directory, `./NAME` and the digest of
  its weights. Both files are distributed together with the manifest, and nodes train on no others.
- A model of the Hub is named with its commit, so that all nodes start from the same weights.
- If the question file was made from a data set on the Hub, the manifest names that too, so that joining nodes can make
  it themselves.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import typer

from swarmd.config import DIGEST, SwarmConfig, TrainingConfig
from swarmd.errors import HubUnreachable, ManifestError, SwarmError
from swarmd.manifest import HANDED_OUT, ManifestRecipe
from swarmd.swarms.dataset import is_hub_id, read_dataset_source, write_questions_file
from swarmd.swarms.jsonl import SUFFIX, load_rows
from swarmd.swarms.options import DOWNLOAD_BYTES_MAX, DatasetSource
from swarmd.swarms.packages import describe_packages, list_function_paths, list_module_files
from swarmd.swarms.registry import has_system_message, questions_file_of
from swarmd.training.models.files import digest_weights, list_weights
from swarmd.training.models.hub import fetch_commit
from swarmd.training.models.source import (
    AUTO,
    compare_weights,
    find_configured_model,
    is_directory,
    is_embedded,
    is_gguf,
    is_local,
    list_embedded,
    require_model,
)

# --- questions ---

WORDS = ("generated", "hub")  # values of `data` in gsm8k and math-hard that are not file names


def options_for_manifest(options: Mapping[str, Any], home: Path) -> dict[str, Any]:
    """Convert options for a manifest: the file's name, the digest of its rows, and its data set if that is on the Hub.
    Raises SwarmError."""
    name = questions_file_of(options)
    if not name:
        _refuse_other_files(options.get("data"), home)
        return dict(options)
    _make_questions_file(home, name, options)
    _, digest = load_rows(home, name, str(options.get("digest", "")))
    shared = {**options, "data": Path(name).name, "digest": digest}
    if functions := list_function_paths(options):
        shared["packages"] = msgspec.to_builtins(describe_packages(functions, home))
    source = str(options.get("dataset", ""))
    if is_hub_id(source) and not (home / source).exists():
        return shared
    source_keys = DatasetSource.__struct_fields__  # a local path is useless on other machines
    return {key: value for key, value in shared.items() if key not in source_keys}


def print_untried_reason(reason: str) -> None:
    """Print why `check_questions` did not try right answers, if it gave a reason."""
    if reason:
        typer.echo(f"note: whether right answers are paid was not tried: {reason}")


def _refuse_other_files(named: object, home: Path) -> None:
    """Raise SwarmError for a file or directory that could not be distributed, or that `join` would refuse."""
    if not isinstance(named, str) or not named or named in WORDS:
        return
    try:
        is_file, is_directory = (home / named).is_file(), (home / named).is_dir()
    except OSError as error:  # an invalid file name, or no permission
        raise SwarmError(
            f"swarm.options.data cannot be resolved: {error}", "Name a file beside the configuration"
        ) from error
    if is_file:
        raise SwarmError(
            f"swarm.options.data: the file {named!r} does not end in {SUFFIX}, so that no manifest can name it",
            f"Rename it, and the option, to {Path(named).stem}{SUFFIX}: a JSON object a line, as it is now",
        )
    if is_directory or _is_unsafe_path(named):
        raise SwarmError(
            f"swarm.options.data: no manifest can name the directory or path {named!r}, which others do not have",
            f"Write its rows into one file that ends in {SUFFIX}, a JSON object a line, and name that",
        )


def _make_questions_file(home: Path, name: str, options: Mapping[str, Any]) -> None:
    """Make the question file from the data set in the options, if they name one and the file is missing."""
    if options.get("dataset"):
        write_questions_file(home, name, read_dataset_source(options), str(options.get("digest", "")))


def find_questions(
    options: Mapping[str, Any], manifest: Path, data: Path, download_bytes: int = DOWNLOAD_BYTES_MAX
) -> Path | None:
    """Find the question file that a manifest's options name: in the data directory, or beside the manifest.

    If it is in neither and was made from a data set on the Hub, it is made again, from at most `download_bytes`.

    Returns:
        None if the options name no file.

    Raises:
        ManifestError: it is missing, or the options do not name a plain file.
        SwarmError: its rows have another digest, or it may not be downloaded.
    """
    name, digest = questions_file_of(options), str(options.get("digest", ""))
    if _is_unsafe_path(options.get("data")) or (name and not digest):
        raise ManifestError(
            "recipe.options: data is not the name of a file, or digest is missing", "Get a manifest from its creator"
        )
    if not name:
        return None
    source = options.get("dataset")
    if source and not (isinstance(source, str) and is_hub_id(source) and not (data / source).exists()):
        raise ManifestError("recipe.options: dataset is not a name of the Hub", "Get a manifest from its creator")
    for directory in (data, manifest.parent):
        if (directory / name).exists():
            load_rows(directory, name, digest)
            return directory / name
    if source:
        write_questions_file(data, name, read_dataset_source({**options, "download_bytes": download_bytes}), digest)
        return data / name
    raise _missing_files_error([name], manifest)


def refuse_missing_files(recipe: ManifestRecipe, manifest: Path, data: Path) -> None:
    """If several files that a manifest names are missing, raise one ManifestError that lists them all."""
    names = [recipe.model.removeprefix(HANDED_OUT)] if recipe.model.startswith(HANDED_OUT) else []
    if not recipe.options.get("dataset"):
        names += [name for name in [questions_file_of(recipe.options)] if name]
    missing = [name for name in names if not any((place / name).exists() for place in (data, manifest.parent))]
    if len(missing) > 1:
        raise _missing_files_error(missing, manifest)


def _missing_files_error(names: list[str], manifest: Path) -> ManifestError:
    files, them = " and ".join(names), "them" if len(names) > 1 else "it"
    return ManifestError(
        f"the swarm trains on {files}, not found beside {manifest}",
        f"Get {files} from whoever gave you the manifest, put {them} beside it, and run the command again",
    )


def _is_unsafe_path(named: object) -> bool:
    """Whether a `data` option leads out of the data directory, is a hidden file, or contains line breaks, which could
    imitate swarmd's own messages."""
    if not isinstance(named, str) or not named:
        return False
    return Path(named).name != named or named[0] in ".~" or not named.isprintable()


def overwrite_questions(home: Path, options: Mapping[str, Any], data: Path) -> None:
    """Copy the question file that a configuration's options name into another data directory, overwriting one there,
    together with its functions' modules that lie beside the configuration.

    Raises SwarmError if it is missing or malformed.
    """
    name = questions_file_of(options)
    _make_questions_file(home, name, options)
    load_rows(home, name)
    target = data / name
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _copy_atomically(home / name, target)
    for module in list_module_files(list_function_paths(options), home):
        _copy_atomically(module, data / module.name)


def _copy_atomically(source: Path, target: Path) -> None:
    """Copy a file so that readers never see a partial copy."""
    fresh = target.with_name(f".{target.name}.new")
    shutil.copyfile(source, fresh)
    fresh.replace(target)


def copy_file(source: Path, data: Path) -> None:
    """Copy a question file, or the creator's module, into a data directory, unless it is there already.

    Raises SwarmError if a different file of that name is there.
    """
    target = data / source.name
    if target.exists():
        if not target.samefile(source) and target.read_bytes() != source.read_bytes():
            raise SwarmError(f"{target} exists and differs from {source}", "Move it away, or choose another directory")
        typer.echo(f"{target}: exists, kept as it is")
        return
    _copy_atomically(source, target)
    typer.echo(f"{target}: written")


# --- models ---


def check_trainable(training: TrainingConfig, swarm: SwarmConfig) -> None:
    """Check that a trainer can load a model of this machine. Loads torch, unless it is one of swarmd's own models.

    Raises ModelError and ConfigError as `swarmd.training.models.model.check_loadable`.
    """
    if is_embedded(training.model) and not training.lora.targets:
        return
    from swarmd.training.library_logging import silence_libraries
    from swarmd.training.models.model import check_loadable

    silence_libraries()
    check_loadable(training, has_system_message(swarm))


def pin_model(training: TrainingConfig) -> TrainingConfig:
    """The settings with model and revision as a manifest names them. Raises ManifestError if it cannot name the model;
    ModelError if it is missing or cannot be trained; ConfigError if the revision does not fit it."""
    if training.model == AUTO:
        return training
    if is_gguf(training.model):
        raise ManifestError(
            f"no manifest names a GGUF file, such as {training.model}: weights are handed out as model directories",
            "Name the directory into which the file is read, as `swarmd local` says in a log; or a model of the Hub",
        )
    try:
        snapshot = find_configured_model(training)
        if snapshot is not None:
            require_model(training)
        elif not training.revision:
            return _with_revision(training, fetch_commit(training.model, "", list_embedded()))
    except HubUnreachable as error:
        typer.echo(f"note: the manifest names no commit of {training.model}, so members take what is newest when they")
        typer.echo(f"    join: {error.message}. Set training.revision to one")
        return training
    if snapshot is None:
        return training
    if not is_local(training.model):
        return _with_revision(training, snapshot.name)
    if not list_weights(snapshot):
        raise ManifestError(f"{snapshot} has no weights", "Name a directory that save_pretrained wrote")
    settled = msgspec.structs.replace(training, revision=training.revision or DIGEST + digest_weights(snapshot))
    if is_directory(training.model):
        settled = msgspec.structs.replace(settled, model=str(snapshot.resolve()))
    return settled


def _with_revision(training: TrainingConfig, commit: str) -> TrainingConfig:
    """Use the commit as revision if none is given; a colocated vLLM takes only the model's name."""
    if training.revision or training.vllm.mode == "colocate":
        return training
    return msgspec.structs.replace(training, revision=commit)


def find_manifest_model(recipe: ManifestRecipe, manifest: Path, data: Path) -> str:
    """Find a manifest's model in the data directory or beside the manifest. Returns its path, or its name if it is not
    distributed with the manifest. Raises ManifestError if it should be there and is not."""
    if not recipe.model.startswith(HANDED_OUT):
        return recipe.model
    name = recipe.model.removeprefix(HANDED_OUT)
    for directory in (data, manifest.parent):
        place = (directory / name).resolve()
        if place.is_dir():
            settings = TrainingConfig(model=str(place), revision=recipe.revision)
            if differ := compare_weights(settings, str(find_configured_model(settings))):
                typer.echo(f"note: this node would begin from other weights than its swarm: {differ}")
            return str(place)
    raise _missing_files_error([f"the model directory {name}"], manifest)

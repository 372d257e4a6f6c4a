"""Files of questions that a swarm's options name: how they get to a node, and that they are the right ones.

A manifest carries the file's name and the digest of its rows, never the questions: the file is handed out beside it.
Where the file is made of a data set on the Hub, a manifest names that as well, and whoever joins may load it there.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from swarmd.errors import ManifestError, SwarmError
from swarmd.swarms.dataset import is_hub_id, keep_dataset, source_of
from swarmd.swarms.jsonl import SUFFIX, load_rows
from swarmd.swarms.options import DOWNLOAD_BYTES_MAX, DatasetSource
from swarmd.swarms.registry import questions_of

WORDS = ("generated", "hub")  # `data` of gsm8k and math-hard, whatever lies there under such a name


def sealed(options: Mapping[str, Any], home: Path) -> dict[str, Any]:
    """The options as a manifest has them: the file's name alone, the digest of its rows, and its data set if that is
    on the Hub. Raises SwarmError.
    """
    name = questions_of(options)
    if not name:
        _refuse_other_files(options.get("data"), home)
        return dict(options)
    _load_into(home, name, options)
    _, digest = load_rows(home, name, str(options.get("digest", "")))
    shared = {**options, "data": Path(name).name, "digest": digest}
    source = str(options.get("dataset", ""))
    if is_hub_id(source) and not (home / source).exists():
        return shared
    source_keys = DatasetSource.__struct_fields__  # which lead nowhere elsewhere
    return {key: value for key, value in shared.items() if key not in source_keys}


def tell_untried(reason: str) -> None:
    """Say why right answers were not tried, where `check_questions` gives a reason."""
    if reason:
        typer.echo(f"note: whether right answers are paid was not tried: {reason}")


def _refuse_other_files(named: object, home: Path) -> None:
    """Raise SwarmError for what nobody would be handed, nor asked for by its digest, and what `join` would refuse."""
    if not isinstance(named, str) or not named or named in WORDS:
        return
    try:
        is_file, is_directory = (home / named).is_file(), (home / named).is_dir()
    except OSError as error:  # of a name that no file can have, or a place that may not be looked at
        raise SwarmError(
            f"swarm.options.data leads nowhere: {error}", "Name a file beside the configuration"
        ) from error
    if is_file:
        raise SwarmError(
            f"swarm.options.data: the file {named!r} does not end in {SUFFIX}, so that no manifest can name it",
            f"Rename it, and the option, to {Path(named).stem}{SUFFIX}: a JSON object a line, as it is now",
        )
    if is_directory or _leads_elsewhere(named):
        raise SwarmError(
            f"swarm.options.data: no manifest can name the directory or path {named!r}, which others do not have",
            f"Write its rows into one file that ends in {SUFFIX}, a JSON object a line, and name that",
        )


def _load_into(home: Path, name: str, options: Mapping[str, Any]) -> None:
    """Make the file of the data set that the options name, where they name one and the file is not there."""
    if options.get("dataset"):
        keep_dataset(home, name, source_of(options), str(options.get("digest", "")))


def find_questions(
    options: Mapping[str, Any], manifest: Path, data: Path, download_bytes: int = DOWNLOAD_BYTES_MAX
) -> Path | None:
    """Where the file lies that a manifest's options name, in the data directory or beside the manifest; None without
    one.

    A data set on the Hub of at most `download_bytes` is loaded where it lies in neither. Raises ManifestError where it
    is nowhere or named as no manifest should, SwarmError where it is another one or may not be downloaded.
    """
    name, digest = questions_of(options), str(options.get("digest", ""))
    if _leads_elsewhere(options.get("data")) or (name and not digest):
        raise ManifestError(
            "recipe.options: data is not the name of a file, or digest is missing", "Get a manifest from its creator"
        )
    if not name:
        return None
    source = options.get("dataset")
    if source and not (isinstance(source, str) and is_hub_id(source) and not (data / source).exists()):
        raise ManifestError("recipe.options: dataset is no name of the Hub", "Get a manifest from its creator")
    for directory in (data, manifest.parent):
        if (directory / name).exists():
            load_rows(directory, name, digest)
            return directory / name
    if source:
        keep_dataset(data, name, source_of({**options, "download_bytes": download_bytes}), digest)
        return data / name
    raise ManifestError(
        f"the swarm trains on {name}, which is not beside {manifest}",
        f"Get {name} from whoever gave you the manifest, put it beside it, and run the command again",
    )


def _leads_elsewhere(named: object) -> bool:
    """Whether an option `data`, whatever its kind makes of it, is a path out of the data directory, or hidden in it;
    or lines that would stand in an error as if swarmd said them.
    """
    if not isinstance(named, str) or not named:
        return False
    return Path(named).name != named or named[0] in ".~" or not named.isprintable()


def bring_questions(home: Path, options: Mapping[str, Any], data: Path) -> None:
    """Put the file that a configuration's options name into another data directory, in place of one that is there.

    Raises SwarmError where it is missing or not sound.
    """
    name = questions_of(options)
    _load_into(home, name, options)
    load_rows(home, name)
    target = data / name
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _copy(home / name, target)


def _copy(source: Path, target: Path) -> None:
    """Copy a file so that nobody sees a part of it."""
    fresh = target.with_name(f".{target.name}.new")
    shutil.copyfile(source, fresh)
    fresh.replace(target)


def copy_questions(source: Path, data: Path) -> None:
    """Put the file into a data directory; one that is there is kept when it is the same. Raises SwarmError."""
    target = data / source.name
    if target.exists():
        if not target.samefile(source) and target.read_bytes() != source.read_bytes():
            raise SwarmError(f"{target} is there and is not {source}", "Move it away, or choose another directory")
        typer.echo(f"{target}: exists, kept as it is")
        return
    _copy(source, target)
    typer.echo(f"{target}: written")

"""A data set of the Hub, loaded only where what comes down with it is known beforehand and within a bound.

A manifest may name any data set, and `datasets` downloads all its files, also those of splits that nobody asked for.
What its author says of its size is only a claim, so what counts is what the Hub says of the files themselves, at the
one commit that is then downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from swarmd.errors import DatasetRefused

GIB = 1024**3
DOWNLOAD_BYTES_MAX = GIB  # where a node says nothing else
FILES_MAX = 4096  # of one data set
ASKED_AT_ONCE = 500  # files, in one question to the Hub
PACKED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".7z", ".tar", ".tgz")  # their contents have any size


def load_from_hub(name: str, subset: str, split: str, revision: str, bytes_max: int) -> Any:
    """One split of a data set. One that is on this machine already is taken, whatever its size.

    Args:
        name: as the Hub has it.
        subset, revision: empty where none is named.
        bytes_max: of all files that have to be downloaded, and of what its author says that they become.

    Raises:
        DatasetRefused: it is larger, does not say how large it is, or has files from elsewhere. Nothing of it was
            downloaded but its card.
        Exception: whatever the back-ends of `datasets` raise.
    """
    import datasets

    builder = datasets.load_dataset_builder(name, subset or None, revision=revision or None)
    if not is_here(builder):
        check_size(builder, name, bytes_max)
    builder.download_and_prepare()
    return builder.as_dataset(split=split)


def is_here(builder: Any) -> bool:
    """Whether nothing has to be downloaded: it is in the cache, or a directory of this name is found before the Hub."""
    return Path(builder.cache_dir).is_dir() or Path(builder.base_path or "hf://").is_dir()


def check_size(builder: Any, name: str, bytes_max: int) -> None:
    """Raise DatasetRefused unless all that a builder would download is known and within the bound."""
    files = [file for listed in (builder.config.data_files or {}).values() for file in listed]
    if not files or len(files) > FILES_MAX:
        raise refusal(name, f"has {len(files)} files that can be counted, and between 1 and {FILES_MAX} are taken")
    known = sum(measure_files(name, files))
    claimed = max(builder.info.download_size or 0, builder.info.dataset_size or 0)
    if max(known, claimed) > bytes_max:
        size = f"has {known:,} bytes" if known >= claimed else f"has, by its own card, {claimed:,} bytes"
        raise refusal(name, f"{size}, and this node downloads {bytes_max:,} at most (swarm.options.download_bytes)")


def measure_files(name: str, files: list[str]) -> Iterator[int]:
    """Bytes of each file, as the Hub has them."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    revision, paths = split_addresses(name, files)
    remaining = iter(paths)
    while batch := list(islice(remaining, ASKED_AT_ONCE)):
        found = HfApi().get_paths_info(name, batch, revision=revision, repo_type="dataset")
        sizes = {each.path: each.size for each in found if isinstance(each, RepoFile)}
        unknown = [path for path in batch if not isinstance(sizes.get(path), int)]
        if unknown:
            raise refusal(name, f"does not say how large its file {unknown[0]} is")
        yield from (sizes[path] for path in batch)


def split_addresses(name: str, files: list[str]) -> tuple[str, list[str]]:
    """The commit that addresses as `datasets` writes them have in common, and the files' paths in it."""
    revisions, paths = set(), []
    for file in files:
        inside, _, address = file.partition(f"hf://datasets/{name}@")
        revision, _, path = address.partition("/")
        if inside or not path or "::" in file:
            raise refusal(name, f"has files from elsewhere, or in archives, such as {file}")
        if path.lower().endswith(PACKED):
            raise refusal(name, f"has packed files, such as {path}, and nothing says how large their contents are")
        revisions.add(revision)
        paths.append(path)
    if len(revisions) != 1:
        raise refusal(name, "has files of several commits")
    return revisions.pop(), paths


def refusal(name: str, what: str) -> DatasetRefused:
    return DatasetRefused(
        f"the data set {name} {what}; nothing of it was downloaded",
        "Get the file of questions from a node that has it and put it beside the manifest, or into the data directory. "
        "If you trust whoever named the data set, raise swarm.options.download_bytes, with `swarmd join` "
        "--download-bytes, or load it once yourself: datasets.load_dataset(...)",
    )

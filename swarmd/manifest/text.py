"""The manifest as a file: TOML with comments, written whole, read strictly."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import tomlkit
from tomlkit.items import Table

from swarmd.config import refuse_unknown_keys
from swarmd.errors import ConfigError, LogWriteFailed, ManifestError, NotFoundError, OtherVersion, PathUnusable
from swarmd.files import read_start, remedy, write_durably
from swarmd.manifest.form import FORMAT, Manifest, ManifestTask
from swarmd.manifest.layout import commented
from swarmd.manifest.seal import verify
from swarmd.toml_text import parse_toml

MANIFEST_BYTES_MAX = 64 * 1024

_HEAD = (
    "The manifest of a swarm. Whoever has it can join:",
    "    swarmd join FILE",
    "Its creator signed it: a change of any value makes it worthless. docs/SWARMS.md explains every key.",
)
_COMMENTS = {
    "creator": "peer id; its signature stands below",
    "members": "peer ids that may take part, in a swarm without a chain; a contract keeps its own list",
    "work_bits": "zero bits of the work that each identity does once",
    "protocol": "version of the protocol that members speak",
    "average_weights_every": "rounds between means of a node's weights and a member's, unless the node says otherwise",
    "bootnodes": "nodes to join through",
    "digest": "sha256 of the recipe in canonical form",
    "from_block": "the contract was created in this block",
    "rpc": "hints: public endpoints of the chain",
    "min_submissions": "reports of a stage after which anyone may advance; 0: off",
    "shards": "parts that records of a stage are divided into; 0 in a small swarm",
    "max_stage_s": "seconds of a stage after which anyone may advance; 0: off",
}


def read_manifest(path: Path) -> Manifest:
    """Read a manifest and prove it.

    Raises:
        NotFoundError: there is no such file.
        ManifestError: it cannot be read, is too large, malformed, altered, or not signed by its creator.
    """
    try:
        raw = read_start(path, MANIFEST_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no manifest {path}", "The swarm's creator has it") from error
    except OSError as error:
        regular = "Name the manifest that the swarm's creator gave you, a regular file"
        fix = remedy(error, path) if isinstance(error, PermissionError) else regular
        raise ManifestError(f"the manifest {path} cannot be read: {error.strerror}", fix) from error
    if len(raw) > MANIFEST_BYTES_MAX:
        raise ManifestError(f"{path} is larger than a manifest may be, {MANIFEST_BYTES_MAX} bytes")
    try:
        manifest = parse_manifest(raw.decode("utf-8-sig"))
        verify(manifest)
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path} is no manifest: it is not UTF-8 text") from error
    except (ManifestError, OtherVersion) as error:
        raise type(error)(f"{path}: {error.message}", error.fix) from error
    return manifest


def parse_manifest(text: str) -> Manifest:
    """The manifest in a text; nothing is proved yet. Raises ManifestError naming the key."""
    tables = _parse_toml(text)
    if tables.get("format") != FORMAT:
        raise ManifestError(
            f"format is {tables.get('format')!r}, this version of swarmd reads {FORMAT}",
            "Use a newer swarmd if the manifest is newer; else the file is no manifest",
        )
    try:
        _refuse_unknown(tables)
        return msgspec.convert(tables, Manifest)
    except ConfigError as error:
        raise ManifestError(error.message, error.fix) from error
    except (msgspec.ValidationError, RecursionError) as error:
        raise ManifestError(f"malformed: {error}") from error


def _parse_toml(text: str) -> dict[str, Any]:
    try:
        return parse_toml(text)
    except ValueError as error:
        raise ManifestError(f"it is not valid TOML: {error}") from error


def _refuse_unknown(tables: dict[str, Any]) -> None:
    refuse_unknown_keys(tables, Manifest, "", "manifest")
    recipe = tables.get("recipe")
    tasks = recipe.get("tasks") if isinstance(recipe, dict) else None
    for number, task in enumerate(tasks if isinstance(tasks, list) else ()):
        if isinstance(task, dict):
            refuse_unknown_keys(task, ManifestTask, f"recipe.tasks[{number}].", "manifest")


def render_manifest(manifest: Manifest) -> str:
    """The file's text. Raises ManifestError where it would be larger than a reader takes."""
    document = tomlkit.document()
    for line in _HEAD:
        document.add(tomlkit.comment(line))
    document.add(tomlkit.nl())
    content = msgspec.to_builtins(manifest)
    signature = content.pop("signature")
    for key, value in (*content.items(), ("signature", signature)):
        if isinstance(value, dict):
            table = tomlkit.table()
            _fill(table, value)
            document.add(key, table)
        elif value is not None:
            _add(document, key, value)
    text = tomlkit.dumps(document)
    if len(text.encode("utf-8")) > MANIFEST_BYTES_MAX:
        raise ManifestError(f"the manifest would be larger than {MANIFEST_BYTES_MAX} bytes", "List fewer members")
    return text


def _fill(table: Table, content: dict[str, Any]) -> None:
    for key, value in content.items():
        _add(table, key, value)


def _add(place: Any, key: str, value: Any) -> None:
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value)) if key == "created_at" else ""
    place.add(key, commented(value, made or _COMMENTS.get(key, "")))


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Put the file in place whole: a reader sees the old one or the new one.

    Raises:
        ManifestError: it would be too large.
        PathUnusable: it cannot be written.
    """
    text = render_manifest(manifest).encode("utf-8")
    try:
        write_durably(path, text)
    except LogWriteFailed as error:
        raise PathUnusable(error.message, "Make room for it, or its directory writable, and try again") from error

"""Recognises by its content a file that a user gave where another kind was expected, for error messages."""

from pathlib import Path

from swarmd.files import read_start
from swarmd.paths import quote_for_shell
from swarmd.toml_text import TEXT_BYTES_MAX, parse_toml

GZIP = b"\x1f\x8b"
ARCHIVE = "an archive"
OTHER = "a file of another kind"
STARTS = {
    b"SWRMLOG1": ("a segment of an event log", "Name the node's directory: `swarmd log cat DIR` prints its log"),
    b"\x89PNG": ("a picture", ""),
    b"%PDF": ("a PDF", ""),
    b"GGUF": ("a GGUF model", "Name it in training.model"),
    b"PK\x03\x04": ("a zip archive", ""),
    b"SQLite format 3": ("a database of SQLite", ""),
    b"\xff\xd8\xff": ("a picture", ""),
}


def describe_file(path: Path) -> tuple[str, str]:
    """Describe a file, and name the command that accepts it; empty if none does.

    Raises OSError if it cannot be read.
    """
    content, name = read_start(path, TEXT_BYTES_MAX), quote_for_shell(path)
    if content.startswith(GZIP):
        opened = f"`swarmd bundle --open {name} --to DIR` opens a bundle"
        return ARCHIVE, f"`swarmd restore {name} DIR` makes a node of a backup; {opened}"
    for start, described in STARTS.items():
        if content.startswith(start):
            return described
    try:
        tables = parse_toml(content.decode("utf-8-sig"))
    except ValueError:
        is_json = content.lstrip()[:1] in (b"{", b"[")
        return ("a file of JSON" if is_json else OTHER), ""
    if {"format", "signature"} <= tables.keys():
        fix = f"`swarmd join {name} --dir DIR` makes a node of that swarm, with DIR/config.toml"
        return "the manifest of a swarm", fix
    if {"role", "swarm", "training", "dht"} & tables.keys():
        return (
            "a node's configuration",
            f"Name it as `--config {name}`, or its directory, {quote_for_shell(path.parent)}",
        )
    return OTHER, ""

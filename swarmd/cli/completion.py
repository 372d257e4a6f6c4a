"""What a shell offers for the value of an option or argument; files where nothing better is known.

Shells ask a process of their own at every key, so what is imported here is imported late, and little of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ENTRIES_MAX = 2000  # of one directory; the rest is not offered
DEVICES = ("auto", "cpu", "cuda", "mps", "xpu")
CHECKS = (  # of the doctor, whose catalogue takes seconds to import
    "python", "packages", "bytecode", "extras", "device", "memory", "model", "limits", "proxies", "programs",
    "sandbox", "config", "secrets", "directory", "disk", "identity", "log", "daemon", "leftovers",
    "unit", "ports", "announce", "bootstrap", "clock", "rpc", "contract", "account",
)  # fmt: skip
SORTS = ("reward", "wins", "votes", "rounds")


def attach(command: Any) -> None:
    """Have a verb's parameters complete their values, its inner verbs' too."""
    for inner in getattr(command, "commands", {}).values():
        attach(inner)
    for parameter in command.params:
        if (offer := _offer_for(command.name, parameter)) is not None:
            parameter._custom_shell_complete = _completing(offer)


def _offer_for(verb: str | None, parameter: Any) -> Callable[[str], Iterable[str]] | None:
    name, metavar = parameter.opts[0], (parameter.metavar or "").strip("[].")
    found = BY_VERB.get((verb or "", name)) or BY_NAME.get(name) or BY_METAVAR.get(metavar.partition(" ")[0])
    if found is None and parameter.type_descriptor.annotation is Path:
        return files
    return found


def _completing(offer: Callable[[str], Iterable[str]]) -> Callable[[Any, Any, str], list[Any]]:
    from typer._click.shell_completion import CompletionItem

    def complete(context: Any, parameter: Any, incomplete: str) -> list[Any]:
        return [CompletionItem(value) for value in sorted(set(offer(incomplete))) if value.startswith(incomplete)]

    return complete


# --- what is offered ---


def kinds(incomplete: str) -> Iterable[str]:
    """Complete kinds of swarm."""
    from swarmd.swarms.registry import list_kinds

    return [kind.name for kind in list_kinds()]


def presets(incomplete: str) -> Iterator[str]:
    """Models that a new swarm may be given by name: those of the shipped configurations."""
    from swarmd.paths import configs_directory

    yield from ("auto", "embedded")
    for file in configs_directory().glob("*/*.toml"):
        yield file.stem


def charts(incomplete: str) -> Iterable[str]:
    """Complete names of statecharts."""
    from swarmd.core.chart import NAMES

    return NAMES


def event_types(incomplete: str) -> Iterable[str]:
    """Types of events, as a log has them."""
    from typing import get_args

    from swarmd.core.events import Event

    return [each.__struct_config__.tag for each in get_args(Event)]


def settings(incomplete: str) -> Iterator[str]:
    """Keys of the configuration, with the equals sign."""
    import msgspec

    from swarmd.config import Config, section_of

    def keys(kind: Any, before: str) -> Iterator[str]:
        for field in msgspec.structs.fields(kind):
            inner = section_of(field.type)
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                yield from keys(inner, f"{before}{field.name}.")
            else:
                yield f"{before}{field.name}="

    return keys(Config, "")


def files(incomplete: str) -> Iterator[str]:
    """Files and directories; these end in a slash, so that the next key goes on within."""
    for place, shown in _entries(incomplete):
        yield f"{shown}/" if place.is_dir() else shown


def toml_files(incomplete: str) -> Iterator[str]:
    """Directories, and files that end in .toml: configurations and manifests."""
    for shown in files(incomplete):
        if shown.endswith(("/", ".toml")):
            yield shown


def nodes(incomplete: str) -> Iterator[str]:
    """Directories of nodes, where there are any; else all directories."""
    from swarmd.paths import NodeDirectory

    directories = [(place, shown) for place, shown in _entries(incomplete) if place.is_dir()]
    places = [(NodeDirectory(place), shown) for place, shown in directories]
    found = [shown for place, shown in places if place.config.is_file() or place.events.is_dir()]
    yield from found or (f"{shown}/" for _, shown in directories)


def _entries(incomplete: str) -> Iterator[tuple[Path, str]]:
    """What lies where the word points to, as it would be written."""
    head, _, tail = incomplete.rpartition("/")
    before = f"{head}/" if "/" in incomplete else ""
    try:
        with os.scandir(Path(before or ".").expanduser()) as entries:
            for _, entry in zip(range(ENTRIES_MAX), entries, strict=False):
                if entry.name.startswith(tail) and (tail or not entry.name.startswith(".")):
                    yield Path(entry.path), before + entry.name
    except (OSError, RuntimeError):  # RuntimeError: of a user who has no home, or whom there is not
        return


def _fixed(values: Iterable[str]) -> Callable[[str], Iterable[str]]:
    return lambda incomplete: values


BY_VERB: dict[tuple[str, str], Callable[[str], Iterable[str]]] = {
    ("chart", "name"): charts,
    ("local", "--kind"): lambda incomplete: [*kinds(incomplete), *toml_files(incomplete)],
    ("scaffold", "--kind"): _fixed(("file", "plan")),
    ("sim", "--set"): _fixed(()),
    ("init", "--model"): presets,
    ("chart", "--state"): nodes,
}
BY_NAME = {
    "--kind": kinds,
    "--device": _fixed(DEVICES),
    "--dtype": _fixed(("auto", "float32", "bfloat16", "float16")),
    "--only": _fixed(CHECKS),
    "--sort": _fixed(SORTS),
    "--type": event_types,
    "--set": settings,
    "--against": lambda incomplete: [*settings(incomplete), *files(incomplete)],
    "--config": toml_files,
    "--manifest": toml_files,
    "manifest": toml_files,
    "file": files,
}
BY_METAVAR = {"DIR": nodes, "MANIFEST": toml_files, "FILE": files, "KEYSTORE": files}

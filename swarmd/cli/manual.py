"""The manual page and the shells' completion scripts, made from the verbs themselves.

`python -m swarmd.cli.manual DIR` writes `swarmd.1` and `completion/` into DIR; `make packaging` calls it, and CI holds
that what is committed is what it writes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer._completion_shared import get_completion_script

from swarmd.cli import VERBS, load_verb
from swarmd.errors import ExitCode

COMPLETION = {"bash": "swarmd", "zsh": "_swarmd", "fish": "swarmd.fish"}
VARIABLE = "_SWARMD_COMPLETE"
FILES = (
    (
        "/etc/swarmd/node.toml",
        "configuration of the node that swarmd.service runs; swarmd config show explains the keys",
    ),
    ("/var/lib/swarmd", "its data directory: event log, rollouts, checkpoints, identity"),
    ("DIR/run/control.sock", "socket that swarmd status asks, mode 0600"),
)
ENVIRONMENT = (
    ("CREDENTIALS_DIRECTORY", "where the service manager puts what the configuration names as credential:NAME"),
    ("HF_HOME", "where downloaded models and data sets lie"),
    ("CUDA_VISIBLE_DEVICES", "accelerators that the node may use"),
    ("HTTPS_PROXY, HTTP_PROXY, NO_PROXY", "passed on to the workers"),
)


def write_all(directory: Path) -> None:
    """Write the manual page and the completion scripts."""
    scripts = directory / "completion"
    scripts.mkdir(parents=True, exist_ok=True)
    (directory / "swarmd.1").write_text(manual(), encoding="utf-8")
    for shell, name in COMPLETION.items():
        script = get_completion_script(prog_name="swarmd", complete_var=VARIABLE, shell=shell)
        (scripts / name).write_text(script.strip() + "\n", encoding="utf-8")


def manual() -> str:
    """The page in man(7)'s macros."""
    lines = ['.TH SWARMD 1 "" swarmd "swarmd manual"', ".SH NAME"]
    lines.append(r"swarmd \- a node for swarms that train language models with reinforcement learning")
    lines += [".SH SYNOPSIS", ".B swarmd", r"\fIVERB\fR [\fIARGUMENTS\fR]"]
    lines += [".SH VERBS", "Every verb explains itself with", r".BR \-\-help ."]
    for name in VERBS:
        lines += _verb(f"swarmd {name}", load_verb(name))
    lines += [".SH FILES", *_terms(FILES), ".SH ENVIRONMENT", *_terms(ENVIRONMENT)]
    lines += [".SH EXIT STATUS", *_terms(codes()), ".SH SEE ALSO", r".BR systemctl (1),", r".BR journalctl (1)"]
    return "\n".join(lines) + "\n"


def _verb(path: str, command: Any) -> Iterator[str]:
    yield f".SS {_plain(path)}"
    yield from _paragraphs(command.help or "")
    for name, inner in inner_verbs(command):
        yield from _verb(f"{path} {name}", inner)
    yield from _terms((head_of(each), each.help or "") for each in options_of(command))


def inner_verbs(command: Any) -> list[tuple[str, Any]]:
    """Verbs below a verb, by name."""
    return sorted(getattr(command, "commands", {}).items())


def options_of(command: Any) -> list[Any]:
    """Arguments and options that are shown."""
    return [each for each in command.params if not getattr(each, "hidden", False)]


def head_of(parameter: Any) -> str:
    """ "--round N, -r N", or an argument's name."""
    if not getattr(parameter, "opts", None) or not parameter.opts[0].startswith("-"):
        return str(parameter.metavar or parameter.name.upper())
    value = "" if parameter.is_flag else " " + (parameter.metavar or parameter.name.rstrip("_")).upper()
    return ", ".join(f"{option}{value}" for option in (*parameter.opts, *parameter.secondary_opts))


def _terms(pairs: Any) -> Iterator[str]:
    for head, text in pairs:
        yield from (".TP", rf"\fB{_plain(head)}\fR", _plain(re.sub(r"\s+", " ", text).strip()) or r"\&")


def _paragraphs(text: str) -> Iterator[str]:
    for index, paragraph in enumerate(re.split(r"\n\s*\n", text.strip())):
        yield from (".PP",) if index else ()
        yield _plain(re.sub(r"\s+", " ", paragraph).strip())


def _plain(text: str) -> str:
    """Text that troff takes as it is; a dot or quote at a line's front would be a request."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped[:1] in (".", "'") else escaped


def codes() -> Iterator[tuple[str, str]]:
    """Exit codes by name, as in errors.py; docs/OPERATING.md says what to do about each."""
    for name, value in vars(ExitCode).items():
        if isinstance(value, int):
            yield str(value), name.lower().replace("_", " ")


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))

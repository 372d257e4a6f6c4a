"""`swarmd config`: check a configuration file, or show what is in force and where each value comes from."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import tomlkit
import typer
from tomlkit.container import Container
from tomlkit.items import Table

from swarmd.cli.handed_out import check_trainable, print_untried_reason
from swarmd.config import Config, Section, SwarmConfig, load_config, read_config_text
from swarmd.doctor.node import check_usable_config
from swarmd.manifest import add_comment
from swarmd.observe.redaction import Redactor, secrets_outside_files
from swarmd.toml_text import parse_toml
from swarmd.training.models.source import require_model

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Check a configuration file or show the settings in force."
)

DEFAULTS = Config(SwarmConfig(id="example"))


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="The TOML file.")],
    elsewhere: Annotated[
        bool,
        typer.Option("--elsewhere", help="The file is for another machine: check no device, model or questions."),
    ] = False,
) -> None:
    """Check a file strictly: unknown keys, wrong types and values out of range are errors that name the key.

    The model has to be on this machine or else on the Hub, and a named device has to be here. A model directory must
    have a tokenizer and a chat template that takes the questions, an architecture that transformers knows and that
    continues texts, exactly its weights, room for a prompt and its completion, and the layers that adapters are to
    train. A file of questions must be one that its kind can train on, and right answers to a sample of them must be
    paid. With --elsewhere none of these is checked.
    """
    config = load_config(file)
    untried = check_usable_config(config, file.parent / config.data, elsewhere)
    if not elsewhere:
        if config.training.device not in ("auto", "cpu"):
            from swarmd.training.models.device import choose_device  # loads torch

            choose_device(config.training.device)
        require_model(config.training)
        check_trainable(config.training, config.swarm)
    typer.echo(f"{file}: valid, {config.role} of swarm {config.swarm.id}, kind {config.swarm.kind}")
    print_untried_reason(untried)


@app.command()
def show(file: Annotated[Path | None, typer.Argument(help="The TOML file; without it, the defaults.")] = None) -> None:
    """Print the whole configuration as TOML, each value with its origin: the file or the default."""
    if file is None:
        typer.echo(render_config(DEFAULTS, {"swarm": {"id": ""}}, "required"), nl=False)
        return
    config = load_config(file)
    typer.echo(render_config(config, parse_toml(read_config_text(file)), file.name), nl=False)


def render_config(config: Config, given: dict[str, Any], origin: str) -> str:
    """All keys as TOML, tables last. Values in `given` are commented with `origin`, the others as defaults."""
    document, cover = tomlkit.document(), Redactor(secrets_outside_files(config, {}))
    _fill_table(document, config, given, origin, cover)
    return tomlkit.dumps(document)


def _fill_table(
    table: Container | Table, section: Section, given: dict[str, Any], origin: str, cover: Redactor
) -> None:
    fields = {key: value for key, value in msgspec.structs.asdict(section).items() if value is not None}
    for key, value in fields.items():
        if not isinstance(value, Section):
            plain = cover.redact_known(msgspec.to_builtins(value, builtin_types=()))
            table.add(key, add_comment(plain, origin if key in given else "default"))
    for key, value in fields.items():
        if isinstance(value, Section):
            inner = tomlkit.table()
            _fill_table(inner, value, given.get(key, {}), origin, cover)
            table.add(key, inner)

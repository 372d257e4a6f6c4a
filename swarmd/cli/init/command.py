"""`swarmd init`: asks what a node is to be, and makes it. Each answer is a flag and an environment variable, too.

What makes the node is `swarmd swarm new` and `swarmd join`. Nothing that exists is changed, and no secret is taken from
a command line.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swarmd.cli.init.answers import TOKEN_NAME, Answers, Asker
from swarmd.cli.node.directory import NewNode, put_private
from swarmd.config import load_config
from swarmd.errors import ExitCode
from swarmd.paths import CONFIG, quoted

if TYPE_CHECKING:
    from swarmd.cli.init.profiles import ProfileFit

PREFIX = "SWARMD_INIT_"


def _option(name: str, help: str, **rest: Any) -> Any:
    return typer.Option(f"--{name}", envvar=f"{PREFIX}{name.upper().replace('-', '_')}", help=help, **rest)


def init(
    directory: Annotated[Path | None, _option("dir", "Directory of the node; made when missing.")] = None,
    manifest: Annotated[
        Path | None, _option("manifest", "Join the swarm of this manifest.", metavar="MANIFEST")
    ] = None,
    swarm: Annotated[str | None, _option("swarm", "Make a swarm of this name.", metavar="NAME")] = None,
    kind: Annotated[str | None, _option("kind", "What a new swarm trains, see `swarmd swarm list`.")] = None,
    model: Annotated[
        str | None,
        _option("model", "Of a new swarm: auto, embedded, a size in billions, or a name in configs/KIND/."),
    ] = None,
    rpc: Annotated[
        list[str] | None, _option("rpc", "Endpoint of the chain that keeps the rounds; file:PATH for a file of them.")
    ] = None,
    announce: Annotated[
        str | None, _option("announce", "Address that other machines reach this one under, /ip4/192.0.2.1/tcp/38331.")
    ] = None,
    name: Annotated[str | None, _option("name", "Shown to others on the leaderboard.")] = None,
    device: Annotated[str | None, _option("device", "auto, cpu, cuda, mps or xpu.")] = None,
    processes: Annotated[int | None, _option("processes", "Trainer processes, one on each GPU.", min=1)] = None,
    hub_repo: Annotated[
        str | None, _option("hub-repo", 'Push the model to the Hugging Face Hub: "user/name", or "user/".')
    ] = None,
    hub_token_file: Annotated[
        Path | None,
        _option("hub-token-file", "Private file with the Hub's token; else HF_TOKEN, or it is asked for."),
    ] = None,
    web: Annotated[str | None, _option("web", "Where the node's page listens: 127.0.0.1:8800; empty for none.")] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", envvar=f"{PREFIX}YES", help="Ask nothing, take defaults.")
    ] = False,
    examine: Annotated[bool, typer.Option(help="At the end, examine the node as `swarmd doctor --offline`.")] = True,
) -> int:
    """Make a node: a swarm of one's own, or one that joins. Asks for what no flag and no SWARMD_INIT_ variable says."""
    asker = Asker(silent=yes, terminal=sys.stdin.isatty())
    root = directory or Path(asker.ask("Directory of the node", "swarmd-node", "--dir"))
    if (root / CONFIG).exists():
        _refuse_other_swarm(root, manifest, swarm)
        typer.echo(f"{root / CONFIG}: there is a node already, nothing was changed")
    else:
        given = Answers(
            root=root,
            manifest=manifest,
            swarm=swarm,
            kind=kind,
            model=model,
            rpc=rpc,
            announce=announce,
            name=name,
            device=device,
            processes=processes,
            hub_repo=hub_repo,
            hub_token_file=hub_token_file,
            web=web,
        )
        _make(given, asker)
    return finish(root, examine)


def _refuse_other_swarm(root: Path, manifest: Path | None, name: str | None) -> None:
    """Raise OtherSwarm where the node that is there is not of the swarm that was asked for."""
    from swarmd.cli.swarm.new import swarm_id
    from swarmd.daemon.swarm_check import SwarmName, swarm_of_config, swarm_of_manifest
    from swarmd.manifest import read_manifest

    there = load_config(root / CONFIG)
    asked = swarm_of_config(there)
    if manifest is not None:
        asked = swarm_of_manifest(read_manifest(manifest))
    elif name is not None:
        asked = SwarmName(swarm_id(name, there.dht.peer))
    NewNode(root).existing(asked)


def _make(given: Answers, asker: Asker) -> None:
    """Ask what is left to ask, then make the node by the verb that does so."""
    answers = given.complete(asker)
    token = answers.take_token(asker)
    if answers.manifest is not None:
        _join(answers)
    else:
        _found(answers, asker)
    if token:
        _keep_token(answers, token)
    amend_config(answers.root / CONFIG, answers.amendments())


def _join(answers: Answers) -> None:
    from swarmd.cli.swarm.join import join

    assert answers.manifest is not None
    _rehearse(answers, answers.manifest)
    join(
        answers.manifest,
        directory=answers.root,
        name=answers.name or "",
        announce=[answers.announce] if answers.announce else None,
        rpc=answers.rpc or None,
    )


def _rehearse(answers: Answers, path: Path) -> None:
    """Make the configuration of somebody who joins, in memory: what it cannot hold is told before there is a node,
    which the next run would leave as it is. Raises ConfigError, ManifestError.
    """
    from swarmd.dht.identity.identity import generate_identity
    from swarmd.manifest import NodeChoice, node_text, read_manifest

    manifest = read_manifest(path)
    rpc = tuple(answers.rpc or (manifest.chain.rpc if manifest.chain else ()))
    text = node_text(manifest, NodeChoice(generate_identity().peer_id, rpc=rpc))
    amended(text, answers.amendments(), answers.root / CONFIG)


def _found(answers: Answers, asker: Asker) -> None:
    """Make a swarm of a shipped configuration, in which one model has the place of a pool."""
    from swarmd.cli.init.profiles import base_text, stage_seconds
    from swarmd.cli.swarm.new import new

    kind = answers.kind or "digits"
    chosen = choose_model(answers, kind, asker)
    changes = {"device": answers.device or "auto"} | ({"processes": answers.processes} if answers.processes else {})
    with tempfile.TemporaryDirectory(prefix="swarmd-init-") as place:
        base = Path(place) / CONFIG
        base.write_text(base_text(kind, chosen, **changes), encoding="utf-8")
        config = load_config(base)
        new(
            answers.swarm or "my swarm",
            directory=answers.root,
            config=base,
            announce=[answers.announce] if answers.announce else None,
            rpc=answers.rpc or None,
            stage_seconds=stage_seconds(config),
            yes=asker.silent,
        )


def choose_model(answers: Answers, kind: str, asker: Asker) -> ProfileFit:
    """Weigh what is shipped for the kind, and take what fits. Raises ConfigError."""
    from swarmd.cli.init.profiles import SMALL, ProfileFit, line_of, list_profiles, pick, weigh_profiles, with_device
    from swarmd.doctor.children import ProbeQuestion, ask_torch

    profiles = list_profiles(kind)
    wanted = answers.model or ("" if asker.asks else SMALL)
    if wanted == SMALL:
        return ProfileFit(profiles[0], None, 0)
    typer.echo("looking at what fits on this machine ...")
    device = answers.device or "auto"
    said = asyncio.run(ask_torch([ProbeQuestion(with_device(each.training, device)) for each in profiles]))
    weighed = weigh_profiles(profiles, said)
    if not wanted:
        for each in weighed:
            typer.echo(f"  {line_of(each)}")
        wanted = asker.ask("Model (auto: the largest that fits)", SMALL, "--model")
    return pick(wanted, weighed)


def _keep_token(answers: Answers, token: str) -> None:
    """Into a private file in the data directory; one that is there is kept."""
    from swarmd.results.hub import TOKEN
    from swarmd.secret_files import write_secret

    path = answers.root / TOKEN_NAME
    if path.exists():
        typer.echo(f"{path}: exists, kept as it is")
        return
    write_secret(path, f"{token}\n".encode(), TOKEN)
    typer.echo(f"{path}: written, mode 0600")


def amend_config(path: Path, amendments: dict[str, Any]) -> None:
    """Put keys into a configuration that was just made. Raises ConfigError where one is wrong."""
    from swarmd.config import read_config_text

    if not amendments:
        return
    put_private(path, amended(read_config_text(path), amendments, path))
    typer.echo(f"{path}: {', '.join(amendments)} set")


def amended(text: str, amendments: dict[str, Any], path: Path) -> str:
    """A configuration's text with keys put in; its comments stay. Raises ConfigError where one is wrong."""
    import tomlkit

    from swarmd.cli.local_swarm.layout import fill_in
    from swarmd.config import parse_config

    document = tomlkit.parse(text)
    for dotted, value in amendments.items():
        fill_in(document, dotted, value)
    text = tomlkit.dumps(document)
    parse_config(text, str(path))
    return text


def finish(root: Path, examine: bool) -> int:
    """Check the configuration, examine the node without the network, and say what comes next."""
    from swarmd.cli.config import check

    path = root / CONFIG
    check(path, elsewhere=True)  # the doctor says what is to be downloaded
    code = _examine(path) if examine else 0
    typer.echo(f"\nrun it now:          swarmd run --config {quoted(path)}")
    typer.echo(f"or as a service:     swarmd service install --config {quoted(path)}")
    typer.echo(f"look at it any time: swarmd doctor {quoted(root)}")
    return code


def _examine(path: Path) -> int:
    from swarmd.cli.inspect.doctor import examine_visibly, print_report
    from swarmd.doctor.checks import CHECKS
    from swarmd.doctor.examination import Subject

    report = examine_visibly(Subject(path, offline=True), [check.name for check in CHECKS])
    typer.echo("")
    print_report(report, brief=True)
    return ExitCode.UNFIT if report.verdict == "error" else 0

"""`swarmd init`: asks what a node is to be, and makes it. Each answer is a flag and an environment variable, too.

- What makes the node is `swarmd swarm new` and `swarmd join`. Nothing that exists is changed, and no secret is taken
  from a command line.
- A new swarm begins with one of the shipped configurations: a kind, a model, and whether it fits here.
- Of the kind `file` the questions are the creator's own, and so may the model be. Where their answers are numbers, the
  last number of a completion is compared with them, else what stands between answer tags.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import tomlkit
import typer

from swarmd.cli.directory import NewNode, put_private
from swarmd.cli.fit import device_named
from swarmd.cli.new import CREATOR, new, swarm_id
from swarmd.cli.options import ask_hidden
from swarmd.config import SwarmConfig, TrainingConfig, check_name, load_config, parse_config, read_config_text
from swarmd.dht.wire.addresses import is_address, suggest_address
from swarmd.errors import ConfigError, ExitCode, NotFoundError, SwarmError
from swarmd.http_server import PAGE_PORT, is_loopback, parse_listen
from swarmd.paths import CONFIG, configs_directory, quoted
from swarmd.results.hub import TOKEN as KIND
from swarmd.results.hub import check_repo
from swarmd.secret_files import Secret, read_secret, write_secret

if TYPE_CHECKING:
    from swarmd.doctor.children import ModelFit, ProbeAnswer


SMALL = "embedded"  # the profile of a model that is shipped, which every kind has
SIZE = re.compile(r"-(\d+(?:\.\d+)?)b$")  # of a profile's name: cuda-1.5b
GIB = 2**30
OTHERS = ("coordinator", "follower")


class InitProfile(NamedTuple):
    """A shipped configuration to start from. `path` is None where the kind's defaults are meant."""

    name: str
    path: Path | None
    training: TrainingConfig

    @property
    def model(self) -> str:
        return self.training.model

    @property
    def device(self) -> str:
        return self.name.partition("-")[0] if self.name != SMALL else "any"

    @property
    def size(self) -> str:
        """Billions of parameters as the name has them; empty where it has none."""
        found = SIZE.search(self.name)
        return found[1] if found else ""


class ProfileFit(NamedTuple):
    """A profile, and what its model takes here."""

    profile: InitProfile
    chosen: ModelFit | None  # the model that fits, of a pool the largest; None where none does
    need: int  # bytes, of that or of the least of the pool
    why: str = ""


def list_profiles(kind: str) -> list[InitProfile]:
    """The one of a shipped model first, then the shipped configurations of a kind."""
    home = configs_directory() / kind
    base = home / "coordinator.toml"
    shipped = base if base.is_file() else None
    small = InitProfile(SMALL, shipped, load_config(shipped).training if shipped else TrainingConfig())
    files = sorted(path for path in home.glob("*.toml") if path.stem not in OTHERS and SMALL not in path.stem)
    profiles = [InitProfile(path.stem, path, load_config(path).training) for path in files]
    return [small, *sorted(profiles, key=lambda each: (each.device, float(each.size or 0)))]


def weigh_profiles(profiles: Sequence[InitProfile], answers: Sequence[ProbeAnswer]) -> list[ProfileFit]:
    """What torch said about each profile's training."""
    return [_weigh(profile, answer) for profile, answer in zip(profiles, answers, strict=True)]


def _weigh(profile: InitProfile, answer: ProbeAnswer) -> ProfileFit:
    if answer.fault or not answer.weighed:
        return ProfileFit(profile, None, 0, answer.fault or answer.unknown or "its size is not known")
    fitting = [each for each in answer.weighed if each.fits]
    if fitting:
        chosen = max(fitting, key=lambda each: each.need)
        return ProfileFit(profile, chosen, chosen.need)
    least = min(answer.weighed, key=lambda each: each.need)
    return ProfileFit(profile, None, least.need, least.why or "it does not fit")


def pick(wanted: str, weighed: Sequence[ProfileFit]) -> ProfileFit:
    """The profile that is meant: by name, by size in billions, or `auto` for the largest that fits.

    Raises ConfigError where there is none, or it does not fit here.
    """
    if wanted == "auto":
        return max((each for each in weighed if each.chosen), key=lambda each: each.need, default=weighed[0])
    meant = [each for each in weighed if wanted in (each.profile.name, each.profile.size, each.profile.model)]
    if not meant:
        names = ", ".join(each.profile.name for each in weighed)
        raise ConfigError(f"there is no model {wanted!r} for this kind of swarm", f"There are auto, {names}")
    fitting = [each for each in meant if each.chosen]
    if not fitting:
        raise ConfigError(
            f"{meant[0].profile.model} cannot be trained here: {meant[0].why}",
            'Choose a smaller one or "auto"; `swarmd model fit` shows what fits',
        )
    return fitting[0]


def line_of(weighing: ProfileFit) -> str:
    """One line for people."""
    profile = weighing.profile
    model = weighing.chosen.model if weighing.chosen else profile.model
    fits = "fits" if weighing.chosen else f"does not fit: {weighing.why}"
    return f"{profile.name:14} {model:40} {weighing.need / GIB:6.1f} GiB  {fits}"


def base_text(kind: str, weighing: ProfileFit, questions: OwnQuestions | None = None, **changes: Any) -> str:
    """A coordinator's configuration to make a swarm of: the profile's, with one model in place of a pool.

    The changes are to further keys of [training]; `questions` take the place of the kind's.
    """
    path = weighing.profile.path
    document = tomlkit.parse(read_config_text(path)) if path else tomlkit.document()
    document["role"] = "coordinator"
    document.pop("name", None)  # of the node that the profile was written for
    swarm: Any = document.setdefault("swarm", tomlkit.table())
    swarm.pop("coordinator", None)
    swarm.update({"id": "swarm", "kind": kind})
    if questions is not None:
        document["data"] = str(questions.file.absolute().parent)
        swarm["options"] = {"data": questions.file.name, **ANSWERS[questions.answer]}
    for table, key in (("dht", "bootstrap"), ("dht", "listen"), ("dht", "announce")):
        part: Any = document.get(table)
        if part is not None:
            part.pop(key, None)
    training: Any = document.setdefault("training", tomlkit.table())
    training.pop("pool", None)
    model = weighing.chosen.model if weighing.chosen else weighing.profile.model
    training.update({"model": model, **changes})
    return tomlkit.dumps(document)


# Where a completion has its answer: settings of the kind `file`, the first that pays right answers being offered.
ANSWERS: dict[str, dict[str, Any]] = {
    "last-number": {"answer": "last-number", "rewards": [{"name": "numeric", "weight": 1.0}]},
    "tags": {"answer": "tags"},
    "boxed": {"answer": "boxed"},
    "last-line": {"answer": "last-line"},
    "whole": {"answer": "whole"},
}
# For a model that was trained before: configs/file has those of a tiny one.
PRETRAINED = {"steps": 4, "completion_tokens": 256, "learning_rate": 1e-6}


class OwnQuestions(NamedTuple):
    """A file of questions, and where completions have their answers, a key of `ANSWERS`."""

    file: Path
    answer: str


def offer_answers(questions: Path) -> tuple[str, ...]:
    """Where answers may stand, the likeliest first. Raises NotFoundError, ConfigError, SwarmError."""
    from swarmd.swarms.registry import check_questions

    if not questions.is_file():
        fix = 'Name yours with --questions: one {"prompt": "...", "answer": "..."} a line'
        raise NotFoundError(f"there is no file of questions {questions}", fix)
    if questions.suffix != ".jsonl":
        raise ConfigError(
            f"{questions} does not end in .jsonl: one JSON object a line is asked for",
            "Of a CSV, Parquet file or data set of the Hub docs/swarms/file.md makes one (`dataset`)",
        )
    refused = None
    for place, settings in ANSWERS.items():
        swarm = SwarmConfig("swarm", kind=FILE, options={"data": questions.name, **settings})
        try:
            check_questions(swarm, TrainingConfig(), questions.absolute().parent)
        except SwarmError as error:
            refused = error
        else:
            return (place, *(each for each in ANSWERS if each != place))
    raise refused or ConfigError("no answer is known")


DEVICES = ("auto", "cpu", "cuda", "mps", "xpu")
OWN, JOIN = "new", "join"
FILE = "file"  # the kind whose questions lie in a file of the creator's own
TOKEN = re.compile(r"[!-~]{8,512}")
TOKEN_FIX = "Make one that may write at huggingface.co/settings/tokens"
TOKEN_NAME = "hub.token"  # in the data directory


class Asker:
    """Asks where there is a terminal; `silent` takes every default (--yes)."""

    def __init__(self, silent: bool, terminal: bool) -> None:
        self.silent = silent
        self._terminal = terminal

    @property
    def asks(self) -> bool:
        return self._terminal and not self.silent

    def ask(self, question: str, default: str, flag: str) -> str:
        """The answer. Raises ConfigError where there is nobody to ask and defaults were not asked for."""
        if self.silent:
            return default
        self.need_terminal(flag)
        return str(typer.prompt(question, default=default, show_default=bool(default)))

    def choose(self, question: str, choices: tuple[str, ...], flag: str) -> str:
        """One of the choices, the first by default."""
        if self.silent:
            return choices[0]
        while True:
            answer = self.ask(f"{question} ({', '.join(choices)})", choices[0], flag)
            if answer in choices:
                return answer
            typer.echo(f"  {answer!r} is none of them")

    def need_terminal(self, flag: str) -> None:
        if not self._terminal:
            raise ConfigError(f"there is no terminal to ask at, and {flag} is not given", "Add --yes to take defaults")


class Answers(NamedTuple):
    """What is known so far; None is what nobody has said."""

    root: Path
    manifest: Path | None
    swarm: str | None
    kind: str | None
    questions: Path | None
    answer: str | None
    model: str | None
    rpc: list[str] | None
    announce: str | None
    name: str | None
    device: str | None
    processes: int | None
    hub_repo: str | None
    hub_token_file: Path | None
    web: str | None

    def complete(self, asker: Asker) -> Answers:
        """Ask for the rest. Raises ConfigError for answers that do not go together."""
        answers = self._choose_swarm(asker)
        answers = answers._complete_new(asker) if answers.manifest is None else answers
        answers = answers._complete_own(asker)
        answers._check()
        return answers

    def _choose_swarm(self, asker: Asker) -> Answers:
        if self.manifest is not None and self.swarm is not None:
            raise ConfigError(
                "both --manifest and --swarm were given", "Leave out --swarm to join, or --manifest to begin one"
            )
        if self.manifest is None and self.swarm is None:
            if asker.choose("A swarm of your own, or join one", (OWN, JOIN), "--manifest or --swarm") == JOIN:
                path = Path(asker.ask("Its manifest, the file that its creator handed out", "swarm.toml", "--manifest"))
                return self._replace(manifest=path)._with_manifest()
            return self._replace(swarm=asker.ask("Name of your swarm", "my swarm", "--swarm"))
        return self._with_manifest() if self.manifest is not None else self

    def _with_manifest(self) -> Answers:
        assert self.manifest is not None
        if not self.manifest.is_file():
            raise NotFoundError(f"there is no manifest {self.manifest}", "Ask the swarm's creator for the file")
        if self.kind or self.model or self.questions or self.answer:
            raise ConfigError(
                "--kind, --questions, --answer and --model are for a swarm of one's own",
                "Leave them out: the manifest says what is trained",
            )
        return self

    def _complete_new(self, asker: Asker) -> Answers:
        from swarmd.swarms.registry import BUILT_IN, find_kind

        question = f"What is to be trained; {FILE}: your own questions"
        kind = self.kind or (FILE if self.questions else asker.choose(question, tuple(BUILT_IN), "--kind"))
        find_kind(kind)
        answers = self._replace(kind=kind)._complete_questions(asker)
        announce, rpc = self.announce, self.rpc
        if announce is None:
            question = "Address that other machines reach this one under (empty: only this machine joins)"
            announce = asker.ask(question, "", "--announce")
        if rpc is None:
            url = asker.ask("Endpoint of a chain that is to keep the rounds (empty: none, the DHT alone)", "", "--rpc")
            rpc = [url] if url else []
        return answers._replace(announce=announce, rpc=rpc)

    def _complete_questions(self, asker: Asker) -> Answers:
        """What the kind `file` has to know."""
        if self.kind != FILE:
            if self.questions or self.answer:
                raise ConfigError("--questions and --answer are for the kind 'file'", "Give --kind file")
            return self
        asked = 'Your questions, a file with one {"prompt": "...", "answer": "..."} a line'
        questions = self.questions or Path(asker.ask(asked, "questions.jsonl", "--questions"))
        places = offer_answers(questions)
        answer = self.answer or asker.choose("Where a completion has its answer", places, "--answer")
        if answer not in places:
            raise ConfigError(f"--answer {answer}: no answer stands there", f"Choose one of {', '.join(places)}")
        asked = "Model: a directory, an id of the Hugging Face Hub, or embedded, a tiny one"
        model = self.model or asker.ask(asked, SMALL, "--model")
        return self._replace(questions=questions, answer=answer, model=model)

    def _complete_own(self, asker: Asker) -> Answers:
        name = self.name
        if name is None:
            question = "Name on the leaderboard" if self.manifest is None else "Name on the leaderboard (empty: none)"
            name = asker.ask(question, CREATOR if self.manifest is None else "", "--name")
        device = self.device or asker.choose("Device to train on", DEVICES, "--device")
        repo = self.hub_repo
        if repo is None:
            question = "Push the model to the Hugging Face Hub? user/name, or user/ (empty: no)"
            repo = asker.ask(question, "", "--hub-repo")
        return self._replace(name=name, device=device, hub_repo=repo)

    def _check(self) -> None:
        if self.device not in DEVICES:
            raise ConfigError(f"there is no device {self.device!r}", f"Choose one of {', '.join(DEVICES)}")
        check_name(self.name or "", "--name")
        if self.announce and not is_address(self.announce):
            raise ConfigError(f"{self.announce!r} is no address", suggest_address(self.announce))
        if self.hub_repo:
            check_repo(self.hub_repo, "--hub-repo")
        if self.web and not is_loopback(parse_listen(self.web, PAGE_PORT, "--web").host):
            raise ConfigError(
                f"--web {self.web}: other machines could reach the page there, and it would ask for no token",
                f"Give 127.0.0.1:{PAGE_PORT}; web.listen and web.token of the configuration can open it afterwards",
            )

    def take_token(self, asker: Asker) -> str:
        """The Hub's token: from a private file, HF_TOKEN or an answer; empty without --hub-repo. Raises ConfigError."""
        if not self.hub_repo:
            return ""
        if self.hub_token_file is not None:
            token = read_secret(Secret(self.hub_token_file), KIND).decode("ascii", "replace").strip()
        elif os.environ.get("HF_TOKEN"):
            token = os.environ["HF_TOKEN"].strip()
        else:
            asker.need_terminal("--hub-token-file")
            token = ask_hidden("Token of the Hub (is not shown)").strip()
        if not TOKEN.fullmatch(token):
            raise ConfigError("this is no token of the Hub: one word of 8 characters or more expected", TOKEN_FIX)
        return token

    def amendments(self) -> dict[str, Any]:
        """Keys of the configuration that `join` and `swarm new` do not ask for."""
        found: dict[str, Any] = {}
        if self.name and (self.manifest is not None or self.name != CREATOR):
            found["name"] = self.name
        if self.manifest is not None and self.device not in (None, "auto"):
            found["training.device"] = self.device
        if self.manifest is not None and self.processes:
            found["training.processes"] = self.processes
        if self.hub_repo:
            found |= {"results.hub.repo": self.hub_repo, "results.hub.token": TOKEN_NAME}
        if self.web:
            found["web.listen"] = self.web
        return found


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
    questions: Annotated[
        Path | None, _option("questions", "Of the kind file: one JSON object with prompt and answer a line.")
    ] = None,
    answer: Annotated[
        str | None, _option("answer", f"Of the kind file, where a completion has its answer: {', '.join(ANSWERS)}.")
    ] = None,
    model: Annotated[
        str | None,
        _option(
            "model",
            "Of a new swarm: auto, embedded, a size in billions, or a name in configs/KIND/; of the kind file a "
            "directory or an id of the Hub.",
        ),
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
            questions=questions,
            answer=answer,
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
    from swarmd.daemon.directory import SwarmName, swarm_of_config, swarm_of_manifest
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
    from swarmd.cli.join import join

    answers = given.complete(asker)
    token = answers.take_token(asker)
    if answers.manifest is not None:
        _rehearse(answers, answers.manifest)
        join(
            answers.manifest,
            directory=answers.root,
            name=answers.name or "",
            announce=[answers.announce] if answers.announce else None,
            rpc=answers.rpc or None,
        )
    else:
        _found(answers, asker)
    if token:
        _keep_token(answers, token)
    path, amendments = answers.root / CONFIG, answers.amendments()
    if amendments:
        put_private(path, amended(read_config_text(path), amendments, path))
        typer.echo(f"{path}: {', '.join(amendments)} set")


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
    kind = answers.kind or "digits"
    chosen = choose_model(answers, kind, asker)
    changes: dict[str, Any] = {"device": answers.device or "auto"}
    changes |= {"processes": answers.processes} if answers.processes else {}
    own = OwnQuestions(answers.questions, answers.answer or "") if answers.questions else None
    if own is not None and chosen.profile.model != SMALL:
        changes |= PRETRAINED
    with tempfile.TemporaryDirectory(prefix="swarmd-init-") as place:
        base = Path(place) / CONFIG
        base.write_text(base_text(kind, chosen, own, **changes), encoding="utf-8")
        new(
            answers.swarm or "my swarm",
            directory=answers.root,
            config=base,
            announce=[answers.announce] if answers.announce else None,
            rpc=answers.rpc or None,
            yes=asker.silent,
        )


def choose_model(answers: Answers, kind: str, asker: Asker) -> ProfileFit:
    """Weigh what is shipped for the kind, and take what fits. Raises ConfigError."""
    from swarmd.doctor.children import ProbeQuestion, ask_torch

    profiles = list_profiles(kind)
    wanted = answers.model or ("" if asker.asks else SMALL)
    if wanted == SMALL:
        return ProfileFit(profiles[0], None, 0)
    if kind == FILE:
        small = profiles[0]
        return ProfileFit(small._replace(training=msgspec.structs.replace(small.training, model=wanted)), None, 0)
    typer.echo("looking at what fits on this machine ...")
    device = answers.device or "auto"
    there: dict[str, Any] = {} if device == "auto" else {"device": device_named(device)}
    questions = [ProbeQuestion(msgspec.structs.replace(each.training, **there)) for each in profiles]
    said = asyncio.run(ask_torch(questions))
    weighed = weigh_profiles(profiles, said)
    if not wanted:
        for each in weighed:
            typer.echo(f"  {line_of(each)}")
        wanted = asker.ask("Model (auto: the largest that fits)", SMALL, "--model")
    return pick(wanted, weighed)


def _keep_token(answers: Answers, token: str) -> None:
    """Into a private file in the data directory; one that is there is kept."""
    path = answers.root / TOKEN_NAME
    if path.exists():
        typer.echo(f"{path}: exists, kept as it is")
        return
    write_secret(path, f"{token}\n".encode(), KIND)
    typer.echo(f"{path}: written, mode 0600")


def amended(text: str, amendments: dict[str, Any], path: Path) -> str:
    """A configuration's text with keys put in; its comments stay. Raises ConfigError where one is wrong."""

    from swarmd.cli.local_swarm import fill_in

    document = tomlkit.parse(text)
    for dotted, value in amendments.items():
        fill_in(document, dotted, value)
    text = tomlkit.dumps(document)
    parse_config(text, str(path))
    return text


def finish(root: Path, examine: bool) -> int:
    """Check the configuration, examine the node without the network, and say what comes next."""
    from swarmd.cli.config import check
    from swarmd.cli.doctor import examine_visibly, print_report
    from swarmd.doctor.checks import CHECKS
    from swarmd.doctor.examination import Subject

    path, code = root / CONFIG, 0
    check(path, elsewhere=True)  # the doctor says what is to be downloaded
    if examine:
        report = examine_visibly(Subject(path, offline=True), CHECKS)
        typer.echo("")
        print_report(report, brief=True)
        code = ExitCode.UNFIT if report.verdict == "error" else 0
    typer.echo(f"\nrun it now:          swarmd run --config {quoted(path)}")
    typer.echo(f"or as a service:     swarmd service install --config {quoted(path)}")
    typer.echo(f"look at it any time: swarmd doctor {quoted(root)}")
    return code

"""`swarmd init`: an interactive set-up of a node. Each answer can also be given as an option or an environment
variable.

- `swarmd swarm new` and `swarmd join` create the node. Nothing that exists is changed, and secrets are never taken from
  the command line.
- A new swarm starts from a shipped configuration: a kind, and a model that fits this machine.
- With the kind `file` the creator brings the questions, and possibly the model. Numeric answers are compared with the
  last number of a completion, others with the text between answer tags.
- The resulting configuration is checked in memory first, so that a wrong answer leaves nothing behind.
"""

import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

import msgspec
import tomlkit
import typer

from swarmd.cli.config import check
from swarmd.cli.directory import NodeCreator, write_private_if_absent
from swarmd.cli.doctor import print_report, run_checks_with_progress
from swarmd.cli.join import join
from swarmd.cli.local_swarm import set_dotted_key
from swarmd.cli.model import GIB, estimate_fits
from swarmd.cli.new import CREATOR, new, swarm_id
from swarmd.cli.options import ask_hidden, check_multiaddrs
from swarmd.config import Device, SwarmConfig, TrainingConfig, check_name, load_config, parse_config, read_config_text
from swarmd.daemon.directory import SwarmIdentity, swarm_of_config, swarm_of_manifest
from swarmd.dht.identity.identity import generate_identity
from swarmd.doctor.examination import Subject
from swarmd.errors import ConfigError, ExitCode, ModelError, NotFoundError, SwarmError
from swarmd.http_server import PAGE_PORT, is_loopback, parse_listen
from swarmd.manifest import NodeChoice, make_config_text, read_manifest
from swarmd.paths import CONFIG, configs_directory, quote_for_shell
from swarmd.results.hub import TOKEN as KIND
from swarmd.results.hub import check_repo
from swarmd.secret_files import Secret, read_secret, write_secret
from swarmd.swarms.registry import BUILT_IN, find_kind
from swarmd.swarms.truths import check_questions
from swarmd.training.library_logging import silence_libraries
from swarmd.training.models.source import AUTO

SMALL = "embedded"  # profile of a shipped model, which every kind has
OTHERS = ("coordinator", "follower")


class ProfileFit(NamedTuple):
    """A shipped configuration, and the memory that training its model takes here. `path` is None for the kind's
    defaults. `model`: for a pool, the largest that fits, or else the smallest."""

    name: str
    path: Path | None
    model: str
    need: int = 0  # bytes of memory
    why: str = ""  # why it does not fit; empty if it does


def list_profiles(kind: str) -> dict[str, Path | None]:
    """A kind's shipped configurations by name; first the one with a shipped model."""
    home = configs_directory() / kind
    base = home / "coordinator.toml"
    others = sorted(path for path in home.glob("*.toml") if path.stem not in OTHERS and SMALL not in path.stem)
    return {SMALL: base if base.is_file() else None, **{path.stem: path for path in others}}


def read_profile_training(path: Path | None) -> TrainingConfig:
    return load_config(path).training if path else TrainingConfig()


def estimate_profile_fit(name: str, path: Path | None, device: Device | None) -> ProfileFit:
    """Estimate the memory of a profile's model, as `swarmd model fit` does, on `device` instead of the profile's."""
    training = read_profile_training(path)
    pool = training.pool if training.model == AUTO else (training.model,)
    training = msgspec.structs.replace(training, device=device or training.device, pool=pool)
    try:
        _, fits, _ = estimate_fits(training, name)
    except (ConfigError, ModelError) as error:
        return ProfileFit(name, path, training.model, why=error.message)
    chosen = max(fits, key=lambda each: each.need.total if each.fits_memory else -each.need.total)
    return ProfileFit(name, path, chosen.model.name, chosen.need.total, chosen.why)


def select_profile(wanted: str, weighed: Sequence[ProfileFit]) -> ProfileFit:
    """The profile of that name or size in billions; `auto`: the largest that fits. Raises ConfigError if there is
    none."""
    if wanted == "auto":
        return max((each for each in weighed if not each.why), key=lambda each: each.need, default=weighed[0])
    meant = [each for each in weighed if wanted in (each.name, each.model) or each.name.endswith(f"-{wanted}b")]
    if not meant:
        names = ", ".join(each.name for each in weighed)
        raise ConfigError(f"there is no model {wanted!r} for this kind of swarm", f"There are auto, {names}")
    for each in meant:
        if not each.why:
            return each
    raise ConfigError(
        f"{meant[0].model} cannot be trained here: {meant[0].why}",
        'Choose a smaller one or "auto"; `swarmd model fit` shows what fits',
    )


def make_base_config_text(
    kind: str, weighing: ProfileFit, questions: "OwnQuestions | None" = None, **changes: Any
) -> str:
    """A coordinator's configuration for a new swarm: the profile's, with one model in place of a pool. `changes`:
    further keys of [training]; `questions` replace the kind's."""
    path = weighing.path
    document = tomlkit.parse(read_config_text(path)) if path else tomlkit.document()
    document["role"] = "coordinator"
    document.pop("name", None)  # belongs to the node that the profile was written for
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
    training.update({"model": weighing.model, **changes})
    return tomlkit.dumps(document)


# Possible forms of an answer, with their settings of the kind `file`; the first form that rewards right answers is
# offered.
ANSWERS: dict[str, dict[str, Any]] = {
    "last-number": {"answer": "last-number", "rewards": [{"name": "numeric", "weight": 1.0}]},
    "tags": {"answer": "tags"},
    "boxed": {"answer": "boxed"},
    "last-line": {"answer": "last-line"},
    "whole": {"answer": "whole"},
}
# settings for a pretrained model; those in configs/file suit a tiny one
PRETRAINED = {"steps": 4, "completion_tokens": 256, "learning_rate": 1e-6}


class OwnQuestions(NamedTuple):
    """A question file, and the form of its answers, a key of `ANSWERS`."""

    file: Path
    answer: str


def list_answer_forms(questions: Path) -> tuple[str, ...]:
    """Keys of `ANSWERS` that suit the file, most likely first. Raises NotFoundError, ConfigError, SwarmError."""
    if not questions.is_file():
        fix = 'Name yours with --questions: one {"prompt": "...", "answer": "..."} a line'
        raise NotFoundError(f"there is no file of questions {questions}", fix)
    if questions.suffix != ".jsonl":
        raise ConfigError(
            f"{questions} does not end in .jsonl: one JSON object a line is asked for",
            "docs/swarms/file.md says how `dataset` makes one of a CSV or Parquet file, or of a data set of the Hub",
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


DEVICES: tuple[Device, ...] = get_args(Device)
OWN, JOIN = "new", "join"
FILE = "file"  # the kind with the creator's own question file
TOKEN = re.compile(r"[!-~]{8,512}")
TOKEN_FIX = "Make one that may write at huggingface.co/settings/tokens"
TOKEN_NAME = "hub.token"  # in the data directory
Word = TypeVar("Word", bound=str)


class Prompter:
    """Asks questions on a terminal; `silent` (--yes) takes every default."""

    def __init__(self, silent: bool, terminal: bool) -> None:
        self.silent = silent
        self._terminal = terminal

    @property
    def is_interactive(self) -> bool:
        return self._terminal and not self.silent

    def ask(self, question: str, default: str, flag: str) -> str:
        """Ask for a text. Raises ConfigError if there is no terminal and `silent` is not set."""
        if self.silent:
            return default
        self.require_terminal(flag)
        return str(typer.prompt(question, default=default, show_default=bool(default)))

    def choose(self, question: str, choices: tuple[Word, ...], flag: str) -> Word:
        """Ask for one of the choices; the first is the default."""
        if self.silent:
            return choices[0]
        while True:
            answer = self.ask(f"{question} ({', '.join(choices)})", choices[0], flag)
            for choice in choices:
                if choice == answer:
                    return choice
            typer.echo(f"  {answer!r} is not one of them")

    def require_terminal(self, flag: str) -> None:
        if not self._terminal:
            raise ConfigError(f"there is no terminal to ask at, and {flag} is not given", "Add --yes to take defaults")


@dataclass
class Answers:
    """Answers so far; None means not given yet."""

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
    device: Device | None
    processes: int | None
    hub_repo: str | None
    hub_token_file: Path | None
    web: str | None

    def ask_missing(self, asker: Prompter) -> None:
        """Ask for missing answers. Raises ConfigError for contradicting answers, NotFoundError."""
        self._choose_swarm(asker)
        if self.manifest is None:
            self._ask_new_swarm(asker)
        elif not self.manifest.is_file():
            raise NotFoundError(f"there is no manifest {self.manifest}", "Ask the swarm's creator for the file")
        elif self.kind or self.model or self.questions or self.answer:
            raise ConfigError(
                "--kind, --questions, --answer and --model are for a swarm of one's own",
                "Leave them out: the manifest says what is trained",
            )
        self._ask_node_settings(asker)
        self._check_answers()

    def _choose_swarm(self, asker: Prompter) -> None:
        if self.manifest is not None and self.swarm is not None:
            raise ConfigError(
                "both --manifest and --swarm were given", "Leave out --swarm to join, or --manifest to begin one"
            )
        if self.manifest is not None or self.swarm is not None:
            return
        if asker.choose("A swarm of your own, or join one", (OWN, JOIN), "--manifest or --swarm") == JOIN:
            asked = "Its manifest, the file that its creator handed out"
            self.manifest = Path(asker.ask(asked, "swarm.toml", "--manifest"))
        else:
            self.swarm = asker.ask("Name of your swarm", "my swarm", "--swarm")

    def _ask_new_swarm(self, asker: Prompter) -> None:
        question = f"What is to be trained; {FILE}: your own questions"
        self.kind = self.kind or (FILE if self.questions else asker.choose(question, tuple(BUILT_IN), "--kind"))
        find_kind(self.kind)
        if self.kind == FILE:
            self._ask_questions_file(asker)
        elif self.questions or self.answer:
            raise ConfigError("--questions and --answer are for the kind 'file'", "Give --kind file")
        if self.announce is None:
            question = "Address that others reach this node under (empty: only this machine joins)"
            self.announce = asker.ask(question, "", "--announce")
        if self.rpc is None:
            url = asker.ask("Endpoint of a chain that is to keep the rounds (empty: none, the DHT alone)", "", "--rpc")
            self.rpc = [url] if url else []

    def _ask_questions_file(self, asker: Prompter) -> None:
        """Ask for the answers that only the kind `file` needs."""
        asked = 'Your questions, a file with one {"prompt": "...", "answer": "..."} a line'
        self.questions = self.questions or Path(asker.ask(asked, "questions.jsonl", "--questions"))
        places = list_answer_forms(self.questions)
        self.answer = self.answer or asker.choose("Where a completion has its answer", places, "--answer")
        if self.answer not in places:
            raise ConfigError(
                f"--answer {self.answer} is not a place where answers are", f"Choose one of {', '.join(places)}"
            )
        asked = "Model: a directory, an id of the Hugging Face Hub, or embedded, a tiny one"
        self.model = self.model or asker.ask(asked, SMALL, "--model")

    def _ask_node_settings(self, asker: Prompter) -> None:
        if self.name is None:
            question = "Name on the leaderboard" if self.manifest is None else "Name on the leaderboard (empty: none)"
            self.name = asker.ask(question, CREATOR if self.manifest is None else "", "--name")
        self.device = self.device or asker.choose("Device to train on", DEVICES, "--device")
        if self.hub_repo is None:
            question = "Push the model to the Hugging Face Hub? user/name, or user/ (empty: no)"
            self.hub_repo = asker.ask(question, "", "--hub-repo")

    def _check_answers(self) -> None:
        check_name(self.name or "", "--name")
        check_multiaddrs([], [self.announce] if self.announce else [])
        if self.hub_repo:
            check_repo(self.hub_repo, "--hub-repo")
        if self.web and not is_loopback(parse_listen(self.web, PAGE_PORT, "--web").host):
            raise ConfigError(
                f"--web {self.web}: other machines could reach the page there, and it would ask for no token",
                f"Give 127.0.0.1:{PAGE_PORT}; web.listen and web.token of the configuration can open it afterwards",
            )

    def read_hub_token(self, asker: Prompter) -> str:
        """Read the Hub token from a private file, HF_TOKEN or an answer; empty without --hub-repo. Raises
        ConfigError."""
        if not self.hub_repo:
            return ""
        if self.hub_token_file is not None:
            token = read_secret(Secret(self.hub_token_file), KIND).decode("ascii", "replace").strip()
        elif os.environ.get("HF_TOKEN"):
            token = os.environ["HF_TOKEN"].strip()
        else:
            asker.require_terminal("--hub-token-file")
            token = ask_hidden("Token of the Hub (is not shown)").strip()
        if not TOKEN.fullmatch(token):
            raise ConfigError("this is not a token of the Hub: one word of 8 characters or more expected", TOKEN_FIX)
        return token

    def config_amendments(self) -> dict[str, Any]:
        """Configuration keys that `join` and `swarm new` have no option for."""
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
    directory: Annotated[Path | None, _option("dir", "The node's directory.")] = None,
    manifest: Annotated[
        Path | None, _option("manifest", "Join the swarm of this manifest.", metavar="MANIFEST")
    ] = None,
    swarm: Annotated[str | None, _option("swarm", "Create a swarm of this name.", metavar="NAME")] = None,
    kind: Annotated[str | None, _option("kind", "Kind of a new swarm, see `swarmd swarm list`.")] = None,
    questions: Annotated[
        Path | None, _option("questions", "For the kind file: JSON lines with prompt and answer.")
    ] = None,
    answer: Annotated[
        str | None,
        _option("answer", f"For the kind file, place of the answer: {', '.join(ANSWERS)}."),
    ] = None,
    model: Annotated[
        str | None,
        _option(
            "model",
            "For a new swarm: auto, embedded, a size in billions, or a name in configs/KIND/; for the kind file "
            "a directory or an id of the Hub.",
        ),
    ] = None,
    rpc: Annotated[
        list[str] | None, _option("rpc", "Endpoint of the chain that keeps the rounds, or file:PATH.")
    ] = None,
    announce: Annotated[
        str | None, _option("announce", "This node's public address, /ip4/192.0.2.1/tcp/38331.")
    ] = None,
    name: Annotated[str | None, _option("name", "Name on the leaderboard.")] = None,
    device: Annotated[Device | None, _option("device", "What to train on.")] = None,
    processes: Annotated[int | None, _option("processes", "Trainer processes, one on each GPU.", min=1)] = None,
    hub_repo: Annotated[
        str | None, _option("hub-repo", 'Push the model to the Hugging Face Hub: "user/name", or "user/".')
    ] = None,
    hub_token_file: Annotated[
        Path | None,
        _option("hub-token-file", "Private file with the Hub's token; else HF_TOKEN, or asked for."),
    ] = None,
    web: Annotated[str | None, _option("web", "Address of the node's page: 127.0.0.1:8800; empty: none.")] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", envvar=f"{PREFIX}YES", help="Ask nothing, take defaults.")
    ] = False,
    examine: Annotated[bool, typer.Option(help="At the end, run `swarmd doctor --offline`.")] = True,
) -> int:
    """Make a node that starts or joins a swarm. Asks for what neither an option nor a SWARMD_INIT_ variable gives."""
    asker = Prompter(silent=yes, terminal=sys.stdin.isatty())
    root = directory or Path(asker.ask("Directory of the node", "swarmd-node", "--dir"))
    if (root / CONFIG).exists():
        _refuse_other_swarm(root, manifest, swarm)
        typer.echo(f"{root / CONFIG}: there is a node already, nothing was changed")
    else:
        answers = Answers(
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
        _make_node(answers, asker)
    return check_new_node(root, examine)


def _refuse_other_swarm(root: Path, manifest: Path | None, name: str | None) -> None:
    """Raise SwarmMismatch if the existing node belongs to another swarm than the requested one."""
    there = load_config(root / CONFIG)
    asked = swarm_of_config(there)
    if manifest is not None:
        asked = swarm_of_manifest(read_manifest(manifest))
    elif name is not None:
        asked = SwarmIdentity(swarm_id(name, there.dht.peer))
    NodeCreator(root).read_existing_config(asked)


def _make_node(answers: Answers, asker: Prompter) -> None:
    """Ask for missing answers, then create the node with `join` or `swarm new`."""
    answers.ask_missing(asker)
    token = answers.read_hub_token(asker)
    if answers.manifest is not None:
        _validate_join_config(answers, answers.manifest)
        join(
            manifest=answers.manifest,
            directory=answers.root,
            name=answers.name or "",
            announce=[answers.announce] if answers.announce else None,
            rpc=answers.rpc or None,
        )
    else:
        _make_new_swarm(answers, asker)
    if token:
        _write_hub_token(answers, token)
    path, amendments = answers.root / CONFIG, answers.config_amendments()
    if amendments:
        write_private_if_absent(path, amend_config_text(read_config_text(path), amendments, path))
        typer.echo(f"{path}: {', '.join(amendments)} set")


def _validate_join_config(answers: Answers, path: Path) -> None:
    """Build a joining node's configuration in memory, since once written, a wrong one would be kept by the next run.
    Raises ConfigError, ManifestError."""
    manifest = read_manifest(path)
    rpc = tuple(answers.rpc or (manifest.chain.rpc if manifest.chain else ()))
    text = make_config_text(manifest, NodeChoice(generate_identity().peer_id, rpc=rpc))
    amend_config_text(text, answers.config_amendments(), answers.root / CONFIG)


def _make_new_swarm(answers: Answers, asker: Prompter) -> None:
    """Create a swarm from a shipped configuration, with one model in place of a pool."""
    kind = answers.kind or "digits"
    chosen = choose_fitting_profile(answers, kind, asker)
    changes: dict[str, Any] = {"device": answers.device or "auto"}
    changes |= {"processes": answers.processes} if answers.processes else {}
    own = OwnQuestions(answers.questions, answers.answer or "") if answers.questions else None
    if own is not None and chosen.model != SMALL:
        changes |= PRETRAINED
    with tempfile.TemporaryDirectory(prefix="swarmd-init-") as place:
        base = Path(place) / CONFIG
        base.write_text(make_base_config_text(kind, chosen, own, **changes), encoding="utf-8")
        new(
            name=answers.swarm or "my swarm",
            directory=answers.root,
            config=base,
            announce=[answers.announce] if answers.announce else None,
            rpc=answers.rpc or None,
            yes=asker.silent,
        )


def choose_fitting_profile(answers: Answers, kind: str, asker: Prompter) -> ProfileFit:
    """The requested profile, if it fits this machine, or one that the user chooses. Raises ConfigError."""
    profiles = list_profiles(kind)
    wanted = answers.model or ("" if asker.is_interactive else SMALL)
    if wanted == SMALL:
        return ProfileFit(SMALL, profiles[SMALL], read_profile_training(profiles[SMALL]).model)
    if kind == FILE:
        return ProfileFit(SMALL, profiles[SMALL], wanted)
    typer.echo("looking at what fits on this machine ...")
    silence_libraries()
    device = None if answers.device == "auto" else answers.device
    weighed = [estimate_profile_fit(name, path, device) for name, path in profiles.items()]
    if not wanted:
        for each in weighed:
            fits = f"does not fit: {each.why}" if each.why else "fits"
            typer.echo(f"  {each.name:14} {each.model:40} {each.need / GIB:6.1f} GiB  {fits}")
        wanted = asker.ask("Model (auto: the largest that fits)", SMALL, "--model")
    return select_profile(wanted, weighed)


def _write_hub_token(answers: Answers, token: str) -> None:
    """Write the token into a private file in the data directory; an existing one is kept."""
    path = answers.root / TOKEN_NAME
    if path.exists():
        typer.echo(f"{path}: exists, kept as it is")
        return
    write_secret(path, f"{token}\n".encode(), KIND)
    typer.echo(f"{path}: written, mode 0600")


def amend_config_text(text: str, amendments: dict[str, Any], path: Path) -> str:
    """Set keys in a configuration's text, keeping its comments. Raises ConfigError for an invalid value."""
    document = tomlkit.parse(text)
    for dotted, value in amendments.items():
        set_dotted_key(document, dotted, value)
    text = tomlkit.dumps(document)
    parse_config(text, str(path))
    return text


def check_new_node(root: Path, examine: bool) -> int:
    """Check the configuration, run doctor offline, and print the next steps. Returns the exit code."""
    from swarmd.doctor.checks import CHECKS

    path, code = root / CONFIG, 0
    check(path, elsewhere=True)  # doctor reports what must be downloaded
    if examine:
        report = run_checks_with_progress(Subject(path, offline=True), CHECKS)
        typer.echo("")
        print_report(report, brief=True)
        code = ExitCode.UNFIT if report.verdict == "error" else 0
    typer.echo(f"\nrun it now:          swarmd run --config {quote_for_shell(path)}")
    typer.echo(f"or as a service:     swarmd service install --config {quote_for_shell(path)}")
    typer.echo(f"look at it any time: swarmd doctor {quote_for_shell(root)}")
    config = load_config(path)
    if config.role == "coordinator" and config.chain is None and config.coordinator.min_peers > 1:
        typer.echo(f"its first round opens when {config.coordinator.min_peers} members are there, itself included")
    return code

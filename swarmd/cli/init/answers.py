"""The questions of `swarmd init`: asked at a terminal, answered by flags and variables, or left at their defaults."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import typer

from swarmd.cli.node.passphrase import ask_hidden
from swarmd.cli.swarm.new import CREATOR
from swarmd.config_checks import check_name
from swarmd.dht.addresses import is_address
from swarmd.errors import ConfigError, NotFoundError
from swarmd.http_server import PAGE_PORT, is_loopback, parse_listen
from swarmd.results.hub import TOKEN as KIND
from swarmd.results.hub import check_repo
from swarmd.secret_files import Secret, read_secret

DEVICES = ("auto", "cpu", "cuda", "mps", "xpu")
OWN, JOIN = "new", "join"
FILE = "file"  # the kind whose questions lie in a file of the creator's own
TOKEN = re.compile(r"[!-~]{8,512}")
TOKEN_FIX = "Make one that may write at huggingface.co/settings/tokens"
TOKEN_NAME = "hub.token"  # in the data directory


class Asker:
    """Asks at the terminal, or takes defaults.

    Args:
        silent: take every default (--yes).
        terminal: there is somebody to ask.
    """

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
        self._need_terminal(flag)
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

    def ask_secret(self, question: str, flag: str) -> str:
        """Ask at the terminal without echo."""
        self._need_terminal(flag)
        return ask_hidden(question).strip()

    def _need_terminal(self, flag: str) -> None:
        if not self._terminal:
            raise ConfigError(f"there is no terminal to ask at, and {flag} is not given", "Add --yes to take defaults")


class Answers(NamedTuple):
    """What is known so far; None is what nobody has said."""

    root: Path
    manifest: Path | None
    swarm: str | None
    kind: str | None
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
            raise ConfigError("both --manifest and --swarm were given", "A node joins a swarm, or begins one")
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
        if self.kind or self.model:
            raise ConfigError("--kind and --model are for a swarm of one's own", "The manifest says what is trained")
        return self

    def _complete_new(self, asker: Asker) -> Answers:
        from swarmd.swarms.registry import BUILT_IN, find_kind

        kinds = tuple(name for name in BUILT_IN if name != FILE)
        kind = self.kind or asker.choose("What is to be trained", kinds, "--kind")
        find_kind(kind)
        if kind == FILE:
            raise ConfigError(
                "the kind 'file' needs a file of questions, which is not asked for here",
                "`swarmd swarm scaffold NAME` makes one, and a configuration for `swarmd swarm new --config`",
            )
        announce, rpc = self.announce, self.rpc
        if announce is None:
            question = "Address that other machines reach this one under (empty: only this machine joins)"
            announce = asker.ask(question, "", "--announce")
        if rpc is None:
            url = asker.ask("Endpoint of a chain that is to keep the rounds (empty: none, the DHT alone)", "", "--rpc")
            rpc = [url] if url else []
        return self._replace(kind=kind, announce=announce, rpc=rpc)

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
            raise ConfigError(f"{self.announce!r} is no address", "Write for example /ip4/192.0.2.1/tcp/38331")
        if self.hub_repo:
            check_repo(self.hub_repo, "--hub-repo")
        if self.web and not is_loopback(parse_listen(self.web, PAGE_PORT, "--web").host):
            raise ConfigError(
                f"--web {self.web}: other machines could reach the page there, and it would ask for no token",
                f"Give 127.0.0.1:{PAGE_PORT}; web.listen and web.token of the configuration can open it afterwards",
            )

    def take_token(self, asker: Asker) -> str:
        """The Hub's token: of a private file, of HF_TOKEN, or asked for; empty where nothing is pushed.

        Raises:
            ConfigError: it is none, or there is none to be had.
        """
        if not self.hub_repo:
            return ""
        if self.hub_token_file is not None:
            token = read_secret(Secret(self.hub_token_file), KIND).decode("ascii", "replace").strip()
        elif os.environ.get("HF_TOKEN"):
            token = os.environ["HF_TOKEN"].strip()
        else:
            token = asker.ask_secret("Token of the Hub (is not shown)", "--hub-token-file")
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

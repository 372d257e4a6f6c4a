"""Pushes the model to the Hugging Face Hub without delaying training.

- A push is a separate process, `python -m swarmd.results.hub`, with the order on stdin and the outcome on stdout. It
  has a deadline and low priority, and may hang or crash.
- It works on an immutable snapshot: hard links to the files of a finished checkpoint.
- A push is one commit, made by `create_commit`, so a download gets all of it or the previous version. (`upload_folder`
  may split a folder over several commits.)
- The outcome is an event, `ModelPushed`. After a failure, or an interrupted push, the next due round pushes again.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from swarmd.animals import animal_name
from swarmd.config import Config, HubConfig
from swarmd.core.events import ModelPushed, StageTrained
from swarmd.errors import ConfigError
from swarmd.http_server import load_token
from swarmd.logger import get_logger
from swarmd.paths import NodeDirectory
from swarmd.results.card import CardSubject, describe_training_data, make_card, public_model_name
from swarmd.results.history import read_history
from swarmd.secret_files import SecretKind
from swarmd.worker.messages import EventSink

TOKEN = SecretKind("token of the Hugging Face Hub", ConfigError, 4096, "Make one at huggingface.co/settings/tokens")
VARIABLE = "HF_TOKEN"  # environment variable of all Hub libraries
NAME_CHARS_MAX = 96  # of a repository's name; the Hub's bound
ERROR_CHARS_MAX = 500
OUTCOME_BYTES_MAX = 65536  # of the process's answer
PUSH_S = 3600.0  # timeout of a push
CLOSE_S = 3.0  # longest wait for a killed push
CHILD = (sys.executable, "-m", "swarmd.results.hub")
SNAPSHOT = "snapshot"
WEIGHTS, ADAPTERS, ADAPTER_SETTINGS = "model.safetensors", "adapter_model.safetensors", "adapter_config.json"
PRIVATE = ("meta.json", "optimizer.pt", "rollouts.msgpack")  # files of a checkpoint that are not part of the model

_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/([A-Za-z0-9][\w.-]{0,95})?")
log = get_logger(__name__)


class PushOrder(msgspec.Struct, frozen=True):
    """The input of the push process. `trained` may not be in the log yet."""

    snapshot: str
    data: str
    token: str
    trained: StageTrained
    subject: CardSubject


class PushOutcome(msgspec.Struct, frozen=True):
    """The output of the push process."""

    revision: str = ""
    url: str = ""
    error: str = ""


def repo_of(config: Config, peer: str, base: str) -> str:
    """The repository's full name; "user/" is completed with base model and node. Raises ConfigError if results.hub.repo
    is invalid."""
    repo = config.results.hub.repo
    check_repo(repo)
    if not repo.endswith("/"):
        return repo
    ending = f"-swarmd-{animal_name(peer, '_')}"
    model = re.sub(r"[^A-Za-z0-9._-]+", "-", public_model_name(base).rpartition("/")[2]).strip("-.")
    return f"{repo}{(model or 'model')[: NAME_CHARS_MAX - len(ending)]}{ending}"


def check_hub(hub: HubConfig) -> None:
    """Raise ConfigError if a repository is set and its name is invalid, or no token is configured."""
    if hub.repo:
        check_repo(hub.repo)
    if hub.repo and not hub.token and not os.environ.get(VARIABLE, "").strip():
        raise ConfigError(
            f"results.hub.repo is set, but results.hub.token is missing, and {VARIABLE} is not set",
            "Name a file, mode 0600, that holds a token with write access",
        )


def check_repo(repo: str, key: str = "results.hub.repo") -> None:
    """Raise ConfigError unless `repo` is a valid repository name; `key` names its setting."""
    if not _REPO.fullmatch(repo):
        raise ConfigError(f"{key}: {repo!r} is not a repository of the Hub", 'Write it as "user/name" or "user/"')


class Pusher:
    """Pushes the model every `results.hub.every` rounds, one push at a time.

    Args:
        observe: receives a push's outcome; called from another thread.

    Attributes:
        base: the base model's name from the configuration; for "auto", the trainer sets the chosen one.

    Raises:
        ConfigError: the repository's name is invalid, or there is no token.
    """

    def __init__(self, config: Config, paths: NodeDirectory, peer: str, observe: EventSink) -> None:
        self._config = config
        self._hub = config.results.hub
        self.base = config.training.model
        self._paths = paths
        self._peer = peer
        self._observe = observe
        self._place = paths.results / "hub"
        self._thread: threading.Thread | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = threading.Event()
        if self._hub.repo:
            repo_of(config, peer, self.base)
            self._read_token()
            shutil.rmtree(self._place, ignore_errors=True)  # left by an interrupted push

    def _read_token(self) -> str:
        """The token from the configured file, or else HF_TOKEN."""
        if self._hub.token:
            return load_token(self._hub.token, self._paths.root, TOKEN, chars_min=1)
        token = os.environ.get(VARIABLE, "").strip()
        check_hub(self._hub)
        if not (token.isascii() and token.isprintable() and " " not in token):
            raise ConfigError(f"the {TOKEN.noun} in {VARIABLE} is not a token", TOKEN.make)
        return token

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def is_due(self, trained: StageTrained) -> bool:
        """Whether this stage ends a round after which the model is pushed."""
        last = trained.stage == self._config.swarm.stages - 1
        return bool(self._hub.repo) and last and (trained.round + 1) % self._hub.every == 0

    def push(self, trained: StageTrained, checkpoint: Path) -> None:
        """Start to push a stage's checkpoint, if a push is due. Never raises.

        Returns once the snapshot exists: at once, or after copying the weights if hard links are unsupported. The
        checkpoint's directory may be removed afterwards.
        """
        if not self.is_due(trained):
            return
        if self.is_busy:
            self._report(
                trained.round, time.monotonic(), PushOutcome(error="the push of an earlier round is still going on")
            )
            return
        began = time.monotonic()
        try:
            order = self._prepare(trained, checkpoint)
        except Exception as error:
            self._report(trained.round, began, PushOutcome(error=f"{type(error).__name__}: {error}"))
            return
        self._thread = threading.Thread(target=self._run_and_report, args=(order, began), name="hub-push", daemon=True)
        self._thread.start()

    def _prepare(self, trained: StageTrained, checkpoint: Path) -> PushOrder:
        snapshot = self._place / SNAPSHOT
        shutil.rmtree(self._place, ignore_errors=True)
        snapshot.mkdir(parents=True)
        token = self._read_token()  # read for each push, because it may have been replaced
        swarm = self._config.swarm
        copy_model_files(checkpoint, snapshot, public_model_name(self.base))
        subject = CardSubject(
            swarm.kind,
            self.base,
            (snapshot / ADAPTERS).exists(),
            repo_of(self._config, self._peer, self.base),
            self._config.training.revision,
            describe_training_data(swarm.kind, swarm.options, [task.name for task in swarm.tasks], self._paths.root),
        )
        return PushOrder(str(snapshot), str(self._paths.root), token, trained, subject)

    def _run_and_report(self, order: PushOrder, began: float) -> None:
        """In a thread: run the push until it ends or its deadline, and report the outcome."""
        try:
            outcome = self._run_push_process(order)
        except Exception as error:
            outcome = PushOutcome(error=f"{type(error).__name__}: {error}")
        shutil.rmtree(self._place, ignore_errors=True)
        hidden = outcome.error.replace(order.token, "[token]")
        self._report(order.trained.round, began, msgspec.structs.replace(outcome, error=hidden))

    def _run_push_process(self, order: PushOrder) -> PushOutcome:
        pipe = subprocess.PIPE
        with subprocess.Popen(CHILD, stdin=pipe, stdout=pipe, env=_push_environment()) as child:
            self._child = child
            if self._closed.is_set():
                child.kill()
            try:
                answer, _ = child.communicate(msgspec.json.encode(order), timeout=PUSH_S)
            except subprocess.TimeoutExpired:
                child.kill()
                return PushOutcome(error=f"not done within {PUSH_S:g} s, given up")
        if self._closed.is_set():
            return PushOutcome(error="the trainer ended before the push did")
        if child.returncode:
            return PushOutcome(error=f"the push's process ended with status {child.returncode}")
        return msgspec.json.decode(answer[:OUTCOME_BYTES_MAX], type=PushOutcome)

    def _report(self, round: int, began: float, outcome: PushOutcome) -> None:
        error = outcome.error[:ERROR_CHARS_MAX]
        seconds = time.monotonic() - began
        repo = repo_of(self._config, self._peer, self.base)
        event = ModelPushed(round, repo, outcome.revision, outcome.url, error, seconds)
        try:
            self._observe(event)
        except OSError as gone:  # the daemon is gone
            log.warning("the outcome of a push could not be reported", round=round, error=error, reason=str(gone))

    def close(self) -> None:
        """Kill a running push; it is reported as a failure."""
        self._closed.set()
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
        if self._thread is not None:
            self._thread.join(CLOSE_S)


def _push_environment() -> dict[str, str]:
    """The operator's environment, with telemetry, implicit tokens and update checks disabled."""
    kept = {key: value for key, value in os.environ.items() if key not in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")}
    quiet = ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "HF_HUB_DISABLE_PROGRESS_BARS")
    return {**kept, **dict.fromkeys((*quiet, "HF_HUB_DISABLE_UPDATE_CHECK"), "1"), "HF_DEBUG": "0"}


def copy_model_files(checkpoint: Path, snapshot: Path, base: str) -> None:
    """Copy the model's files from a checkpoint.

    Adapters get the file name that PEFT expects, and their base model's public name.
    """
    adapters = (checkpoint / ADAPTER_SETTINGS).exists()
    for file in checkpoint.iterdir():
        if file.name == WEIGHTS and adapters:
            link_or_copy(file, snapshot / ADAPTERS)
        elif file.name == ADAPTER_SETTINGS:
            settings = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
            encoded = msgspec.json.encode({**settings, "base_model_name_or_path": base})
            (snapshot / file.name).write_bytes(msgspec.json.format(encoded, indent=2))
        elif file.name not in PRIVATE:
            link_or_copy(file, snapshot / file.name)


def link_or_copy(source: Path, target: Path) -> None:
    """Make a hard link, or a copy if the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


NICENESS = 10
README = "README.md"


def push(order: PushOrder) -> PushOutcome:
    """Write the card into the snapshot and upload it. Raises whatever reading the log and the library raise."""
    from huggingface_hub import CommitOperationAdd, HfApi

    snapshot = Path(order.snapshot)
    history = read_history(Path(order.data), order.trained)
    (snapshot / README).write_text(make_card(history, order.subject), encoding="utf-8")
    names = sorted(str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file())
    api = HfApi(token=order.token, library_name="swarmd")
    api.create_repo(order.subject.repo, repo_type="model", exist_ok=True)
    commit = api.create_commit(
        order.subject.repo,
        operations=[CommitOperationAdd(path_in_repo=name, path_or_fileobj=snapshot / name) for name in names],
        commit_message=f"Round {order.trained.round}",
        repo_type="model",
    )
    return PushOutcome(revision=commit.oid, url=commit.commit_url)


def main() -> None:
    """Read the order, push, and write the outcome; of an error, only its first line."""
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries print to stdout
    os.nice(NICENESS)
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=PushOrder)
    try:
        outcome = push(order)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        outcome = PushOutcome(error=f"{type(error).__name__}: {lines[0]}")
    with os.fdopen(answers, "wb") as out:
        out.write(msgspec.json.encode(outcome))


if __name__ == "__main__":
    main()

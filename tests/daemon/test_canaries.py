"""A canary in every slot for a secret: whatever a node and its tools write, show, send or leave, none is in it."""

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from swarmd.backup.bundle import refuse_secrets
from swarmd.cli import run_command
from swarmd.config import load_config
from swarmd.core.events import LinkDegraded, WorkerExited
from swarmd.errors import BundleHoldsSecret, ExitCode
from swarmd.observe.redaction import known_secrets
from tests.daemon.canaries import Canaries, files_below, processes_of
from tests.daemon.node import FakeNode, fake_node
from tests.daemon.telltale import FILES
from tests.receiver import receiving

WORKERS = ("network", "trainer", "chain")
NEEDED = {  # secrets in the environment of those that need them
    "network": set(),
    "trainer": {"HF_TOKEN", "WANDB_API_KEY", "HTTP_PROXY", "HTTPS_PROXY", "https_proxy"},
    "chain": {"HTTP_PROXY", "HTTPS_PROXY", "https_proxy"},
    "web": {"HTTP_PROXY", "HTTPS_PROXY", "https_proxy", "OTEL"},
}
LONG_S = 60.0
NUMBERS = itertools.count()


class Receiver:
    """Takes webhooks and what is meant for the service manager."""

    def __init__(self) -> None:
        self.address = f"swarmd-canaries-{os.getpid()}-{next(NUMBERS)}"
        self._open = contextlib.ExitStack()
        self.server = self._open.enter_context(receiving())
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(f"\0{self.address}")
        self._words: list[bytes] = []
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def bodies(self) -> list[bytes]:
        return [post.body for post in self.server.posted]

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    def _listen(self) -> None:
        """At once: the kernel keeps ten datagrams and drops what comes then."""
        while words := self.manager.recv(65536):
            self._words.append(words)

    def told_manager(self) -> bytes:
        """All datagrams so far."""
        return b"\n".join(self._words)

    def close(self) -> None:
        self._open.close()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"", f"\0{self.address}")


class Scene:
    """A node that has lived through the death of each of its workers, all of which told what they knew."""

    def __init__(self, root: Path, receiver: Receiver) -> None:
        self.root, self.receiver = root, receiver
        self.canaries = Canaries(root / "secrets", receiver.port)
        self.node: FakeNode
        self.outputs: dict[str, bytes] = {}

    @property
    def environment(self) -> dict[str, str]:
        return self.canaries.environment | {FILES: str(self.canaries.files)}

    def start(self, node: FakeNode) -> None:
        self.node = node
        node.config.write_text(node.config.read_text() + self.canaries.config())
        node.start("telltale", "telltale", "telltale", NOTIFY_SOCKET=f"@{self.receiver.address}", **self.environment)
        identity = node.paths.root / "identity.key"
        node.until(lambda: identity.exists() and identity.stat().st_size > 0, LONG_S)  # it is made, then written
        self.canaries.know_identity(identity)
        for worker in WORKERS:
            self._until_alive_again(worker, 1)
        for worker in WORKERS:
            self.ask_status(f"before the second death of {worker}")
            os.kill(self.node.worker_pid(LAYERS[worker]), signal.SIGKILL)
            self._until_alive_again(worker, 2)

    def _until_alive_again(self, worker: str, deaths: int) -> None:
        self.node.until(
            lambda: sum(event.worker == worker for event in self.node.events_of(WorkerExited)) >= deaths, LONG_S
        )
        self.node.worker_pid(LAYERS[worker])

    def ask_status(self, when: str) -> None:
        self.outputs[f"status {when}"] = json.dumps(self.node.status()).encode()

    def leaks(self) -> dict[str, set[str]]:
        """What was found where."""
        found = {name: self.canaries.found_in(content) for name, content in self.outputs.items()}
        return {name: names for name, names in found.items() if names}


LAYERS = {"network": "network", "trainer": "training", "chain": "chain"}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("canaries")
    receiver = Receiver()
    try:
        with fake_node(root) as node:
            scene = Scene(root, receiver)
            scene.start(node)
            yield scene
    finally:
        receiver.close()


@pytest.fixture
def outside(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """The same node, and its variables for what this process runs beside it."""
    for name, value in scene.environment.items():
        monkeypatch.setenv(name, value)
    return scene


def test_the_workers_told_what_they_knew(scene: Scene) -> None:
    """Without this, all else would prove nothing."""
    output = scene.node.output.read_text()
    reasons = [event.reason for event in scene.node.events_of(WorkerExited)]
    assert output.count("[redacted]") > 100 and "GET https://hub.example/" in output and "401 for" in output
    assert {event.worker for event in scene.node.events_of(WorkerExited)} == set(WORKERS)
    assert sum("[redacted]" in reason for reason in reasons) == len(WORKERS), reasons
    assert scene.node.events_of(LinkDegraded)


def test_none_is_in_the_log_or_any_file_of_the_node(scene: Scene) -> None:
    own = (scene.canaries.files, scene.node.config, scene.node.paths.root / "identity.key")
    paths = list(files_below(scene.root, own))
    assert scene.node.output in paths and any("events" in path.parts for path in paths)
    assert {str(path): names for path in paths if (names := scene.canaries.found_in(path.read_bytes()))} == {}


def test_none_is_in_any_answer_of_the_control_socket(scene: Scene) -> None:
    scene.ask_status("now")
    assert json.loads(scene.outputs["status now"])["source"] == "daemon"
    assert scene.leaks() == {}


VERBS = (
    ["status", "DATA"],
    ["status", "--json", "DATA"],
    ["explain", "DATA"],
    ["explain", "--json", "DATA"],
    ["replay", "DATA"],
    ["replay", "--json", "DATA"],
    ["replay", "--state", "DATA"],
    ["log", "cat", "DATA"],
    ["log", "tail", "--text", "DATA"],
    ["log", "export", "DATA", "--jsonl", "OUT/events.jsonl"],
    ["config", "show", "CONFIG"],
    ["config", "check", "CONFIG"],
)


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_no_verb_prints_any(
    outside: Scene, verb: list[str], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    named = {"DATA": str(outside.node.paths.root), "CONFIG": str(outside.node.config)}
    code = run_command([named.get(word, word.replace("OUT", str(tmp_path))) for word in verb])
    written = capfdbinary.readouterr()
    content = written.out + written.err + b"".join(path.read_bytes() for path in files_below(tmp_path, ()))
    assert len(content) > 20 and b"Traceback" not in written.err
    assert code in (ExitCode.OK, ExitCode.FAILURE), content
    assert outside.canaries.found_in(content) == set()


@pytest.mark.parametrize("examined", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_bundle_is_made_and_holds_none(
    outside: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, examined: bool
) -> None:
    if not examined:
        monkeypatch.setattr("swarmd.cli.bundle._run_doctor", lambda place, config: b"{}")  # they take seconds
    config, out = str(outside.node.config), tmp_path / "bundle.tar.gz"
    assert run_command(["bundle", "--config", config, "--out", str(out), "--unit", ""]) == ExitCode.OK
    with tarfile.open(out) as archive:
        members = {entry.name: archive.extractfile(entry) for entry in archive}
        contents = {name: file.read() for name, file in members.items() if file is not None}
    assert {"config.json", "status.json", "findings.json"} <= set(contents)
    assert {name: found for name, text in contents.items() if (found := outside.canaries.found_in(text))} == {}


def test_every_one_would_keep_a_bundle_from_being_made(outside: Scene, tmp_path: Path) -> None:
    canaries, paths = outside.canaries, outside.node.paths
    known = known_secrets(load_config(outside.node.config), paths.root, outside.environment, signing=True)
    for name in set(canaries.all) - {"private key"}:  # it is nowhere but in the keystore, encrypted
        (tmp_path / "file").write_text(f"before {canaries.all[name]} after")
        with pytest.raises(BundleHoldsSecret) as refusal:
            refuse_secrets(tmp_path, known)
        assert canaries.found_in(str(refusal.value).encode()) == set(), name


def page_url(node: FakeNode) -> str:
    return str(node.until(lambda: [line["url"] for line in node.lines() if "url" in line], LONG_S)[-1])


def paths_of(document: dict[str, Any]) -> list[str]:
    """An address of each GET."""
    return [path.replace("{seq}", "3") for path in document["paths"]]


@pytest.mark.parametrize("token", ["right", "wrong", "none"])
def test_none_is_on_the_page_in_an_answer_or_a_metric(scene: Scene, token: str) -> None:
    given = {"right": scene.canaries.all["web"], "wrong": "x" * 20}.get(token)
    headers = {"Authorization": f"Bearer {given}"} if given else {}
    with httpx.Client(base_url=page_url(scene.node), headers=headers, timeout=20, trust_env=False) as client:
        known = {"Authorization": f"Bearer {scene.canaries.all['web']}"}
        document = client.get("/api/openapi.json", headers=known).json()
        for path in (*paths_of(document), "/", "/node", "/login", "/nowhere", "/static/node.js"):
            with client.stream("GET", path) as answer:
                body = first_part(answer) if path.endswith("/stream") else answer.read()
            scene.outputs[f"{path} with the {token} token"] = str(answer.headers).encode() + body
            closed = path.startswith("/api/") or path in paths_of(document)
            assert (answer.status_code == 401) == (closed and token != "right"), path
    assert b"swarmd_worker" in scene.outputs["/metrics with the right token"] or token != "right"
    assert scene.leaks() == {}


def first_part(answer: httpx.Response) -> bytes:
    """Of a stream: what comes until it has told a status, all events so far included."""
    body = b""
    for chunk in answer.iter_bytes():
        body += chunk
        if answer.status_code != 200 or b"event: status" in body:
            break
    return body


def test_processes_show_none_and_know_only_what_they_need(scene: Scene) -> None:
    processes = processes_of(scene.node.paths.root.resolve())
    assert sorted(processes.values()) == sorted(NEEDED)
    for pid, name in (*processes.items(), (scene.node.pid, "daemon")):
        assert scene.canaries.found_in(Path(f"/proc/{pid}/cmdline").read_bytes()) == set(), name
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert re.search(r"Max core file size +0 ", limits), name
        if name in NEEDED:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            assert scene.canaries.found_in(environ) <= NEEDED[name], name


def test_none_is_in_what_is_sent_to_people_or_to_the_service_manager_up_to_the_end(scene: Scene) -> None:
    assert scene.node.stop() == ExitCode.OK
    words = scene.receiver.told_manager()
    assert b"READY=1" in words and b"STATUS=" in words and b"STOPPING=1" in words
    assert json.loads(scene.receiver.bodies[-1])["message"]
    assert scene.canaries.found_in(words + b"".join(scene.receiver.bodies)) == set()
    test_none_is_in_the_log_or_any_file_of_the_node(scene)


CANARY = "Zx9canaryZx9canary"
BROKEN = {  # a secret's file, what is wrong in it, and the exit code of a node that cannot go on
    "wrong passphrase": ("pass", CANARY.encode(), ExitCode.NO_PERMISSION),
    "no URL": ("urls", CANARY.encode(), ExitCode.BAD_CONFIG),
    "no text": ("urls", b"\xff\xfe" + CANARY.encode(), ExitCode.BAD_CONFIG),
}


@pytest.mark.parametrize("case", [*list(BROKEN)[::2], pytest.param("no URL", marks=pytest.mark.soak)])
def test_no_error_about_a_secret_tells_it(case: str, tmp_path: Path) -> None:
    """The real chain worker, and a page whose token is too short."""
    name, content, code = BROKEN[case]
    with contextlib.closing(Receiver()) as receiver, fake_node(tmp_path) as node:
        canaries = Canaries(tmp_path / "secrets", receiver.port)
        canaries.all |= {"broken": CANARY, "short": "Sh0rtCanary"}
        (canaries.files / name).write_bytes(content)
        (canaries.files / "web").write_text("Sh0rtCanary")
        node.config.write_text(node.config.read_text() + canaries.config())
        node.start("ok", "ok", "real", **canaries.environment)
        assert node.wait(LONG_S) == code, node.output.read_text()[-3000:]
        own = (canaries.files, node.config, node.paths.root / "identity.key")
        written = {path: path.read_bytes() for path in files_below(tmp_path, own)}
        assert {path: found for path, content in written.items() if (found := canaries.found_in(content))} == {}
        assert CANARY[:4].encode() not in b"".join(written.values())  # not even a little of it


def test_the_search_finds_every_spelling(tmp_path: Path) -> None:
    canaries = Canaries(tmp_path / "secrets", 1)
    secret = canaries.all["hub"]
    for spelt in (secret, secret.encode().hex(), secret[:12], secret[-12:], f"x{secret}y"):
        assert canaries.found_in(f"before {spelt} after".encode()) == {"hub"}
    assert canaries.found_in(b"nothing at all") == set()

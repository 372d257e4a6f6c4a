"""Support bundles: they replay elsewhere to the same state, and hold no secret."""

import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swarmd.backup.bundle import BundleManifest, open_bundle, select_log_files, write_bundle
from swarmd.cli import run_command
from swarmd.core.state import State
from swarmd.errors import ArchiveError, BundleHoldsSecret, ExitCode
from swarmd.eventlog.fold import load_state
from swarmd.eventlog.segment import list_segments
from swarmd.units import find_service_paths
from tests.eventlog.making import follower_story, open_log, write_story

GOLDEN = Path(__file__).parent.parent / "golden"
NODE = GOLDEN / "chain"
SECRET = "canary-0123456789abcdef"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A data directory with a real node's log."""
    place = tmp_path / "node"
    shutil.copytree(NODE, place)
    return place


def members_of(file: Path) -> list[str]:
    with tarfile.open(file) as archive:
        return archive.getnames()


def test_a_bundle_replays_elsewhere_to_the_same_state(node: Path, tmp_path: Path) -> None:
    made = write_bundle(node / "events", tmp_path / "b.tar.gz", {"status.json": b"{}"}, [], 2**30)
    opened = open_bundle(tmp_path / "b.tar.gz", tmp_path / "elsewhere")
    assert opened == made and opened.first_seq == 0
    assert load_state(tmp_path / "elsewhere" / "events") == load_state(node / "events")
    assert members_of(tmp_path / "b.tar.gz")[-1] == BundleManifest.FILE
    assert (tmp_path / "b.tar.gz").stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.glob(".b*")) and not list(tmp_path.glob(".bundle*"))


def test_of_a_long_log_the_newest_part_goes_in_with_the_snapshot_that_it_follows_on(tmp_path: Path) -> None:
    with open_log(tmp_path / "events", segment_bytes=1024) as log:
        state = State()
        for _ in range(30):
            state = write_story(log, follower_story(), state, group=2)
            log.write_snapshot(state)
    segments, _ = select_log_files(tmp_path / "events", 60_000)
    assert len(segments) < len(list((tmp_path / "events").glob("*.seg")))
    made = write_bundle(tmp_path / "events", tmp_path / "b.tar.gz", {}, [], 60_000)
    assert made.first_seq > 0 and "oldest snapshot stands for them" in made.notes[0]
    opened = open_bundle(tmp_path / "b.tar.gz", tmp_path / "elsewhere")
    assert opened.state_sha256 == made.state_sha256 and opened.next_seq == load_state(tmp_path / "events")[1]


@pytest.mark.parametrize("where", ["text", "log"])
def test_a_secret_anywhere_stops_it(where: str, node: Path, tmp_path: Path) -> None:
    secret = SECRET if where == "text" else _some_text_of(node)
    texts = {"config.json": b"x" * 1_048_570 + SECRET.encode()} if where == "text" else {}
    with pytest.raises(BundleHoldsSecret) as caught:
        write_bundle(node / "events", tmp_path / "b.tar.gz", texts, [secret], 2**30)
    assert secret not in str(caught.value) and not (tmp_path / "b.tar.gz").exists()


def _some_text_of(node: Path) -> str:
    state, _ = load_state(node / "events")
    assert state.settings is not None
    return state.settings.peer


@pytest.mark.parametrize("put", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["a pipe", "a device"])
def test_in_the_place_of_a_segment_it_is_not_copied(put: Callable[[Path], None], node: Path, tmp_path: Path) -> None:
    segment = list_segments(node / "events")[-1]
    segment.unlink()
    put(segment)
    with pytest.raises(ArchiveError, match=rf"not a regular file: '{segment}'"):
        write_bundle(node / "events", tmp_path / "b.tar.gz", {}, [], 2**30)


def test_a_bundle_whose_log_folds_to_another_state_here_is_refused(node: Path, tmp_path: Path) -> None:
    """Whatever else is altered in an archive is for tests/backup/test_archive.py and test_create.py."""
    made, changed = tmp_path / "b.tar.gz", tmp_path / "changed.tar.gz"
    write_bundle(node / "events", made, {"status.json": b"{}"}, [], 2**30)
    with tarfile.open(made) as archive, tarfile.open(changed, "w:gz") as lying:
        for entry in archive:
            content = archive.extractfile(entry).read()  # type: ignore[union-attr]
            if entry.name == BundleManifest.FILE:
                content = json.dumps(json.loads(content) | {"state_sha256": "0" * 64}).encode()
                entry.size = len(content)
            lying.addfile(entry, io.BytesIO(content))
    with pytest.raises(ArchiveError, match="folds to another state"):
        open_bundle(changed, tmp_path / "elsewhere")


CONFIGURED = f"""
role = "coordinator"
data = "."
[swarm]
id = "s"
[notify]
urls = ["jsons://hooks.example/{SECRET}-webhook"]
[web]
token = "web.token"
[results.hub]
repo = "a/b"
token = "credential:hub"
"""


def bundled(tmp_path: Path, *call: object) -> set[str]:
    """The names of what is in a bundle that is made so."""
    out = tmp_path / "b.tar.gz"
    assert run_command(["bundle", *map(str, call), "--out", str(out), "--unit", ""]) == ExitCode.OK
    return set(members_of(out))


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a bundle's files are searched for, and what doctor is asked about."""
    found: list[str] = []

    def write(log: Path, out: Path, texts: dict[str, bytes], secrets: frozenset[str], *rest: Any) -> BundleManifest:
        found.extend(secrets)
        return write_bundle(log, out, texts, secrets, *rest)

    monkeypatch.setattr("swarmd.cli.bundle.write_bundle", write)
    monkeypatch.setattr("swarmd.cli.bundle._run_doctor", lambda place, config: b"{}")  # they take seconds
    return found


def configure(file: Path, node: Path) -> None:
    file.write_text(CONFIGURED)
    (node / "web.token").write_text(f"{SECRET}-web")
    (file.parent / "credentials").mkdir()
    (file.parent / "credentials" / "hub").write_text(f"{SECRET}-hub")


@pytest.mark.parametrize("way", ["named", "beside", "service"])
def test_a_configuration_is_found_with_its_secrets(
    way: str, node: Path, tmp_path: Path, searched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a service has it, aside from the data that it calls its own place; beside the log; or by where the log is."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    service = find_service_paths("blue", user=True)
    if way == "service":
        service.state.mkdir(parents=True)
        node = node.rename(service.data)
    file = {"named": tmp_path / "etc/node.toml", "beside": node / "config.toml", "service": service.config}[way]
    file.parent.mkdir(parents=True, exist_ok=True)
    configure(file, node)
    names = bundled(tmp_path, node, *(["--config", file] if way == "named" else []))
    assert {"config.json", "findings.json"} <= names
    assert {f"{SECRET}-webhook", f"{SECRET}-web", f"{SECRET}-hub"} <= set(searched)


def test_from_the_command_line(node: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (node / "account.pass").write_text(SECRET)
    out = tmp_path / "b.tar.gz"
    assert run_command(["bundle", str(node), "--out", str(out), "--unit", ""]) == ExitCode.OK
    assert {"bundle.json", "status.json", "stories.json", "files.json"} <= set(members_of(out))
    assert run_command(["bundle", "--open", str(out), "--to", str(tmp_path / "there")]) == ExitCode.OK
    assert "folds to the state that the node had" in capsys.readouterr().out
    for path in (tmp_path / "there").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()
    assert run_command(["bundle", str(tmp_path / "nowhere")]) == ExitCode.NO_INPUT
    assert run_command(["bundle", "--open", str(out)]) == ExitCode.BAD_CONFIG

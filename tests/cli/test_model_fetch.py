"""What a swarm has learnt is fetched as a model, by somebody without a node: over real p2pd."""

import errno
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import anyio
import anyio.to_thread
import pytest
import torch
from peft import PeftModel

from swarmd.cli.model import fetch, fetch_weights, make_line_reporter, write_model
from swarmd.config import LoraConfig, TrainingConfig
from swarmd.core.commands import Register
from swarmd.core.events import Registered, WeightsFetched
from swarmd.core.values import PeerWeights
from swarmd.dht.identity.identity import read_identity
from swarmd.dht.weights import FetchProgress
from swarmd.errors import LogWriteFailed, NoSpaceLeft, WeightsUnavailable
from swarmd.manifest import sign_manifest, write_manifest
from swarmd.paths import NodeDirectory
from swarmd.training.models.model import load_policy
from swarmd.training.peer_weights import DTYPE, digest_policy_architecture, digest_tokenizer, write_announced
from swarmd.weights.offered import OfferedWeights
from tests.dht.driver import Driver
from tests.test_manifest import signed
from tests.web.test_observer import made, manifest_of

pytestmark = pytest.mark.anyio


async def test_the_coordinators_weights_become_a_model_and_none_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = load_policy(TrainingConfig(device="cpu"))
    boss = Driver(tmp_path / "boss")
    await boss.start()
    try:
        address = await boss.address()
        await boss.do(Register("register"))
        await boss.expect(Registered)
        manifest = manifest_of(boss, address)
        with pytest.raises(WeightsUnavailable, match="no peer that is trusted offers weights"):
            await fetch_weights(manifest, made(tmp_path / "early"), (), policy, 60.0)
        taught = {name: weight * 1.5 for name, weight in policy.copy_weights().items()}
        shelf = OfferedWeights(boss.paths.weights)
        write_announced(taught, shelf.announced_path)
        shelf.offer(digest_policy_architecture(policy), digest_tokenizer(policy.tokenizer), 7, DTYPE, 0.5)
        await boss.do(Register("register"))
        await boss.expect(Registered, since=len(boss.events))
        path = tmp_path / "swarm.toml"
        write_manifest(path, sign_manifest(manifest, read_identity(boss.paths.root / "identity.key")))
        await anyio.to_thread.run_sync(fetch, path, tmp_path / "model", None, 60.0)
    finally:
        await boss.clean()
    assert f"the weights of {boss.peer_id} after round 7" in capsys.readouterr().out
    fetched = load_policy(TrainingConfig(model=str(tmp_path / "model"), device="cpu", dtype="float32"))
    for name, weight in fetched.trained_weights().items():
        assert torch.equal(weight, taught[name].to(torch.bfloat16).to(weight.dtype)), name
    with pytest.raises(WeightsUnavailable, match="exists"):
        fetch(path, tmp_path / "model")


def test_adapters_become_what_peft_loads_on_the_base(tmp_path: Path) -> None:
    """Only what is trained has come; the rest is made here."""
    training = TrainingConfig(device="cpu", lora=LoraConfig(rank=4))
    policy, peers = load_policy(training), NodeDirectory(tmp_path).peer_weights
    taught = {name: weight + 0.5 for name, weight in policy.copy_weights().items()}
    out = made(tmp_path / "model")
    peers.mkdir(parents=True)
    write_announced(taught, peers / "w")
    (peers / "w").rename(peers / f"{'0' * 64}.safetensors")
    write_model(tmp_path, WeightsFetched("weights/0", PeerWeights("them", 7, "0" * 64, 10)), policy, out)
    loaded = PeftModel.from_pretrained(load_policy(TrainingConfig(device="cpu")).model, out)
    policy.load_weights(taught)
    found, wanted = ({n: p for n, p in m.named_parameters() if ".lora_" in n} for m in (loaded, policy.model))
    assert found.keys() == wanted.keys()
    for name, weight in found.items():
        torch.testing.assert_close(weight.detach(), wanted[name].detach(), rtol=1 / 256, atol=0)


@pytest.fixture
def swarm(tmp_path: Path) -> Path:
    write_manifest(tmp_path / "swarm.toml", signed())
    return tmp_path / "swarm.toml"


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Weights are there at once, and their loading is nothing. Returns scratch directories that they were asked for."""
    weights, places = PeerWeights("them", 7, "0" * 64, 10, None), list[Path]()

    def run(ask: object, manifest: object, place: Path, *args: object) -> WeightsFetched:
        places.append(place)
        (place / "network" / "weights").mkdir(parents=True)
        (place / "network" / "weights" / f"{weights.digest}.safetensors").write_bytes(b"weights")
        return WeightsFetched("weights/0", weights, 10, 1.0)

    policy = SimpleNamespace(
        fixed={},
        trained_weights=dict,
        write_model_files=lambda directory: (directory / "config.json").write_bytes(b"{}"),
    )
    monkeypatch.setattr(anyio, "run", run)
    monkeypatch.setattr("swarmd.training.models.model.load_policy", lambda config: policy)
    monkeypatch.setattr("swarmd.training.peer_weights.read_announced", lambda path, own: {})
    return places


def test_a_model_is_there_whole_or_not_at_all(
    swarm: Path, fetched: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "far" / "model"
    with monkeypatch.context() as full:
        full.setattr(shutil, "copyfile", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(NoSpaceLeft):
            fetch(swarm, out, None, 60.0)
    assert list(out.parent.iterdir()) == []
    fetch(swarm, out, None, 60.0)
    assert list(out.parent.iterdir()) == [out] and not any(place.exists() for place in fetched)
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]


def test_a_place_that_cannot_be_made_is_told_before_anything_is_fetched(
    swarm: Path, fetched: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for out, error, fix in (
        (tmp_path / "link", WeightsUnavailable, "--out"),
        (swarm / "model", LogWriteFailed, f"Move away what is at {swarm}"),
    ):
        with pytest.raises(error) as refused:
            fetch(swarm, out, None, 60.0)
        assert str(out.parent) in refused.value.message and fix in refused.value.fix
    assert not fetched


def test_how_far_it_is_is_told_in_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 0.0, 1.0, 9.0, 9.0])
    tell = make_line_reporter(lambda: next(times))
    for chunks in (1, 2, 3):
        tell(FetchProgress(chunks * 1000, 4000, chunks, 4, 1))
    assert capsys.readouterr().err.splitlines() == [
        "1 of 4 chunks from 1 peer, 1,000 of 4,000 bytes",
        "3 of 4 chunks from 1 peer, 3,000 of 4,000 bytes",
    ]

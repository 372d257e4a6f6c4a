"""A model that was loaded before is neither hashed nor tried out again, unless something has changed."""

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmd.config import DIGEST, LoraConfig, TrainingConfig
from swarmd.errors import ModelUnfit
from swarmd.training.engine import TrainingEngine
from swarmd.training.models import files, model, remembered
from swarmd.training.models.files import digest_weights
from swarmd.training.models.known import model_cache
from swarmd.training.models.model import Policy, load_policy
from swarmd.training.models.remembered import BYTES_MAX, FILE, DigestCache
from swarmd.training.models.source import EMBEDDED_DIR
from tests.training.conftest import train_stage
from tests.training.models.conftest import WEIGHTS, reweighted

NORM = "model.norm.weight"
BOTH = Counter(hashed=1, tried=1)

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A model directory that a test may change."""
    return Path(shutil.copytree(EMBEDDED_DIR, tmp_path / "model"))


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often weights were hashed, as read and as files, and a model was tried out."""
    counts: Counter[str] = Counter()

    def counting(module: Any, name: str, what: str) -> None:
        real = getattr(module, name)

        def counted(*args: Any) -> Any:
            counts[what] += 1
            return real(*args)

        monkeypatch.setattr(module, name, counted)

    counting(model, "digest_weights", "hashed")
    counting(model, "smoke_test_model", "tried")
    counting(files, "digest_weights", "compared")
    return counts


def load(place: Path, **settings: Any) -> Policy:
    return load_policy(TrainingConfig(model=str(place), **{"device": "cpu", **settings}))


def kept() -> Path:
    return model_cache().with_name(FILE)


def test_a_second_load_neither_hashes_nor_tries_out(place: Path, done: Counter[str]) -> None:
    named = {"revision": DIGEST + digest_weights(place)}
    first = load(place, **named)
    assert done == BOTH + Counter(compared=1) and first.other_weights == ""
    assert first.digest == first.digest_current_weights()
    done.clear()
    again = load(place, **named)
    assert not done and again.digest == first.digest and again.model.training == first.model.training


def copy_anew(place: Path) -> None:
    """The same files with the same times: only their inodes are others."""
    before = place.rename(place.with_name("before"))
    shutil.copytree(before, place)


@pytest.mark.parametrize(
    "touch",
    [
        reweighted(lambda weights: weights | {NORM: weights[NORM] * 2}),  # of the same size
        lambda place: os.utime(place / WEIGHTS),
        lambda place: (place / "config.json").write_text((place / "config.json").read_text() + "\n"),
        copy_anew,
    ],
    ids=["weights", "time", "configuration", "inodes"],
)
def test_changed_files_are_hashed_and_tried_out(place: Path, done: Counter[str], touch: Callable[[Path], None]) -> None:
    load(place)
    touch(place)
    done.clear()
    policy = load(place)
    assert done == BOTH and policy.digest == policy.digest_current_weights()


def test_other_numbers_attention_and_adapters_are_tried_out(place: Path, done: Counter[str]) -> None:
    load(place)
    for settings, expected in (
        ({"attention": "eager"}, Counter(tried=1)),  # the weights are the same
        ({"dtype": "bfloat16"}, BOTH),
        ({"lora": LoraConfig(rank=4)}, BOTH),
        ({"lora": LoraConfig(rank=8)}, Counter(tried=1)),  # those under the adapters are the same
    ):
        done.clear()
        policy = load(place, **settings)
        assert done == expected, settings
        assert policy.digest == policy.digest_current_weights()
        done.clear()
        assert load(place, **settings).digest == policy.digest and not done


def test_only_success_is_remembered(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(model, "smoke_test_model", lambda *_: "RuntimeError: the driver is being replaced")
        for _ in range(2):
            with pytest.raises(ModelUnfit, match="driver"):
                load(place)
    assert load(place).attention == "sdpa"


@pytest.mark.parametrize(
    "content",
    [b"", b'{"cut": "of', b'{"key": "no digest"}', b"[1]", b"\xff" * 100, b" " * (BYTES_MAX + 1)],
    ids=["empty", "cut off", "other values", "other type", "no text", "too long"],
)
def test_a_damaged_file_is_as_if_it_were_not_there(place: Path, done: Counter[str], content: bytes) -> None:
    digest = load(place).digest
    kept().write_bytes(content)
    done.clear()
    assert load(place).digest == digest and done == BOTH
    done.clear()
    assert load(place).digest == digest and not done, "it was written again"


def test_where_nothing_can_be_kept_a_model_loads_all_the_same(place: Path, done: Counter[str]) -> None:
    kept().parent.parent.mkdir()
    kept().parent.write_text("in the way")
    assert load(place).digest == load(place).digest and done == BOTH + BOTH


def test_no_more_than_the_newest_facts_are_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(msgspec.json.encode({f"{number:064x}": "0" * 64 for number in range(remembered.KEPT)})) <= BYTES_MAX
    monkeypatch.setattr(remembered, "KEPT", 3)
    for number in range(5):
        DigestCache(place, number).put("weights", f"{number:064x}")
    assert len(msgspec.json.decode(kept().read_bytes())) == 3
    recalled = [DigestCache(place, number).get("weights") for number in range(5)]
    assert recalled == ["", "", *(f"{number:064x}" for number in (2, 3, 4))]


@pytest.mark.parametrize("settings", [{}, {"lora": LoraConfig(rank=4)}], ids=["all", "adapters"])
def test_what_a_trainer_says_that_it_loaded_is_what_it_holds(
    make_engine: Callable[..., TrainingEngine], settings: dict[str, Any]
) -> None:
    first = make_engine(learning_rate=3e-3, **settings)
    assert first.loaded_digest == first.policy.digest_current_weights() == first.policy.digest
    train_stage(first, 0)
    again = make_engine(learning_rate=3e-3, **settings)
    assert (
        again.loaded_digest
        == again.policy.digest_current_weights()
        == first.policy.digest_current_weights()
        != first.loaded_digest
    )

"""What training is reckoned to take, what is free, and how smaller parts are tried before a stage fails."""

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarmd.config import LoraConfig, TrainingConfig, VllmConfig
from swarmd.paths import NodeDirectory
from swarmd.swarms.registry import make_plan
from swarmd.training.batches.micro_batch import PARTS, keep_rows, load_rows
from swarmd.training.cancellation import Cancellation
from swarmd.training.distributed.ranks import OtherRanks
from swarmd.training.engine import TrainingEngine
from swarmd.training.footprint import is_device_lost, is_out_of_memory, measure_bytes
from swarmd.training.models.known import TABLE, find_model
from swarmd.training.models.memory import GIB, ModelShape, estimate_need, measure_host, vllm_share
from swarmd.training.trainer import SwarmTrainer
from tests.training.conftest import make_config, order

RECIPE: dict[str, Any] = {"questions": 4, "micro_questions": 1, "prompt_tokens": 256, "completion_tokens": 1024}
ADAPTED = TrainingConfig(**RECIPE, generations=2, lora=LoraConfig(rank=16))


def shape_of(size: str) -> ModelShape:
    row = find_model(f"Qwen/Qwen2.5-{size}-Instruct")
    assert row is not None
    return row.shape


def gib(shape: ModelShape, training: TrainingConfig, weights: str, mixed: bool = False) -> float:
    return estimate_need(shape, training, "cuda", weights, mixed).total / GIB


@pytest.mark.parametrize(
    ("size", "quantization", "table_gib"),
    [
        ("7B", "none", 19), ("14B", "none", 33), ("32B", "none", 76), ("72B", "none", 164),
        ("7B", "4bit", 5), ("14B", "4bit", 8.5), ("32B", "4bit", 26), ("72B", "4bit", 48),
    ],
)  # fmt: skip
def test_adapters_take_about_what_rl_swarms_table_says(size: str, quantization: str, table_gib: float) -> None:
    """RL Swarm's table is multiplied by 1.5, above 32 B by 1.25, before it is used."""
    training = msgspec.structs.replace(ADAPTED, quantization=quantization)
    needed = gib(shape_of(size), training, "bfloat16", True)
    assert 0.85 * table_gib <= needed <= 2.2 * table_gib


def test_a_float32_model_with_adamw_takes_sixteen_bytes_a_parameter() -> None:
    shape = shape_of("1.5B")
    need = estimate_need(shape, TrainingConfig(**RECIPE), "cuda", "float32", True)
    assert need.weights + need.gradients + need.optimizer == 16 * shape.parameters
    assert need.reference == 0
    with_kl = estimate_need(shape, TrainingConfig(**RECIPE, beta=0.1), "cuda", "float32", True)
    assert with_kl.reference == 4 * shape.parameters
    eight = estimate_need(shape, TrainingConfig(**RECIPE, optimizer="adamw_8bit"), "cuda", "float32", True)
    assert eight.optimizer < need.optimizer / 3


@given(
    row=st.sampled_from(TABLE),
    questions=st.integers(1, 32),
    micro=st.integers(0, 40),
    generations=st.integers(2, 16),
    tokens=st.integers(1, 4096),
    weights=st.sampled_from(["float32", "bfloat16"]),
)
def test_more_of_anything_never_takes_less(
    row: Any, questions: int, micro: int, generations: int, tokens: int, weights: str
) -> None:
    training = TrainingConfig(
        questions=questions, micro_questions=micro, generations=generations, completion_tokens=tokens
    )
    need = estimate_need(row.shape, training, "cuda", weights, False)
    assert need.total >= need.weights + need.gradients + need.optimizer > 0
    more = msgspec.structs.replace(training, completion_tokens=tokens + 100, generations=generations + 1)
    assert estimate_need(row.shape, more, "cuda", weights, False).generation > need.generation
    adapted = msgspec.structs.replace(training, lora=LoraConfig(rank=8))
    assert estimate_need(row.shape, adapted, "cuda", weights, False).total < need.total


def test_a_colocated_vllm_gets_a_share_of_the_device() -> None:
    training = TrainingConfig(**RECIPE, vllm=VllmConfig(mode="colocate"))
    share = vllm_share(shape_of("7B"), training, 80 * GIB)
    assert 0.18 < share < 0.4
    assert vllm_share(shape_of("72B"), training, 24 * GIB) == 0.9


def group(root: Path, name: str, **files: str) -> Path:
    place = root / name
    place.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (place / file.replace("_", ".", 1)).write_text(text + "\n")
    return place


def test_the_limit_of_a_control_group_counts(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/slice/unit\n")
    root = tmp_path / "cgroup"
    group(root, "slice/unit", memory_max="max", memory_current="5")
    group(
        root,
        "slice",
        memory_max=str(64 << 20),
        memory_current=str(60 << 20),
        memory_stat=f"anon 1\ninactive_file {8 << 20}",
    )
    room = measure_host("cpu", root, own)
    assert (room.free, room.total, room.limit) == (12 << 20, 64 << 20, str(root / "slice"))


def test_the_first_version_of_control_groups_counts_too(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("4:cpu,cpuacct:/x\n3:memory:/unit\n")
    place = tmp_path / "cgroup" / "memory" / "unit"
    place.mkdir(parents=True)
    (place / "memory.limit_in_bytes").write_text(str(32 << 20))
    (place / "memory.usage_in_bytes").write_text(str(30 << 20))
    assert measure_host("cpu", tmp_path / "cgroup", own).free == 2 << 20


Maker = Callable[..., TrainingEngine]


@pytest.fixture(autouse=True)
def loaded_stays_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller parts have collections walk through all that is loaded once more."""
    monkeypatch.setattr(gc, "unfreeze", lambda: None)


def exhaust(monkeypatch: pytest.MonkeyPatch, rows_that_fit: int) -> list[int]:
    """Have passes of more completions run out of memory, as a device does. Returns the sizes of all that were tried."""
    tried: list[int] = []
    compute = SwarmTrainer.compute_loss

    def compute_loss(self: SwarmTrainer, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        tried.append(int(self.args.per_device_train_batch_size))
        if tried[-1] > rows_that_fit:
            raise torch.OutOfMemoryError("out of memory")
        return compute(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(SwarmTrainer, "compute_loss", compute_loss)
    return tried


def test_a_stage_is_trained_in_halves(make_engine: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()  # four questions of four completions in one pass
    accelerator: Any = engine._trainer.accelerator
    tried = exhaust(monkeypatch, rows_that_fit=8)
    event = engine.train(order(0), Cancellation())
    assert accelerator is not engine._trainer.accelerator
    assert accelerator._optimizers == [], "the optimiser of the larger parts is not held"
    assert event.steps == engine.steps == 2
    assert tried[0] == 16 and set(tried[1:]) == {8}
    assert make_engine()._trainer.args.per_device_train_batch_size == 8


def test_a_stage_fails_after_one_more_try_and_the_next_process_begins_smaller(
    make_engine: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    tried = exhaust(monkeypatch, rows_that_fit=4)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        engine.train(order(0), Cancellation())
    assert is_out_of_memory(raised.value)
    assert tried == [16, 8]
    fresh = make_engine()
    assert fresh.train(order(0), Cancellation()).steps == 2
    assert set(tried[2:]) == {4}


def test_the_first_of_several_ranks_tries_no_more_and_the_next_process_begins_smaller(
    tmp_path: Path, make_engine: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks are in the middle of the stage that failed here: only a fresh start has all of them together."""
    config = make_config()
    crew = cast(OtherRanks, SimpleNamespace(start_stage=lambda order: None))
    engine = TrainingEngine(config, NodeDirectory(tmp_path / "a"), "a", make_plan(config.swarm), crew=crew)
    tried = exhaust(monkeypatch, rows_that_fit=8)
    with pytest.raises(torch.OutOfMemoryError):
        engine.train(order(0), Cancellation())
    assert tried == [16]
    assert make_engine().train(order(0), Cancellation()).steps == 2
    assert set(tried[1:]) == {8}


def test_the_next_process_begins_where_memory_sufficed(tmp_path: Path) -> None:
    assert load_rows(tmp_path, 16, 32) == 16
    keep_rows(tmp_path, 4, 16, 32)
    assert load_rows(tmp_path, 16, 32) == 4


@pytest.mark.parametrize(("first", "batch"), [(8, 32), (16, 64)])
def test_other_settings_begin_anew(tmp_path: Path, first: int, batch: int) -> None:
    keep_rows(tmp_path, 4, 16, 32)
    assert load_rows(tmp_path, first, batch) == first


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b'{"rows":5,"first":16,"batch":32}', b'{"rows":0,"first":16,"batch":32}']
)
def test_a_damaged_note_only_costs_the_lesson(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / PARTS).write_bytes(damage)
    assert load_rows(tmp_path, 16, 32) == 16


def test_a_note_that_cannot_be_written_only_costs_the_lesson(tmp_path: Path) -> None:
    """Else an error of the disk would take the place of the want of memory, which smaller parts would have helped."""
    (tmp_path / PARTS).mkdir()
    keep_rows(tmp_path, 4, 16, 32)
    assert [each.name for each in tmp_path.iterdir()] == [PARTS] and load_rows(tmp_path, 16, 32) == 16
    keep_rows(tmp_path / "gone", 4, 16, 32)


MEBIBYTE = 1 << 20
HOLD = "import sys; block = bytearray(64 << 20); print(flush=True); sys.stdin.read()"


def test_memory_of_another_process_is_measured() -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        held = measure_bytes(Path(f"/proc/{child.pid}/status"))
        assert 64 * MEBIBYTE < held < 128 * MEBIBYTE < measure_bytes()
    finally:
        child.communicate()


def test_running_out_of_memory_is_known_by_type_and_by_words() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 50)  # on the CPU torch raises no MemoryError
    assert is_out_of_memory(raised.value)
    words = ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED", "MPS backend out of memory (MPS allocated: 9 GB)")
    for error in (MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), *map(RuntimeError, words)):
        assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


def test_a_lost_accelerator_is_no_shortage_of_memory() -> None:
    """Smaller parts would not help, and a fresh process would begin with them for nothing."""
    error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    assert is_device_lost(error) and not is_out_of_memory(error)
    assert is_out_of_memory(torch.AcceleratorError("CUDA error: out of memory"))

"""Estimates of what training takes, and measurements of what is free."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.config import LoraConfig, TrainingConfig, VllmConfig
from swarmd.training.models.known import TABLE, find_model
from swarmd.training.models.memory import GIB, ModelShape, estimate_need, measure_host, vllm_share

RECIPE: dict[str, Any] = {"questions": 4, "micro_questions": 1, "prompt_tokens": 256, "completion_tokens": 1024}


def shape_of(size: str) -> ModelShape:
    row = find_model(f"Qwen/Qwen2.5-{size}-Instruct")
    assert row is not None
    return row.shape


SMOLLM2 = ModelShape(134515008, 30, 576, 1536, 49152, 576, 192, True)
EMBEDDED = ModelShape(533248, 2, 128, 512, 320, 128, 64, True)


@pytest.mark.parametrize(
    ("shape", "batch", "settings", "peak_mib"),
    [
        (SMOLLM2, (4, 8, 32), {}, 3612),
        (SMOLLM2, (2, 8, 32), {}, 3418),
        (SMOLLM2, (2, 4, 128), {}, 3436),
        (SMOLLM2, (2, 8, 32), {"lora": LoraConfig(rank=8)}, 1925),
        (SMOLLM2, (2, 8, 32), {"lora": LoraConfig(rank=8), "quantization": "4bit"}, 1680),
        (EMBEDDED, (4, 8, 32), {}, 543),
        (EMBEDDED, (4, 4, 128), {"lora": LoraConfig(rank=8)}, 584),
    ],
)
def test_measured_peaks_are_foretold(
    shape: ModelShape, batch: tuple[int, int, int], settings: dict[str, Any], peak_mib: float
) -> None:
    """The table of docs/MODELS.md: largest resident memory of a trainer on a processor, prompts of 30 to 200 tokens."""
    questions, generations, tokens = batch
    prompt = 200 if shape is EMBEDDED else 32
    sizes = {"questions": questions, "generations": generations, "completion_tokens": tokens, "prompt_tokens": prompt}
    need = estimate_need(shape, TrainingConfig(**sizes, **settings), "cpu", "float32", False)
    assert 0.95 <= need.total / 2**20 / peak_mib <= 1.10


def test_passes_and_drawing_take_turns() -> None:
    need = estimate_need(SMOLLM2, TrainingConfig(prompt_tokens=32, completion_tokens=32), "cpu", "float32", False)
    drawn = msgspec.structs.replace(need, passes=0, gradients=0)
    assert need.generation > 0 and drawn.total < need.total
    assert msgspec.structs.replace(drawn, generation=0, drawing=0).total < drawn.total
    assert need.minimum_bytes < need.total - need.process, "a process that decides has loaded its libraries"


def test_passes_take_no_more_than_their_part_of_the_free_memory() -> None:
    shape, training = shape_of("0.5B"), TrainingConfig(questions=16, generations=8, completion_tokens=1024)
    unbounded = estimate_need(shape, training, "cuda", "float32", True)
    bounded = estimate_need(shape, training, "cuda", "float32", True, 24 * GIB)
    held = bounded.weights + bounded.optimizer + bounded.gradients
    assert bounded.smallest_pass < bounded.passes == (24 * GIB - held) // 2 < unbounded.passes
    assert estimate_need(shape, training, "cuda", "float32", True, GIB).passes == bounded.smallest_pass


def test_a_float32_model_with_adamw_takes_sixteen_bytes_a_parameter() -> None:
    shape = shape_of("1.5B")
    need = estimate_need(shape, TrainingConfig(**RECIPE), "cuda", "float32", True)
    assert need.weights + need.gradients + need.optimizer == 16 * shape.parameters
    assert need.reference == 0
    with_kl = estimate_need(shape, TrainingConfig(**RECIPE, beta=0.1), "cuda", "float32", True)
    assert with_kl.reference == 4 * shape.parameters
    eight = estimate_need(shape, TrainingConfig(**RECIPE, optimizer="adamw_8bit"), "cuda", "float32", True)
    assert eight.optimizer < need.optimizer / 3


@pytest.mark.parametrize("rank", [0, 8])
def test_what_overlaps_takes_memory_for_both_and_for_what_is_trained_once_more(rank: int) -> None:
    shape = shape_of("1.5B")
    training = TrainingConfig(**RECIPE, dtype="float32", lora=LoraConfig(rank=rank))
    turns, both = (
        estimate_need(shape, msgspec.structs.replace(training, overlap=overlap), "cuda", "float32", False)
        for overlap in (0, 1)
    )
    assert both.drawing == both.gradients and turns.drawing == 0
    assert both.total == turns.total + min(turns.training_bytes, turns.generating_bytes) + both.drawing
    assert both.minimum_bytes == turns.minimum_bytes, "without room for it nothing overlaps"


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

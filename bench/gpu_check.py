"""Whether swarmd is right and fast on a GPU, in eight minutes: `make gpu-check`, where there is torch and no network.

First what must hold: packed passes and the sampler give what plain ones give, adapters and quantised weights train,
memory that runs out costs smaller passes and no more, three nodes on one card keep logs that can be verified. Then the
table: a stage against bare TRL's, tokens a second against transformers' `generate`, the share of the card's peak that
passes reach, and peak memory against what `model fit` foretells.

The models have the shapes of published ones and random weights: neither speed nor memory needs others. Rewards are
those of `bench.half_flat`, of which every other group teaches nothing. What there is no time left for is named.
"""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from bench import half_flat
from bench.bare_trl import Bare
from bench.generation import by_generate, by_sampler, draw_prompts
from bench.measure import ratios, sample, timed
from bench.place import Unavailable
from bench.table import Row
from swarmd.config import Config, LoraConfig, StorageConfig, SwarmConfig, TrainingConfig
from swarmd.core.commands import Train
from swarmd.paths import NodeDirectory
from swarmd.swarms.registry import make_plan
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from swarmd.training.footprint import freeze_loaded_objects
from swarmd.training.library_logging import silence_libraries
from swarmd.training.models.memory import GIB, estimate_need, read_shape
from swarmd.training.models.model import load_policy, load_tokenizer
from swarmd.training.models.source import EMBEDDED_DIR
from swarmd.training.packed import compute_packed_logps, prepare_packing
from swarmd.training.sampling import Sampler
from swarmd.training.trainer import compare_computations

PEER = "12D3KooWbench"
BUDGET_S = 480.0
GRADIENT_MAX = 1e-5  # of the gradient's norm, between packed and plain passes in float32
STAGE_GOAL = 0.7  # of bare TRL's wall time
GENERATE_GOAL = 5.0  # times as many tokens a second as `generate`
PEAK_SHARE_GOAL = 20.0  # per cent of the card's peak, in passes
FORETOLD = (0.95, 1.10)  # what is foretold, over the measured peak
STAGES = 3  # of each side; the first builds what the others have
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # in bfloat16, by a part of the card's name
PRODUCT = 8192  # rows and columns of the matrices whose product tells the peak of another card


class Shape(NamedTuple):
    """A model in a published one's shape, and the batches that it is trained on."""

    kind: type[Any]
    settings: dict[str, int]
    batch: tuple[int, int, int]  # questions, completions of each, tokens of a completion
    seconds: float  # that it takes at least


SHAPES = {
    "SmolLM2-135M": Shape(
        LlamaConfig,
        {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
        | {"num_key_value_heads": 3, "vocab_size": 49152},
        (16, 8, 32),
        40.0,
    ),
    "Qwen2.5-0.5B": Shape(
        Qwen2Config,
        {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
        | {"num_key_value_heads": 2, "vocab_size": 151936},
        (4, 8, 1024),
        120.0,
    ),
    "Qwen2.5-1.5B": Shape(
        Qwen2Config,
        {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12}
        | {"num_key_value_heads": 2, "vocab_size": 151936},
        (4, 8, 128),
        90.0,
    ),
}
TINY = Shape(
    LlamaConfig,
    {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "vocab_size": 512},
    (4, 4, 8),
    0.0,
)


def run(directory: Path, device: str = "cuda") -> Iterable[Row]:
    """Rows as they come; on a processor, with a tiny model, only to rehearse."""
    if device == "cuda" and not torch.cuda.is_available():
        raise Unavailable("torch finds no CUDA device; `--device cpu` rehearses the script with a tiny model")
    silence_libraries()
    half_flat.make_known()
    freeze_loaded_objects()
    began = time.monotonic()
    shapes = SHAPES if device == "cuda" else {"tiny": TINY}
    first = next(iter(shapes))
    models = {name: make_model(directory / "models" / name, shape) for name, shape in shapes.items()}
    parts: list[tuple[str, float, Callable[[], Iterable[Row]]]] = [
        ("packed passes", 10.0, lambda: check_packed(models[first], device)),
        ("the sampler", 10.0, lambda: check_sampler(models[first], device)),
        ("numbers and caches", 60.0, lambda: compare_alternatives(models[first], device, shapes[first].batch)),
        ("adapters and quantised weights", 30.0, lambda: check_kinds(directory, models[first], device)),
        ("memory that runs out", 15.0, lambda: check_memory(directory, models[first], device)),
        ("three nodes", 90.0, lambda: check_nodes(directory, models[first], device)),
    ]
    for name, shape in shapes.items():
        for rank in (0, 8):
            measured = partial(measure, directory / "table", name, models[name], shape, rank, device)
            parts.append((f"{name}{', adapters' * bool(rank)}", shape.seconds, measured))
    for name, seconds, part in parts:
        if time.monotonic() - began + seconds > BUDGET_S:
            yield Row(f"{name}: no time was left", "", sample())
            continue
        try:
            yield from part()
        except Exception as error:  # the others are worth having
            yield Row(f"{name}: {type(error).__name__}: {str(error)[:200]}", "", sample(), met=False, goal="works")
        free()


def make_model(directory: Path, shape: Shape) -> str:
    """Write the model, with the embedded model's tokenizer."""
    tokenizer = load_tokenizer(str(EMBEDDED_DIR), "embedded")
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = shape.kind(**shape.settings, **ids, tie_word_embeddings=True, max_position_embeddings=4096)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


def configure(model: str, device: str, batch: tuple[int, int, int] = TINY.batch, **settings: Any) -> Config:
    questions, generations, tokens = batch
    sizes: dict[str, Any] = {
        "questions": questions,
        "generations": generations,
        "completion_tokens": tokens,
        "steps": 1,
        "device": device,
    }
    training = TrainingConfig(
        model=model,
        peer_questions=0,
        held_out_questions=0,
        **{**sizes, **settings},
    )
    swarm = SwarmConfig(id="bench", coordinator=PEER, kind=half_flat.NAME)
    return Config(swarm=swarm, training=training, storage=StorageConfig(free_bytes_min=0))


def make_engine(directory: Path, config: Config) -> TrainingEngine:
    return TrainingEngine(config, NodeDirectory(directory), PEER, make_plan(config.swarm, config.training))


def train(engine: TrainingEngine, round: int) -> float:
    """Wall seconds of a stage, and in `StageTrained` what came of it."""
    with timed() as watch:
        engine.train(Train(f"train/{round}/0", round, 0), Cancellation())
    return watch.wall_s


def free() -> None:
    """Have back what engines and models took that nobody holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# --- what must hold ---


def make_batch(device: str, batch: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Random ids of prompts and completions, which end at different places, their mask, and the completions' width."""
    questions, generations, keep = batch
    width, rows = 40, questions * generations
    ids = torch.randint(5, 500, (rows, width + keep), generator=torch.Generator().manual_seed(0))
    ids[:, :width] = ids[:questions, :width].repeat_interleave(generations, 0)
    mask = torch.ones_like(ids)
    mask[rows // 2 :, :7] = 0
    for row in range(rows):
        mask[row, width + 3 + row % (keep - 3) :] = 0
    return ids.to(device), mask.to(device), keep


def check_packed(model: str, device: str) -> Iterable[Row]:
    policy = load_policy(TrainingConfig(model=model, device=device, dtype="float32"))  # type: ignore[arg-type]
    prepare_packing(policy.model)
    ids, mask, keep = make_batch(device, (2, 4, 24))
    written = mask[:, -keep:].bool()
    weights = torch.randn(8, keep, generator=torch.Generator().manual_seed(0)).to(device)[written]

    def plain() -> torch.Tensor:
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits = policy.model(input_ids=ids, attention_mask=mask, position_ids=positions).logits[:, -keep - 1 : -1]
        return torch.log_softmax(logits.float(), -1).gather(2, ids[:, -keep:, None])[..., 0]

    gradients = []
    for compute in (plain, lambda: compute_packed_logps(policy.model, ids, mask, keep, 1.0)[0]):
        policy.model.zero_grad()
        (compute()[written] * weights).sum().backward()
        gradients.append(torch.cat([weight.grad.flatten() for weight in policy.model.parameters()]))
    apart = float((gradients[1] - gradients[0]).norm() / gradients[0].norm())
    what = "packed gradients, float32: distance from plain ones"
    yield Row(what, "of the norm", sample(apart), goal=f"<= {GRADIENT_MAX:g}", met=apart <= GRADIENT_MAX)


def check_sampler(model: str, device: str) -> Iterable[Row]:
    policy = load_policy(TrainingConfig(model=model, device=device, dtype="float32"))  # type: ignore[arg-type]
    prompts, tokens = [[5, 6, 7, 8, 9], [10], [11, 12, 13]], 12
    generator = torch.Generator(device)
    drawn = Sampler(policy).sample(prompts, 2, tokens, 0.0, generator, Cancellation())
    same = 0
    for row, completion in enumerate(drawn):
        ids = list(prompts[row // 2])
        with torch.no_grad():
            for _ in completion.tokens:
                logits = policy.model(input_ids=torch.tensor([ids], device=device)).logits[0, -1]
                ids.append(int(logits.argmax()))
        same += ids[len(prompts[row // 2]) :] == completion.tokens
    yield Row("likeliest completions as plain passes have them", "of 6", sample(same), goal="6", met=same == 6)


def check_kinds(directory: Path, model: str, device: str) -> Iterable[Row]:
    kinds: dict[str, dict[str, Any]] = {
        "adapters": {"lora": LoraConfig(rank=8)},
        "4-bit weights under adapters": {"lora": LoraConfig(rank=8), "quantization": "4bit"},
        "8-bit moments": {"optimizer": "adamw_8bit"},
    }
    for name, settings in kinds.items():
        try:
            engine = make_engine(directory / name.replace(" ", "-"), configure(model, device, **settings))
            seconds = train(engine, 0)
        except Exception as error:
            yield Row(f"{name}: {type(error).__name__}: {str(error)[:200]}", "", sample(), goal="trains", met=False)
            continue
        yield Row(f"a stage of {name}", "s", sample(seconds), goal="trains", met=engine.steps == 1)
        del engine
        free()


def check_memory(directory: Path, model: str, device: str) -> Iterable[Row]:
    """A pass far larger than what torch may have: it is halved until it fits."""
    if device != "cuda":
        return
    engine = make_engine(directory / "little", configure(model, device, (16, 8, 128)))
    train(engine, 0)
    sizes = engine._sizes
    sizes._token_bytes, sizes._tokens_max = 1.0, sizes._ceiling  # as if everything went into one pass
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + 2 * GIB) / total)
    try:
        train(engine, 1)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    smaller = sizes._tokens_max < sizes._ceiling
    yield Row("tokens of a pass after memory ran out", "", sample(sizes._tokens_max), goal="trains", met=smaller)


def check_nodes(directory: Path, model: str, device: str) -> Iterable[Row]:
    """Three nodes of two rounds on the card, and their logs."""
    nodes = directory / "nodes"
    settings = {"training.model": f'"{model}"', "training.device": f'"{device}"', "training.held_out_questions": "0"}
    given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    with timed() as watch:
        _call("local", "--rounds", "2", "--nodes", "3", "--dir", str(nodes), *given)
    verified = 0
    for node in sorted(path.parent for path in nodes.glob("*/config.toml")):
        _call("replay", "--verify", str(node))
        verified += 1
    yield Row("two rounds of three nodes on one card", "s", sample(watch.wall_s))
    yield Row("their logs verified", "of 3", sample(verified), goal="3", met=verified == 3)


def _call(*arguments: str) -> None:
    """Run swarmd. Raises Unavailable with the end of what it said."""
    done = subprocess.run([sys.executable, "-m", "swarmd", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"swarmd {arguments[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]}")


# --- alternatives, of which the figures are to choose ---


def compare_alternatives(model: str, device: str, batch: tuple[int, int, int]) -> Iterable[Row]:
    """Passes with weights in bfloat16 against autocast over float32, and `generate` with a static cache against its
    growing one, which is what captured steps would need."""
    policy = load_policy(TrainingConfig(model=model, device=device))  # type: ignore[arg-type]
    prepare_packing(policy.model)
    short = copy.deepcopy(policy.model).to(torch.bfloat16)
    ids, mask, keep = make_batch(device, batch)
    cast = partial(torch.autocast, device, torch.bfloat16)

    def learn(model: Any, numbers: Callable[[], AbstractContextManager[Any]]) -> torch.Tensor:
        model.zero_grad()
        with numbers():
            logps = compute_packed_logps(model, ids, mask, keep, 1.0)[0]
        logps.sum().backward()
        return torch.cat([weight.grad.flatten().float() for weight in model.parameters()])

    (expected, gradients), (cast_s, short_s) = compare_computations(
        lambda: learn(policy.model, cast), lambda: learn(short, nullcontext)
    )
    rows, ours = f"a pass of {' x '.join(map(str, batch))} tokens", sample(short_s)
    yield Row(f"{rows}, weights in bfloat16", "s", ours, "autocast", sample(cast_s), sample(short_s / cast_s))
    apart = float((gradients - expected).norm() / expected.norm())
    yield Row("  distance of its gradients from those under autocast", "of the norm", sample(apart))
    with torch.no_grad(), timed() as watch:
        for shorter, weight in zip(short.parameters(), policy.model.parameters(), strict=True):
            shorter.copy_(weight)
        synchronize()
    yield Row("  all weights cast once, as after each step", "s", sample(watch.wall_s))
    short.eval()

    def draw(**cache: Any) -> Any:
        with torch.no_grad():
            return short.generate(
                input_ids=ids[:, :-keep], attention_mask=mask[:, :-keep], do_sample=False, max_new_tokens=keep,
                min_new_tokens=keep, **cache,
            )  # fmt: skip

    (growing, static), (growing_s, static_s) = compare_computations(draw, lambda: draw(cache_implementation="static"))
    rates = [sample(growing.size(0) * keep / seconds) for seconds in (static_s, growing_s)]
    same = 100 * float((growing == static).all(1).float().mean())
    yield Row("drawn with a static cache, in bfloat16", "tokens/s", rates[0], "a growing one", rates[1], ratios(*rates))
    yield Row("  completions that are the same", "%", sample(same))


# --- the table ---


def measure(directory: Path, name: str, model: str, shape: Shape, rank: int, device: str) -> Iterable[Row]:
    """A model's rows; adapters are compared with nothing."""
    config = configure(model, device, shape.batch, lora=LoraConfig(rank=rank))
    what = f"{name}{', adapters' * bool(rank)}, {' x '.join(map(str, shape.batch))} tokens"
    begin_peak()
    engine = make_engine(directory / f"{name}-{rank}", config)
    passes = clock_passes(engine)
    walls = [train(engine, round) for round in range(STAGES)]
    peak = engine._sizes.measure_peak_vram() if device == "cuda" else 0
    ours = sample(*walls[1:])
    if rank:
        yield Row(f"{what}: a stage", "s", ours)
    else:
        generating = list(compare_generating(engine, config, what))
    parameters, numbers = engine.policy.parameter_count, engine.policy.precision
    need = estimate_need(
        read_shape(engine.policy.model.config, parameters), config.training, device, numbers.weights, numbers.mixed
    )
    del engine
    free()
    if not rank:
        begin_peak()
        bare = Bare(config, PEER)
        bare.model.to(device)  # type: ignore[arg-type]
        theirs = sample(*[bare.train(round)["wall_s"] for round in range(STAGES)][1:])
        bare_peak = peak_bytes()
        del bare
        free()
        ratio = ratios(ours, theirs)
        goal = f"<= {STAGE_GOAL:g}"
        yield Row(f"{what}: a stage", "s", ours, "bare TRL", theirs, ratio, goal, ratio.median <= STAGE_GOAL)
        yield from generating
        if peak:
            peaks = sample(peak / GIB), sample(bare_peak / GIB)
            yield Row(f"{what}: peak memory", "GiB", peaks[0], "bare TRL", peaks[1], ratios(*peaks))
    if peak:
        foretold = need.total / peak
        met = FORETOLD[0] <= foretold <= FORETOLD[1]
        goal = f"{FORETOLD[0]:g} to {FORETOLD[1]:g}"
        yield Row(f"{what}: memory foretold over the peak", "", sample(foretold), goal=goal, met=met)
    flops = peak_flops(device)
    share = 100 * 6 * parameters * passes.tokens / max(passes.seconds, 1e-9) / flops
    judged = device == "cuda" and not rank
    goal = f">= {PEAK_SHARE_GOAL:g}" if judged else ""
    reached = share >= PEAK_SHARE_GOAL if judged else None
    yield Row(f"{what}: of the card's peak, in passes", "%", sample(share), goal=goal, met=reached)


def compare_generating(engine: TrainingEngine, config: Config, what: str) -> Iterable[Row]:
    """The engine's sampler against `generate`, once each after a batch that is not measured."""
    generations = config.training.generations
    prompts = draw_prompts(engine.policy, config.training, config.training.questions)
    rates = []
    for draw in (
        by_sampler(engine.policy, config.training, engine._sampler),
        by_generate(engine.policy, config.training),
    ):
        draw(prompts, generations)
        with timed() as watch:
            drawn = draw(prompts, generations)
        rates.append(sample(sum(map(len, drawn)) / watch.wall_s))
    ratio = ratios(*rates)
    goal = f">= {GENERATE_GOAL:g}x"
    yield Row(f"{what}: drawn", "tokens/s", rates[0], "generate", rates[1], ratio, goal, ratio.median >= GENERATE_GOAL)


class Clock:
    """Seconds and tokens of passes."""

    seconds = 0.0
    tokens = 0


def clock_passes(engine: TrainingEngine) -> Clock:
    """Time the engine's forward and backward passes from now on."""
    clock, measure = Clock(), engine._sizes.measure_pass

    @contextmanager
    def timing(rows: int, tokens: int, kept: int) -> Iterator[None]:
        with measure(rows, tokens, kept):
            synchronize()
            begun = time.perf_counter()
            yield
            synchronize()
        clock.seconds += time.perf_counter() - begun
        clock.tokens += tokens

    engine._sizes.measure_pass = timing  # type: ignore[method-assign]
    return clock


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def begin_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_bytes() -> int:
    """The most that tensors took on the card since `begin_peak`; 0 without one."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def peak_flops(device: str) -> float:
    """Operations a second that the card can do in bfloat16; by a large product where its name says nothing."""
    name = torch.cuda.get_device_name(0) if device == "cuda" else ""
    known = next((flops for part, flops in PEAK_FLOPS.items() if part in name), 0.0)
    if known:
        return known
    size = PRODUCT if device == "cuda" else 512
    matrix = torch.ones(size, size, dtype=torch.bfloat16, device=device)
    times = []
    for _ in range(5):
        synchronize()
        begun = time.perf_counter()
        matrix @ matrix
        synchronize()
        times.append(time.perf_counter() - begun)
    return 2.0 * size**3 / min(times)

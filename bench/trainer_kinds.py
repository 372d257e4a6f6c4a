"""What a KL term and adapters cost the trainer: processor time of a stage and memory, on the embedded model.

Each kind is the trainer worker of the stage benchmark with other settings; the peer is the one without them. With a KL
term the flat groups stay in the batch, since they pull towards the reference; a copy of the model is that reference.
The embedded model is so small that torch and the libraries are nearly all of the memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench.measure import ratios, sample
from bench.stage import PEER, race, swarmd_side
from bench.table import Row
from swarmd.config import Config, LoraConfig, SwarmConfig, TrainingConfig
from swarmd.training.footprint import measure_anonymous_bytes

STEPS = 8
ROUNDS = 3
MEBIBYTE = 1 << 20
PLAIN = TrainingConfig(device="cpu", threads=1, steps=STEPS, peer_questions=0, held_out_questions=0)
KINDS = {
    "all weights": PLAIN,
    "beta = 0.02": msgspec.structs.replace(PLAIN, beta=0.02),
    "lora.rank = 8": msgspec.structs.replace(PLAIN, lora=LoraConfig(rank=8)),
}


def run(directory: Path) -> Iterable[Row]:
    swarm = SwarmConfig(id="bench", coordinator=PEER)
    with ExitStack() as stack:
        sides = {
            name: stack.enter_context(swarmd_side(Config(swarm=swarm, training=training), directory, f"kind-{place}"))
            for place, (name, training) in enumerate(KINDS.items())
        }
        race(sides, ROUNDS)
        used = {name: measure_anonymous_bytes(Path(f"/proc/{side.process.pid}/status")) for name, side in sides.items()}
    plain, *others = KINDS
    yield Row(f"{plain}: stage of {STEPS} steps, processor time", "s", sides[plain].processor_s)
    for name in others:
        ours, theirs = sides[name].processor_s, sides[plain].processor_s
        yield Row(f"{name}: the same", "s", ours, plain, theirs, ratios(ours, theirs))
    for name in KINDS:
        yield Row(f"{name}: memory after {ROUNDS + 1} stages", "MiB", sample(used[name] / MEBIBYTE))

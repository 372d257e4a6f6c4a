"""What turns cost a pass: five turns with answers between them, against one turn of the same tokens, and against a
sequence for each turn, as it is without packing turns. Processor time of forward and backward passes on one thread.

The model is the embedded one, or the one that `TURNS_MODEL` names.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate
from pathlib import Path

import torch

from bench.measure import ratios, take_turns
from bench.table import Row
from swarmd.config import TrainingConfig
from swarmd.training.models.model import Policy, load_policy
from swarmd.training.packed import compute_packed_logps, prepare_packing

ROWS, TURNS = 4, 5
PROMPT, TURN, ANSWER = 48, 24, 12  # tokens
REPEATS = 3
RATIO_MAX = 1.2  # of five turns to one


def run(directory: Path) -> Iterable[Row]:
    torch.set_num_threads(1)
    policy = load_policy(TrainingConfig(model=os.environ.get("TURNS_MODEL", "embedded"), device="cpu"))
    prepare_packing(policy.model)
    several = [TURN if place % 2 == 0 else ANSWER for place in range(2 * TURNS - 1)]
    length = sum(several)
    ids = torch.randint(1, policy.model.config.vocab_size, (ROWS, PROMPT + length))
    own = torch.tensor([float(place % 2 == 0) for place, count in enumerate(several) for _ in range(count)])
    ends = list(accumulate(several))[::2]

    def pass_once(mask: torch.Tensor) -> None:
        logps, _ = compute_packed_logps(policy.model, ids, torch.ones_like(ids), length, 1.0)
        (logps * mask).sum().backward()

    def pass_by_turns() -> None:
        for end in ends:  # each turn's prompt is all before it
            part = ids[:, : PROMPT + end]
            compute_packed_logps(policy.model, part, torch.ones_like(part), TURN, 1.0)[0].sum().backward()

    ways: dict[str, Callable[[], None]] = {
        "one turn": lambda: pass_once(torch.ones(length)),
        "five turns": lambda: pass_once(own),
        "five turns, a sequence for each": pass_by_turns,
    }
    timed = {name: partial(measure_pass, policy, way) for name, way in ways.items()}
    take_turns(timed, 1)  # the first round does not count
    taken = take_turns(timed, REPEATS)
    one = taken["one turn"]
    yield Row(f"one turn of {length} tokens, {ROWS} rows: processor time of a pass", "s", one)
    for name, most in (("five turns", RATIO_MAX), ("five turns, a sequence for each", None)):
        ratio = ratios(taken[name], one)
        goal, is_met = ("", None) if most is None else (f"at most {most:g}", ratio.median <= most)
        yield Row(f"{name}: the same", "s", taken[name], "one turn", one, ratio, goal, is_met)


def measure_pass(policy: Policy, way: Callable[[], None]) -> float:
    """Processor seconds."""
    policy.model.zero_grad()
    begun = time.process_time()
    way()
    return time.process_time() - begun

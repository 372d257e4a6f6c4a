"""`python -m tests.sim.shown_by`: which seed shows each planted mistake, into `shown_by.json`.

`test_mutants` tries that seed first, and others only where it shows nothing any more; so the file may be old.
"""

from pathlib import Path
from typing import Any

import msgspec

from swarmd.sim.profile import ROUGH
from swarmd.sim.simulation import InvariantBroken
from swarmd.sim.world import run_simulation
from tests.sim.mutants import CHAIN_MUTANTS, MUTANTS, NETWORK_MUTANTS, SHELL_MUTANTS, SHIPPED_CHAIN_MUTANTS
from tests.sim.planting import Mutant, planted

FILE = Path(__file__).with_suffix(".json")
OFF_CHAIN = (*MUTANTS, *SHELL_MUTANTS, *NETWORK_MUTANTS)
ON_CHAIN = (*CHAIN_MUTANTS, *SHIPPED_CHAIN_MUTANTS)
SEEDS_MAX = 30
SPAN: dict[str, Any] = {"hours": 0.5, "calm_s": 700.0, "jumps": 0.0, "hostile": "none"}


def violation_of(mutant: Mutant, seed: int) -> str:
    """What the checks say of one seed with the mistake, or "": a crash of the core counts as shown too."""
    given: dict[str, Any] = (ROUGH if mutant in ON_CHAIN else {"chain": False}) | SPAN | dict(mutant.given)
    with planted(mutant):
        try:
            run_simulation(seed, **given)
        except InvariantBroken as violation:
            return violation.what
        except AssertionError as error:
            return f"assertion: {error}"
    return ""


def find_seed(mutant: Mutant) -> int | None:
    """The first seed that shows it, from the one that did before; None where none does."""
    shown_by = msgspec.json.decode(FILE.read_bytes(), type=dict[str, int])
    first = shown_by.get(mutant.name, 0)
    seeds = [first, *(seed for seed in range(SEEDS_MAX) if seed != first)]
    return next((seed for seed in seeds if violation_of(mutant, seed)), None)


def main() -> None:
    """Look for a seed of each mistake."""
    found: dict[str, int] = {}
    for mutant in (*OFF_CHAIN, *ON_CHAIN):
        seed = find_seed(mutant)
        print(f"{mutant.name}: {seed}", flush=True)
        if seed is not None:
            found[mutant.name] = seed
    FILE.write_bytes(msgspec.json.format(msgspec.json.encode(found, order="sorted"), indent=1) + b"\n")


if __name__ == "__main__":
    main()

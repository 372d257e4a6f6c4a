"""The checks catch what they claim: every planted mistake is found within a few seeds."""

import inspect
from typing import Any

import pytest

from swarmd.sim.invariants.checks import InvariantBroken
from swarmd.sim.profile import ROUGH
from swarmd.sim.world import run
from tests.sim.mutants import CHAIN_MUTANTS, MUTANTS
from tests.sim.mutants_chain import SHIPPED_CHAIN_MUTANTS
from tests.sim.mutants_network import NETWORK_MUTANTS
from tests.sim.planting import Mutant, planted
from tests.sim.shell_mutants import SHELL_MUTANTS

OFF_CHAIN = (*MUTANTS, *SHELL_MUTANTS, *NETWORK_MUTANTS)
ON_CHAIN = (*CHAIN_MUTANTS, *SHIPPED_CHAIN_MUTANTS)
SEEDS_MAX = 30
SPAN: dict[str, Any] = {"hours": 0.5, "calm_s": 700.0, "jumps": 0.0, "hostile": "none"}


def find(mutant: Mutant, chain: bool) -> tuple[int, str]:
    """The first seed that shows the mistake, and what the checks say; a crash of the core counts as shown too."""
    given: dict[str, Any] = (ROUGH if chain else {"chain": False}) | SPAN | dict(mutant.given)
    with planted(mutant):
        for seed in range(SEEDS_MAX):
            try:
                run(seed, **given)
            except InvariantBroken as violation:
                return seed, violation.what
            except AssertionError as error:
                return seed, f"assertion: {error}"
    return SEEDS_MAX, "nothing"


@pytest.mark.parametrize(
    ("mutant", "chain"),
    [*((mutant, False) for mutant in OFF_CHAIN), *((mutant, True) for mutant in ON_CHAIN)],
    ids=lambda given: given.name if isinstance(given, Mutant) else "",
)
def test_a_mutant_is_caught(mutant: Mutant, chain: bool) -> None:
    seed, what = find(mutant, chain)
    assert seed < SEEDS_MAX, f"{SEEDS_MAX} seeds do not show that {mutant.name}"
    print(f"seed {seed}: {what}")


def test_no_mutant_is_stale() -> None:
    mutants = (*OFF_CHAIN, *ON_CHAIN)
    sources = {each.module: inspect.getsource(each.module) for each in mutants}
    stale = [each.name for each in mutants if sources[each.module].count(each.text) != 1]
    assert stale == [], "the code has changed: change the mutants with it"


def test_the_code_is_whole_after_the_mutants() -> None:
    for mutant in (*MUTANTS[:2], *CHAIN_MUTANTS[:2], *SHIPPED_CHAIN_MUTANTS[:2]):
        with planted(mutant):
            pass
    assert run(0, **ROUGH, **SPAN).events > 0

"""The checks catch what they claim: every planted mistake is found within a few seeds."""

import inspect

import pytest

from swarmd.sim.profile import ROUGH
from swarmd.sim.world import run_simulation
from tests.sim.mutants import CHAIN_MUTANTS, MUTANTS, SHIPPED_CHAIN_MUTANTS
from tests.sim.planting import Mutant, planted
from tests.sim.shown_by import OFF_CHAIN, ON_CHAIN, SEEDS_MAX, SPAN, find_seed

ALL = (*OFF_CHAIN, *ON_CHAIN)


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, id=each.name, marks=[pytest.mark.soak] if place % 4 else []) for place, each in enumerate(ALL)],
)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    assert find_seed(mutant) is not None, f"{SEEDS_MAX} seeds do not show that {mutant.name}"


def test_no_mutant_is_stale() -> None:
    sources = {each.module: inspect.getsource(each.module) for each in ALL}
    stale = [each.name for each in ALL if sources[each.module].count(each.text) != 1]
    assert stale == [], "the code has changed: change the mutants with it"


def test_the_code_is_whole_after_the_mutants() -> None:
    for mutant in (*MUTANTS[:2], *CHAIN_MUTANTS[:2], *SHIPPED_CHAIN_MUTANTS[:2]):
        with planted(mutant):
            pass
    assert run_simulation(0, **ROUGH, **SPAN).events > 0

"""The table of mutants fits the tree, and what is said of one is so."""

from collections import Counter

import pytest

from tests.mutation.planting import ROOT, Mutant, occurrences
from tests.mutation.table import MUTANTS


@pytest.mark.parametrize("each", MUTANTS, ids=lambda each: each.name)
def test_no_mutant_is_stale(each: Mutant) -> None:
    assert occurrences(each) == 1, f"{each.file} has changed: change the mutant with it"
    assert each.text != each.instead
    assert [test for test in each.tests if not (ROOT / test.partition("::")[0]).exists()] == []


def test_each_mutant_has_a_name_of_its_own() -> None:
    names = Counter(each.name for each in MUTANTS)
    assert len(MUTANTS) >= 68 and names.most_common(1)[0][1] == 1

"""The table of mutants fits the tree, and what is said of one is so."""

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.mutation.planting import ROOT, Mutant, copy_tree, judge, occurrences
from tests.mutation.table import MUTANTS

CODE = "def least(one, other):\n    return one if one < other else other\n"
TEST = "import code_of\n\n\ndef test_it():\n    assert code_of.least(1, 2) == 1\n"


def mutant(text: str, instead: str, name: str = "wrong") -> Mutant:
    return Mutant(name, "code_of.py", text, instead, ("test_of.py",))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout of its own, with one module, one test and a file that git ignores."""
    root = tmp_path / "project"
    root.mkdir()
    for name, text in {"code_of.py": CODE, "test_of.py": TEST, ".gitignore": "ignored\n", "ignored": "x"}.items():
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


@pytest.fixture
def tree(project: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    copy.mkdir()
    copy_tree(copy, project)
    return copy


@pytest.mark.parametrize("each", MUTANTS, ids=lambda each: each.name)
def test_no_mutant_is_stale(each: Mutant) -> None:
    assert occurrences(each) == 1, f"{each.file} has changed: change the mutant with it"
    assert each.text != each.instead
    assert [test for test in each.tests if not (ROOT / test.partition("::")[0]).exists()] == []


def test_each_mutant_has_a_name_of_its_own() -> None:
    names = Counter(each.name for each in MUTANTS)
    assert len(MUTANTS) >= 68 and names.most_common(1)[0][1] == 1


def test_the_copy_holds_what_git_would_track(tree: Path) -> None:
    assert sorted(path.name for path in tree.iterdir()) == [".gitignore", "code_of.py", "test_of.py"]


@pytest.mark.parametrize(
    ("text", "instead", "outcome"),
    [
        ("one < other", "one > other", "caught"),
        ("one < other", "one <= other", "survived"),
        ("import", "export", "stale"),
        ("other", "another", "stale"),
    ],
)
def test_a_mutant_is_judged_in_the_copy_and_taken_out(
    project: Path, tree: Path, tmp_path: Path, text: str, instead: str, outcome: str
) -> None:
    verdict = judge(mutant(text, instead), tree, tmp_path / "t")
    assert verdict.outcome == outcome
    assert ("test_of.py::test_it" in verdict.told) == (outcome == "caught")
    assert (tree / "code_of.py").read_text() == CODE == (project / "code_of.py").read_text()


def test_one_whose_tests_cannot_be_run_is_not_caught(tree: Path, tmp_path: Path) -> None:
    verdict = judge(mutant("def least", "def def least"), tree, tmp_path / "t")
    assert verdict.outcome == "broken" and "SyntaxError" in verdict.told

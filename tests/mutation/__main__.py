"""Plant small mistakes, one after another, and see whether the tests notice: `python -m tests.mutation [NAME ...]`."""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.mutation.planting import Mutant, Verdict, copy_tree, judge, run_tests
from tests.mutation.table import MUTANTS


def main(arguments: list[str] | None = None) -> int:
    """Judge the mutants whose names contain one of the words given, or all. Returns 0 when each was caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only mutants with this in their name or file")
    parser.add_argument("--list", action="store_true", help="name them and end")
    parser.add_argument("--unchanged", action="store_true", help="first see that the tests pass without any mutant")
    options = parser.parse_args(arguments)
    chosen = [each for each in MUTANTS if _is_meant(each, options.names)]
    if not chosen:
        parser.error("no mutant has such a name; --list names them")
    if options.list:
        print("\n".join(f"{each.file}: {each.name}" for each in chosen))
        return 0
    with tempfile.TemporaryDirectory(prefix="m.", dir="/tmp") as place:
        return _judge_all(chosen, Path(place), options.unchanged)


def _is_meant(mutant: Mutant, names: list[str]) -> bool:
    return not names or any(name in mutant.name or name in mutant.file for name in names)


def _judge_all(mutants: list[Mutant], place: Path, unchanged: bool) -> int:
    tree = place / "tree"
    tree.mkdir()
    copy_tree(tree)
    if unchanged and not _passes_unchanged(mutants, tree, place / "t"):
        return 1
    verdicts = [_judge_aloud(number, len(mutants), each, tree, place / "t") for number, each in enumerate(mutants, 1)]
    return _sum_up(mutants, verdicts)


def _passes_unchanged(mutants: list[Mutant], tree: Path, scratch: Path) -> bool:
    """A test that fails anyway catches nothing."""
    tests = tuple(dict.fromkeys(test for each in mutants for test in each.tests))
    print(f"{len(tests)} tests and files without a mutant ... ", end="", flush=True)
    outcome, told = run_tests(tests, tree, scratch, within_s=3600.0)
    print("they pass" if outcome == "survived" else f"they fail: {told}")
    return outcome == "survived"


def _judge_aloud(number: int, of: int, mutant: Mutant, tree: Path, scratch: Path) -> Verdict:
    print(f"{number:3d}/{of} {mutant.file}: {mutant.name} ... ", end="", flush=True)
    verdict = judge(mutant, tree, scratch)
    print(f"{verdict.outcome} ({verdict.seconds:.0f} s) {verdict.told}".rstrip(), flush=True)
    return verdict


def _sum_up(mutants: list[Mutant], verdicts: list[Verdict]) -> int:
    left = [(each, verdict) for each, verdict in zip(mutants, verdicts, strict=True) if verdict.outcome != "caught"]
    counts = Counter(verdict.outcome for verdict in verdicts)
    print(
        f"\n{counts['caught']} of {len(mutants)} caught, {counts['survived']} survived, {counts['stale']} stale, "
        f"{counts['broken']} broken; {sum(verdict.seconds for verdict in verdicts):.0f} s"
    )
    for mutant, verdict in left:
        print(f"  {verdict.outcome}: {mutant.file}: {mutant.name} {verdict.told}".rstrip())
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())

"""The command: `python -m tests.quick [--against main] [--budget-s 26]`, and with `--rest [--list]` all other tests."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import PurePosixPath

from tests import durations
from tests.quick import changes, commands, reach
from tests.quick.choice import Choice, choose, rest_of
from tests.quick.imports import ROOT, Imports, file_of

SHOWN = 6  # names in one line
BUDGET_S = 26.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.quick", description=__doc__)
    parser.add_argument("--against", default="main", help="the branch that the change is to land on")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="seconds for the tests, on two idle cores")
    parser.add_argument("--list", action="store_true", help="run nothing, only say what would be")
    parser.add_argument("--rest", action="store_true", help="all tests that a quick run leaves out, with their seconds")
    parser.add_argument("--workers", type=int, default=2, help="processes for the rest")
    return parser.parse_args()


def shortened(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def tell(changed: list[str], base: str, reached: reach.Reach, choice: Choice) -> None:
    """What was chosen and why, in a few lines."""
    print(f"{len(changed)} files differ from {base[:10]}: {shortened(changed)}")
    if reached.unknown:
        print(f"no test is known for: {shortened(reached.unknown)}")
    by_distance: defaultdict[int, list[str]] = defaultdict(list)
    for each in choice.run:
        by_distance[each.distance].append(each.file.removeprefix("tests/"))
    for distance, files in sorted(by_distance.items()):
        away = ("changed", "nearest", "two imports away")[distance] if distance < 3 else f"{distance} imports away"
        print(f"  {away}: {shortened(files)}")
    print(f"{len(choice.run)} test files, about {choice.seconds():.0f} s on two idle cores")
    left_s = sum(choice.left_out.values())
    if choice.left_out:
        print(
            f"left out: {len(choice.left_out)} more that the change reaches, {left_s:.0f} s (`make test-slow LIST=1`)"
        )
    sys.stdout.flush()


def run_quick(choice: Choice, imports: Imports) -> int:
    began_s = time.monotonic()
    openers = {file_of(module) for module in imports.importers.get("schemathesis", ())}
    with commands.scratch() as written:
        ended = commands.run_all([*commands.free_and_torch(choice, written, openers), *commands.checks()])
        failed = [each.command.name for each in ended if not each.well]
        print(f"make quick: {time.monotonic() - began_s:.0f} s" + (f"; FAILED: {', '.join(failed)}" if failed else ""))
        if failed:
            print(f"what its tests wrote is in {written}", file=sys.stderr)
            raise SystemExit(1)
    return 0


def list_rest(left: dict[str, float], recorded: dict[str, durations.Duration]) -> None:
    """Files and single long tests, the longest first, and the sum of each folder."""
    folders: defaultdict[str, float] = defaultdict(float)
    for name, seconds in left.items():
        known = name.partition("::")[0] in recorded
        print(f"{seconds:8.1f} s  {name}{'' if known else '  (never timed)'}")
        folders[str(PurePosixPath(name.partition("::")[0]).parent)] += seconds
    for folder, seconds in sorted(folders.items(), key=lambda one: -one[1]):
        print(f"{seconds:8.0f} s  in all  {folder}")
    print(f"{sum(left.values()):8.0f} s  in all  {len(left)} files and long tests, one after another")


def run_rest(left: dict[str, float], workers: int) -> int:
    """All of them in one go, as `make test` runs them; then what each file took."""
    with commands.scratch() as written:
        measured = written / "durations.json"
        words = [sys.executable, "-m", "pytest", "--again", "--lanes", "-n", str(workers)]
        words += [f"--basetemp={written / 'rest'}", f"--durations-out={measured}", *left]
        code = subprocess.run(words, cwd=ROOT).returncode
        for file, seconds in durations.slowest(durations.read(measured)):
            print(f"{seconds:8.1f} s  {file}")
        if code not in (0, commands.NO_TESTS):
            print(f"what its tests wrote is in {written}", file=sys.stderr)
            raise SystemExit(1)
    return 0


def main() -> int:
    wanted = arguments()
    base = changes.base_of(ROOT, wanted.against)
    changed = changes.changed_files(ROOT, base)
    imports = Imports.of_the_tree()
    recorded = durations.read()
    reached = reach.reached(changed, imports)
    choice = choose(reached, recorded, wanted.budget_s)
    if not wanted.rest:
        tell(changed, base, reached, choice)
        return 0 if wanted.list else run_quick(choice, imports)
    files = sorted(file_of(module) for module in imports.modules if reach.is_test(module))
    left = rest_of(choice, files, recorded)
    list_rest(left, recorded)
    return 0 if wanted.list else run_rest(left, wanted.workers)


if __name__ == "__main__":
    sys.exit(main())

"""Which of the tests that a change reaches are run: the nearest first, as many as fit into the seconds there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.durations import Duration
from tests.quick.reach import ITSELF, Reach

CORES = 2
WORKERS = 4  # for tests without torch: most of them wait
START_CPU_S = 1.3  # what a process costs that runs tests, before its first one
TORCH_CPU_S = 4.0  # what loading torch costs on top
FARTHEST = 4  # imports between a change and a test; beyond, everything reaches everything
UNKNOWN = Duration()


@dataclass(frozen=True)
class Chosen:
    """A test file that is run, and those of its long tests that are not."""

    file: str
    distance: int
    duration: Duration
    without: tuple[str, ...] = ()


@dataclass
class Choice:
    """What is run, and what is not for want of time, with the seconds it would take."""

    run: list[Chosen] = field(default_factory=list)
    left_out: dict[str, float] = field(default_factory=dict)  # a file, or one test of a file

    def free(self) -> list[Chosen]:
        return [each for each in self.run if not each.duration.torch]

    def torch(self) -> list[list[Chosen]]:
        """Those that need torch, in at most as many processes as there are cores, for each loads it anew."""
        needing = [each for each in self.run if each.duration.torch]
        return dealt(needing, CORES if waiting_s(needing, CORES) > TORCH_CPU_S else 1)

    def files(self) -> list[str]:
        return [each.file for each in self.run]

    def seconds(self) -> float:
        """An estimate, on two cores that have nothing else to do."""
        free, torch = self.free(), self.torch()
        cpu_s = sum(each.duration.cpu_s for each in self.run)
        cpu_s += (len(free) > 0) * WORKERS * START_CPU_S + len(torch) * (START_CPU_S + TORCH_CPU_S)
        walls = [waiting_s(free, WORKERS) + START_CPU_S, *(waiting_s(lane, 1) + TORCH_CPU_S for lane in torch)]
        return max(cpu_s / CORES, *walls)


def dealt(files: list[Chosen], lanes: int) -> list[list[Chosen]]:
    """Shared out so that all end at about the same time; no lane is empty."""
    shares: list[list[Chosen]] = [[] for _ in range(lanes)]
    for each in sorted(files, key=lambda one: -one.duration.wall_s):
        min(shares, key=lambda share: sum(one.duration.wall_s for one in share)).append(each)
    return [share for share in shares if share]


def waiting_s(lane: list[Chosen], workers: int) -> float:
    """A file stays in one process, so the longest file bounds a lane."""
    walls = [each.duration.wall_s for each in lane]
    return max(sum(walls) / workers, max(walls)) if walls else 0.0


def is_whole_node(file: str) -> bool:
    return file.startswith("tests/e2e/")


def ranked(reach: Reach, durations: dict[str, Duration]) -> list[str]:
    """Nearest first; among equals what has the module's name, then what needs no torch, then the shortest."""

    def order(file: str) -> tuple[int, bool, bool, float, str]:
        known = durations.get(file, UNKNOWN)
        return reach.tests[file], file not in reach.namesakes, known.torch, known.wall_s, file

    return sorted((file for file, distance in reach.tests.items() if distance <= FARTHEST), key=order)


def offers(file: str, distance: int, known: Duration) -> Iterator[Chosen]:
    """In what ways it may run. Long tests are left to `make test`, unless their own file was changed."""
    if distance == ITSELF or not known.tests:
        yield Chosen(file, distance, known)
    if known.tests:
        yield Chosen(file, distance, known.without(known.tests), tuple(known.tests))


def choose(reach: Reach, durations: dict[str, Duration], budget_s: float) -> Choice:
    """What does not fit is passed over, and what comes behind may still fit."""
    choice = Choice()
    for file in ranked(reach, durations):
        known = durations.get(file, UNKNOWN)
        ways = [] if is_whole_node(file) else offers(file, reach.tests[file], known)
        fitting = (way for way in ways if Choice([*choice.run, way]).seconds() <= budget_s)
        if way := next(fitting, None):
            choice.run.append(way)
            choice.left_out |= {f"{file}::{test}": known.tests[test] for test in way.without}
        else:
            choice.left_out[file] = known.wall_s
    return choice


def rest_of(choice: Choice, files: Iterable[str], durations: dict[str, Duration]) -> dict[str, float]:
    """Every other test file there is, and the long tests that a chosen one goes without; the longest first."""
    run = set(choice.files())
    left = {file: durations.get(file, UNKNOWN).wall_s for file in files if file not in run}
    left |= {test: seconds for test, seconds in choice.left_out.items() if "::" in test}
    return dict(sorted(left.items(), key=lambda one: (-one[1], one[0])))

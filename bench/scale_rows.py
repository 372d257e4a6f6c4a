"""What was counted in the rounds of a swarm, real or simulated, and the table of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from bench.measure import Sample, ratios
from bench.table import Row

FIGURES = {  # what is printed, and its unit; of a follower and round where nothing else is said
    "operations": ("DHT operations of its own", ""),
    "find": ("  of them: find", ""),
    "store": ("  of them: store", ""),
    "answered": ("DHT operations of others that it answers", ""),
    "KB": ("bytes in + out, bodies apart", "KB"),
    "KB bodies": ("bytes of bodies in + out", "KB"),
    "largest": ("the largest follower's share of all bytes", "%"),
    "coordinator": ("the coordinator's share of all bytes, bodies apart", "%"),
    "announced p50": ("from the announcement to the node's new state, p50", "s"),
    "announced p99": ("from the announcement to the node's new state, p99", "s"),
    "closed": ("from the last needed report to the close", "s"),
    "full": ("nodes that gathered all they wanted", "%"),
    "seconds": ("a round", "s"),
}
LIMITS = {  # at most, by the number of nodes; of times the longest counts
    "announced p99": {100: 1.0, 1_000: 2.0, 10_000: 3.0},
    "closed": {100: 1.0, 1_000: 2.0, 10_000: 5.0},
    "largest": {10_000: 0.5},
}
GROWTH = {  # over the same of the smallest swarm, at most
    "operations": {1_000: 1.5, 10_000: 2.0},
    "KB": {1_000: 1.5, 10_000: 2.0},
}
FULL_MIN = 99.0  # percent of the nodes that gathered all they wanted
FULL_MIN_OF_CHURN = 97.0  # where nodes leave
AGREES = 0.2  # by so much at most is what was measured more or less than what the model says
PERCENTILES = {"announced p50": 0.5, "announced p99": 0.99}
KB = 1000.0


class Outcome:
    """Figures by name, in the order in which they were measured: of each round, or of each node and round."""

    def __init__(self) -> None:
        self.figures: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, name: str, value: float) -> None:
        """Take a value of a figure."""
        self.figures[name].append(value)

    def add_counts(self, nodes: Sequence[Mapping[str, int]]) -> None:
        """Take what each node counted in a round, the coordinator first: names are those of `bench.scale_worker`."""
        followers: Counter[str] = Counter()
        for node in nodes[1:]:
            followers.update(node)
        sizes = [sum(count for name, count in node.items() if name.startswith("bytes")) for node in nodes]
        apart = [size - node.get("bytes in body", 0) - node.get("bytes out body", 0)
                 for size, node in zip(sizes, nodes, strict=True)]  # fmt: skip
        self.add_means(followers, len(nodes) - 1)
        self.add("largest", 100 * max(sizes[1:]) / sum(sizes))
        self.add("coordinator", 100 * apart[0] / sum(apart))

    def add_means(self, counts: Mapping[str, float], nodes: int) -> None:
        """Take what so many followers have counted in a round, together."""
        means: defaultdict[str, float] = defaultdict(float)
        for name, count in counts.items():
            words = name.removeprefix("bytes ").split(" ")
            is_bytes, way, what, kind = name.startswith("bytes "), words[0], words[1], " ".join(words[1:])
            if is_bytes and what == "body":
                means["KB bodies"] += count / KB
            elif is_bytes:
                means["KB"] += count / KB
                means[f"KB {kind}"] += count / KB
            elif what in ("find", "store"):
                means["operations" if way == "out" else "answered"] += count
                if way == "out":
                    means[what] += count
                    means[f"own {kind}"] += count
        for name, total in means.items():
            self.add(name, total / nodes)

    def sample(self, name: str) -> Sample:
        """The values of a figure; of a percentile, the one."""
        if name in PERCENTILES:
            taken = self.figures[name.split(" ")[0]]
            return Sample((Sample(tuple(taken)).percentile(PERCENTILES[name]),) if taken else ())
        return Sample(tuple(self.figures[name]))


def goal_rows(size: int, ours: Outcome, smallest: Outcome, churns: bool) -> Iterable[Row]:
    """What a swarm of one size must show, beside the smallest that was measured."""
    title = f"N = {size:,}, simulated"
    for name, limits in LIMITS.items():
        if size in limits:
            what, unit = FIGURES[name]
            taken = ours.sample(name)
            yield Row(f"{title}: {what}", unit, taken, goal=f"<= {limits[size]:g}", met=taken.high <= limits[size])
    least, full = FULL_MIN_OF_CHURN if churns else FULL_MIN, ours.sample("full")
    what, unit = FIGURES["full"]
    yield Row(f"{title}: {what}", unit, full, goal=f">= {least:g}", met=full.median >= least)
    for name, growths in GROWTH.items():
        if size in growths and smallest is not ours:
            mine, first = ours.sample(name), smallest.sample(name)
            ratio, (what, unit) = Sample((mine.median / first.median,)), FIGURES[name]
            met = ratio.median <= growths[size]
            yield Row(f"{title}: {what}", unit, mine, "the smallest swarm", first, ratio, f"<= {growths[size]:g}x", met)


def agreement_rows(title: str, real: Outcome, model: Outcome) -> Iterable[Row]:
    """Whether the model says what was measured."""
    for name in ("operations", "KB"):
        (what, unit), mine, other = FIGURES[name], real.sample(name), model.sample(name)
        ratio, least, most = Sample((mine.median / other.median,)), 1 - AGREES, 1 + AGREES
        met = least <= ratio.median <= most
        yield Row(f"{title}: {what}", unit, mine, "simulated", other, ratio, f"{least:g}..{most:g}x", met)


def rows_of(title: str, ours: Outcome, peer: str, theirs: Outcome) -> Iterable[Row]:
    """The table of one size: each figure beside that of another swarm or measurement of this size."""
    found = sorted({*ours.figures, *theirs.figures} - {*FIGURES})
    named = {name: (f"  operations: {name[4:]}", "") for name in found if name.startswith("own ")}
    named |= {name: (f"  bytes: {name[3:]}", "KB") for name in found if name.startswith("KB ")}
    for name, (what, unit) in [*FIGURES.items(), *named.items()]:
        mine, other = ours.sample(name), theirs.sample(name)
        if mine.values and other.values:
            comparable = other.median > 0
            ratio = ratios(Sample((mine.median,)), Sample((other.median,))) if comparable else None
            yield Row(f"{title}: {what}", unit, mine, peer, other, ratio)
        elif mine.values or other.values:
            missing = Sample((0.0,)) if peer else None
            yield Row(f"{title}: {what}", unit, mine if mine.values else Sample((0.0,)), peer,
                      other if other.values else missing)  # fmt: skip

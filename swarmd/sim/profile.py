"""The profile of a simulated swarm: its size, its rules, and the faults in its world."""

from random import Random
from typing import Any, Literal

import msgspec

from swarmd.core.values import AlonePolicy, BehindPolicy
from swarmd.errors import ConfigError

ChainPolicy = Literal["time", "reports", "manager"]


class SimProfile(msgspec.Struct, frozen=True):
    """A swarm and its world; times are seconds of simulated time, rates per node and hour, chances between 0 and 1.
    Faults stop `calm_s` before the end, so that the swarm has that long to recover."""

    nodes: int = 5
    hours: float = 1.0
    calm_s: float = 900.0
    stages: int = 1
    behind: BehindPolicy | Literal["mixed"] = "mixed"
    quorum: float = 1.0
    min_peers: int = 2
    when_alone: AlonePolicy = "hold"  # CoordinatorSettings.when_alone
    rounds_max: int = 0  # 0 for no end; otherwise the operator adds as many again after each end
    stage_s: float = 60.0
    train_mean_s: float = 12.0
    train_max_s: float = 90.0  # Settings.train_s
    skew_s: float = 2.0  # largest difference of a clock from the true time
    late_share: float = 0.3  # share of the followers that join some time after the start
    faults: float = 30.0
    jumps: float = 0.0  # rate of clock steps by up to an hour; corrected after a while
    loss: float = 0.05  # of hints
    duplicate: float = 0.03  # of hints and facts
    stale: float = 0.02  # of DHT reads, which then return the previous value
    failure: float = 0.03  # of network commands
    latency_s: float = 0.05  # mean, of hints and network commands
    restart_mean_s: float = 8.0  # between a daemon's death and its next start
    chain: bool = False  # whether a contract keeps the rounds; then the first node only mirrors the clock
    policy: ChainPolicy = "time"  # what advances the contract: time, reports or time, or node 0 as its stage manager
    block_s: float = 2.0  # mean block interval
    depth: int = 3  # confirmations, including the block itself
    reorgs: float = 0.0  # per hour, besides those drawn as faults
    reorg_depth: int = 3  # largest depth
    reorg_loss: float = 0.1  # chance that a transaction of a dropped block is lost
    stuck_s: float = 15.0  # a transaction not mined for this long is replaced
    winners: int = 1  # ChainSettings.winners
    day_calls: int = 0  # usual calls that an account may sign for in a day while there are faults; 0 for any number
    shared: bool = False  # whether two of the followers submit from one account
    hostile: str = "none"  # kinds of hostile actors, comma-separated; or all
    crowd: int = 300  # identities of a Sybil crowd
    catch_up_rounds: int = 0  # Settings.catch_up_rounds of the followers; 0: they adopt no peers' weights
    catch_up_s: float = 60.0
    average_rounds: int = 0  # Settings.average_rounds of all nodes; 0: they average no weights
    shard_members: int = 0  # CoordinatorSettings.shard_members, see `SimProfile.has_shards`; 0: stages have no shards
    gather_peers: int = 32  # DhtConfig.gather_peers
    doubles_s: float = 0.0  # time in which the number of nodes doubles, from 80 on; 0: all but late ones start at once
    churn: float = 0.0  # share of the followers that are switched off per hour, each for some minutes
    partition: float = 0.0  # share of the nodes that is cut off once, for a few minutes
    measures: bool = False  # whether trainers report held-out accuracies by task

    @property
    def has_shards(self) -> bool:
        """Whether stages may have shards: a contract's have none, and hostile actors do not support them."""
        return self.shard_members > 0 and not self.chain and self.hostile == "none"


CALM = SimProfile(faults=0.0, loss=0.0, duplicate=0.0, stale=0.0, failure=0.0, late_share=0.0, skew_s=0.0)
BENCH = SimProfile(nodes=8, hours=12.0, faults=1.0, train_mean_s=10.0)  # to measure the simulator's speed

LARGE = SimProfile(  # a swarm as made by `swarmd swarm new --large`, without faults unless requested
    nodes=300,
    hours=0.35,
    calm_s=120.0,
    behind="finish-stage",
    min_peers=32,
    train_mean_s=30.0,
    stage_s=90.0,
    skew_s=0.5,
    late_share=0.0,
    faults=0.0,
    loss=0.0,
    duplicate=0.0,
    stale=0.0,
    failure=0.0,
    latency_s=0.1,
    shard_members=64,
    doubles_s=90.0,
)

ROUGH: dict[str, Any] = {  # fields of a profile with frequent chain faults of all kinds
    "chain": True,
    "reorgs": 200.0,
    "reorg_depth": 8,
    "reorg_loss": 1.0,
    "faults": 120.0,
}


NONE, ALL = "none", "all"
HOSTILE_SHARE = 0.25  # share of the seeds with hostile actors
SHARDED_SHARE = 0.4  # share of those in which stages may have shards
CATCH_UP_SHARE = 0.25  # share of those in which newcomers adopt peers' weights
AVERAGING_SHARE = 0.25  # share of those in which nodes average their weights with peers'
CROWDS = (30, 100, 300)  # sizes of a crowd
HOSTILE = ("flooder", "eclipser", "equivocator", "freerider", "poisoner", "sleeper", "sybil")


def parse_hostile_kinds(hostile: str) -> tuple[str, ...]:
    """Return the kinds named in a profile's `hostile`, in a fixed order. Raises ConfigError for an unknown one."""
    if hostile in (NONE, ALL):
        return HOSTILE if hostile == ALL else ()
    wanted = {kind.strip() for kind in hostile.split(",")}
    unknown = sorted(wanted - set(HOSTILE))
    if unknown:
        raise ConfigError(f"nobody is hostile as {unknown[0]!r}", f"There are {', '.join(HOSTILE)}; or all, or none")
    return tuple(kind for kind in HOSTILE if kind in wanted)


def _draw_later_fields(seed: int, hostile_given: bool) -> dict[str, Any]:
    """Draw the fields that were added later, each from its own random stream, so that a seed's other fields stay
    unchanged. Seeds recorded in tests set `hostile`; their nodes adopt no weights."""
    shards, weights, averaging = (Random(f"{seed}/{name}") for name in ("shards", "weights", "averaging"))
    in_shards = {"shard_members": shards.choice((1, 2, 3)), "gather_peers": shards.choice((2, 32))}
    catch_up = {"catch_up_rounds": weights.choice((1, 2, 3)), "catch_up_s": weights.choice((10.0, 60.0, 300.0))}
    average = {"average_rounds": averaging.choice((1, 2, 3))}
    drawn: dict[str, Any] = {} if hostile_given or weights.random() >= CATCH_UP_SHARE else dict(catch_up)
    drawn |= {} if hostile_given or averaging.random() >= AVERAGING_SHARE else average
    hostile = Random(f"{seed}/hostile")
    kinds = hostile.sample(HOSTILE, hostile.randint(1, len(HOSTILE)))
    named = ",".join(kind for kind in HOSTILE if kind in kinds)
    drawn |= {"hostile": named if hostile.random() < HOSTILE_SHARE else NONE, "crowd": hostile.choice(CROWDS)}
    return drawn | (in_shards if shards.random() < SHARDED_SHARE else {})


def draw_profile(seed: int, **given: Any) -> SimProfile:
    """Draw a profile from a seed, so that many seeds cover many kinds of swarms. Fields in `given` are not drawn."""
    random = Random(seed ^ 0x5EED)
    drawn: dict[str, Any] = {
        "nodes": random.choice((2, 3, 4, 5, 6, 8)),
        "stages": random.choice((1, 1, 3)),
        "behind": random.choice(("mixed", "finish-stage", "abandon")),
        "quorum": random.choice((1.0, 1.0, 0.75, 0.5)),
        "min_peers": random.choice((1, 2, 3)),
        "rounds_max": random.choice((0, 0, 20)),
        "stage_s": random.choice((25.0, 60.0, 120.0)),
        "train_max_s": random.choice((20.0, 45.0, 90.0)),
        "skew_s": random.choice((0.0, 1.0, 20.0)),
        "faults": random.choice((10.0, 40.0, 120.0)),
        "loss": random.choice((0.0, 0.05, 0.5)),
        "duplicate": random.choice((0.0, 0.05, 0.3)),
        "stale": random.choice((0.0, 0.02, 0.2)),
        "failure": random.choice((0.0, 0.03, 0.2)),
        "latency_s": random.choice((0.01, 0.05, 1.0)),
        "restart_mean_s": random.choice((2.0, 8.0, 60.0)),
        "chain": random.random() < 0.5,
        "policy": random.choice(("time", "reports", "reports", "manager")),
        "block_s": random.choice((1.0, 2.0, 4.0)),
        "depth": random.choice((1, 3, 12)),
        "reorg_depth": random.choice((0, 1, 3, 8)),
        "reorg_loss": random.choice((0.0, 0.3, 1.0)),
        "stuck_s": random.choice((5.0, 15.0)),
        "winners": random.choice((0, 1, 2)),
        "shared": random.random() < 0.3,
        "reorgs": random.choice((0.0, 30.0, 200.0)),
        "when_alone": random.choice(("hold", "hold", "go-on")),
        "jumps": random.choice((0.0, 0.0, 3.0)),
        "day_calls": random.choice((0, 0, 0, 40)),
    }
    return SimProfile(**{**drawn, **_draw_later_fields(seed, "hostile" in given), **given})

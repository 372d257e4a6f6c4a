"""Record the golden logs anew: `python -m tests.golden.record`, a minute or two.

A change of the core that alters the outcome for a log is followed by this. Each scene is a kind of simulated swarm. Of
the logs of its first seeds the one is kept that has the most kinds of events which the other scenes' logs have not, so
that few short logs have nearly all of them. The choice depends on nothing but the code.
"""

import logging
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from swarmd.core.events import tag_of
from swarmd.core.state import State, state_enc_hook
from swarmd.eventlog.fold import load_state
from swarmd.eventlog.store import LOCK_NAME
from swarmd.sim.node import SimNode
from tests.golden.play import play, write_log

HERE = Path(__file__).parent
SEEDS = 26  # that are played of each scene
EVENTS_MAX = 250  # of a log


class Scene(NamedTuple):
    """A kind of swarm, and whose log of it is wanted."""

    coordinator: bool  # the first node's log, else a follower's
    fields: dict[str, Any]  # of the profile


SWARM: dict[str, Any] = {
    "nodes": 4, "calm_s": 30.0, "rounds_max": 0, "latency_s": 0.05, "train_mean_s": 12.0, "chain": False,
    "hostile": "none",
}  # fmt: skip
SCENES = {
    "coordinator": Scene(
        True, {"hours": 0.12, "stages": 1, "faults": 60.0, "jumps": 3.0, "rounds_max": 6, "shard_members": 1}
    ),
    "follower": Scene(
        False,
        {"hours": 0.12, "stages": 2, "faults": 60.0, "catch_up_rounds": 1, "average_rounds": 2, "measures": True},
    ),
    "hostile": Scene(
        True, {"hours": 0.05, "hostile": "equivocator,freerider,poisoner,sybil", "crowd": 8, "faults": 10.0}
    ),
    "crash": Scene(False, {"hours": 0.12, "stages": 1, "faults": 300.0}),
    "chain": Scene(
        False, {"hours": 0.08, "chain": True, "reorgs": 200.0, "faults": 30.0, "policy": "reports", "winners": 1}
    ),
}


def record() -> None:
    """Write every scene's log, and the state that it folds to."""
    kept: dict[str, SimNode] = {}
    offered = {name: _logs_of(scene) for name, scene in SCENES.items()}
    for name in [*SCENES] * 2:  # the second time around, each goes by all others
        seen = {tag for other, node in kept.items() if other != name for tag in _tags(node)}
        kept[name] = max(offered[name], key=lambda node: _worth(node, seen))
    for name, node in kept.items():
        shutil.rmtree(HERE / name, ignore_errors=True)
        write_log(HERE / name / "events", node)
        (HERE / name / "events" / LOCK_NAME).unlink()
        state, end = load_state(HERE / name / "events")
        (HERE / name / "state.json").write_bytes(msgspec.json.format(state_json(state), indent=1) + b"\n")
        print(f"{name}: {end} events")


def _logs_of(scene: Scene) -> list[SimNode]:
    played = [play(seed, **{**SWARM, **scene.fields}).nodes for seed in range(SEEDS)]
    fit = [node for nodes in played for node in nodes if node.coordinates == scene.coordinator]
    return [node for node in fit if len(_tags(node)) <= EVENTS_MAX]


def _tags(node: SimNode) -> list[str]:
    return [tag_of(event) for commit in node.disk.log.commits for event in commit.events]


def _worth(node: SimNode, seen: set[str]) -> tuple[int, int, int]:
    tags = _tags(node)
    return len(set(tags) - seen), len(set(tags)), -len(tags)


def state_json(state: State) -> bytes:
    """A state as JSON."""
    return msgspec.json.encode(state, enc_hook=state_enc_hook)


if __name__ == "__main__":
    logging.disable()
    sys.exit(record())

"""Keep the logs of a swarm as golden ones: `python -m tests.golden.record SWARM_DIR NAME`.

A golden log is never changed. When the rules change, the old logs stay and new ones are added beside them.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import msgspec

from swarmd.core.state import State, to_plain
from swarmd.core.step import RULES
from swarmd.eventlog.fold import load

HERE = Path(__file__).parent


def state_json(state: State) -> bytes:
    """A state as JSON."""
    return msgspec.json.encode(state, enc_hook=to_plain)


def record(swarm: Path, name: str) -> Path:
    """Copy every node's event log and write the state that it folds to."""
    place = HERE / f"rules-{RULES}" / name
    if place.exists():
        raise SystemExit(f"{place} exists, and golden logs are never changed")
    for node in sorted(swarm.glob("node-*")):
        shutil.copytree(node / "events", place / node.name / "events", ignore=shutil.ignore_patterns("*lock*"))
        state, _ = load(node / "events")
        (place / node.name / "state.json").write_bytes(msgspec.json.format(state_json(state), indent=1))
    return place


if __name__ == "__main__":
    print(record(Path(sys.argv[1]), sys.argv[2]))

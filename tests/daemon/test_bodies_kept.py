"""What is not pruned from the blob store while a node works."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio

from swarmd.core.commands import PublishReport, Train
from swarmd.core.state import Result, State, Work
from swarmd.core.values import RolloutsRef
from swarmd.daemon.service import Node, digests_in_use
from swarmd.eventlog.blobs import Blobs
from tests.log_capture import capture_logs


def ref(name: str, stage: int) -> RolloutsRef:
    return RolloutsRef(name, 3, stage, f"{name}/{stage}", 10, 1)


def test_what_a_stage_and_later_ones_are_made_of_is_kept() -> None:
    """In rounds of several stages a question names answers of every earlier one."""
    work = Work(
        3,
        1,
        0.0,
        rollouts=(ref("peer", 0),),
        context=(ref("own", 0), ref("peer", 2)),
        result=Result(0.5, ref("own", 1)),
    )
    pending = (Train("t", 3, 1, (ref("other", 0),)), PublishReport("r", 3, 0, 0.5, ref("mine", 0)))
    kept = digests_in_use(State(work=work, pending=pending))
    assert kept == {"peer/0", "own/0", "peer/2", "own/1", "other/0", "mine/0"}
    assert digests_in_use(State()) == frozenset()


def test_rollouts_that_cannot_be_removed_end_no_node(tmp_path: Path) -> None:
    (tmp_path / "aa" / ("a" * 64)).mkdir(parents=True)
    node: Any = SimpleNamespace(_blobs=Blobs(tmp_path), engine=SimpleNamespace(state=State()))
    with capture_logs() as lines:
        anyio.run(Node._prune_blobs, node, 0)
    assert [line["event"] for line in lines] == ["not all old rollouts can be removed"]
    assert str(tmp_path) in lines[0]["error"]

"""The benchmarks' own parts: they must measure what they say, run real nodes, and report what their results say.

Nothing here is timed.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hivemind.dht.routing import RoutingTable
from hivemind.p2p import PeerID

import bench.__main__
from bench.__main__ import BENCHMARKS, LONG
from bench.hostile_peer import PAYLOADS, WRONG
from bench.long_log import write_long_log
from bench.measure import Sample
from bench.recording import record, write_log
from bench.scale_lookup import BUCKET, DEPTH_MODULO, Network
from bench.table import Row
from swarmd.config import SwarmConfig
from swarmd.core.events import tag_of
from swarmd.core.values import Role
from swarmd.eventlog.replay import verify_log
from swarmd.swarms.plan import NO_MATERIAL, StageId
from swarmd.swarms.registry import make_plan

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("role", ["coordinator", "follower"])
def test_a_recorded_life_is_a_log_that_verifies(tmp_path: Path, role: Role) -> None:
    life = record(role, 600)
    tags = Counter(tag_of(event) for commit in life.commits for event in commit.events)
    found = verify_log(write_log(tmp_path / "events", life.commits, group=8))
    assert found.events == life.events == sum(tags.values()) >= 600
    assert life.state.rounds_skipped == 0
    assert life.state.done[0] >= life.round - 1 > 50, "every round is trained"
    assert tags["report_seen"] == (3 * tags["report_published"] if role == "coordinator" else 0)


def test_a_long_log_has_snapshots_and_verifies_and_its_signed_reports_add_up(tmp_path: Path) -> None:
    last = write_long_log(tmp_path / "events", 1500, segment_bytes=100_000)
    found = verify_log(tmp_path / "events")
    assert found.events >= 1500
    assert found.snapshots >= 2
    told = subprocess.run(
        [sys.executable, "-m", "swarmd", "leaderboard", str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert f"signed reports of {last} rounds" in told.stdout


def test_every_benchmark_is_documented() -> None:
    page = (ROOT / "docs" / "BENCHMARKS.md").read_text(encoding="utf-8")
    assert [name for name in BENCHMARKS | LONG if f"`{name}`" not in page] == []


def test_a_benchmark_that_is_interrupted_leaves_no_directory_and_what_was_measured_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(directory: Path) -> list[Row]:
        (directory / "kept").touch()
        raise KeyboardInterrupt

    out = tmp_path / "out.json"
    monkeypatch.setattr(bench.__main__, "PLACE", tmp_path / "bench")
    monkeypatch.setattr(bench.__main__, "KEPT", tmp_path)
    monkeypatch.setattr("bench.append.run", lambda directory: [Row("measured", "ms", Sample((1.0,)))])
    monkeypatch.setattr("bench.simulator.run", interrupt)
    monkeypatch.setattr(sys, "argv", ["bench", "append", "simulator", "restart", "--json", str(out), "--keep"])
    assert bench.__main__.main() == 130
    assert "simulator was interrupted" in capsys.readouterr().out
    assert [result["name"] for result in msgspec.json.decode(out.read_bytes())["results"]] == ["append"]
    kept = msgspec.json.decode((tmp_path / "append.json").read_bytes())
    assert kept["tables"][0]["rows"] == [["measured", "1 ms", "", "", "", ""]]
    assert {path.name for path in (tmp_path / "bench").iterdir()} == {"append.lock", "simulator.lock"}


DIGITS = make_plan(SwarmConfig(id="poison", kind="digits"))
QUESTION = next(iter(DIGITS.draw(StageId("hostile", 0, 0), NO_MATERIAL)))
ANSWER = str(QUESTION.entry["answer"])


@pytest.mark.parametrize("payload", sorted(PAYLOADS))
def test_a_payload_is_paid_as_a_right_answer_and_recognised(payload: str) -> None:
    form, pattern = PAYLOADS[payload]
    right = form.replace("{}", ANSWER)
    scores = DIGITS.score(QUESTION, [right, WRONG])
    assert scores[0].accuracy == 1.0 and scores[1].accuracy == 0.0
    assert bool(re.search(pattern, right)) == (payload != "plain")
    assert not re.search(pattern, f"<answer>{ANSWER}</answer>")


LINK_S = (0.05, 0.2)


def network(size: int, seed: int = 1) -> Network:
    return Network(size, np.random.default_rng(seed), LINK_S, dead=0.0)


def test_a_simulated_table_has_as_many_peers_in_each_part_as_hiveminds() -> None:
    """Which of a full bucket's peers are kept depends on who came first; how many, on the ids alone."""
    simulated, node = network(1000), 123
    ids = simulated._dht_ids
    table = RoutingTable(ids[node], BUCKET, DEPTH_MODULO)
    for number, node_id in enumerate(ids):
        if number != node:
            table.add_or_update_node(node_id, PeerID(number.to_bytes(4, "big")))
    ours = {int(peer) for peer in simulated.table(node)}
    parts = [(bucket.lower, bucket.upper) for bucket in table.buckets]
    kept = [len(bucket.nodes_to_peer_id) for bucket in table.buckets]
    assert [sum(low <= ids[peer] < high for peer in ours) for low, high in parts] == kept


def test_a_simulated_look_up_finds_the_nearest_of_all_though_the_asker_does_not_know_them() -> None:
    simulated = network(2000)
    name = "swarmd/model/reports/1/0/16/3"
    looked = simulated.look_up(7, name, guides=(1, 2))
    key = int(simulated._found(7, name).key) >> 96
    order = np.argsort(simulated.ids ^ np.uint64(key))
    nearest = {int(peer) for peer in order[:8] if peer != 7}
    assert looked.asked[:2] == (1, 2)
    assert len(nearest & {*looked.nearest}) >= 4
    assert {*looked.nearest} != {*looked.known}

"""A follower's page has the coordinator's leaderboard as soon as the network worker has read one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from swarmd.core.values import Standing
from swarmd.dht.wire.bodies import LeaderboardBody, keep_standings
from swarmd.eventlog.fold import load
from swarmd.paths import NodeDirectory
from tests.web.serving import FOLLOWER, Served, copy_of, served, until

OTHER = "12D3KooWother"
STATE, _ = load(FOLLOWER / "events")
assert STATE.settings is not None and STATE.clock is not None
ME, SWARM = STATE.settings.peer, STATE.settings.swarm


def board(round: int, *rewards: tuple[str, float]) -> LeaderboardBody:
    return LeaderboardBody(round, tuple(Standing(peer, "", reward, round + 1, round) for peer, reward in rewards))


def keep(directory: Path, swarm: str, kept: LeaderboardBody) -> None:
    path = NodeDirectory(directory).standings
    path.parent.mkdir(exist_ok=True)
    before = path.stat().st_mtime_ns if path.exists() else 0
    keep_standings(path, swarm, kept)
    os.utime(path, ns=(before + 10**9, before + 10**9))  # a clock that is too coarse must not hide the change


def ranks(server: Served) -> dict[str, tuple[int, float]]:
    rows: list[dict[str, Any]] = server.json("/api/v1/swarm")["peers"]
    return {row["id"]: (row["rank"], row["reward"]) for row in rows if row["known"]}


def test_others_have_their_rewards_from_the_leaderboard(tmp_path: Path) -> None:
    directory = copy_of(FOLLOWER, tmp_path)
    last = STATE.clock.round + 1 if STATE.clock else 0
    keep(directory, SWARM, board(last, (OTHER, 9.0), (ME, 4.0)))
    with served(directory) as server:
        until(lambda: server.json("/api/v1/here")["read"] == 1.0)
        assert ranks(server) == {OTHER: (1, 9.0), ME: (2, 4.0)}
        assert f"leaderboard after round {last}" in server.json("/api/v1/swarm")["notes"][0]
        keep(directory, SWARM, board(last + 1, (OTHER, 9.5), (ME, 9.75)))
        assert ranks(server) == {ME: (1, 9.75), OTHER: (2, 9.5)}
        names = [curve["id"] for curve in server.json("/api/v1/swarm/curves")["curves"]]
        assert names == [ME, OTHER]


@pytest.mark.parametrize("swarm", ["another-swarm", ""])
def test_a_leaderboard_of_another_swarm_is_not_taken(tmp_path: Path, swarm: str) -> None:
    directory = copy_of(FOLLOWER, tmp_path)
    keep(directory, SWARM + swarm, board(3, (OTHER, 9.0)))
    if not swarm:
        NodeDirectory(directory).standings.write_bytes(b"\xc1 no leaderboard")
    with served(directory) as server:
        until(lambda: server.json("/api/v1/here")["read"] == 1.0)
        assert set(ranks(server)) == {ME}
        assert "not their rewards" in server.json("/api/v1/swarm")["notes"][0]


def test_own_stages_beyond_the_leaderboard_come_on_top(tmp_path: Path) -> None:
    directory = copy_of(FOLLOWER, tmp_path)
    with served(directory) as server:
        until(lambda: server.json("/api/v1/here")["read"] == 1.0)
        own = server.json(f"/api/v1/swarm/curves?peer={ME}")["curves"][0]["points"]
        later = sum(reward for round_, _, reward, _ in own if round_ > 0)
        assert later
        keep(directory, SWARM, board(0, (OTHER, 9.0), (ME, 100.0)))
        assert ranks(server)[ME] == (1, pytest.approx(100.0 + later))

"""Restart: from the exec of `swarmd run` until the node is where the swarm is, with 10,000 events in its log.

A real coordinator has a stage open; a follower whose log ends some rounds earlier is started again and again on a copy
of that log. Its trainer starts too and loads the model meanwhile; that is not waited for.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench.measure import Sample
from bench.nodes import QUICK, READY_S, wait_for
from bench.recording import Recorder, write_log
from bench.table import Row
from swarmd.cli.local_swarm import (
    DaemonProcess,
    LocalNode,
    get_or_make_peer_id,
    local_node_directories,
    prepare_nodes,
    stop_daemons,
)
from swarmd.config import load_config, make_core_settings

EVENTS = 10_000
BEHIND = 5  # rounds that the swarm is ahead when the follower starts
STARTS = 5
GOAL_S = 2.0
STOP_S = 20.0


def run(directory: Path) -> Iterable[Row]:
    places = local_node_directories(directory, 2)
    prepare_nodes(places, 0, QUICK | {"logs.format": "json", "coordinator.stage_s": 3600.0})
    round = prepare(places)
    kept = directory / "kept"
    shutil.copytree(places[1].root, kept)
    coordinator = DaemonProcess(places[0])
    try:
        coordinator.start()
        wait_for(coordinator, lambda line: line.event == "stage_trained")
        starts = [start(places[1], kept, round) for _ in range(STARTS)]
    finally:
        stop_daemons([coordinator], STOP_S)
    ready, linked, caught_up = (Sample(values) for values in zip(*starts, strict=True))
    name = f"{EVENTS:,} events replayed, READY"
    yield Row(name, "s", ready, "goal", goal=f"<= {GOAL_S:g} s", met=ready.median <= GOAL_S)
    yield Row("network worker's link up", "s", linked)
    yield Row("at the swarm's round", "s", caught_up, "goal", goal=f"<= {GOAL_S:g} s", met=caught_up.median <= GOAL_S)


def prepare(places: tuple[LocalNode, ...]) -> int:
    """Logs for both nodes as if they had run for hours. Returns the round that the coordinator has open."""
    peers = [get_or_make_peer_id(place) for place in places]
    lives = [
        Recorder(make_core_settings(load_config(place.config), peer), [other for other in peers if other != peer])
        for place, peer in zip(places, peers, strict=True)
    ]
    leading, following = lives
    while following.events < EVENTS:
        following.run(1)
    leading.run(following.round + BEHIND)
    for place, life in zip(places, lives, strict=True):
        write_log(place.events, life.commits, group=64)
    return leading.round


def start(place: LocalNode, kept: Path, round: int) -> tuple[float, float, float]:
    """Seconds from exec until READY, until the link is up, and until the swarm's round is entered."""
    shutil.rmtree(place.root)
    shutil.copytree(kept, place.root)
    daemon = DaemonProcess(place)
    with notify_socket() as ready:
        began = time.time()
        daemon.start()
        try:
            ready.recv(4096)
            ready_s = time.time() - began
            linked = wait_for(daemon, lambda line: line.event == "link_up")
            arrived = wait_for(daemon, lambda line: line.round >= round and line.entered.startswith("round."))
        finally:
            stop_daemons([daemon], STOP_S)
    return ready_s, linked.at - began, arrived.at - began


@contextmanager
def notify_socket() -> Iterator[socket.socket]:
    """A socket on which the daemon says READY, as to systemd; in a directory with a short name, as sockets need."""
    with (
        tempfile.TemporaryDirectory() as directory,
        closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as endpoint,
    ):
        path = f"{directory}/notify"
        endpoint.settimeout(READY_S)
        endpoint.bind(path)
        os.environ["NOTIFY_SOCKET"] = path
        try:
            yield endpoint
        finally:
            del os.environ["NOTIFY_SOCKET"]

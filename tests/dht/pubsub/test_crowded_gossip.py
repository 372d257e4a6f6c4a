"""What a crowd says of a leaderboard: few tell, and who read another is heard, whatever is told to silence it."""

from __future__ import annotations

from random import Random
from statistics import mean

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bench.gossip import even, exponential
from bench.gossip_model import ROUND, ModelSwarm, boards, one_board, one_victim
from swarmd.dht.ports import Record
from swarmd.dht.pubsub.board_gossip import EARLY_KEPT, BoardRead
from swarmd.dht.wire.evidence import pair_of
from swarmd.dht.wire.records import SignedRecord
from swarmd.errors import RecordRejected

ONE, OTHER = boards()
DIGESTS = ("a" * 64, "b" * 64)
SEEDS = range(6)


def swarm_of(size: int, seed: int = 1) -> ModelSwarm:
    swarm = ModelSwarm(size, Random(seed), exponential)
    for node in swarm.nodes:
        node.runtime.start(node.exchange.run())
    return swarm


def whisper(swarm: ModelSwarm, digest: str, at_s: float = 0.0, round: int = ROUND) -> None:
    """Somebody hostile tells all that it has read a leaderboard with this digest."""
    message = msgspec.msgpack.encode(BoardRead(round, digest))
    swarm.queue.later(at_s, swarm.tell, 0, message, "hostile")


@pytest.mark.parametrize("size", [2, 16, 64, 300])
def test_few_tell_of_a_leaderboard_however_many_have_read_it(size: int) -> None:
    swarms = [one_board(size, exponential, seed) for seed in SEEDS]
    assert all(swarm.counts["board"] == swarm.counts.total() >= 1 for swarm in swarms)
    assert mean(swarm.counts.total() for swarm in swarms) <= 4
    assert mean(swarm.told[0].at_s for swarm in swarms) <= 4.0, "and soon"


def test_evenly_drawn_waits_would_have_many_tell() -> None:
    few, many = (mean(one_board(size, even, seed).counts.total() for seed in SEEDS) for size in (16, 300))
    assert many > 4 * few


def test_whoever_reads_it_after_it_was_told_is_silent() -> None:
    swarm = swarm_of(64)
    swarm.read(ONE, *range(40))
    swarm.queue.run(20.0)
    told = len(swarm.told)
    swarm.read(ONE, *range(40, 64))
    swarm.queue.run(60.0)
    assert len(swarm.told) == told > 0


@pytest.mark.parametrize("size", [2, 3, 16, 64, 300])
def test_one_victim_of_two_leaderboards_is_enough_and_all_know_of_it_by_few_messages(size: int) -> None:
    for seed in SEEDS:
        swarm = one_victim(size, exponential, seed)
        assert swarm.found_s < 20.0
        assert swarm.counts.total() <= 25


@pytest.mark.parametrize("at_s", [0.0, 0.9, 3.0])
def test_nobody_is_silenced_by_who_tells_both_digests_early(at_s: float) -> None:
    for seed in SEEDS:
        swarm = swarm_of(16, seed)
        for digest in DIGESTS:
            whisper(swarm, digest, at_s)
        swarm.read(ONE, *range(15))
        swarm.read(OTHER, 15)
        swarm.queue.run(20.0)
        assert swarm.found_s < 20.0


def test_nobody_is_silenced_by_noise_that_fills_what_is_remembered() -> None:
    swarm = swarm_of(16)
    for number in range(2 * EARLY_KEPT):
        whisper(swarm, f"{number:064x}")
    for digest in DIGESTS:
        whisper(swarm, digest, 0.1)
    swarm.queue.run(1.0)
    swarm.read(ONE, *range(15))
    swarm.read(OTHER, 15)
    swarm.queue.run(21.0)
    assert swarm.found_s < 21.0


@pytest.mark.parametrize(("before", "after"), [((), ()), (DIGESTS[1:], ()), (DIGESTS[1:], DIGESTS)])
def test_a_victim_that_comes_when_all_was_said_is_heard(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    """Somebody hostile may have had the other leaderboard shown before the victim was there."""
    swarm = swarm_of(16)
    swarm.nodes[15].away = True
    swarm.read(ONE, *range(15))
    for digest in before:
        whisper(swarm, digest, 5.0)
    swarm.queue.run(30.0)
    assert (swarm.counts["shown"] > 0) == bool(before)
    swarm.read(OTHER, 15)
    for digest in after:
        whisper(swarm, digest, 1.0)
    swarm.queue.run(90.0)
    assert swarm.found_s < 90.0


WHISPERS = st.lists(st.tuples(st.floats(0.0, 40.0), st.sampled_from((*DIGESTS, "c" * 64))), max_size=8)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    read=st.lists(st.tuples(st.sampled_from((ONE, OTHER)), st.floats(0.0, 30.0)), min_size=2, max_size=24),
    whispers=WHISPERS,
)
def test_all_find_out_whoever_read_what_and_came_when_and_whatever_is_whispered(
    seed: int, read: list[tuple[SignedRecord, float]], whispers: list[tuple[float, str]]
) -> None:
    """Who comes late hears of evidence again within minutes."""
    swarm = swarm_of(len(read), seed)
    for number, (record, at_s) in enumerate(read):
        swarm.nodes[number].away = at_s > 15.0
        swarm.queue.later(at_s, swarm.read, record, number)
    for at_s, digest in whispers:
        whisper(swarm, digest, at_s)
    swarm.queue.run(600.0)
    contradicts = len({record for record, _ in read}) == 2
    assert [node.found_s is not None for node in swarm.nodes] == [contradicts] * len(read)


def test_a_lie_with_several_pairs_is_told_few_times() -> None:
    """Renewed records make other pairs of the same two claims."""
    swarm = swarm_of(64)
    for number, node in enumerate(swarm.nodes):
        one = replace(ONE, expiration=ONE.expiration + number / 64)
        swarm.queue.later(0.0, node.exchange.found, pair_of(one, OTHER))
    swarm.queue.run(30.0)
    assert 1 <= swarm.counts["evidence"] <= 8


def test_evidence_is_told_again_and_by_few() -> None:
    swarm = swarm_of(64)
    swarm.queue.later(0.0, swarm.nodes[0].exchange.found, pair_of(ONE, OTHER))
    swarm.queue.run(30.0)
    before = swarm.counts["evidence"]
    swarm.queue.run(1000.0)
    assert before == 1 and 3 <= swarm.counts["evidence"] - before <= 20


def test_two_leaderboards_that_were_shown_do_not_go_on_answering_each_other() -> None:
    """Not even where what was shown was lost, so that nobody has evidence."""
    swarm = swarm_of(16)
    for node in swarm.nodes:
        node.judge = lose  # type: ignore[method-assign]
    swarm.read(ONE, *range(8))
    swarm.read(OTHER, *range(8, 16))
    for at_s in (10.0, 25.0):
        for digest in DIGESTS:
            whisper(swarm, digest, at_s)
    swarm.queue.run(40.0)
    before = swarm.counts["board"]
    swarm.queue.run(640.0)
    assert 10 < swarm.counts["board"] - before < 100


def lose(name: str, record: Record) -> Record:
    raise RecordRejected("quota", "too many messages of all peers together")

"""Anyone can compute the standings again from the signed reports."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from swarmd.core.values import Standing
from swarmd.dht.identity.identity import Identity
from swarmd.dht.wire import bodies
from swarmd.dht.wire.bodies import (
    LeaderboardBody,
    LeaderboardCheck,
    SavedStandings,
    decode_leaderboard,
    encode_leaderboard,
    read_standings,
    save_standings,
)
from swarmd.dht.wire.records import ReportRecord
from swarmd.errors import RecordRejected
from tests.dht.making import ALICE, BOB, CLOCK, COORDINATOR, DIGEST, SWARM, signed_by


def report(who: Identity, round: int, stage: int, reward: float, swarm: str = SWARM) -> bytes:
    return signed_by(who, ReportRecord(swarm, round, stage, reward, DIGEST, 10, 1), ttl_s=-9e6).encode()


def verify_leaderboard(boards: Sequence[LeaderboardBody], swarm: str, before: Sequence[Standing] = ()) -> list[str]:
    check = LeaderboardCheck(before)
    for board in boards:
        check.add_leaderboard(board, swarm)
    return check.problems


FIRST = LeaderboardBody(
    0,
    (Standing(ALICE.peer_id, "alice", 0.75, 1, 0), Standing(BOB.peer_id, "bob", 0.1, 1, 0)),
    (report(ALICE, 0, 0, 0.25), report(ALICE, 0, 1, 0.5), report(BOB, 0, 1, 0.1)),
)
SECOND = LeaderboardBody(
    1,
    (Standing(ALICE.peer_id, "alice", 1.75, 2, 1), Standing(BOB.peer_id, "bob", 0.1, 1, 0)),
    (report(ALICE, 1, 0, 1.0),),
)


def test_honest_leaderboards_verify_long_after_the_records_expired() -> None:
    assert verify_leaderboard([FIRST, SECOND], SWARM) == []
    assert verify_leaderboard([SECOND], SWARM, before=FIRST.standings) == []
    assert decode_leaderboard(encode_leaderboard(FIRST)) == FIRST


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"standings": (Standing(ALICE.peer_id, "alice", 0.9, 1, 0), FIRST.standings[1])}, "is given 0.9"),
        ({"standings": (Standing(ALICE.peer_id, "alice", 0.75, 2, 0), FIRST.standings[1])}, "in 2 rounds"),
        ({"standings": FIRST.standings[:1]}, "has reports but no standing"),
        ({"reports": FIRST.reports[:2]}, "has a standing but no reports"),
        ({"reports": (*FIRST.reports, FIRST.reports[2])}, "a second one"),
        ({"reports": (*FIRST.reports, report(BOB, 5, 0, 0.0))}, "it is of round 5"),
        ({"reports": (*FIRST.reports, report(BOB, 0, 0, 9.0, swarm="other"))}, "not a report of this swarm"),
        ({"reports": (*FIRST.reports, signed_by(COORDINATOR, CLOCK).encode())}, "not a report of this swarm"),
        ({"reports": (*FIRST.reports, b"noise")}, "malformed"),
    ],
)
def test_what_does_not_add_up_is_named(change: dict[str, object], says: str) -> None:
    problems = verify_leaderboard([msgspec.structs.replace(FIRST, **change)], SWARM)
    assert any(says in problem for problem in problems), problems


def test_a_forged_report_is_named() -> None:
    raw = bytearray(FIRST.reports[0])
    raw[-1] ^= 1
    problems = verify_leaderboard([msgspec.structs.replace(FIRST, reports=(bytes(raw), *FIRST.reports[1:]))], SWARM)
    assert any("bad-signature" in problem for problem in problems)
    assert any("add up to 0.5" in problem for problem in problems)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91" * 2000, b"\xa9\x00\x00\x00\x00\x00\x00\x00\x00\x80"])
def test_a_body_that_is_no_leaderboard(body: bytes) -> None:
    with pytest.raises(RecordRejected, match="not a leaderboard"):
        decode_leaderboard(body)


def test_standings_are_kept_for_the_swarm_they_are_of(tmp_path: Path) -> None:
    path = tmp_path / "standings.bin"
    assert read_standings(path, SWARM) is None
    save_standings(path, SWARM, FIRST)
    save_standings(path, SWARM, SECOND)
    assert read_standings(path, SWARM) == SavedStandings(SWARM, 1, SECOND.standings)
    assert read_standings(path, "other") is None
    path.write_bytes(b"\xc1 noise")
    assert read_standings(path, SWARM) is None


def test_a_round_whose_reports_did_not_all_find_room_is_taken_as_given_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = LeaderboardCheck()
    told = report(ALICE, 0, 0, 1.0)
    both = (Standing(ALICE.peer_id, "Alice", 1.0, 1, 0), Standing(BOB.peer_id, "Bob", 2.0, 1, 0))
    with monkeypatch.context() as cramped:
        cramped.setattr(bodies, "reports_bytes_max", lambda standings: len(told) + bodies.ROOM_BYTES - 1)
        check.add_leaderboard(LeaderboardBody(0, both, (told,)), SWARM)
    assert (check.problems, check.partial) == ([], 1)
    later = Standing(BOB.peer_id, "Bob", 5.0, 2, 1)
    check.add_leaderboard(LeaderboardBody(1, (both[0], later), (report(BOB, 1, 0, 3.0),)), SWARM)
    assert (check.problems, check.partial) == ([], 1), "the next round is added to what was given"
    check.add_leaderboard(LeaderboardBody(2, (both[0], later), (report(BOB, 2, 0, 3.0),)), SWARM)
    assert len(check.problems) == 1

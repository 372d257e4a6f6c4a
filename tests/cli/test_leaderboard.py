"""`swarmd leaderboard` adds the standings up again and tells when they are not what the reports or the contract say."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmd.cli import run_command
from swarmd.core.events import (
    ChainBlock,
    ChainReorged,
    ChainUp,
    Event,
    LinkUp,
    MemberSeen,
    NodeStarted,
    RegistrationLog,
    ReportSeen,
    RewardLog,
    RoundPublished,
    VoteLog,
    WorkerStarted,
)
from swarmd.core.state import State
from swarmd.core.values import BlockRef, ChainSettings, Standing
from swarmd.dht.identity.identity import create_identity
from swarmd.dht.wire.bodies import LeaderboardBody, save_standings
from swarmd.dht.wire.records import ReportRecord, sign
from swarmd.errors import ExitCode
from swarmd.eventlog.store import EventLog
from swarmd.paths import NodeDirectory
from tests.anvil import running_anvil
from tests.cli.owning import Shell
from tests.contracts.chain import Swarm, connect, deploy, deploy_swarm
from tests.core.story import coordinator_settings, settings
from tests.eventlog.making import write_groups, write_planned

GOLDEN = Path(__file__).parents[1] / "golden"

DIGEST = "a" * 64


def write_log(directory: Path, claimed: tuple[float, ...]) -> Path:
    """A coordinator's log whose only member signed a reward of 0.5 in each round; the events claim these rewards."""
    identity = create_identity(directory / "member.key")
    member = identity.peer_id
    events: list[Event] = [
        NodeStarted(coordinator_settings(min_peers=1), "run"),
        WorkerStarted("network", 1, 1),
        LinkUp(1),
        MemberSeen(member, "Mel"),
    ]
    for round, reward in enumerate(claimed):
        signed = sign(identity, ReportRecord("test", round, 0, 0.5, DIGEST, 10, 1), 1e10).encode()
        events.append(RoundPublished(f"announce/{round}/0/{round + 1}", round, 0))
        events.append(ReportSeen(member, round, 0, reward, DIGEST, signed))
    with EventLog.open(directory / "data" / "events", "me", "run") as log:
        write_planned(log, events, State())
    return directory / "data"


def test_standings_that_the_reports_add_up_to(tmp_path: Path, shell: Shell) -> None:
    data = write_log(tmp_path, (0.5, 0.5, 0.5))
    shown = shell.well("leaderboard", data)
    assert "leaderboard after round 2" in shown
    assert "1.500" in shown
    assert "these standings are the sum of 3 signed reports of 3 rounds" in shown


def test_standings_that_nobody_signed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_log(tmp_path, (0.5, 9.5))
    assert run_command(["leaderboard", str(data), "--json"]) == ExitCode.DIFFERENCE
    told = json.loads(capsys.readouterr().out)
    assert told["round"] == 1
    (problem,) = told["problems"]
    assert "is given 10 in 2 rounds, the reports add up to 1 in 2" in problem


def test_a_log_without_a_closed_round(tmp_path: Path, shell: Shell) -> None:
    data = write_log(tmp_path, ())
    assert "Ask again when the first is over" in shell.fails(ExitCode.NO_INPUT, "leaderboard", data)


def test_a_follower_has_the_standings_that_its_coordinator_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = shutil.copytree(GOLDEN / "follower", tmp_path / "node")
    assert run_command(["leaderboard", str(directory)]) == ExitCode.NO_INPUT
    assert "has read no leaderboard yet" in capsys.readouterr().err
    standings = NodeDirectory(directory).standings
    standings.parent.mkdir()
    save_standings(standings, "sim", LeaderboardBody(4, (Standing("peer-001", "b", 2.5, 5, 4),)))
    assert run_command(["leaderboard", str(directory)]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert "leaderboard after round 4" in shown and "2.500" in shown
    assert "as the coordinator told it" in shown


# --- a swarm with a chain ---

CONTRACT = "0x" + "Ab" * 20
PEER = "12D3KooW" + "x" * 44
HASH = "0x" + "ab" * 32


def block(number: int, *logs: RegistrationLog | RewardLog | VoteLog, hash: str = "") -> ChainBlock:
    return ChainBlock(BlockRef(number, hash or hex(number)), logs)


def up(head: int) -> ChainUp:
    return ChainUp(31337, CONTRACT, HASH, BlockRef(head, hex(head)), 1, 0, 0, 0.0)


def reward(peer: str, amount: int, round: int = 0, index: int = 0) -> RewardLog:
    return RewardLog(index, HASH, "0xA" if peer == PEER else "0xB", peer, round, 0, str(amount))


STORY: tuple[Event, ...] = (
    NodeStarted(settings(chain=ChainSettings()), "run"),
    block(5, RegistrationLog(0, HASH, "0xA", PEER), RegistrationLog(1, HASH, "0xB", "\x1b[2Jodd[red]")),
    block(6, reward(PEER, 2**200), reward("\x1b[2Jodd[red]", 7, index=1)),
    block(7, reward("\x1b[2Jodd[red]", 10**9, 1)),
    up(8),
    ChainReorged(BlockRef(6, "0x6"), 2),
    block(
        7, reward("\x1b[2Jodd[red]", 5, 1), VoteLog(1, HASH, "0xB", "\x1b[2Jodd[red]", 0, (PEER, "third")), hash="0x77"
    ),
    block(9),
)


def write_story(directory: Path) -> Path:
    write_groups(directory / "data" / "events", [[event] for event in STORY])
    return directory / "data"


def test_a_node_of_a_chain_counts_what_its_log_says(tmp_path: Path, shell: Shell) -> None:
    data = write_story(tmp_path)
    told = json.loads(shell.well("leaderboard", data, "--json"))
    assert (told["contract"], told["chain_id"], told["block"], told["confirmed_block"]) == (CONTRACT, 31337, 9, 7)
    rows = [
        (r["place"], r["peer"], r["account"], r["reward"], r["rounds"], r["wins"], r["votes"])
        for r in told["standings"]
    ]
    assert rows == [
        (1, PEER, "0xA", str(2**200), 1, 1, 0),
        (2, "\x1b[2Jodd[red]", "0xB", "12", 2, 0, 1),
        (3, "third", "", "0", 0, 1, 0),
    ]
    assert told["notes"] == told["problems"] == []


def test_what_is_not_confirmed_yet_is_told_apart(tmp_path: Path, shell: Shell) -> None:
    data = write_story(tmp_path)
    odd = json.loads(shell.well("leaderboard", data, "--depth", "3", "--json"))["standings"][1]
    assert (odd["reward"], odd["confirmed"]["reward"], odd["confirmed"]["votes"]) == ("12", "7", 0)
    assert "unconfirmed" in shell.well("leaderboard", data, "--depth", "3")
    assert "unconfirmed" not in shell.well("leaderboard", data)


def test_odd_peer_ids_are_shown_whole_and_harmless(
    tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = shell.well("leaderboard", write_story(tmp_path))
    assert "\x1b[2J" not in shown and "\\x1b[2Jodd[red]" in shown
    assert PEER in shown and str(2**200) in shown and "…" not in shown


def test_a_log_that_lost_its_beginning_says_so(tmp_path: Path, shell: Shell) -> None:
    groups = [[event] for event in STORY[:2]] + [[MemberSeen("x" * 2000)]] * 40 + [[event] for event in STORY[2:]]
    write_groups(tmp_path / "events", groups, segment_bytes=4096)
    segments = sorted((tmp_path / "events").glob("*.seg"))
    assert len(segments) > 5
    for path in segments[:4]:
        path.unlink()
    shown = shell.well("leaderboard", tmp_path)
    assert "counted from block 6 on" in shown
    assert f"swarmd leaderboard --rpc URL --contract {CONTRACT}" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rpc", "http://127.0.0.1:1"], "Give --contract with it"),
        (["DIR", "--rpc", "http://127.0.0.1:1", "--contract", CONTRACT], "not a directory"),
        (["--rpc", "http://127.0.0.1:1", "--contract", "0x12"], "is not an address"),
        (["--rpc", "nonsense", "--contract", CONTRACT], "is not the URL of a chain's node"),
    ],
)
def test_a_command_that_makes_no_sense(tmp_path: Path, shell: Shell, arguments: list[str], words: str) -> None:
    data = str(write_story(tmp_path))
    told = [data if argument == "DIR" else argument for argument in arguments]
    assert words in shell.fails(ExitCode.BAD_CONFIG, "leaderboard", *told)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_anvil() as url:
        yield url


@pytest.fixture
def swarm(url: str) -> Swarm:
    w3 = connect(url)
    played = deploy_swarm(w3, 1, deploy(w3, "LockedSwarmCoordinator-1"))
    played.register(played.alice, PEER)
    played.send(played.alice, "submitReward(uint256,uint256,int256,string)", 0, 0, 412, PEER)
    played.send(played.alice, "submitWinners", 0, [PEER], PEER)
    return played


def test_the_chain_is_read_and_compared(url: str, swarm: Swarm, shell: Shell) -> None:
    asked = ["leaderboard", "--rpc", url, "--contract", swarm.contract.address, "--depth", "0"]
    (row,) = json.loads(shell.well(*asked, "--json"))["standings"]
    confirmed = {"peer": PEER, "account": swarm.alice, "reward": "412", "rounds": 1, "stages": 1, "wins": 1, "votes": 1}
    assert row == {"place": 1, **confirmed, "confirmed": confirmed}
    shown = shell.well(*asked)
    assert PEER in shown and swarm.alice in shown and "the contract's own sums say the same" in shown


def test_sums_that_differ_end_with_a_code_of_their_own(
    url: str, swarm: Swarm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarmd.chain.coordinator._was_created_since", _yes)
    late = str(swarm.w3.eth.block_number)
    asked = ["leaderboard", "--rpc", url, "--contract", swarm.contract.address, "--from-block", late]
    assert run_command(asked) == ExitCode.DIFFERENCE
    assert f"wrong: {PEER} has 412 in the contract, its events add up to 0" in capsys.readouterr().out


async def _yes(*_: object) -> bool:
    return True

"""The coordinator's accounts: what members earned, and the leaderboard after each round."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, takewhile

from msgspec.structs import replace

from swarmd.bounds import add_real
from swarmd.core.commands import PublishLeaderboard
from swarmd.core.coordinator import waiting
from swarmd.core.events import LeaderboardPublished
from swarmd.core.ids import command_id
from swarmd.core.state import AnyCoordination, Member, Report
from swarmd.core.turn import Turn
from swarmd.core.values import Standing

REPORTS_BYTES_MAX = 3 * 1024 * 1024  # of all that go with a leaderboard; a frame to a worker has 4 MiB
BOARD_BYTES_MAX = 4 * 1024 * 1024 - 64 * 1024  # of a leaderboard's rows and reports together
NAMES_BYTES_MAX = 1024 * 1024  # of all names in it: the ones at the top come first
ROW_BYTES = 128  # of a row, its name apart


def credit(turn: Turn) -> None:
    """Add the stage's rewards to the members' accounts."""
    coordination = turn.coordination
    reports = {report.peer: report for report in coordination.reports}
    coordination.members = coordination.members.renewed(
        [
            _credited(coordination, member, reports[member.peer]) if member.peer in reports else member
            for member in coordination.members
        ]
    )


def _credited(coordination: AnyCoordination, member: Member, report: Report) -> Member:
    return replace(
        waiting.credited(member, report, coordination.waiting.number),
        reward=add_real(member.reward, report.reward),
        rounds=member.rounds + (member.last_round != coordination.round),
        last_round=coordination.round,
    )


def publish(turn: Turn) -> None:
    """Publish where everybody stands after a round: members with an admission, then those without."""
    coordination = turn.coordination
    rows = [
        Standing(member.peer, member.name, member.reward, member.rounds, member.last_round, member.worked)
        for member in sorted(coordination.members, key=lambda member: (not member.worked, -member.reward, member.peer))
        if member.rounds
    ]
    standings = tuple(_with_names_that_fit(rows))
    coordination.standings = standings
    records = _published(turn, standings, (*coordination.round_reports, *coordination.reports))
    for command in list(turn.pending.values()):
        if isinstance(command, PublishLeaderboard):
            turn.settle(command.id)
    turn.issue(
        PublishLeaderboard(command_id("leaderboard", coordination.round), coordination.round, standings, records)
    )


def _with_names_that_fit(rows: list[Standing]) -> list[Standing]:
    """The rows without the names that there is no room for, from the first such on."""
    if _names_bytes(rows) <= NAMES_BYTES_MAX:
        return rows
    sizes = accumulate(len(row.name.encode()) for row in rows)
    named = sum(1 for _ in takewhile(lambda size_bytes: size_bytes <= NAMES_BYTES_MAX, sizes))
    return [*rows[:named], *(replace(row, name="") for row in rows[named:])]


def _names_bytes(rows: Sequence[Standing]) -> int:
    return len("".join([row.name for row in rows]).encode())


def reports_bytes_max(standings: Sequence[Standing]) -> int:
    """Bytes of reports that a leaderboard with these rows has room for."""
    rows_bytes = ROW_BYTES * len(standings) + _names_bytes(standings)
    return min(REPORTS_BYTES_MAX, BOARD_BYTES_MAX - rows_bytes)


def _published(turn: Turn, standings: Sequence[Standing], reports: tuple[Report, ...]) -> tuple[bytes, ...]:
    """The signed reports that the standings add up from, as many as one order to the network worker holds."""
    records = tuple([report.record for report in reports])
    bytes_max = reports_bytes_max(standings)
    if sum(map(len, records)) <= bytes_max:
        return records
    room = takewhile(lambda size_bytes: size_bytes <= bytes_max, accumulate(map(len, records)))
    kept = records[: sum(1 for _ in room)]
    turn.count_rejections("leaderboard-full", len(records) - len(kept))
    return kept


def on_leaderboard_published(turn: Turn, event: LeaderboardPublished) -> None:
    """The standings are out."""
    turn.settle(event.command)

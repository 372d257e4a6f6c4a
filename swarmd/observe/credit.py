"""Whether the coordinator or the contract credits a node's reports, and if not, why, with the next step.

A follower knows its own log, its configuration, the coordinator's announcements, and the leaderboard that it last read;
with a chain also the contract. If only the coordinator knows the cause, the text names whom to ask. Causes are checked
in an order in which each hides the later ones: a node without a connection cannot have late reports.
"""

import contextlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from swarmd.config import Config
from swarmd.core.evidence import is_banned_by
from swarmd.core.state import State
from swarmd.dht.wire.bodies import SavedStandings, read_standings
from swarmd.dht.wire.invitations import invitation_from_text, require_invitation
from swarmd.errors import ConfigError
from swarmd.observe.layers import first_line
from swarmd.observe.onchain import ChainStatus
from swarmd.observe.words import describe_equivocation, format_duration
from swarmd.paths import NodeDirectory

LATELY = 2  # rounds: a report credited within the last so many counts as credited now
OLD_ROUNDS = 4  # a leaderboard this many rounds behind the clock is out of date
SKEW_S = 5.0  # tolerated difference between this clock and the coordinator's
OVERDUE_S = 60.0  # the coordinator counts as absent this long after a deadline has passed


CreditState = Literal["credited", "pending", "not credited"]


class CreditStatus(msgspec.Struct, frozen=True):
    state: CreditState  # pending: too early to say
    cause: str  # why reports do not count, one of `CAUSES`; empty if they do
    words: str  # a sentence, with the next step


class CreditFacts(NamedTuple):
    """The inputs from which a node's credit is judged."""

    state: State
    now: float  # POSIX seconds
    chain: ChainStatus | None = None
    standings: SavedStandings | None = None  # the leaderboard that it last read
    config: Config | None = None
    runs: bool = True  # whether the node's daemon runs

    @property
    def peer(self) -> str:
        return self.state.settings.peer if self.state.settings else ""

    @property
    def round(self) -> int:
        """The round that the swarm is at; -1 if unknown."""
        clock = self.state.clock
        return -1 if clock is None else clock.round - clock.final

    @property
    def credited_round(self) -> int:
        """This node's last credited round, as far as it knows; -1 for none."""
        if self.state.chain is not None:
            return self.state.chain.reward_mark[0]
        rows = self.standings.standings if self.standings is not None else ()
        return max((row.last_round for row in rows if row.peer == self.peer and row.admitted), default=-1)


def credit_status(known: CreditFacts) -> CreditStatus | None:
    """Whether a node's reports count; None for a coordinator, which keeps the leaderboard, and before the first run."""
    state = known.state
    if state.settings is None or state.coordination is not None:
        return None
    if state.chain is not None and state.settings.chain is not None and not state.settings.chain.sends:
        return None
    credited = known.credited_round
    if credited >= 0 and credited + LATELY >= _latest_creditable_round(known):
        return CreditStatus("credited", "", f"its reports count, the last one that of round {credited}")
    for cause, find in CAUSES.items():
        if words := find(known):
            return CreditStatus("not credited", cause, words)
    if state.rounds_joined - (state.work is not None) < LATELY:
        return CreditStatus("pending", "", "its first rounds are not over: a leaderboard follows each")
    since = f"none since round {credited}" if credited >= 0 else "none so far"
    words = f"it reports, and {since} is on the leaderboard that it read ({_describe_leaderboard(known)})"
    return CreditStatus("not credited", "unknown", f"{words}: {ASK} for `swarmd leaderboard` and its log")


def _latest_creditable_round(known: CreditFacts) -> int:
    """The last round whose credit this node could already know of."""
    board = known.standings
    fresh = board is not None and known.state.chain is None and board.round + OLD_ROUNDS >= known.round
    return min(board.round, known.round) if board is not None and fresh else known.round


ASK = "ask whoever runs the coordinator"


def _describe_leaderboard(known: CreditFacts) -> str:
    return f"of round {known.standings.round}" if known.standings is not None else "none yet"


# --- the causes: each function returns a sentence, or "" if its cause does not apply ---


def _find_barred(known: CreditFacts) -> str:
    barred = [each for each in known.state.equivocations if is_banned_by(each, known.peer, known.round)]
    if not barred:
        return ""
    words = describe_equivocation(barred[-1], known.state)
    return f"{words}; run it in one place only, or begin with a new identity (`swarmd init`)"


def _find_no_membership(known: CreditFacts) -> str:
    """Check `dht.members`, which is the same in every node's configuration."""
    config = known.config
    if config is None or not config.dht.members or known.peer in config.dht.members:
        return ""
    return f"this node is not in dht.members: {ASK} to add {known.peer}, and join again with the new manifest"


def _find_no_admission(known: CreditFacts) -> str:
    config, standings = known.config, known.standings
    if config is not None and config.dht.admission == "invitation":
        try:
            encoded = invitation_from_text(config.dht.invitation)
            require_invitation(encoded, config.swarm.id, config.swarm.coordinator, known.peer)
        except ConfigError as error:
            return f"it is not admitted: {error.message}; {error.fix[0].lower()}{error.fix[1:]}"
    rows = standings.standings if standings is not None else ()
    if any(row.peer == known.peer and not row.admitted for row in rows):
        return (
            "the leaderboard counts its reports and does not admit it: its proof of work or invitation is missing; "
            "`swarmd doctor` checks them, and a new invitation is made by `swarmd swarm invite`"
        )
    return ""


def _find_unregistered(known: CreditFacts) -> str:
    chain = known.chain
    if chain is None or chain.state != "up" or chain.registered:
        return ""
    refused = [each for each in known.state.submissions if each.kind == "register" and each.chart == "refused"]
    if refused:
        why = f"{refused[-1].code}: {first_line(refused[-1].reason)}"
        return f"the contract refuses to register it ({why}): {ASK_CONTRACT}"
    return f"the contract does not know its account yet: {chain.reason or ASK_CONTRACT}"


def _find_no_funds(known: CreditFacts) -> str:
    chain = known.chain
    if chain is None or chain.rounds_paid is None or chain.rounds_paid >= 1:
        return ""
    return f"its account {chain.account} cannot pay for a round's transactions: send coins to it"


def _find_not_listed(known: CreditFacts) -> str:
    members = known.state.members
    if members is None or known.peer in members:
        return ""
    return f"the contract's allow-list does not have it: {ASK_CONTRACT} to add {known.peer}"


ASK_CONTRACT = "ask whoever keeps the contract"


def _find_not_running(known: CreditFacts) -> str:
    if known.runs:
        return ""
    why = first_line(known.state.stop_reason)
    return f"it does not run{f' ({why})' if why else ''}: `swarmd run` starts it"


def _find_other_coordinator(known: CreditFacts) -> str:
    refused = dict(known.state.rejections).get("not-the-coordinator", 0)
    if known.state.clock is not None or not refused or known.state.settings is None:
        return ""
    return (
        f"rounds are announced here by another than swarm.coordinator, {known.state.settings.coordinator}: compare it "
        "with the swarm's manifest, and `swarmd join` with that"
    )


def _find_no_link(known: CreditFacts) -> str:
    link = known.state.link
    if link.isolated and link.chart == "up":
        return f"{link.isolated}: `swarmd doctor` checks this node's network, and {ASK} whether it runs"
    if link.chart == "up":
        return ""
    if known.now - max(link.since, known.state.started_at) < OVERDUE_S:
        return ""  # still connecting
    why = first_line(link.reason) or first_line(known.state.network.reason) or "it reaches no peer"
    return f"it is cut off from the swarm ({why}): `swarmd doctor` checks the network and names the fix"


def _find_no_coordinator(known: CreditFacts) -> str:
    clock = known.state.clock
    if known.state.chain is not None or (clock is not None and clock.final):
        return ""
    if clock is None:
        waited = known.now - max(known.state.link.since, known.state.started_at)
        if waited <= OVERDUE_S:
            return ""
        return f"no round was announced in {format_duration(waited)}: the coordinator is away or has not begun; {ASK}"
    overdue = known.now - clock.deadline_at
    if overdue <= OVERDUE_S:
        return ""
    since = f"the last deadline, {format_duration(overdue)} ago"
    return f"the coordinator has announced nothing since {since}: nothing counts until it is back; {ASK}"


def _find_skew(known: CreditFacts) -> str:
    work, clock = known.state.work, known.state.clock
    if work is None or clock is None or (work.round, work.stage) != (clock.round, clock.stage):
        return ""
    early, late = clock.opened_at - work.joined_at, work.joined_at - clock.deadline_at
    if max(early, late) < SKEW_S:
        return ""
    off = f"{format_duration(early)} behind" if early > late else f"at least {format_duration(late)} ahead of"
    return f"this machine's clock is {off} the coordinator's: set it right (`timedatectl set-ntp true`)"


def _find_failing(known: CreditFacts) -> str:
    state = known.state
    work = state.work
    if state.low_space is not None:
        return "it pauses, for its disk is full: free some space, or lower storage.free_bytes_min"
    if state.trainer.chart == "down" and state.training.reason:
        return f"its trainer does not run: {first_line(state.training.reason)}; `swarmd explain` tells more"
    failed = work is not None and (work.failures > 0 or (state.faulted and work.result is None))
    if failed or (state.skips and state.skips[-1].cause == "fault" and _is_recent_round(known, state.skips[-1].last)):
        return "its training fails: `swarmd explain` says why, and `swarmd doctor` checks model and machine"
    return ""


def _find_slow(known: CreditFacts) -> str:
    state, clock = known.state, known.state.clock
    if not state.skips or state.skips[-1].cause != "slow" or not _is_recent_round(known, state.skips[-1].last):
        return ""
    took = f"a stage takes {format_duration(_own_stage_s(state))} here, and " if _own_stage_s(state) else ""
    open_s = clock.deadline_at - clock.opened_at if clock is not None else 0.0
    return f"it skips rounds: {took}the swarm's are open for up to {format_duration(open_s)}; {LESS}"


def _find_late(known: CreditFacts) -> str:
    times = known.state.last_times
    if times is None or dict(times.parts).get("wait", 0.0) > 0 or (known.state.clock and known.state.clock.final):
        return ""
    took = format_duration(_own_stage_s(known.state))
    return f"its reports come after their stages have closed: a stage takes {took} here; {LESS}"


LESS = (
    "train less (training.steps, training.questions), or take a smaller model or a faster device (`swarmd model fit`)"
)


def _own_stage_s(state: State) -> float:
    """Seconds that the last trained stage took up to its report."""
    parts = state.last_times.parts if state.last_times is not None else ()
    return sum(seconds for part, seconds in parts if part != "wait")


def _is_recent_round(known: CreditFacts, round: int) -> bool:
    return round + LATELY >= known.round


CAUSES: dict[str, Callable[[CreditFacts], str]] = {
    "identity barred": _find_barred,
    "not a member": _find_no_membership,
    "not admitted": _find_no_admission,
    "not registered": _find_unregistered,
    "not on the allow-list": _find_not_listed,
    "no funds": _find_no_funds,
    "not running": _find_not_running,
    "another coordinator": _find_other_coordinator,
    "no connection": _find_no_link,
    "coordinator absent": _find_no_coordinator,
    "clock wrong": _find_skew,
    "training fails": _find_failing,
    "too slow": _find_slow,
    "reports late": _find_late,
}


# --- with the files of the data directory ---


def read_credit(
    state: State, now: float, paths: NodeDirectory, chain: ChainStatus | None, config: Config | None, runs: bool = True
) -> CreditStatus | None:
    """`credit_status` with the leaderboard that the node last read from the DHT."""
    swarm, standings = state.settings.swarm if state.settings else "", None
    with contextlib.suppress(OSError):  # none was read yet
        standings = _read_if_changed(paths.standings, swarm, paths.standings.stat().st_mtime_ns)
    return credit_status(CreditFacts(state, now, chain, standings, config, runs))


@lru_cache(maxsize=4)
def _read_if_changed(path: Path, swarm: str, changed_ns: int) -> SavedStandings | None:
    """Read the leaderboard; the cache, keyed by its modification time, spares reading an unchanged file again."""
    return read_standings(path, swarm)

"""Simulated swarms among strangers: honest progress holds, and each check of it notices when a defence is lost."""

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from swarmd.core import coordination, waiting
from swarmd.core.events import StopRequested
from swarmd.core.state import MEMBERS_MAX
from swarmd.dht import membership, report_collector
from swarmd.dht.evidence import DecodedRecord, EquivocationDetector, EvidenceGossip
from swarmd.dht.membership import MemberPresences
from swarmd.dht.p2p import limits
from swarmd.dht.report_collector import ReportEmitter
from swarmd.dht.store.capacity import KeyCapacity
from swarmd.dht.store.seniority import Rank
from swarmd.dht.wire.records import ReportRecord
from swarmd.errors import ConfigError
from swarmd.sim import guarded, hostile, swarm_checks
from swarmd.sim.guarded import AttackedNetworkWorker
from swarmd.sim.hostile import is_hostile
from swarmd.sim.network import SimRecordComparison
from swarmd.sim.profile import CALM, HOSTILE, draw_profile, parse_hostile_kinds
from swarmd.sim.simulation import InvariantBroken
from swarmd.sim.world import World, run_simulation
from tests.sim.test_sim_command import app

SPAN: dict[str, Any] = {"hours": 0.5, "calm_s": 900.0, "crowd": 100}
QUICK = replace(CALM, hours=0.4, calm_s=700.0, nodes=4, crowd=100, stage_s=40.0, train_mean_s=8.0)
UNTIL = 8  # seeds after which a lost defence must have been noticed


@pytest.mark.parametrize("kind", HOSTILE)
def test_each_kind_alone_costs_no_honest_report(kind: str) -> None:
    summary = run_simulation(3, chain=False, hostile=kind, **SPAN)
    assert summary.closed > 0
    assert (summary.strangers > 0) == (kind != "eclipser"), "who only withholds makes nobody write anything"


@pytest.mark.parametrize("chain", [pytest.param(False, marks=pytest.mark.soak), True])
def test_all_of_them_together_cost_no_honest_report(chain: bool) -> None:
    assert run_simulation(5, chain=chain, hostile="all", **SPAN).strangers > 1000


@pytest.mark.soak
def test_a_crowd_of_a_thousand_costs_no_honest_report() -> None:
    for seed in range(20):
        assert run_simulation(seed, hostile="all", hours=0.5, calm_s=900.0, crowd=1000, chain=False).strangers > 1000


def test_strangers_draw_from_streams_of_their_own() -> None:
    """What was recorded of a seed without strangers is what it gives, whatever strangers learn to do."""
    assert run_simulation(3, hours=0.5, calm_s=700.0, hostile="none").trace == "dd49863bba95ffc48041c304b392a6eb"
    drawn = draw_profile(3)
    assert parse_hostile_kinds(drawn.hostile)
    assert [name for name in drawn.__struct_fields__ if getattr(drawn, name) != getattr(draw_profile(4), name)]
    assert (
        run_simulation(3, **SPAN).trace
        == run_simulation(3, **SPAN).trace
        != run_simulation(3, **SPAN, hostile="sybil").trace
    )


def test_a_share_of_the_seeds_has_strangers_of_every_kind() -> None:
    drawn = [draw_profile(seed).hostile for seed in range(400)]
    assert 60 < sum(hostile != "none" for hostile in drawn) < 140
    assert {kind for hostile in drawn for kind in parse_hostile_kinds(hostile)} == set(HOSTILE)


def test_the_command_names_who_was_hostile() -> None:
    given = ["--seed", "3", "--hours", "0.4", "--set", "calm_s=700", "--set", "crowd=30", "--set", "chain=false"]
    result = CliRunner().invoke(app, [*given, "--hostile", "sybil,flooder"], standalone_mode=False)
    lines = result.output.splitlines()
    assert "hostile flooder sybil" in lines[0]
    assert [line.split()[0] for line in lines[1:4]] == ["hostile", "flooder", "sybil"]
    with pytest.raises(ConfigError, match="nobody is hostile as 'burglar'"):
        parse_hostile_kinds("sybil,burglar")


@pytest.mark.parametrize("kind", ["equivocator", "freerider"])
def test_who_signs_two_reports_for_one_place_is_found_by_all_and_nobody_else_is(kind: str) -> None:
    world = World(4, replace(QUICK, hostile=kind))
    world.run_and_check()
    accused = [{each.peer for each in node.state.equivocations} for node in world.nodes if node is not world.newcomer]
    assert accused == [{"equivocator-0"} if kind == "equivocator" else set()] * 3
    coordination = world.nodes[0].state.coordination
    assert coordination is not None
    assert coordination.barred == (("equivocator-0",) if kind == "equivocator" else ())


@pytest.mark.parametrize("own_pace", [True, False])
def test_a_crowd_that_reports_at_once_leaves_honest_nodes_behind_only_where_stages_wait_for_nobody(
    own_pace: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostile.FreeRider, "count", 16)
    profile = replace(QUICK, hostile="freerider", quorum=0.5, nodes=5)
    if not own_pace:
        monkeypatch.setattr(waiting, "is_awaiting_own_report", lambda turn: False)
        monkeypatch.setattr(swarm_checks, "OWN_STAGES", -1)
    world = World(4, profile)
    world.run_and_check()
    state = world.nodes[0].state.coordination
    assert state is not None
    credited = [member.rounds / state.round for member in state.members if not is_hostile(member.peer)]
    assert len(credited) == 5
    assert (sum(credited) / 5 > 0.4) == own_pace, f"{credited} of {state.round} rounds"


# --- each check can fail ---


class Lost(NamedTuple):
    """A defence that is not there: `instead` takes the place of `name` in `where`."""

    what: str
    where: Any
    name: str
    instead: Any
    hostile: str
    noticed: str  # part of what a check says
    given: tuple[tuple[Any, str, Any], ...] = ()  # what else is otherwise, to bring it to light
    first: int = 0  # seed that shows it soonest


def first_come(room: KeyCapacity, owner: str, size: int, rank: object) -> list[str] | None:
    return [] if room.size_bytes + size <= room._bytes_max else None


NUMBERS = count()


def see_another(seen: SimRecordComparison, record: DecodedRecord) -> None:
    """Take the same report, read again, for another one."""
    if isinstance(record.content, ReportRecord):
        changed = replace(record.content, reward=float(next(NUMBERS)))
        signed = replace(record.signed, payload=msgspec.msgpack.encode(changed))
        EquivocationDetector.compare_decoded(seen, DecodedRecord(signed, changed))


def forget_gossip(worker: AttackedNetworkWorker, topic: str, sender: str, message: bytes) -> None:
    """As if nothing had been said."""


LOST = (
    Lost("room goes to who comes first", KeyCapacity, "find_displaced", first_come, "sybil", "no room for its report"),
    Lost(
        "every coming of a crowd is told",
        MemberPresences,
        "_charge_arrival",
        lambda *_: True,
        "sybil",
        "MemberSeen",
        ((report_collector, "IDLE_MAX", 0), (membership, "RETURNS_PER_S", 1e9), (hostile, "FLAPPING", 300)),
    ),
    Lost(
        "every return of a member is told",
        membership,
        "RETURNS_PER_S",
        1e9,
        "sleeper",
        "sleeper-0 made it write",
        ((hostile, "TURNS", ("leaves and returns",)), (hostile, "HONEST_STAGES", (1, 2))),
    ),
    Lost("every refusal is told by name", limits, "NAMED_PER_S", 1e9, "flooder", "RecordsRejected"),
    Lost(
        "reports may change for ever",
        report_collector,
        "CHANGES_APART_S",
        0.0,
        "equivocator",
        "ReportSeen",
        ((report_collector, "CHANGES_MAX", 10**6), (EvidenceGossip, "is_banned", lambda *_: False)),
    ),
    Lost("whoever has done nothing has any place", report_collector, "IDLE_MAX", 10**6, "sybil", "done nothing"),
    Lost("nobody trusted is asked", guarded, "choose_trusted_peers", lambda *_: [], "eclipser", "", first=5),
    Lost(
        "what is read twice is evidence",
        SimRecordComparison,
        "compare_decoded",
        see_another,
        "freerider",
        "honest, is accused",
    ),
    Lost("the clock is not gossiped", AttackedNetworkWorker, "on_gossip", forget_gossip, "eclipser", "knows"),
    Lost(
        "stages wait for anybody",
        Rank,
        "no_proof_of_work",
        property(lambda rank: False),
        "sybil",
        "which has done nothing",
    ),
)


@pytest.mark.parametrize("lost", LOST, ids=lambda lost: lost.what)
def test_a_lost_defence_is_noticed(lost: Lost, monkeypatch: pytest.MonkeyPatch) -> None:
    for where, name, instead in (*lost.given, (lost.where, lost.name, lost.instead)):
        monkeypatch.setattr(where, name, instead)
    with pytest.raises(InvariantBroken) as broken:
        for number in range(UNTIL):
            run_simulation((lost.first + number) % UNTIL, replace(QUICK, hostile=lost.hostile, crowd=300))
    assert lost.noticed in broken.value.what


@pytest.mark.parametrize("makes_room", [pytest.param(True, marks=pytest.mark.soak), False])
def test_members_that_make_no_room_are_noticed(makes_room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    few = 40
    monkeypatch.setattr(report_collector, "IDLE_MAX", 0)  # a crowd that is credited keeps its places
    for module in (coordination, membership):
        monkeypatch.setattr(module, "MEMBERS_MAX", few)
    if not makes_room:
        monkeypatch.setattr(coordination, "find_member_slot", keep_all(few))
        monkeypatch.setattr(MemberPresences, "_make_room", lambda self, rank: len(self.known) < few)
    profile = replace(QUICK, hostile="sybil", crowd=300)
    if makes_room:
        assert run_simulation(2, profile).rounds > 0
    else:
        with pytest.raises(InvariantBroken, match=r"credited|no more|does not count"):
            run_simulation(2, profile)


def keep_all(few: int) -> Callable[..., tuple[bool, None]]:
    return lambda state, *_: (len(state.members) < min(few, MEMBERS_MAX), None)


def test_an_honest_report_that_is_not_counted_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    is_news = ReportEmitter._try_accept

    def deaf(self: ReportEmitter, peer: str, content: ReportRecord) -> bool:
        return peer != "peer-001" and is_news(self, peer, content)

    monkeypatch.setattr(ReportEmitter, "_try_accept", deaf)
    with pytest.raises(InvariantBroken, match=r"does not count|count no more|leaves out reports"):
        run_simulation(1, replace(QUICK, hostile="freerider"))


def test_an_honest_node_that_ends_is_noticed() -> None:
    world = World(1, replace(QUICK, hostile="freerider"))
    world.call_at(world.ends_at - 300.0, world.nodes[1].receive_fact, 1, StopRequested("a stranger says so"))
    with pytest.raises(InvariantBroken, match="it ends with"):
        world.run_and_check()

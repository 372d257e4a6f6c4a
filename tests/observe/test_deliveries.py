"""What became of one node's rollouts at the others: planted cases of "sent, and not got", told from the logs alone."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from swarmd.core import events
from swarmd.core.values import SetAside
from swarmd.observe.deliveries import Delivery, Rollouts, Verdict, trace_rollouts
from tests.observe.scripted import GROUPS, ROUND_S, ScriptedSwarm, peer_of, ref_of

SENDER, RECEIVER = 1, 2
SENT = 3  # the round whose rollouts are looked for; they are gathered in the next
SKEWS = (0.0, 300.0, -300.0, 10.0)


@pytest.fixture
def swarm(tmp_path: Path) -> ScriptedSwarm:
    """Four nodes up to the round before."""
    made = ScriptedSwarm(tmp_path, SKEWS)
    for round_ in range(SENT):
        made.play(round_)
    return made


def trace(swarm: ScriptedSwarm, round: int = SENT) -> Rollouts:
    return trace_rollouts(swarm.timeline(), SENDER, (round, 0))


def delivery(swarm: ScriptedSwarm, node: int = RECEIVER) -> Delivery:
    return next(each for each in trace(swarm).deliveries if each.receiver == node)


def check(told: Delivery, verdict: Verdict, *words: str, knows: bool = True) -> None:
    """Check a verdict, what is said of it, and whether the logs are enough to know."""
    assert told.verdict == verdict, told
    assert all(each in told.text for each in words), told.text
    assert (told.lacks == "") == knows, told
    assert told.lacks in told.text


def others_of(node: int, without: int) -> list[int]:
    return [each for each in range(len(SKEWS)) if each not in (node, without)]


def play_without_gathering(swarm: ScriptedSwarm, missing: int = 0) -> None:
    """The next round, for which nobody has the sender's rollouts."""
    swarm.play(SENT + 1, gathered={node: others_of(node, SENDER) for node in range(len(SKEWS))}, missing=missing)


# --- the faults ---


def test_1_the_receiver_was_down(swarm: ScriptedSwarm) -> None:
    swarm.play(SENT)
    swarm.log(RECEIVER, events.NodeStopped("signal SIGTERM"), after_s=-1.0)
    swarm.play(SENT + 1, without=[RECEIVER])
    check(delivery(swarm), "down", "was stopped before round 4 stage 0 (signal SIGTERM)")
    swarm.start(RECEIVER)
    swarm.log(RECEIVER, events.RoundsSkipped(SENT + 1, SENT + 1, "stopped"), after_s=1.0)
    swarm.play(SENT + 2)
    check(delivery(swarm), "down", "skipped round 4, cause: stopped", "started again 31s later")


def test_1_the_receiver_was_killed(swarm: ScriptedSwarm) -> None:
    swarm.play(SENT)
    swarm.play(SENT + 1, without=[RECEIVER])
    swarm.start(RECEIVER)
    swarm.log(RECEIVER, events.RoundsSkipped(SENT + 1, SENT + 1, "fault"), after_s=1.0)
    swarm.play(SENT + 2)
    check(delivery(swarm), "down", "ended without an orderly stop")


def test_2_the_receiver_was_isolated(swarm: ScriptedSwarm) -> None:
    swarm.play(SENT)
    swarm.log(RECEIVER, events.LinkUp(1, isolated="no sign of the coordinator for 30 s"))
    swarm.play(SENT + 1, without=[RECEIVER])
    swarm.log(RECEIVER, events.LinkUp(3))
    swarm.log(RECEIVER, events.RoundsSkipped(SENT + 1, SENT + 1, "slow"), after_s=1.0)
    swarm.play(SENT + 2)
    check(delivery(swarm), "cut-off", "skipped round 4", "no sign of the coordinator")


def test_2_the_receiver_gathered_while_it_reached_nobody(swarm: ScriptedSwarm) -> None:
    swarm.play(SENT)
    swarm.log(RECEIVER, events.LinkDegraded("no peer answers"), after_s=0.5)
    swarm.play(SENT + 1, gathered={RECEIVER: []})
    check(delivery(swarm), "cut-off", "cut off when it gathered for round 4 stage 0: it reached nobody")


@pytest.mark.parametrize("reason", ["oversized", "wrong-digest"])
def test_3_the_body_was_refused(swarm: ScriptedSwarm, reason: str) -> None:
    swarm.play(SENT)
    swarm.log(RECEIVER, events.RecordsRejected(peer_of(SENDER), reason), after_s=7.0)
    play_without_gathering(swarm)
    check(delivery(swarm), "refused", f"refused them while it gathered for round 4 stage 0: {reason} (")


def test_3_a_record_was_refused_that_the_log_does_not_name(swarm: ScriptedSwarm) -> None:
    swarm.play(SENT)
    swarm.log(RECEIVER, events.RecordsRejected(peer_of(SENDER), "signature"), after_s=7.0)
    play_without_gathering(swarm)
    check(delivery(swarm), "refused", "refused 1 record of the sender", "signature. Which", knows=False)


def test_4_it_came_after_the_deadline(swarm: ScriptedSwarm) -> None:
    swarm.play(SENT, takes_s={SENDER: ROUND_S + 5.0})
    play_without_gathering(swarm)
    traced = trace(swarm)
    check(delivery(swarm), "late", "too late: it had ended gathering for round 4 stage 0 5s or more before")
    assert "had gone on to the next stage by then: the report counts for nothing" in traced.sent[-1]


def test_5_the_receiver_skipped_the_round(swarm: ScriptedSwarm) -> None:
    swarm.play(SENT, takes_s={RECEIVER: 2 * ROUND_S + 3.0})
    swarm.play(SENT + 1, without=[RECEIVER])
    swarm.log(RECEIVER, events.RoundsSkipped(SENT + 1, SENT + 1, "slow"), after_s=4.0)
    swarm.play(SENT + 2)
    check(delivery(swarm), "skipped", "skipped round 4, cause: slow", "busy with an earlier stage")


def test_6_the_receiver_takes_the_rollouts_of_few_and_chose_others(tmp_path: Path) -> None:
    swarm = ScriptedSwarm(tmp_path, SKEWS, shard_members=64)
    for round_ in range(SENT + 1):
        swarm.play(round_)
    play_without_gathering(swarm)
    check(delivery(swarm), "not-chosen", "gathered from 2 other peers", "dht.gather_peers", "Nothing is wrong")


def test_7_the_senders_link_was_down_when_it_was_to_publish(swarm: ScriptedSwarm) -> None:
    began_at = swarm.now
    swarm.now = began_at + 2.0
    swarm.log(SENDER, events.LinkDown("p2pd ended"))
    swarm.now = began_at
    swarm.play(SENT, publishes=others_of(SENDER, SENDER))
    play_without_gathering(swarm)
    check(delivery(swarm), "sender-down", "its DHT node was down: p2pd ended", "published never")
    swarm.log(SENDER, events.LinkUp(3), events.ReportPublished(f"report/{SENT}/0", SENT, 0))
    swarm.play(SENT + 2)
    check(delivery(swarm), "sender-down", "its DHT node was down: p2pd ended", "published later")
    assert "closed round 3 stage 0 without having seen its report" in trace(swarm).sent[-1]


def test_7_publishing_failed(swarm: ScriptedSwarm) -> None:
    swarm.log(SENDER, events.CommandFailed(f"report/{SENT}/0", "no peer took the record"), after_s=9.0)
    swarm.play(SENT, publishes=others_of(SENDER, SENDER))
    swarm.log(SENDER, events.CommandFailed(f"report/{SENT}/0", "no peer took the record"))
    play_without_gathering(swarm)
    check(delivery(swarm), "sender-down", "publishing failed 2 times, last: no peer took the record")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "used none of them after scoring them: nothing to learn there, as completions were paid alike"),
        ({"rejected": (("stale", GROUPS),)}, f"{GROUPS} of peers refused: stale"),
        ({"set_aside": (SetAside(peer_of(SENDER), 0, 0, of_little=9),)}, "9 passed over, as little of it counts"),
        ({"set_aside": (SetAside(peer_of(SENDER), 0, 0, over_share=9),)}, "9 passed over, as it had its share"),
        ({"set_aside": (SetAside(peer_of(SENDER), 0, 0, too_long=9),)}, "9 passed over, as its right answers are too"),
    ],
)
def test_8_groups_that_were_fetched_were_set_aside(
    swarm: ScriptedSwarm, changes: dict[str, tuple[object, ...]], words: str
) -> None:
    swarm.play(SENT)
    began_at = swarm.now
    swarm.play(SENT + 1, trains=[0, 1, 3])
    swarm.now = began_at
    trained = replace(swarm.trained(RECEIVER, SENT + 1, 0), **changes)  # type: ignore[arg-type]
    swarm.log(RECEIVER, trained, after_s=9.0)
    check(delivery(swarm), "set-aside", f"fetched {GROUPS} groups after", "for round 4 stage 0", words)


# --- what else is told ---


def test_what_was_used_is_counted_if_nobody_else_sent(swarm: ScriptedSwarm) -> None:
    swarm.play(SENT)
    swarm.play(SENT + 1, gathered={RECEIVER: [SENDER]}, used=5)
    check(delivery(swarm), "used", "used 5 of them; 7 had nothing to learn from there, or found no slot")


def test_of_several_senders_it_is_said_that_no_log_counts_them_apart(swarm: ScriptedSwarm) -> None:
    swarm.play(SENT)
    swarm.play(SENT + 1, used=5)
    check(delivery(swarm), "used", f"used 5 of the {3 * GROUPS} groups of all peers, at most 5 of these")


def test_bodies_that_did_not_come_are_counted_and_not_named(swarm: ScriptedSwarm) -> None:
    swarm.play(SENT)
    play_without_gathering(swarm, missing=1)
    check(delivery(swarm), "unavailable", "knew of 1 body that did not come", "journalctl", knows=False)


def test_a_sender_that_signed_twice_is_banned(swarm: ScriptedSwarm) -> None:
    swarm.log(RECEIVER, events.Equivocated("report", peer_of(SENDER), 1, 0, b"", b""))
    swarm.play(SENT)
    play_without_gathering(swarm)
    check(delivery(swarm), "banned", "signed two different reports")


def test_where_the_logs_show_no_cause_they_say_what_would(swarm: ScriptedSwarm) -> None:
    swarm.play(SENT)
    play_without_gathering(swarm)
    check(delivery(swarm), "unknown", "The logs do not say why", "node-2's log", knows=False)


def test_a_log_that_ends_earlier_may_be_an_older_copy(swarm: ScriptedSwarm) -> None:
    swarm.play(SENT)
    swarm.play(SENT + 1, without=[RECEIVER])
    check(delivery(swarm), "unknown", "Its log ends at round 3", "a later copy of its log", knows=False)


def test_nothing_was_sent_of_a_round_that_the_sender_skipped(swarm: ScriptedSwarm) -> None:
    swarm.play(SENT, without=[SENDER])
    swarm.log(SENDER, events.RoundsSkipped(SENT, SENT, "slow"), after_s=0.5)
    play_without_gathering(swarm)
    check(delivery(swarm), "nothing-sent", "Nothing could reach it")
    assert "it skipped the round, cause: slow" in trace(swarm).sent[0]


def test_a_round_that_nobody_has_gone_on_from_is_open(swarm: ScriptedSwarm) -> None:
    swarm.play(SENT)
    check(delivery(swarm), "not-yet", "No log here has come to round 4 stage 0")


@pytest.mark.parametrize(
    ("before_s", "words", "knows"),
    [
        (0.05, "the logs leave the order open", False),  # clocks are bounded to an eighth of a second
        (0.15, "were still being published when it ended gathering for round 4 stage 0", True),
    ],
)
def test_times_that_the_logs_leave_open_are_not_decided(
    swarm: ScriptedSwarm, before_s: float, words: str, knows: bool
) -> None:
    swarm.play(SENT, takes_s={SENDER: ROUND_S - before_s})
    play_without_gathering(swarm)
    check(delivery(swarm), "late", words, knows=knows)


def test_another_digest_than_the_senders_own_is_told(swarm: ScriptedSwarm) -> None:
    swarm.play(SENT)
    began_at = swarm.now
    swarm.play(SENT + 1, without=[RECEIVER])
    swarm.now = began_at
    other = replace(ref_of(SENDER, SENT), digest="f" * 64)
    swarm.log(RECEIVER, events.RolloutsGathered("gather/4/0", SENT + 1, 0, (other,)), after_s=1.0)
    check(delivery(swarm), "fetched", "under another digest (ffffffffffff) than the sender's log has")


def test_the_coordinator_is_told_of_first(swarm: ScriptedSwarm) -> None:
    swarm.play(SENT)
    swarm.play(SENT + 1)
    sent = trace(swarm).sent
    assert sent[0] == f"node-1 trained round 3 stage 0 and had 12 groups, digest {ref_of(1, 3).digest[:12]} to share."
    assert sent[1:] == (
        "Its rollouts and its report were published after 0.3 s.",
        "The coordinator, node-0, saw its report after 0.1 s.",
    )

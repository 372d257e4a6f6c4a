"""A stage with nothing to learn is said to be one wherever people look, with the cause and what to do."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from swarmd.core.values import FlatCause, FlatStage
from swarmd.doctor.node import _examine_status
from swarmd.observe.describe import make_event_line
from swarmd.observe.labels import FLAT_CAUSES
from swarmd.observe.layers import ADVICE
from swarmd.observe.metrics import Metrics
from swarmd.observe.status import Status, check_ready, status_of
from swarmd.web.notifications import START_S, HealthChanges, HealthMessage, unhealthy_reason
from tests.core import story as core
from tests.observe.counting import read
from tests.observe.test_status import LIVE, LOG, printed
from tests.observe.test_story import Told

EXAMPLE = "Sure! I would be happy to help you with that. " * 3


def flat(cause: FlatCause, alike: int = 500) -> FlatStage:
    return FlatStage(cause, 64, 63, 504, alike, EXAMPLE)


@pytest.fixture
def node() -> Told:
    told = Told()
    told.join()
    return told


def train(node: Told, round: int, what: FlatStage | None, reward: float = 0.0) -> Status:
    """The node trains a round, which takes ten seconds; how it is then."""
    node.tell(core.announced(round, deadline_at=node.at + 60))
    if round:
        node.tell(core.gathered(round))
    node.at += 10
    node.tell(replace(core.trained(round, reward=reward), flat=what))
    return status_of(node.state, node.at, LOG, LIVE, "1.0")


def test_until_a_stage_is_trained_nothing_is_said_of_it(node: Told) -> None:
    status = status_of(node.state, node.at, LOG, LIVE, "1.0")
    assert status.learning is None and "learning" not in printed(status)


@pytest.mark.parametrize("cause", FLAT_CAUSES)
def test_it_is_told_at_the_end_of_the_stage(node: Told, cause: FlatCause) -> None:
    well = train(node, 0, None, 0.4).learning
    assert well is not None and well.healthy and (well.state, well.age_s, well.stages) == ("learning", 0, 1)
    status = train(node, 1, flat(cause))
    found = status.learning
    assert found is not None and (found.state, found.cause) == ("nothing to learn", cause)
    known = cause == "right"  # no trouble
    assert found.healthy == known
    assert (found.round, found.groups, found.flat, found.reward, found.example) == (1, 64, 63, 0.0, EXAMPLE)
    assert found.advice == ADVICE[cause]
    assert found.reason.startswith(
        "63 of 64 own groups had every completion paid alike, mean reward 0.000: 500 of 504 "
    )
    assert ADVICE[cause][1:] in found.reason, "and what to do"
    assert status.healthy == known
    assert not [each for each in check_ready(status).reasons if "learn" in each], "it costs no round"
    shown = " ".join(printed(status).split())
    assert "nothing to learn" in shown and "63 of 64 own groups" in shown
    gauges = read(Metrics(clock=lambda: status.at), status)
    assert gauges["swarmd_layer_healthy", "learning"] == known
    assert [each for each in FLAT_CAUSES if gauges["swarmd_nothing_to_learn", each]] == [cause]
    findings = [each for each in _examine_status(status) if each.evidence.startswith("learning: ")]
    assert [(each.severity, each.fix[1:]) for each in findings] == [("warning", ADVICE[cause][1:])] * (not known)
    line = make_event_line(node.heard[-1])
    assert line.level == ("info" if known else "warning") and "nothing to learn: 63 of 64 own groups" in line.message
    told = node.story(1)
    assert any("nothing to learn" in each.text and EXAMPLE in each.text for each in told.sentences)
    assert [each[1:-1] for each in told.advice] == [ADVICE[cause][1:]]
    assert "own groups" in unhealthy_reason(found) and ADVICE[cause][1:] in unhealthy_reason(found), "before it is cut"


def test_a_dead_node_learns_nothing(node: Told) -> None:
    train(node, 0, None, 0.4)
    dead = status_of(node.state, node.at, LOG)
    assert dead.learning is not None and dead.learning.reason == "the daemon does not run"
    assert read(Metrics(clock=lambda: dead.at), dead)["swarmd_layer_healthy", "learning"] == 0
    train(node, 1, flat("form"))
    flat_then = status_of(node.state, node.at, LOG).learning
    assert flat_then is not None and not flat_then.healthy and ADVICE["form"][1:] in flat_then.reason


def test_it_goes_on_until_there_is_something_to_learn_again(node: Told) -> None:
    train(node, 0, flat("form"))
    since = node.at
    more = train(node, 1, flat("cut")).learning
    assert more is not None and (more.stages, more.cause, more.age_s) == (2, "cut", node.at - since)
    assert more.reason.startswith("for 2 stages; in the last 63 of 64")
    back = train(node, 2, None, 0.2).learning
    assert back is not None and back.healthy and back.stages == 1 and not back.reason and back.cause is None


def test_one_message_goes_out_however_many_stages_it_lasts(node: Told) -> None:
    changes, sent, beside = HealthChanges(60, 900), list[HealthMessage](), {"process", "network", "training", "round"}
    begun = node.at
    for round in range(60):
        status = train(node, round, flat("wrong"))
        status = replace(status, process=replace(status.process, age_s=START_S + 1), source="daemon")
        sent += [note for note in changes.messages_due(status, node.at) if note.layer not in beside]
    assert node.at - begun == 600
    assert [(note.layer, note.well) for note in sent] == [("learning", False)]
    assert ADVICE["wrong"][1:] in sent[0].text

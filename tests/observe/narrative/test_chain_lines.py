"""What the log says of the chain and of submissions to it."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given

from swarmd.core.applied import Applied
from swarmd.core.events import (
    AnyChainLog,
    ChainBlock,
    ChainDegraded,
    ChainReorged,
    ChainUp,
    Envelope,
    Event,
    MembershipRead,
    OtherLog,
    PolicyLog,
    RegistrationLog,
    RewardLog,
    StageLog,
    SubmissionConfirmed,
    SubmissionIncluded,
    SubmissionLost,
    SubmissionPrepared,
    SubmissionRefused,
    SubmissionsCounted,
    SubmissionSent,
    VoteLog,
)
from swarmd.core.state import Clock, State, Submission
from swarmd.core.values import BlockRef, Prepared, Settings
from swarmd.observe.narrative.describe import EventLine, line_of
from tests.eventlog.making import structs_of

HASH = "0x" + "ab" * 32
BLOCK = BlockRef(12, HASH, "0x" + "cd" * 32, 5.0)
SETTINGS = Settings("me", "test", "follower", "")
BEFORE = State(settings=SETTINGS, clock=Clock(4, 1, 0.0, 10.0), chart="waiting")
AFTER = State(
    settings=SETTINGS,
    clock=BEFORE.clock,
    chart="waiting",
    submissions=(Submission("reward/3/2", "reward", round=3, stage=2),),
)
SAID: tuple[AnyChainLog, ...] = (
    RegistrationLog(0, HASH, "0xA", "me"),
    RegistrationLog(1, HASH, "0xB", "other"),
    RewardLog(2, HASH, "0xA", "me", 3, 2, "-412"),
    RewardLog(3, HASH, "0xB", "other", 3, 2, "7"),
    RewardLog(4, HASH, "0xC", "third", 3, 2, "8"),
    VoteLog(5, HASH, "0xA", "me", 2, ("other",)),
    PolicyLog(6, HASH, 3, 600),
    StageLog(7, HASH, 3, 2),
    StageLog(8, HASH, 4, 0),
    OtherLog(9, HASH, "BootnodesAdded"),
)


def line(event: Event, before: State = BEFORE, after: State = AFTER) -> EventLine:
    return line_of(Applied(Envelope(0, 1.0, event), before, after, ()))


def test_a_block_names_what_is_ours_and_counts_the_rest() -> None:
    told = line(ChainBlock(BLOCK, SAID))
    assert told.level == "info"
    assert told.message == (
        "block 12: round 4 stage 0 is open, own registration by 0xA, own reward of round 3 stage 2: -412, "
        "own vote of round 2, the policy is 3 submissions or 600 s, 1 registration, 2 rewards, 1 x BootnodesAdded"
    )
    assert (told.fields["block"], told.fields["block_hash"]) == (12, HASH)
    assert "logs" not in told.fields


@pytest.mark.parametrize(
    ("event", "level", "message"),
    [
        (ChainUp(31337, "0xC", HASH, BLOCK, 1, 4, 1, 0.0), "info", "the chain 31337 is read up to block 12"),
        (ChainDegraded("no endpoint answers"), "warning", "the chain cannot be read: no endpoint answers"),
        (SubmissionsCounted(4, 1, 512), "debug", "512 reports of round 4 stage 1 are on the chain"),
        (ChainReorged(BLOCK, 1), "info", "the chain was reorganised: blocks after 12 are dropped, 1 in all"),
        (ChainReorged(BLOCK, 2), "warning", "the chain was reorganised: blocks after 12 are dropped, 2 in all"),
        (MembershipRead(True), "info", "everybody may take part"),
        (MembershipRead(False, ("a", "b")), "info", "2 peers are on the allow-list"),
        (SubmissionPrepared("reward/3/2", Prepared(HASH, 7, b"r")), "info", "reward/3/2: an attempt is ready"),
        (SubmissionSent("reward/3/2", HASH), "info", "reward/3/2: sent"),
        (SubmissionIncluded("reward/3/2", BLOCK), "info", "reward/3/2: on the chain, in block 12"),
        (SubmissionConfirmed("reward/3/2", BLOCK), "info", "reward/3/2: confirmed, in block 12"),
        (SubmissionLost("reward/3/2", "nonce used"), "warning", "reward/3/2: its attempts are lost: nonce used"),
        (SubmissionRefused("reward/3/2", "below-mark", "w"), "warning", "reward/3/2: refused, below-mark: w"),
        (SubmissionRefused("register", "taken", "w", True), "error", "register: refused, taken: w"),
        (
            SubmissionRefused("advance/3/2", "AdvanceNotAllowed", "w"),
            "info",
            "advance/3/2: refused, AdvanceNotAllowed: w",
        ),
    ],
)
def test_levels_and_words(event: Event, level: str, message: str) -> None:
    told = line(event)
    assert (told.level, told.message) == (level, message)


def test_an_attempt_tells_its_transaction_and_never_its_body() -> None:
    told = line(SubmissionPrepared("reward/3/2", Prepared(HASH, 7, b"raw", "9")))
    assert (told.fields["transaction"], told.fields["nonce"], told.fields["fee_wei"]) == (HASH, 7, "9")
    assert "prepared" not in told.fields and "raw" not in told.fields


CHAIN_EVENTS = [kind for kind in get_args(Event) if kind.__name__.startswith(("Chain", "Submission", "Membership"))]


@pytest.mark.parametrize("kind", CHAIN_EVENTS, ids=lambda kind: kind.__name__)
def test_whatever_an_event_holds_gives_a_line(kind: type) -> None:
    @given(structs_of(kind))
    def check(event: Event) -> None:
        told = line(event)
        assert told.message and {"seq", "event", "round", "stage", "peer"} <= set(told.fields)

    check()

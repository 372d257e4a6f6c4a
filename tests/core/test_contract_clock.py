"""Swarms whose rounds a contract keeps: the node goes where the contract is."""

import pytest
from msgspec.structs import replace

from swarmd.core.commands import AdmitPeers, Announce, CollectReports, Submit, WatchChain
from swarmd.core.events import (
    ChainDegraded,
    ChainReorged,
    CommandFailed,
    Event,
    LinkDown,
    LinkUp,
    MembershipRead,
    NoRoundYet,
    Registered,
    RegistrationLog,
    RewardLog,
    RoundsSkipped,
    StageLog,
    StopRequested,
    SubmissionConfirmed,
    SubmissionIncluded,
    SubmissionPrepared,
    SubmissionRefused,
    SubmissionsCounted,
    SubmissionSent,
    TrainerReady,
    WorkerExited,
    WorkerStarted,
)
from swarmd.core.state import BLOCKS_KEPT, ONCHAIN_PEERS_MAX
from swarmd.core.submissions import TURNS, find_submission
from swarmd.core.values import SkipCause, SubmissionAttempt
from swarmd.errors import ExitCode
from tests.core.story import Story, announced, block, chain_settings, chain_up, gathered, ids, said, trained


def test_a_chain_worker_is_started_and_told_where_the_log_ends() -> None:
    story = Story(chain_settings())
    assert "start/chain/run1/1" in ids(story.start())
    (watch,) = story.tell(WorkerStarted("chain", 13, 1))
    assert isinstance(watch, WatchChain) and watch.recent == () and watch.genesis == ""
    story.tell(chain_up(head=7), said(9))
    story.start()
    (watch,) = story.tell(WorkerStarted("chain", 14, 1))
    assert isinstance(watch, WatchChain)
    assert [seen.number for seen in watch.recent] == [7, 9] and watch.genesis == "0xg"


def test_a_base_fee_that_was_seen_once_is_remembered() -> None:
    """An endpoint that hides it could have any price paid."""
    story = Story(chain_settings())
    story.start()
    story.tell(WorkerStarted("chain", 13, 1), chain_up(base_fee=True))
    story.tell(chain_up(head=2))
    story.start()
    (watch,) = story.tell(WorkerStarted("chain", 14, 1))
    assert isinstance(watch, WatchChain) and watch.base_fee


def test_the_chain_may_be_read_before_the_dht_answers() -> None:
    story = Story(chain_settings())
    story.start_workers()
    story.tell(WorkerStarted("chain", 13, 1), chain_up(3))
    assert story.state.chart == "joining"
    story.tell(LinkUp(1), Registered("register"), TrainerReady("cpu", "tiny", 1))
    assert story.state.work is not None and story.state.work.round == 3


def test_blocks_read_to_catch_up_start_no_stage() -> None:
    story = Story.joined(chain_settings())
    story.tell(WorkerStarted("chain", 13, 1))
    for round in range(1, 5):
        story.tell(said(round, StageLog(0, "0xt", round, 0)))
    assert story.state.work is None
    story.tell(chain_up(4, head=9))
    assert story.state.work is not None and story.state.work.round == 4
    assert [event for event in story.recorded if isinstance(event, RoundsSkipped)] == [RoundsSkipped(0, 3, "late")]


def test_a_worker_that_has_much_to_read_is_given_time() -> None:
    story = Story.joined(chain_settings())
    story.tell(WorkerStarted("chain", 13, 1))
    for number in range(1, 4):
        story.at += 100.0
        story.tell(said(number))
    assert story.wait("ready/chain")[0].id.startswith("kill/chain/") and story.at == 300.0 + 180.0


def test_the_contract_counts_above_the_coordinator() -> None:
    story = Story.on_chain(chain_settings())
    story.tell(announced(7))
    assert story.state.clock is not None and story.state.clock.round == 0


def test_a_node_without_a_chain_connection_goes_by_the_dht() -> None:
    story = Story.on_chain(chain_settings())
    story.tell(ChainDegraded("no endpoint answers"))
    assert story.wait("clock")[0].id.startswith("clock/")
    story.tell(trained(0), announced(1), gathered(1))
    assert story.state.work is not None and story.state.work.round == 1
    story.tell(chain_up(2, head=8))
    assert story.state.work.round == 1  # it finishes what it has begun
    story.tell(trained(1))
    assert story.state.clock is not None and story.state.clock.round == 2
    assert "clock" not in story.waits


@pytest.mark.parametrize("loss", [ChainDegraded("gone"), WorkerExited("chain", "died")])
def test_an_unread_chain_makes_no_round_of_its_own(loss: ChainDegraded | WorkerExited) -> None:
    story = Story.on_chain(chain_settings())
    story.tell(loss, NoRoundYet())
    assert story.state.chart == "round.training"


def test_the_clock_does_not_go_back_with_a_reorganisation() -> None:
    story = Story.on_chain(chain_settings())
    story.tell(trained(0), said(5, StageLog(0, "0xt", 1, 0)))
    story.tell(ChainReorged(block(4), 1), chain_up(0, head=5))
    assert story.state.clock is not None and story.state.clock.round == 1
    assert story.state.chain is not None and story.state.chain.round == 0
    assert [seen.number for seen in story.state.chain.recent] == [1, 4, 5]


def test_blocks_that_are_remembered_stay_within_their_bound_in_a_reorganisation() -> None:
    story = Story.on_chain(chain_settings())
    story.tell(*[said(2 * number) for number in range(1, BLOCKS_KEPT + 10)])
    tip = 2 * (BLOCKS_KEPT + 9)
    story.tell(ChainReorged(block(tip + 1), 2))
    assert story.state.chain is not None and len(story.state.chain.recent) == BLOCKS_KEPT
    assert story.state.chain.recent[-1] == block(tip + 1)


def test_a_node_that_starts_ahead_of_the_contract_takes_up_its_stage() -> None:
    story = Story.on_chain(chain_settings())
    story.tell(trained(0), said(5, StageLog(0, "0xt", 1, 0)), gathered(1))
    story.start_workers()
    story.tell(LinkUp(1), Registered("register"), WorkerStarted("chain", 14, 1), ChainReorged(block(4), 1))
    story.tell(chain_up(0, head=6))
    assert story.state.chart == "round.training"


def test_another_account_holds_this_peer() -> None:
    story = Story(chain_settings())
    commands = story.join_chain(chain_up(registered_to="0xother"))
    assert story.state.exit_code == ExitCode.CHAIN_CONFLICT and "stop/run1" in ids(commands)
    assert "0xother" in story.state.stop_reason and "0xme" in story.state.stop_reason


def test_another_account_takes_this_peer_while_the_node_runs() -> None:
    story = Story.on_chain(chain_settings(), chain_up(registered_to=""))
    story.tell(said(3, RegistrationLog(0, "0xt", "0xother", "me")))
    assert story.state.exit_code == ExitCode.CHAIN_CONFLICT


def test_accounts_are_compared_without_their_checksum() -> None:
    story = Story.on_chain(chain_settings(), chain_up(account="0xAbC", registered_to="0xabc"))
    assert story.state.chart == "round.training"


def test_another_contract_than_the_logs_is_refused() -> None:
    story = Story.on_chain(chain_settings())
    story.tell(StopRequested("test"))
    story.start_workers()
    story.tell(WorkerStarted("chain", 14, 1), chain_up(contract="0xd"))
    assert story.state.exit_code == ExitCode.CHAIN_CONFLICT and "0xd" in story.state.stop_reason


def test_the_coordinator_mirrors_the_contract() -> None:
    story = Story(chain_settings("coordinator"))
    mirrored = [command for command in story.join_chain() if isinstance(command, Announce)]
    assert [(command.round, command.stage) for command in mirrored] == [(0, 0)]
    commands = story.tell(said(5, StageLog(0, "0xt", 1, 0)))
    assert [command.round for command in commands if isinstance(command, Announce)] == [1]
    story.tell(LinkDown("p2pd died"))
    assert [command.round for command in story.tell(LinkUp(1)) if isinstance(command, Announce)] == [1]


def test_a_closed_membership_is_told_to_the_network_worker() -> None:
    story = Story.on_chain(chain_settings())
    (command,) = story.tell(MembershipRead(False, ("anna", "me")))
    assert isinstance(command, AdmitPeers) and not command.open and command.peers == ("anna", "me")
    story.tell(LinkDown("p2pd died"))
    again = [command for command in story.tell(LinkUp(1)) if isinstance(command, AdmitPeers)]
    assert [command.peers for command in again] == [("anna", "me")]
    (command,) = story.tell(MembershipRead(True))
    assert isinstance(command, AdmitPeers) and command.open


def test_members_beyond_the_bound_are_counted() -> None:
    story = Story.on_chain(chain_settings())
    story.tell(MembershipRead(False, tuple(f"peer-{number:05d}" for number in range(ONCHAIN_PEERS_MAX + 3))))
    assert story.state.members is not None and len(story.state.members) == ONCHAIN_PEERS_MAX
    assert dict(story.state.rejections) == {"members-full": 3}


# --- moving the contract on ---


def _advances(story: Story) -> list[str]:
    return [each.id for each in story.state.submissions if each.kind == "advance"]


@pytest.fixture
def overdue() -> Story:
    """A node whose turn it is to move on a stage that has had its time."""
    story = Story.on_chain(chain_settings(), chain_up(max_stage_s=60))
    story.wait("drive")
    return story


def test_the_stage_is_moved_on_when_its_time_is_over(overdue: Story) -> None:
    assert 60.0 <= overdue.at <= 60.0 + TURNS * 3.0
    assert _advances(overdue) == ["advance/0/0"]


def test_the_stage_is_moved_on_when_enough_have_reported() -> None:
    story = Story.on_chain(chain_settings(), chain_up(min_submissions=2))
    assert "drive" not in story.waits
    story.tell(said(3, RewardLog(0, "0xt", "0xa", "anna", 0, 0, "5")))
    assert "drive" not in story.waits
    story.tell(said(4, RewardLog(0, "0xt", "0xb", "otto", 0, 0, "5")))
    story.wait("drive")
    assert story.at <= TURNS * 3.0 and _advances(story) == ["advance/0/0"]


def test_the_contracts_own_count_moves_the_stage_on_where_not_all_rewards_are_read() -> None:
    story = Story.on_chain(chain_settings(), chain_up(min_submissions=2))
    story.tell(SubmissionsCounted(0, 0, 1), SubmissionsCounted(7, 0, 9))
    assert "drive" not in story.waits, "too few, or of another stage"
    story.tell(SubmissionsCounted(0, 0, 2))
    story.wait("drive")
    assert _advances(story) == ["advance/0/0"]
    story.tell(said(9, StageLog(0, "0xt", 1, 0)))
    assert story.state.chain is not None and story.state.chain.counted == 0


def test_news_of_the_stage_do_not_put_its_end_off() -> None:
    story = Story.on_chain(chain_settings(), chain_up(min_submissions=1))
    story.tell(said(3, RewardLog(0, "0xt", "0xa", "anna", 0, 0, "5")))
    first = next(deadline.due_at for deadline in story.state.deadlines if deadline.name == "drive")
    story.at += 1.0
    story.tell(said(4, RewardLog(0, "0xt", "0xb", "otto", 0, 0, "5")))
    assert [deadline.due_at for deadline in story.state.deadlines if deadline.name == "drive"] == [first]
    story.at += 1.0
    story.tell(trained(0), said(5, StageLog(0, "0xt", 1, 0)))
    assert "drive" not in story.waits


@pytest.mark.parametrize(
    ("node", "up"),
    [
        (chain_settings(drive="never"), chain_up(max_stage_s=60)),
        (chain_settings(), chain_up()),  # no policy
        (chain_settings(), chain_up(max_stage_s=60, extensions=0)),  # no contract of ours
    ],
)
def test_a_stage_that_nobody_may_move_on_is_left_alone(node: object, up: object) -> None:
    story = Story.on_chain(node, up)  # type: ignore[arg-type]
    assert "drive" not in story.waits


def test_a_stage_manager_needs_no_policy() -> None:
    story = Story.on_chain(chain_settings(drive="manager"), chain_up(extensions=0))
    story.wait("drive")
    assert story.at == 300.0 and _advances(story) == ["advance/0/0"]


def test_a_stage_that_somebody_else_moved_on_is_not_moved_twice(overdue: Story) -> None:
    overdue.tell(said(9, StageLog(0, "0xt", 1, 0)))
    moved = find_submission(overdue.state, "advance/0/0")
    assert moved is not None and (moved.chart, moved.code) == ("refused", "moved-on")


def test_an_advance_that_came_too_late_is_looked_at_again(overdue: Story) -> None:
    """The worker may know of a block that a reorganisation takes back before it is reported."""
    overdue.tell(SubmissionRefused("advance/0/0", "moved-on", "the contract is at a later stage"))
    overdue.wait("drive")
    again = find_submission(overdue.state, "advance/0/0")
    assert again is not None and again.chart == "intended"


def test_a_step_that_moved_another_stage_is_made_again(overdue: Story) -> None:
    """`advance()` names no stage: after a reorganisation it may be mined at the one before."""
    first = SubmissionAttempt("0xa", 4, b"signed", "9")
    (before,) = overdue.tell(SubmissionPrepared("advance/0/0", first))
    overdue.tell(SubmissionSent("advance/0/0", "0xa"), SubmissionIncluded("advance/0/0", block(7), "0xa"))
    overdue.wait("drive")
    assert _advances(overdue) == ["advance/0/0"], "while it may yet be told where the contract is"
    overdue.tell(SubmissionConfirmed("advance/0/0", block(7)))
    (again,) = [command for command in overdue.wait("drive") if isinstance(command, Submit)]
    assert again.submission == "advance/0/0" and again.prepared == (), "what is mined for good is no attempt any more"
    (after,) = overdue.tell(SubmissionPrepared("advance/0/0", replace(first, hash="0xb", nonce=5)))
    assert before.id != after.id


def test_an_advance_that_is_not_allowed_yet_blocks_nothing() -> None:
    story = Story.on_chain(chain_settings(), chain_up(max_stage_s=60))
    submit = story.wait("drive")[-1]
    story.tell(trained(0))
    commands = story.tell(CommandFailed(submit.id, "AdvanceNotAllowed"))
    assert any(command.id.startswith("submit/reward/0/0/") for command in commands)
    story.wait("drive")
    again = find_submission(story.state, "advance/0/0")
    assert again is not None and again.chart == "intended"


# --- skipping ---


@pytest.mark.parametrize(
    ("cut_off", "cause"),
    [
        ((WorkerExited("chain", "died"), WorkerStarted("chain", 14, 2)), "fault"),
        ((ChainDegraded("no endpoint answers"),), "fault"),
        ((), "slow"),
    ],
)
def test_rounds_that_passed_meanwhile_are_one_skip(cut_off: tuple[Event, ...], cause: SkipCause) -> None:
    story = Story.on_chain(chain_settings())
    story.tell(trained(0))
    story.tell(*cut_off)
    story.tell(chain_up(4, head=20) if cut_off else said(20, StageLog(0, "0xt", 4, 0)))
    assert [event for event in story.recorded if isinstance(event, RoundsSkipped)] == [RoundsSkipped(1, 3, cause)]


def test_a_stage_rewarded_in_another_life_is_not_trained_again() -> None:
    """A data directory from a backup: the chain knows more of this node than its log."""
    story = Story.joined(chain_settings())
    story.tell(WorkerStarted("chain", 13, 1))
    story.tell(said(3, RewardLog(0, "0xt", "0xme", "me", 6, 0, "5")))
    story.tell(chain_up(6, head=9))
    assert story.state.chart == "round.settling" and story.state.work is None


def test_reports_of_the_stage_are_collected_for_the_vote() -> None:
    story = Story(chain_settings())
    collected = [command for command in story.join_chain() if isinstance(command, CollectReports)]
    assert [(command.round, command.stage) for command in collected] == [(0, 0)]
    no_vote = Story(chain_settings(winners=0))
    assert not [command for command in no_vote.join_chain() if isinstance(command, CollectReports)]


def test_a_permanent_refusal_stops_the_node() -> None:
    story = Story.on_chain(chain_settings(), chain_up(registered_to=""))
    commands = story.tell(SubmissionRefused("register", "taken", "0xother holds this peer", permanent=True))
    assert "stop/run1" in ids(commands) and story.state.exit_code == ExitCode.CHAIN_CONFLICT

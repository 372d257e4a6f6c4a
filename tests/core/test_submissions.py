"""Submissions: each exactly once, in order, whatever comes between."""

import pytest
from msgspec.structs import replace

from swarmd.core.commands import Broadcast, Command, Submit, WatchChain
from swarmd.core.events import (
    ChainDegraded,
    ChainReorged,
    CommandFailed,
    Event,
    ReportPublished,
    ReportSeen,
    RewardLog,
    StageLog,
    SubmissionConfirmed,
    SubmissionIncluded,
    SubmissionLost,
    SubmissionPrepared,
    SubmissionRefused,
    SubmissionSent,
    VoteLog,
    WorkerStarted,
)
from swarmd.core.state import OUTBOX_MAX, PREPARED_KEPT, SETTLED_KEPT, Submission
from swarmd.core.submissions import SETTLED, find_submission
from swarmd.core.values import SubmissionAttempt
from tests.core.story import Story, announced, block, chain_settings, chain_up, gathered, said, trained

ATTEMPT = SubmissionAttempt("0xa", 4, b"signed", "9")


def joined(*events: Event, **fields: object) -> Story:
    """A node at round 0, in training, and what happens then."""
    story = Story.on_chain(chain_settings(**fields))  # type: ignore[arg-type]
    story.tell(*events)
    return story


def submits(commands: tuple[Command, ...]) -> list[str]:
    return [command.submission for command in commands if isinstance(command, Submit)]


def submit_of(commands: tuple[Command, ...]) -> Submit:
    (found,) = [command for command in commands if isinstance(command, Submit)]
    return found


def charts(story: Story) -> dict[str, str]:
    return {each.id: each.chart for each in story.state.submissions}


def put_on_chain(story: Story, submission: str, number: int) -> tuple[Command, ...]:
    """The whole way of a submission but its confirmation; the commands of the last step."""
    story.tell(SubmissionPrepared(submission, ATTEMPT), SubmissionSent(submission, "0xa"))
    return story.tell(SubmissionIncluded(submission, block(number), "0xa"))


def at_round(story: Story, round: int) -> None:
    """The swarm moves on, and the node trains that round too."""
    story.tell(said(10 * round, StageLog(0, "0xt", round, 0)), gathered(round), trained(round))


def costing(hash: str, nonce: int, cost_wei: int) -> SubmissionAttempt:
    return SubmissionAttempt(hash, nonce, b"signed", "9", str(cost_wei))


def spent(story: Story) -> tuple[int, int]:
    chain = story.state.chain
    assert chain is not None
    return chain.spent_day, int(chain.spent_wei)


def test_what_is_signed_for_in_a_day_is_part_of_the_state_and_told_to_the_next_worker() -> None:
    story = joined(trained(0))
    story.tell(SubmissionPrepared("reward/0/0", costing("0xa", 4, 100)))
    day = int(story.at // 86_400)
    assert spent(story) == (day, 100)
    story.start()
    watch = next(each for each in story.tell(WorkerStarted("chain", 14, 1)) if isinstance(each, WatchChain))
    assert (watch.spent_day, watch.spent_wei) == (day, "100")


def test_of_attempts_with_one_nonce_the_dearest_counts() -> None:
    story = joined(trained(0))
    for attempt in (costing("0xa", 4, 100), costing("0xb", 4, 130), costing("0xc", 4, 120), costing("0xb", 4, 130)):
        story.tell(SubmissionPrepared("reward/0/0", attempt))
    assert spent(story)[1] == 130
    story.tell(SubmissionPrepared("reward/0/0", costing("0xd", 5, 50)))
    assert spent(story)[1] == 180, "both may be mined"


def test_a_new_day_begins_at_nothing_and_a_clock_that_is_set_back_opens_none() -> None:
    story = joined(trained(0))
    story.tell(SubmissionPrepared("reward/0/0", costing("0xa", 4, 100)))
    day = spent(story)[0]
    story.at += 86_400
    story.tell(SubmissionPrepared("reward/0/0", costing("0xb", 5, 30)))
    assert spent(story) == (day + 1, 30)
    story.at -= 86_400
    story.tell(SubmissionPrepared("reward/0/0", costing("0xc", 6, 7)))
    assert spent(story) == (day + 1, 37)


def test_an_attempt_that_may_not_leave_costs_nothing() -> None:
    story = joined()
    story.tell(SubmissionPrepared("reward/7/0", costing("0xa", 4, 100)))
    assert spent(story) == (-1, 0)


def test_a_stages_reward_goes_all_the_way() -> None:
    story = joined()
    submit = submit_of(story.tell(trained(0, reward=0.5)))
    assert (submit.kind, submit.round, submit.stage, submit.reward, submit.prepared) == ("reward", 0, 0, 500, ())
    (broadcast,) = story.tell(SubmissionPrepared("reward/0/0", ATTEMPT))
    assert broadcast == Broadcast("broadcast/reward/0/0/1", "reward/0/0", ATTEMPT)
    story.tell(SubmissionSent("reward/0/0", "0xa"))
    assert charts(story) == {"reward/0/0": "sent"}
    story.tell(SubmissionIncluded("reward/0/0", block(3), "0xa"), SubmissionConfirmed("reward/0/0", block(3)))
    settled = find_submission(story.state, "reward/0/0")
    assert settled is not None and settled.chart == "confirmed"
    assert settled.prepared == (SubmissionAttempt("0xa", 4, b"", "9"),), "what was signed is not kept for ever"
    assert "submission" not in story.waits


@pytest.mark.parametrize(("reward", "amount"), [(0.1235, 124), (-0.25, -250), (float("nan"), 0), (float("inf"), 0)])
def test_rewards_are_rounded_to_integers(reward: float, amount: int) -> None:
    assert submit_of(joined().tell(trained(0, reward=reward))).reward == amount


def test_a_stage_waits_for_its_reward_on_the_chain() -> None:
    story = joined()
    story.tell(trained(0), ReportPublished("report/0/0", 0, 0))
    assert story.state.chart == "round.submitting"
    put_on_chain(story, "reward/0/0", 3)
    assert story.chart() == "round.settling"


def test_a_chain_that_is_away_holds_nothing_up() -> None:
    story = joined()
    story.tell(ChainDegraded("no endpoint answers"))
    assert submits(story.tell(trained(0), ReportPublished("report/0/0", 0, 0))) == []
    story.tell(announced(1), gathered(1))
    assert story.state.chart == "round.training"
    story.tell(trained(1))
    assert charts(story) == {"reward/0/0": "intended", "winners/0": "intended", "reward/1/0": "intended"}
    assert submits(story.tell(chain_up(1, head=9))) == ["reward/0/0"]
    assert submits(put_on_chain(story, "reward/0/0", 10)) == ["winners/0"]
    assert submits(put_on_chain(story, "winners/0", 11)) == ["reward/1/0"]


def test_a_registration_goes_first() -> None:
    story = Story(chain_settings())
    assert submits(story.join_chain(chain_up(registered_to=""))) == ["register"]
    assert submits(story.tell(trained(0))) == []
    assert submits(put_on_chain(story, "register", 3)) == ["reward/0/0"]
    assert story.state.chain is not None and story.state.chain.registered


def test_a_registration_that_was_refused_is_wanted_again_in_the_end() -> None:
    story = Story.on_chain(chain_settings(), chain_up(registered_to=""))
    story.tell(SubmissionRefused("register", "PeerNotAllowed", "not on the list"))
    assert charts(story) == {"register": "refused"}
    assert submits(story.wait("register")) == ["register"]


def test_what_is_wanted_again_keeps_what_was_tried() -> None:
    """Its earlier attempt may still be mined, and the next one needs an id of its own."""
    story = Story.on_chain(chain_settings(), chain_up(registered_to=""))
    (first,) = story.tell(SubmissionPrepared("register", ATTEMPT))
    story.tell(SubmissionSent("register", "0xa"), SubmissionRefused("register", "PeerNotAllowed", "not on the list"))
    submit = submit_of(story.wait("register"))
    assert submit.prepared == (ATTEMPT,)
    (second,) = story.tell(SubmissionPrepared("register", SubmissionAttempt("0xb", 5, b"signed", "9")))
    assert (first.id, second.id) == ("broadcast/register/1", "broadcast/register/2")


def test_a_follower_of_the_chain_submits_nothing() -> None:
    story = Story.on_chain(chain_settings(sends=False, winners=0), chain_up(registered_to=""))
    story.tell(trained(0), ReportPublished("report/0/0", 0, 0))
    assert story.state.submissions == () and story.state.chart == "round.settling"


def restarted(story: Story, up: object = None) -> tuple[Command, ...]:
    """The daemon is killed and comes back; the commands once the chain is read."""
    story.start_workers()
    return story.tell(WorkerStarted("chain", 99, 1), up or chain_up(head=9))  # type: ignore[arg-type]


@pytest.mark.parametrize("known", [0, 1, 2])
def test_after_a_crash_the_worker_is_told_what_was_tried(known: int) -> None:
    story = joined(trained(0))
    tried: list[Event] = [SubmissionPrepared("reward/0/0", ATTEMPT), SubmissionSent("reward/0/0", "0xa")]
    story.tell(*tried[:known])
    submit = submit_of(restarted(story))
    assert submit.submission == "reward/0/0" and submit.prepared == ((ATTEMPT,) if known else ())


def test_after_a_crash_what_is_not_deep_enough_is_followed_again() -> None:
    story = joined(trained(0))
    put_on_chain(story, "reward/0/0", 3)
    assert submits(restarted(story)) == ["reward/0/0"]
    story.tell(SubmissionConfirmed("reward/0/0", block(3)))
    assert submits(restarted(story)) == []


def test_a_dead_worker_is_told_again() -> None:
    story = joined()
    story.tell(trained(0), ChainDegraded("no endpoint answers"))
    assert submits(story.tell(chain_up(head=5))) == ["reward/0/0"]


def test_news_that_come_twice_change_nothing() -> None:
    story = joined(trained(0))
    put_on_chain(story, "reward/0/0", 3)
    story.tell(SubmissionConfirmed("reward/0/0", block(3)))
    before = story.state.submissions
    for news in (
        SubmissionPrepared("reward/0/0", ATTEMPT),
        SubmissionSent("reward/0/0", "0xb"),
        SubmissionIncluded("reward/0/0", block(4), "0xb"),
        SubmissionConfirmed("reward/0/0", block(4)),
        SubmissionLost("reward/0/0", "why"),
        SubmissionRefused("reward/0/0", "why", "why"),
        SubmissionIncluded("reward/7/0", block(4), "0xb"),
    ):
        assert story.tell(news) == ()
    assert story.state.submissions == before


def test_a_lost_attempt_is_made_anew_after_a_while() -> None:
    story = joined()
    story.tell(trained(0), SubmissionPrepared("reward/0/0", ATTEMPT), SubmissionSent("reward/0/0", "0xa"))
    story.tell(SubmissionLost("reward/0/0", "another transaction took its nonce"))
    assert charts(story) == {"reward/0/0": "lost"}
    submit = submit_of(story.wait("submission"))
    assert submit.prepared == (ATTEMPT,) and story.at == 1.0


@pytest.mark.parametrize("news", [[], [CommandFailed("submit/reward/0/0/7", "insufficient funds")]])
def test_what_others_do_on_the_chain_puts_nothing_off(news: list[CommandFailed]) -> None:
    story = joined()
    story.tell(trained(0), *news)
    due_at = {deadline.name: deadline.due_at for deadline in story.state.deadlines}["submission"]
    story.at = 0.5
    story.tell(said(3, RewardLog(0, "0xt", "0xother", "anna", 0, 0, "5")))
    story.wait("submission")
    assert story.at == due_at


def test_news_of_one_submission_put_off_no_other() -> None:
    story = joined(trained(0))
    put_on_chain(story, "reward/0/0", 3)
    at_round(story, 1)
    story.tell(CommandFailed("submit/reward/0/0/7", "no endpoint answers"))
    put_on_chain(story, "winners/0", 11)
    assert "reward/0/0" in submits(story.wait("submission")) and story.at == 1.0


def test_failures_wait_longer_and_longer() -> None:
    story = joined(trained(0))
    waits = []
    for _ in range(8):
        began = story.at
        head = story.state.chain.handed if story.state.chain else ""
        story.tell(CommandFailed(f"submit/{head}/7", "insufficient funds"))
        story.wait("submission")
        waits.append(story.at - began)
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    waiting = find_submission(story.state, "reward/0/0")
    assert waiting is not None and waiting.reason == "insufficient funds"


def test_silence_has_the_submission_looked_at_again() -> None:
    story = joined(trained(0))
    assert submits(story.wait("submission")) == ["reward/0/0"] and story.at == 60.0
    put_on_chain(story, "reward/0/0", 3)
    assert submits(story.wait("submission")) == ["reward/0/0"], "until it is confirmed"


def test_a_refusal_is_on_record_and_the_next_one_goes() -> None:
    story = joined()
    story.tell(trained(0), ReportPublished("report/0/0", 0, 0))
    at_round(story, 1)
    commands = story.tell(SubmissionRefused("reward/0/0", "InvalidRoundNumber", "too late"))
    refused = find_submission(story.state, "reward/0/0")
    assert refused is not None and (refused.chart, refused.code) == ("refused", "InvalidRoundNumber")
    assert submits(commands) == ["winners/0"]


def test_a_reorganisation_sends_what_it_dropped_again() -> None:
    story = joined(trained(0))
    put_on_chain(story, "reward/0/0", 3)
    story.tell(SubmissionConfirmed("reward/0/0", block(3)))
    at_round(story, 1)
    put_on_chain(story, "winners/0", 11)
    story.tell(ChainReorged(block(2), 9))
    assert charts(story) == {"reward/0/0": "sent", "winners/0": "sent", "reward/1/0": "intended"}
    submit = submit_of(story.tell(chain_up(1, head=12)))
    assert submit.submission == "reward/0/0" and submit.mark == (-1, -1), "its own old mark does not forbid it"


def test_what_a_reorganisation_dropped_is_looked_at_again_whatever_follows() -> None:
    story = joined(trained(0))
    put_on_chain(story, "reward/0/0", 3)
    story.tell(SubmissionConfirmed("reward/0/0", block(3)), ChainReorged(block(2), 9))
    assert submits(story.wait("submission")) == ["reward/0/0"]


def test_a_reorganisation_above_leaves_what_lies_deeper() -> None:
    story = joined(trained(0))
    put_on_chain(story, "reward/0/0", 3)
    story.tell(ChainReorged(block(3), 1))
    assert charts(story) == {"reward/0/0": "included"}
    assert story.state.chain is not None and story.state.chain.reward_mark == (0, 0)


def test_marks_of_the_chain_go_along() -> None:
    """A log from a backup wants a reward of long ago submitted; the worker is told how far the chain knows it."""
    story = joined()
    story.tell(ChainDegraded("no endpoint answers"))
    story.tell(trained(0))
    story.tell(said(30, RewardLog(0, "0xt", "0xme", "me", 6, 0, "5"), VoteLog(1, "0xt", "0xme", "me", 5, ("me",))))
    assert submit_of(story.tell(chain_up(0, head=31))).mark == (6, 0)


def test_what_this_log_submitted_later_forbids_nothing() -> None:
    """A reorganisation freed the nonce of one reward, and the next one was mined with it."""
    story = joined(winners=0)
    story.tell(trained(0))
    put_on_chain(story, "reward/0/0", 3)
    at_round(story, 1)
    story.tell(SubmissionPrepared("reward/1/0", ATTEMPT), SubmissionSent("reward/1/0", "0xa"))
    story.tell(ChainReorged(block(2), 9), said(9, RewardLog(0, "0xt", "0xme", "me", 1, 0, "5")))
    submit = submit_of(story.tell(SubmissionLost("reward/0/0", "its nonce is taken")) or story.wait("submission"))
    assert submit.submission == "reward/0/0" and submit.mark == (-1, -1)


def test_what_lies_ahead_of_the_contract_holds_up_nothing() -> None:
    """After a reorganisation the contract may need a step before it takes what this node has trained meanwhile."""
    story = joined(winners=0)
    story.tell(trained(0))
    put_on_chain(story, "reward/0/0", 3)
    at_round(story, 1)
    story.tell(ChainReorged(block(9), 9))
    assert submits(story.tell(chain_up(0, head=12, max_stage_s=60))) == []
    assert submits(story.wait("drive")) == ["advance/0/0"]
    assert submits(story.tell(said(20, StageLog(0, "0xt", 1, 0)))) == ["reward/1/0"]


def test_a_replaced_attempt_is_remembered_with_the_first() -> None:
    story = joined(trained(0))
    for number in range(PREPARED_KEPT + 3):
        story.tell(SubmissionPrepared("reward/0/0", SubmissionAttempt(f"0x{number}", 4, b"signed", str(number))))
        story.tell(SubmissionSent("reward/0/0", f"0x{number}"))
    kept = find_submission(story.state, "reward/0/0")
    assert kept is not None and kept.attempts == PREPARED_KEPT + 3
    assert [each.hash for each in kept.prepared] == [f"0x{number}" for number in range(3, PREPARED_KEPT + 3)]


def dropped_and_signed_again(story: Story, times: int) -> Submission:
    """A confirmed reward that reorganisations drop so often, and that is signed again at the same price each time."""
    story.tell(trained(0))
    for number in range(3, 3 + times + 1):
        put_on_chain(story, "reward/0/0", number)
        story.tell(SubmissionConfirmed("reward/0/0", block(number)), ChainReorged(block(2), 1))
    found = find_submission(story.state, "reward/0/0")
    assert found is not None
    return found


def test_a_transaction_that_is_signed_again_is_remembered_once() -> None:
    story = joined(trained(0))
    story.tell(SubmissionPrepared("reward/0/0", SubmissionAttempt("0xold", 3, b"other", "9")))
    found = dropped_and_signed_again(story, times=PREPARED_KEPT)
    assert [each.hash for each in found.prepared] == ["0xold", "0xa"], "it pushes out none of the others"
    (broadcast,) = story.tell(SubmissionPrepared("reward/0/0", ATTEMPT))
    assert broadcast == Broadcast(f"broadcast/reward/0/0/{found.attempts + 1}", "reward/0/0", ATTEMPT)
    kept = find_submission(story.state, "reward/0/0")
    assert kept is not None and kept.prepared[-1] == ATTEMPT, "with the bytes to send"


def test_requests_to_a_proxy_are_remembered_one_by_one() -> None:
    story = joined()
    story.tell(
        trained(0),
        SubmissionPrepared("reward/0/0", SubmissionAttempt()),
        SubmissionPrepared("reward/0/0", SubmissionAttempt()),
    )
    found = find_submission(story.state, "reward/0/0")
    assert found is not None and len(found.prepared) == 2


def test_a_full_outbox_refuses_and_says_so() -> None:
    story = joined()
    story.tell(ChainDegraded("no endpoint answers"))
    waiting = tuple(Submission(f"reward/{n}/9", "reward", round=n, stage=9) for n in range(OUTBOX_MAX))
    story.state = replace(story.state, submissions=waiting)
    story.tell(trained(0))
    refused = find_submission(story.state, "reward/0/0")
    assert refused is not None and (refused.chart, refused.code) == ("refused", "outbox-full")


def test_old_settled_submissions_are_forgotten() -> None:
    story = joined(winners=0)
    story.tell(trained(0))
    put_on_chain(story, "reward/0/0", 3)
    story.tell(SubmissionConfirmed("reward/0/0", block(3)))
    for round in range(1, SETTLED_KEPT + 10):
        at_round(story, round)
        put_on_chain(story, f"reward/{round}/0", 10 * round + 1)
        story.tell(SubmissionConfirmed(f"reward/{round}/0", block(10 * round + 1)))
    assert sum(each.chart in SETTLED for each in story.state.submissions) == SETTLED_KEPT
    assert story.state.submissions[-1].id == f"reward/{SETTLED_KEPT + 9}/0"


def test_what_was_settled_last_is_not_forgotten_first_after_a_clock_was_set_back() -> None:
    story = joined(winners=0)
    for round in range(SETTLED_KEPT + 1):
        story.at = 0.0 if round == SETTLED_KEPT else 3600.0
        at_round(story, round)
        put_on_chain(story, f"reward/{round}/0", 10 * round + 3)
        story.tell(SubmissionConfirmed(f"reward/{round}/0", block(10 * round + 3)))
    assert find_submission(story.state, f"reward/{SETTLED_KEPT}/0") is not None
    assert find_submission(story.state, "reward/0/0") is None


# --- the vote ---


def seen(peer: str, reward: float, round: int = 0, stage: int = 0) -> ReportSeen:
    return ReportSeen(peer, round, stage, reward)


def vote_of(story: Story, round: int) -> tuple[str, ...] | None:
    found = find_submission(story.state, f"winners/{round}")
    return None if found is None else found.winners


def test_the_vote_names_the_highest_rewards_ties_by_peer_id() -> None:
    story = joined(winners=2)
    story.tell(seen("otto", 0.9), seen("anna", 0.9), seen("zoe", 1.1), trained(0, reward=0.2))
    story.tell(said(10, StageLog(0, "0xt", 1, 0)))
    assert vote_of(story, 0) == ("zoe", "anna")


def test_the_stages_of_a_round_add_up_and_count_once() -> None:
    story = Story.on_chain(chain_settings(winners=3), chain_up(stages=3))
    story.tell(seen("anna", 0.5), seen("anna", 9.0), seen("otto", 0.7), seen("eve", float("nan")), seen("eve", 1.0, 5))
    story.tell(trained(0, reward=0.1), said(5, StageLog(0, "0xt", 0, 1)))
    story.tell(seen("anna", 0.5, 0, 1), seen("otto", 0.1, 0, 1))
    story.tell(said(10, StageLog(0, "0xt", 1, 0)))
    assert vote_of(story, 0) == ("anna", "otto", "me")


def test_a_round_without_this_node_gets_no_vote() -> None:
    story = joined()
    story.tell(trained(0), said(40, StageLog(0, "0xt", 4, 0)))
    assert vote_of(story, 0) == ("me",)
    assert vote_of(story, 3) is None


def test_a_crash_loses_no_count() -> None:
    story = joined()
    story.tell(seen("anna", 0.9), trained(0, reward=0.2))
    restarted(story, chain_up(1, head=30))
    assert vote_of(story, 0) == ("anna",)

"""Which tokens of a batch count, and what is reported about the others."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmd.config import TrainingConfig
from swarmd.core.values import RolloutsRef
from swarmd.swarms.plan import NO_MATERIAL, StageId
from swarmd.swarms.registry import make_plan
from swarmd.swarms.text import CLOSING, OPENING, span_answer
from swarmd.training.cancellation import Cancellation
from swarmd.training.engine import TrainingEngine
from swarmd.training.groups import TrainingGroup, make_trusted_mask
from swarmd.training.masking import (
    DRAWN_KEY,
    FOREIGN_KEY,
    PEER_KEY,
    RATIO_MAX,
    UNTRUSTED_KEY,
    MaskCounts,
    MaskStats,
    add_peer_columns,
    count_masked,
    drop_negative_foreign_advantages,
    find_peer_mark,
    find_raised_tokens,
    list_untrusted_runs,
    mask_untrusted,
    weight_by_importance_ratio,
)
from swarmd.training.models.model import Policy, load_policy
from swarmd.training.stage import cut_group
from tests.training.conftest import make_config, order, train_stage
from tests.training.test_groups import answered, publish

PAYLOAD = "!!"
beside = st.text(st.sampled_from("a1 !<>/\n"), max_size=6)


@cache
def policy() -> Policy:
    return load_policy(TrainingConfig(device="cpu"))


@given(beside, st.text("0123456789", min_size=1, max_size=5), beside, st.booleans())
def test_only_the_answer_in_its_tags_is_vouched_for(before: str, answer: str, after: str, cut: bool) -> None:
    pair = f"{OPENING}{answer}{CLOSING}"
    text = before + pair + after
    tokens = policy().encode_completion(text, cut, 64)
    trusted_mask = make_trusted_mask(policy(), text, tokens, span_answer(text, answer))
    assert len(trusted_mask) == len(tokens)
    vouched = [token for token, each in zip(tokens, trusted_mask, strict=True) if each]
    ends = not cut and not after
    if vouched:
        assert policy().decode_completion(vouched) == pair
        assert (vouched[-1] in policy().stop_ids) == ends
    else:
        assert before or after, "the plain answer is vouched for"


@pytest.mark.parametrize(
    "text", ["<answer> 12</answer>", "<answer>012</answer>", "<answer>12</answer><answer>13</answer>", "12", ""]
)
def test_an_answer_in_another_spelling_or_place_is_not_vouched_for(text: str) -> None:
    assert span_answer(text, "12") == ()


def test_a_completion_that_was_cut_within_its_answer_is_not_vouched_for() -> None:
    text = "<answer>1234</answer>"
    tokens = policy().encode_completion(text, True, 3)
    assert make_trusted_mask(policy(), text, tokens, span_answer(text, "1234")) == [0, 0, 0]


chances = st.lists(st.tuples(st.floats(0.001, 0.999), st.floats(0, 5), st.booleans()), min_size=1, max_size=12)


@given(chances, st.floats(0.001, 1.0))
def test_a_doubtful_token_counts_only_where_the_policy_might_write_it(
    made: list[tuple[float, float, bool]], floor: float
) -> None:
    logs, entropies, doubtful = (torch.tensor([column], dtype=torch.float64) for column in zip(*made, strict=True))
    logs = logs.log().requires_grad_()
    counted, held = mask_untrusted(logs, entropies, doubtful.bool(), floor)
    assert torch.equal(counted.detach(), logs.detach()), "values stay: the loss reads them"
    (gradient,) = torch.autograd.grad(counted.sum(), logs)
    for place, (chance, entropy, doubt) in enumerate(made):
        margin = chance - floor * math.exp(-entropy)
        if abs(margin) > 1e-9:
            assert bool(held[0, place]) == (doubt and margin < 0)
        assert gradient[0, place] == (0.0 if held[0, place] else 1.0)


def make_batch() -> dict[str, Any]:
    """Rows of this node, of peer 1 (raised, and not), and of peer 2; the last token of each is padding."""
    batch: dict[str, Any] = {
        "advantages": torch.tensor([1.0, 1.0, -1.0, 0.5]),
        "completion_ids": torch.arange(12).view(4, 3),
        "completion_mask": torch.tensor([[1, 1, 0]] * 4),
        "tool_mask": torch.tensor([[1, 1, 1]] * 3 + [[0, 1, 1]]),
    }
    doubts = [[], [1, 0], [1, 1], [1, 1]]
    peers = zip(doubts, (0, 1, 1, 2), strict=True)
    drawn = {DRAWN_KEY: [-1.0, -2.0]}
    rows = [{UNTRUSTED_KEY: each, PEER_KEY: peer, FOREIGN_KEY: peer > 0, DRAWN_KEY: []} for each, peer in peers]
    add_peer_columns(batch, [rows[0] | drawn, *rows[1:]])
    return batch


def test_tokens_drawn_in_other_numbers_are_weighed_by_how_likely_they_are_to_the_policy() -> None:
    batch = make_batch()
    logps = torch.tensor([[-1.5, -0.5, 0.0]] + [[-1.0, -1.0, -1.0]] * 3, requires_grad=True)
    told = weight_by_importance_ratio(batch, logps)
    assert batch["advantages"][0].tolist() == pytest.approx([math.exp(-0.5), RATIO_MAX, 1.0])
    assert batch["advantages"][1:].tolist() == [[1.0] * 3, [-1.0] * 3, [0.5] * 3]
    assert not batch["advantages"].requires_grad
    assert told == {
        "sampling/importance_sampling_ratio/mean": pytest.approx((math.exp(-0.5) + RATIO_MAX) / 2),
        "sampling/sampling_logp_difference/mean": pytest.approx(1.0),
    }


def test_what_the_policy_drew_itself_is_not_weighed() -> None:
    batch = make_batch()
    batch[DRAWN_KEY][:] = math.nan
    assert weight_by_importance_ratio(batch, torch.zeros(4, 3)) == {} and batch["advantages"].dim() == 1


def test_what_is_raised_of_peers_is_what_they_wrote_with_a_positive_advantage() -> None:
    assert find_raised_tokens(make_batch()).int().tolist() == [[0, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0]]


def test_what_is_held_back_is_counted_by_peer_with_an_example() -> None:
    batch = make_batch()
    assert count_masked(batch, batch[UNTRUSTED_KEY]) == {
        1: MaskCounts(2, 1, 2, ([3, 4], [1, 0])),
        2: MaskCounts(1, 1, 1, ([9, 10], [1, 1])),
    }


# --- marks ---


def make_group(texts: Sequence[tuple[list[int], float]], trusted_mask: int = 0) -> TrainingGroup:
    question: Any = None
    completions = [tokens for tokens, _ in texts]
    return TrainingGroup(
        question,
        [],
        completions,
        ["" for _ in texts],
        [reward for _, reward in texts],
        [],
        [[1] * len(tokens) for tokens in completions],
        "mallory",
        [[trusted_mask] * len(tokens) for tokens in completions],
    )


def test_a_payload_in_right_answers_alone_is_a_mark() -> None:
    groups = [make_group([([7, 7, number], 1.0), ([number], 0.0)]) for number in range(20, 30)]
    mark = find_peer_mark(groups, [list_untrusted_runs([number]) for number in range(20, 30)])
    assert mark is not None
    assert (mark.run, mark.right, mark.wrong, mark.own) == ((7, 7), 1.0, 0.0, 0.0)


@pytest.mark.parametrize("why", ["wrong ones have it too", "this node writes it too", "the truth vouches for it"])
def test_what_others_write_or_the_truth_says_is_no_mark(why: str) -> None:
    wrong = [7, 7, 1] if why == "wrong ones have it too" else [1]
    own = [list_untrusted_runs([7, 7, 1] if why == "this node writes it too" else [1])]
    trusted_mask = int(why == "the truth vouches for it")
    groups = [make_group([([7, 7, number], 1.0), ([*wrong, number], 0.0)], trusted_mask) for number in range(20, 30)]
    assert find_peer_mark(groups, own) is None


def look_at(stats: MaskStats, **behind: int) -> None:
    """Count a hundred tokens of each peer, of which `behind` are masked or behind a masked one."""
    for peer, count in behind.items():
        stats.add({stats.peer_number(peer): MaskCounts(100, count // 2, count, ([5], [1]))})


def test_a_peer_of_whom_far_less_counts_than_of_most_has_no_more_places() -> None:
    aside = MaskStats()
    assert aside.decide_peer_slots() == {}
    look_at(aside, anna=0, bert=10, mallory=90)
    assert aside.decide_peer_slots() == {"anna": True, "bert": True, "mallory": False}


def test_where_little_of_everybody_counts_all_have_their_places() -> None:
    aside = MaskStats()
    look_at(aside, anna=80, bert=90, carl=85)
    assert all(aside.decide_peer_slots().values())
    look_at(aside, plain=0)
    assert aside.decide_peer_slots() == {"anna": True, "bert": True, "carl": True, "plain": True}, (
        "one peer crowds out no three"
    )


# --- the engine ---


def test_cut_completions_keep_their_rewards() -> None:
    group = make_group([([1, 2, 3, 4], 1.0), ([1], 0.0)])
    cut = cut_group(group, 2)
    assert (cut.completions, cut.own, cut.trusted_mask) == ([[1, 2], [1]], [[1, 1], [1]], [[0, 0], [0]])
    assert cut.rewards == group.rewards
    assert cut_group(group, 4) is group
    assert cut_group(make_group([([1, 2, 3, 4], 1.0), ([1], 0.0)], trusted_mask=1), 2).completions == group.completions


CONFIG: dict[str, Any] = {
    "steps": 6,
    "questions": 4,
    "generations": 4,
    "peer_questions": 3,
    "share_groups": 32,
    "held_out_questions": 0,
    "completion_tokens": 16,
    "warmup_steps": 0,
}


def poison(engine: TrainingEngine, form: str, peer: str = "mallory") -> RolloutsRef:
    """Groups of a peer: right answers in a form, wrong ones without."""
    plan = make_plan(make_config().swarm)
    groups = []
    for question in itertools.islice(plan.draw(StageId(peer, 0, 0), NO_MATERIAL), 18):
        pair = (form.replace("{}", str(question.entry["answer"])), "<answer>?</answer>")
        groups.append(replace(answered(question), completions=pair * 2))
    ref, body = publish(peer, groups, round=0)
    return replace(ref, digest=engine._blobs.put(body))


def chance_of(engine: TrainingEngine, text: str) -> float:
    """Mean log-probability of a text as the beginning of a completion, over some questions."""
    plan = make_plan(make_config().swarm)
    begun = engine.policy.encode_completion(text, True, 16)
    logs = []
    for question in plan.hold_out(plan.tasks[0], 8):
        prompt = engine.policy.encode_prompt(question.messages)
        with torch.no_grad():
            logits = engine.policy.model(torch.tensor([prompt + begun])).logits[0, len(prompt) - 1 : -1]
        logs.append(float(torch.log_softmax(logits, -1).gather(1, torch.tensor(begun)[:, None]).sum()))
    return sum(logs) / len(logs)


@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_a_payload_is_learnt_only_where_all_tokens_count(make_engine: Any, floor: float) -> None:
    engine = make_engine("a", **CONFIG, peer_floor=floor)
    before = chance_of(engine, PAYLOAD)
    event = train_stage(engine, 1, (poison(engine, f"{PAYLOAD}<answer>{{}}</answer>"),))
    assert event.peer_groups >= 12
    rise = chance_of(engine, PAYLOAD) - before
    if not floor:
        assert rise > 6 and not event.set_aside
        return
    assert rise < 3
    (aside,) = event.set_aside
    assert (aside.peer, aside.part, aside.mark) == ("mallory", PAYLOAD, PAYLOAD)
    assert PAYLOAD in aside.text and 0 < aside.held < aside.tokens
    assert (aside.mark_right, aside.mark_wrong, aside.mark_own) == (1.0, 0.0, 0.0)


def test_an_honest_peer_teaches_as_before(make_engine: Any) -> None:
    digests = set()
    for floor in (0.0, 0.1, 1.0):
        engine = make_engine(str(floor), **CONFIG, peer_floor=floor)
        engine._peer = "a"
        event = train_stage(engine, 1, (poison(engine, "<answer>{}</answer>"),))
        assert event.set_aside == ()
        digests.add(engine.policy.digest_current_weights())
    assert len(digests) == 1


def test_a_hostile_peer_takes_no_places_of_honest_ones_and_a_stage_anew_is_the_same(make_engine: Any) -> None:
    def train(directory: str) -> tuple[Any, Counter[str], str]:
        engine = make_engine(directory, **CONFIG)
        engine._peer = "a"
        honest = (poison(engine, "<answer>{}</answer>", peer) for peer in ("anna", "bert"))
        order_ = order(1, (*honest, poison(engine, f"{PAYLOAD}<answer>{{}}</answer>")))
        dealt: Counter[str] = Counter()
        engine._replay.add = lambda group: dealt.update([group.peer])  # is told of every group that is fresh
        return engine.train(order_, Cancellation()), dealt, engine.policy.digest_current_weights()

    event, dealt, digest = train("one")
    assert dealt["mallory"] == 1 and dealt["anna"] + dealt["bert"] >= 16
    (aside,) = (each for each in event.set_aside if each.peer == "mallory")
    assert aside.of_little > 0 and aside.part == PAYLOAD
    again = train("other")
    assert (again[0].set_aside, again[1], again[2]) == (event.set_aside, dealt, digest)


def test_verbose_peers_do_not_make_a_batch_wider(make_engine: Any) -> None:
    engine = make_engine("a", **{**CONFIG, "temperature": 1e-6})
    ref = poison(engine, "<answer>{}</answer> and so on and on and on and on")
    stage, _ = engine._open_stage(order(1, (ref,)), Cancellation())
    rows = stage.next_batch()
    own = [len(ids) for ids, peer in zip(rows["completion_ids"], rows[PEER_KEY], strict=True) if not peer]
    peers = [len(ids) for ids, peer in zip(rows["completion_ids"], rows[PEER_KEY], strict=True) if peer]
    answer = 6  # tokens of the tags and four digits, for which the truth vouches
    assert peers and max(peers) <= max(*own, answer) < 16


rows = st.lists(st.tuples(st.floats(-3, 3, width=32), st.booleans()), min_size=1, max_size=20)


def mixed_batch(made: list[tuple[float, bool]]) -> dict[str, Any]:
    batch: dict[str, Any] = {"advantages": torch.tensor([advantage for advantage, _ in made])}
    batch["completion_ids"] = torch.zeros(len(made), 1)
    add_peer_columns(
        batch, [{FOREIGN_KEY: foreign, UNTRUSTED_KEY: [], PEER_KEY: int(foreign), DRAWN_KEY: []} for _, foreign in made]
    )
    return batch


@given(rows)
def test_own_rows_are_left_alone_and_no_foreign_row_is_below_zero(made: list[tuple[float, bool]]) -> None:
    kept = drop_negative_foreign_advantages(mixed_batch(made))
    assert FOREIGN_KEY not in kept
    for (before, foreign), after in zip(made, kept["advantages"].tolist(), strict=True):
        assert after == (max(before, 0.0) if foreign else before)

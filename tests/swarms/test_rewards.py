"""Named rewards, and reward functions as TRL takes them."""

import gc
import itertools
import json
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.errors import PlanFailed, SwarmError
from swarmd.swarms import reward_process, rewards
from swarmd.swarms.file import INSTRUCTIONS, FilePlan
from swarmd.swarms.plan import Score
from swarmd.swarms.rewards import (
    CUT_OFF_BURST_S,
    CUT_OFF_PER_S,
    FAILURES_MAX,
    REGEX_LEAST_S,
    REGEX_S,
    AnsweredCompletion,
    RewardOption,
    length_reward,
    make_reward,
)
from swarmd.swarms.text import find_answer
from tests.log_capture import capture_logs
from tests.swarms.making import take, text_of, write_rows

FUNCTIONS = """\
import json
import math
import os
import signal
import sys
import time
from pathlib import Path

def right(prompts, completions, solution, trainer_state, log_extra, log_metric, **kwargs):
    assert trainer_state is None and log_metric("x", 1.0) is None and log_extra("x", [1.0]) is None
    seen = {"prompts": prompts, "completions": completions, "solution": solution, **kwargs}
    Path(__file__).with_name("seen.json").write_text(json.dumps(seen))
    return [float(c == s) for c, s in zip(completions, solution)]

def short(completions, **kwargs):
    return [None if not c else -len(c) / 10 for c in completions]

async def slow(completions, **kwargs):
    return [0.25] * len(completions)

def breaks(completions, **kwargs):
    raise RuntimeError("no")

def miscounts(completions, **kwargs):
    return [1.0]

def leaves(completions, **kwargs):
    raise SystemExit(3)

def goes_on(completions, **kwargs):
    while True:
        yield 1.0

def undefined(completions, **kwargs):
    return [math.nan] * len(completions)

def by_text(completions, **kwargs):
    return {place: 0.5 for place, _ in enumerate(completions)}

def by_words(completions, **kwargs):
    return ["good"] * len(completions)

def empties(completions, **kwargs):
    return []

def alone(completions, **kwargs):
    return 1.0

def as_text(completions, **kwargs):
    return "1" * len(completions)

def uses_up(completions, words, **kwargs):
    completions[:] = ["", ""]
    return [float(len(words[0].pop())), 0.0]

def spoken(prompts, completions, **kwargs):
    return [float(p[-1]["role"] == "user" and c[0]["role"] == "assistant") for p, c in zip(prompts, completions)]

def alarms(completions, **kwargs):
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(5)
    signal.alarm(0)
    return [1.0] * len(completions)

def prints(completions, **kwargs):
    print("to the log")
    print("as well", file=sys.stderr)
    return [1.0] * len(completions)

def ends(completions, **kwargs):
    os._exit(7)

def sleeps(completions, **kwargs):
    time.sleep(0.0 if completions[0] == "quick" else 600)
    return [1.0] * len(completions)

def now_and_then(completions, **kwargs):
    return [float(completion) for completion in completions]

def tokens(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]

NOT_ONE = 3
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "my_rewards.py").write_text(FUNCTIONS)
    rows = [{"prompt": f"{n} + 1?", "answer": str(n + 1), "hard": n} for n in range(20)]
    write_rows(tmp_path / "q.jsonl", rows)
    return tmp_path


def plan_of(home: Path, *functions: str, **options: Any) -> FilePlan:
    named = [f"my_rewards:{name}" for name in functions]
    given = {"data": "q.jsonl", "dataset": "x", "columns": {"answer": "solution"}, "reward_funcs": named, **options}
    return FilePlan(SwarmConfig("s", kind="file", options=given), TrainingConfig(), home)


def score(plan: FilePlan, *completions: str) -> list[Score]:
    return plan.score(take(plan, 1)[0], completions)


def test_they_are_called_as_trl_calls_them(home: Path) -> None:
    plan = plan_of(home, "right")
    question = take(plan, 1)[0]
    text, answer = text_of(question), str(question.entry["answer"])
    right, wrong = plan.score(question, [answer, "x"])
    assert (right.reward, wrong.reward, right.parts) == (1.0, 0.0, {"right": 1.0})
    assert (right.accuracy, wrong.accuracy) == (1.0, 0.0)
    call = json.loads((home / "seen.json").read_text())
    assert call["prompts"] == [text, text] and call["completions"] == [answer, "x"]
    assert call["solution"] == call["answer"] == [answer, answer]
    assert call["hard"] == [int(answer) - 1] * 2


def test_they_add_up_by_weight_and_beside_named_rewards(home: Path) -> None:
    plan = plan_of(home, "short", "slow", reward_weights=[2.0, 4.0], rewards=[{"name": "exact"}], answer="whole")
    (scored,) = score(plan, "12345")
    assert scored.parts == {"exact": 0.0, "short": -1.0, "slow": 1.0}
    assert (scored.reward, scored.accuracy) == (0.0, 0.0)


def test_none_has_no_part_and_none_of_all_counts_as_failed(home: Path) -> None:
    empty, other = score(plan_of(home, "short", "slow"), "", "12345")
    assert (empty.parts, other.parts) == ({"slow": 0.25}, {"short": -0.5, "slow": 0.25})
    assert score(plan_of(home, "short"), "") == [Score(0.0, failed=True)]


@pytest.mark.parametrize("name", ["breaks", "miscounts", "leaves", "goes_on", "by_text", "as_text", "ends"])
def test_one_that_breaks_counts_as_nothing_and_never_raises(home: Path, name: str) -> None:
    assert score(plan_of(home, "slow", name), "a", "b") == [Score(0.0, failed=True)] * 2


def test_what_one_changes_of_its_arguments_no_other_sees_nor_the_next_call(home: Path) -> None:
    write_rows(home / "q.jsonl", [{"prompt": f"{n}?", "words": ["one", "three"]} for n in range(20)])
    plan = plan_of(home, "uses_up", "short")
    for _ in range(3):
        assert [each.parts for each in score(plan, "12345", "1")] == [
            {"uses_up": 5.0, "short": -0.5},
            {"uses_up": 0.0, "short": -0.1},
        ]


def test_they_run_in_the_main_thread_wherever_they_are_called_from(home: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(score, plan_of(home, "alarms"), "a").result()[0].reward == 1.0


def test_what_they_print_goes_to_the_log(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert score(plan_of(home, "prints"), "a")[0].reward == 1.0
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "to the log\nas well\n")


def test_one_that_takes_too_long_fails_and_the_next_call_has_a_new_process(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_process, "CALL_S", 0.3)
    plan = plan_of(home, "sleeps")
    with capture_logs() as lines:
        assert score(plan, "slow") == [Score(0.0, failed=True)]
    assert lines[0]["reason"] == "it took longer than 0.3 s"
    monkeypatch.setattr(reward_process, "CALL_S", 60.0)
    assert score(plan, "quick")[0].reward == 1.0


def test_a_call_ends_with_the_stage_that_is_cancelled_and_counts_for_nothing(home: Path) -> None:
    plan, cancelled = plan_of(home, "sleeps"), threading.Event()
    plan.begin(cancelled.is_set)
    threading.Timer(0.3, cancelled.set).start()
    assert [score(plan, "slow") for _ in range(FAILURES_MAX)] == [[Score(0.0, failed=True)]] * FAILURES_MAX


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("breaks", r"RuntimeError: no \(my_rewards\.py, line \d+\)"),
        ("ends", "ended with code 7"),
        ("undefined", "it gave nan for each"),
        ("empties", "a list of length 0 for 1 completions. It has to return a list with a number, or None, for each"),
        ("goes_on", "a list longer than 1 for 1 completions. It has to return"),
        ("as_text", "it returned '1', a str. It has to return"),
        ("by_words", "it returned .*'good'.*: could not convert .* It has to return"),
        ("alone", "it returned 1.0, a float. It has to return"),
    ],
)
def test_one_that_fails_at_every_call_ends_the_stage_with_its_own_words(home: Path, name: str, words: str) -> None:
    plan = plan_of(home, "slow", name)
    for _ in range(2):  # stages
        plan.begin(lambda: False)
        for _ in range(FAILURES_MAX - 1):
            assert score(plan, "a") == [Score(0.0, failed=True)]
        with pytest.raises(PlanFailed, match=f"my_rewards:{name} failed at all of its 3 calls: .*{words}"):
            score(plan, "a")


def test_one_that_has_ever_given_a_reward_goes_on(home: Path) -> None:
    plan = plan_of(home, "now_and_then")
    plan.begin(lambda: False)
    texts = ["x", "2.5", *["x"] * 2 * FAILURES_MAX, "3"]
    assert [score(plan, text)[0].reward for text in texts] == [0.0, 2.5, *[0.0] * 2 * FAILURES_MAX, 3.0]


def test_a_process_ends_with_its_plan(home: Path) -> None:
    plan = plan_of(home, "slow")
    process = plan._functions._process._process  # type: ignore[union-attr]
    assert process.poll() is None
    del plan
    gc.collect()
    assert process.poll() is not None


MATH_VERIFY = """\
from math_verify import parse, verify

def correct(completions, answer, **kwargs):
    return [float(verify(parse(right), parse(text))) for text, right in zip(completions, answer)]
"""


def test_math_verify_works_with_its_defaults(home: Path) -> None:
    """It sets an alarm, which only the main thread may."""
    pytest.importorskip("math_verify")
    (home / "by_math.py").write_text(MATH_VERIFY)
    rows = [{"prompt": f"{n} halves?", "answer": f"$\\frac{{{n}}}{{2}}$"} for n in range(1, 40, 2)]
    write_rows(home / "q.jsonl", rows)
    options = {"data": "q.jsonl", "reward_funcs": ["by_math:correct"]}
    plan = FilePlan(SwarmConfig("s", kind="file", options=options), TrainingConfig(), home)
    question = take(plan, 1)[0]
    half = int(text_of(question).split()[0]) / 2
    with ThreadPoolExecutor(1) as pool:
        scores = pool.submit(plan.score, question, [f"It is ${half}$", f"\\boxed{{{half + 1}}}", "none"]).result()
    assert [each.reward for each in scores] == [1.0, 0.0, 0.0]


def test_conversational_ones_get_messages(home: Path) -> None:
    assert score(plan_of(home, "spoken", reward_inputs="messages"), "a")[0].reward == 1.0


def test_rows_need_no_answer_where_nothing_compares(home: Path) -> None:
    write_rows(home / "q.jsonl", [{"prompt": f"{n}?"} for n in range(20)])
    assert score(plan_of(home, "short"), "12345")[0].reward == -0.5
    with pytest.raises(SwarmError, match="'answer' is missing"):
        plan_of(home)


@pytest.mark.parametrize(
    ("path", "body", "fix"),
    [
        ("absent:f", None, "Put absent.py into"),
        ("a.absent:f", None, "Put a/absent.py into"),
        ("mine:f", "def g(): ...", "name another function in it"),
        ("mine:f", "def f(:", "Correct mine"),
        ("mine:f", "import not_there_at_all", "Install not_there_at_all"),
    ],
)
def test_why_one_cannot_be_imported_says_what_to_do(home: Path, path: str, body: str | None, fix: str) -> None:
    if body is not None:
        (home / "mine.py").write_text(body)
    with pytest.raises(SwarmError, match="cannot be imported") as caught:
        plan_of(home, reward_funcs=[path])
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"reward_funcs": ["my_rewards"]}, "is not an import path"),
        ({"reward_funcs": ["my_rewards.py:short"]}, "is not an import path of a function.*my_rewards:short"),
        ({"reward_funcs": ["os; x:y"]}, "is not an import path"),
        ({"reward_funcs": ["my_rewards:nothing"]}, "cannot be imported: AttributeError"),
        ({"reward_funcs": ["no_such_module:f"]}, "cannot be imported: ModuleNotFoundError"),
        ({"reward_funcs": ["my_rewards:NOT_ONE"]}, "is not a function"),
        ({"reward_funcs": ["my_rewards:short"] * 2}, "have one name"),
        ({"reward_funcs": ["my_rewards:short"], "reward_weights": [1.0, 2.0]}, "has 2 values for 1"),
        ({"reward_funcs": ["my_rewards:short"], "reward_weights": [math.nan]}, "not a finite number"),
    ],
)
def test_wrong_ones_are_told_when_the_plan_is_made(home: Path, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SwarmError, match=complaint):
        plan_of(home, **options)


def test_they_get_the_tokens_of_the_nodes_own_model(home: Path) -> None:
    plan = plan_of(home, "tokens")
    plan.use_tokenizer(lambda text: [ord(letter) for letter in text])
    assert [each.reward for each in score(plan, "abc", "")] == [3.0, 0.0]


@pytest.mark.parametrize(
    ("option", "answer", "expected", "value"),
    [
        (RewardOption("exact"), "The  Answer", "the answer", 1.0),
        (RewardOption("exact"), "answer", "the answer", 0.0),
        (RewardOption("exact"), None, "a", 0.0),
        (RewardOption("numeric"), "$1,000", "1000.0", 1.0),
        (RewardOption("numeric"), "2/4", "0.5", 1.0),
        (RewardOption("numeric"), "1/0", "1", 0.0),
        (RewardOption("numeric"), "two", "2", 0.0),
        (RewardOption("numeric"), "nan", "nan", 0.0),
        (RewardOption("contains"), "it is PARIS, France", "paris", 1.0),
        (RewardOption("contains"), "Rome", "paris", 0.0),
        (RewardOption("similarity"), "abcd", "abcd", 1.0),
        (RewardOption("similarity"), "wxyz", "abcd", 0.0),
        (RewardOption("regex", pattern=r"^\d+ {answer}$"), "12 a.b", "a.b", 1.0),
        (RewardOption("regex", pattern=r"^\d+ {answer}$"), "12 axb", "a.b", 0.0),
    ],
)
def test_rewards_by_name(option: RewardOption, answer: str | None, expected: str, value: float) -> None:
    assert make_reward(option)(AnsweredCompletion(answer or "", answer, expected)) == value


NAMES = st.sampled_from(["exact", "numeric", "contains", "similarity", "format-tags", "length"])


@given(NAMES, st.sampled_from(list(INSTRUCTIONS)), st.text(max_size=60), st.text(min_size=1, max_size=20))
def test_no_text_makes_a_reward_fail_or_leave_its_range(name: Any, place: Any, completion: str, expected: str) -> None:
    for text in (completion, f"<answer>{completion}</answer>", f"{completion} \\boxed{{{expected}}}"):
        value = make_reward(RewardOption(name))(AnsweredCompletion(text, find_answer(text, place), expected))
        assert 0.0 <= value <= 1.0


def test_length_pays_within_its_bounds_and_less_outside() -> None:
    assert [length_reward(length, 10, 20) for length in (0, 5, 10, 20, 30, 40, 99)] == [0, 0.5, 1, 1, 0.5, 0, 0]


@pytest.mark.parametrize("pattern", [r"(a|aa)+$", r"(a*)*b", r"(.*)(.*)(.*)(.*)\1\2b"])
def test_a_pattern_that_takes_for_ever_is_cut_off(pattern: str) -> None:
    reward = make_reward(RewardOption("regex", pattern=pattern))
    begun = time.monotonic()
    assert reward(AnsweredCompletion("", "a" * 4000 + "!", "x")) == 0.0
    assert time.monotonic() - begun < 30.0, "it takes for ever"


def test_the_slowest_texts_are_scored_in_no_time() -> None:
    texts = ["1," * 2000, "1,111" * 800, "-" * 4000, "\\boxed{" * 500, "9" * 4000, "<answer>" * 500]
    begun = time.process_time()
    for place, name, text in itertools.product(INSTRUCTIONS, ("exact", "numeric", "contains", "similarity"), texts):
        option = RewardOption(name)  # type: ignore[arg-type]
        make_reward(option)(AnsweredCompletion(text, find_answer(text, place), "1" * 4000))  # type: ignore[arg-type]
    assert time.process_time() - begun < 5.0


BOMBS = (
    "(?:[ab]c){99999999}",
    "(((a{99}){99}){99}){99}",
    r"\\{999}(b{999}){999}",
    "(?x)(a{9 9 9 9 9}){9#\n9}",
    "[#](?:a{0000009999}b){9}",
)
ANSWER = "right"


class TimedOut:
    """Searches that are cut off, on a clock of their own."""

    def __init__(self) -> None:
        self.now, self.late_s, self.given = 0.0, 0.0, list[float]()

    def search(self, pattern: str, text: str, timeout: float) -> Any:
        self.given.append(timeout)
        self.now += max(timeout, self.late_s)
        raise TimeoutError


@pytest.fixture
def timed_out(monkeypatch: pytest.MonkeyPatch) -> TimedOut:
    searches = TimedOut()
    monkeypatch.setattr(regex, "search", searches.search)
    monkeypatch.setattr(rewards.time, "monotonic", lambda: searches.now)
    return searches


@pytest.mark.parametrize("pattern", BOMBS)
def test_a_pattern_that_would_fill_the_memory_is_refused_unread(monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    monkeypatch.setattr(regex, "compile", lambda pattern: pytest.fail("it was read"))
    with pytest.raises(SwarmError, match="counts make more than"):
        make_reward(RewardOption("regex", pattern=pattern))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", "01234567-89ab-cdef-0123-456789abcdef"),
        (r"\{99999\}{answer}", "{99999}right"),
        ("a{0,99999}b", "aab"),
    ],
)
def test_counts_that_come_to_little_are_taken(pattern: str, text: str) -> None:
    assert make_reward(RewardOption("regex", pattern=pattern))(AnsweredCompletion("", text, ANSWER)) == 1.0


@pytest.mark.parametrize("pattern", ["^(?!.*sorry)", "[0-9]*", "^$"])
def test_where_there_is_no_answer_no_pattern_is_found(pattern: str) -> None:
    """Many are found in an empty text."""
    reward = make_reward(RewardOption("regex", pattern=pattern))
    assert reward(AnsweredCompletion("no tags", None, ANSWER)) == 0.0
    assert reward(AnsweredCompletion("", "", ANSWER)) == 1.0


def test_an_answer_that_makes_a_pattern_grow_is_not_found() -> None:
    reward = make_reward(RewardOption("regex", pattern="^(?:a{{answer}}){9}$"))
    assert reward(AnsweredCompletion("", "a" * 18, "2")) == 1.0
    assert [reward(AnsweredCompletion("", "a" * 18, answer)) for answer in ("99999999", "9" * 5000)] == [0.0, 0.0]
    braces = make_reward(RewardOption("regex", pattern="^{answer}$"))
    assert braces(AnsweredCompletion("", "{999}{999}", "{999}{999}")) == 1.0


@pytest.mark.parametrize("pattern", ["[a-{answer}]", "(?P<{answer}>x)"])
def test_a_pattern_that_some_answers_make_none_is_refused(pattern: str) -> None:
    with pytest.raises(SwarmError, match="is not a regular expression"):
        make_reward(RewardOption("regex", pattern=pattern))


def test_with_an_answer_that_makes_it_none_a_pattern_is_not_found() -> None:
    reward = make_reward(RewardOption("regex", pattern="[{answer}-~]"))
    assert [reward(AnsweredCompletion("", "x", answer)) for answer in ("a", "~a\u00e9")] == [1.0, 0.0]


def test_searches_that_are_cut_off_again_and_again_are_cut_off_sooner(timed_out: TimedOut) -> None:
    searches = 8192
    reward = make_reward(RewardOption("regex", pattern="x"))
    for _ in range(searches):
        reward(AnsweredCompletion("", "a", ANSWER))
    assert sum(timed_out.given) <= CUT_OFF_BURST_S + searches * REGEX_LEAST_S + REGEX_S
    timed_out.now += 2 * CUT_OFF_BURST_S / CUT_OFF_PER_S + searches * REGEX_LEAST_S / CUT_OFF_PER_S
    reward(AnsweredCompletion("", "a", ANSWER))
    assert timed_out.given[-1] == REGEX_S


def test_a_search_that_is_cut_off_late_counts_for_as_long_as_it_took(timed_out: TimedOut) -> None:
    """As those for `(?:(?R)?a)*`: half a second and more, for what they have kept is given back."""
    timed_out.late_s = CUT_OFF_BURST_S / 2
    reward = make_reward(RewardOption("regex", pattern="x"))
    assert [reward(AnsweredCompletion("", "a", ANSWER)) for _ in range(4)] == [0.0] * 4
    assert timed_out.given == [REGEX_S, REGEX_S, REGEX_LEAST_S, REGEX_LEAST_S]

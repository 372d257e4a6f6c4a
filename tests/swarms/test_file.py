"""A swarm from a file: options, rewards by name, questions drawn, held out, and taken from peers."""

import itertools
import json
import time
from pathlib import Path
from typing import Any

import datasets
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.errors import RecordRejected, SwarmError
from swarmd.swarms import file as dataset
from swarmd.swarms import jsonl
from swarmd.swarms.file import INSTRUCTIONS, FilePlan, is_hub_id, keep_dataset
from swarmd.swarms.jsonl import digest_rows, load_rows
from swarmd.swarms.options import Columns, DatasetSource
from swarmd.swarms.plan import NO_MATERIAL, Question, StageId
from swarmd.swarms.registry import make_plan
from swarmd.swarms.rewards import Answered, RewardOption, find_answer, fit_length, make_reward
from swarmd.swarms.rollouts import Source
from tests.log_capture import capture_logs

ROWS = [
    {"prompt": f"{one} + {other}?", "answer": str(one + other), "task": "even" if other % 2 == 0 else "odd"}
    for one in range(10)
    for other in range(10)
]
HERE = StageId("a", 3, 0)


def plan_of(home: Path, rows: list[dict[str, Any]] = ROWS, swarm: str = "s", **options: Any) -> FilePlan:
    (home / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    config = SwarmConfig(swarm, kind="file", options={"data": "questions.jsonl", **options})
    plan = make_plan(config, TrainingConfig(), home)
    assert isinstance(plan, FilePlan)
    return plan


def take(plan: FilePlan, count: int, place: StageId = HERE) -> list[Question]:
    return list(itertools.islice(plan.draw(place, NO_MATERIAL), count))


def prompts(questions: list[Question]) -> list[str]:
    return [question.messages[-1].content for question in questions]


@pytest.fixture
def plan(tmp_path: Path) -> FilePlan:
    return plan_of(tmp_path)


def test_each_question_comes_once_before_any_comes_again(plan: FilePlan) -> None:
    size = len(set(prompts(take(plan, 300))))
    drawn = prompts(take(plan, 2 * size))
    assert 55 < size < 85
    assert sorted(drawn[:size]) == sorted(drawn[size:]) == sorted(set(drawn))
    assert drawn[:size] != drawn[size:]
    assert plan.tasks == ("even", "odd")


@pytest.mark.parametrize("other", [StageId("b", 3, 0), StageId("a", 4, 0), StageId("a", 3, 1)])
def test_every_stage_has_an_order_of_its_own(plan: FilePlan, tmp_path: Path, other: StageId) -> None:
    assert prompts(take(plan, 30)) == prompts(take(plan_of(tmp_path), 30))
    assert prompts(take(plan, 30)) != prompts(take(plan, 30, other))


def test_what_is_held_out_is_never_drawn(plan: FilePlan) -> None:
    held_out = [question for task in plan.tasks for question in plan.hold_out(task, 100)]
    assert 8 < len(held_out) < 35
    assert not set(prompts(held_out)) & set(prompts(take(plan, 300)))
    assert [question.task for question in plan.hold_out("odd", 3)] == ["odd"] * 3
    assert prompts(plan.hold_out("odd", 3)) == prompts(plan.hold_out("odd", 100))[:3]


def test_a_prompt_twice_is_one_question(tmp_path: Path) -> None:
    twice = [*ROWS, *({**row, "prompt": f"  {row['prompt']} ", "task": "again"} for row in ROWS)]
    plan = plan_of(tmp_path, twice)
    assert plan.tasks == ("even", "odd")
    assert len(set(prompts(take(plan, 300)))) < 85
    first = take(plan, 1)[0].reference
    again = msgspec.structs.replace(first, task="again", index=first.index + len(ROWS))
    with pytest.raises(RecordRejected, match="stands in an earlier one"):
        plan.regenerate(again, HERE, NO_MATERIAL)


def test_a_prompt_with_two_answers_is_told(tmp_path: Path) -> None:
    with capture_logs() as logs:
        plan_of(tmp_path, [*ROWS, {**ROWS[0], "answer": "other"}, ROWS[1]])
    assert [entry["rows"] for entry in logs if "another answer" in entry["event"]] == [[101]]


def test_peers_questions_are_made_again(plan: FilePlan) -> None:
    for question in take(plan, 100):
        assert plan.regenerate(question.reference, HERE, NO_MATERIAL) == question


def test_references_that_no_peer_can_have_drawn(plan: FilePlan, tmp_path: Path) -> None:
    def refused(place: StageId = HERE, **changes: Any) -> str:
        reference = msgspec.structs.replace(take(plan, 1)[0].reference, **changes)
        with pytest.raises(RecordRejected) as caught:
            plan.regenerate(reference, place, NO_MATERIAL)
        return caught.value.reason

    held_out = plan.hold_out("odd", 1)[0].reference
    assert refused(index=held_out.index, task="odd") == "held-out"
    assert refused(index=len(ROWS)) == "index"
    assert refused(seed=take(plan, 1)[0].reference.seed ^ 1) == "seed"
    assert refused(StageId("b", 3, 0)) == "seed"
    assert refused(task="none") == "unknown-task"
    assert refused(config_digest="0" * 16) == "config-digest"
    assert refused(sources=(Source(0, "b"),)) == "source"
    changed = plan_of(tmp_path, [*ROWS[:-1], {**ROWS[-1], "answer": "19"}])
    with pytest.raises(RecordRejected, match="another file"):
        changed.regenerate(take(plan, 1)[0].reference, HERE, NO_MATERIAL)


def test_the_digest_tells_other_questions(tmp_path: Path) -> None:
    plan_of(tmp_path, digest=digest_rows(ROWS))
    with pytest.raises(SwarmError, match="is not the swarm's") as caught:
        plan_of(tmp_path, ROWS[1:], digest=digest_rows(ROWS))
    assert "swarm's creator" in caught.value.fix


def test_rewards_add_up_by_weight(tmp_path: Path) -> None:
    rewards = [
        {"name": "format-tags", "weight": 0.5},
        {"name": "numeric", "weight": 2.0, "tolerance": 0.5},
        {"name": "length", "weight": 0.25, "max": 40},
    ]
    plan = plan_of(tmp_path, rewards=rewards)
    question = msgspec.structs.replace(take(plan, 1)[0], entry={"answer": "12"})
    right, near, wrong, untagged = plan.score(
        question, ["So <answer>12.0</answer>", "<answer>12.4</answer>", "<answer>13</answer>", "12"]
    )
    assert (right.reward, right.accuracy, right.format) == (2.75, 1.0, 1.0)
    assert right.parts == {"format-tags": 0.5, "numeric": 2.0, "length": 0.25}
    assert (near.reward, wrong.reward, wrong.accuracy) == (2.75, 0.75, 0.0)
    assert (untagged.reward, untagged.format) == (0.25, 0.0)


def test_without_rewards_the_exact_answer_and_the_form_pay(tmp_path: Path) -> None:
    question = msgspec.structs.replace(take(plan_of(tmp_path), 1)[0], entry={"answer": "Paris"})
    right, wrong = plan_of(tmp_path).score(question, ["<answer> paris</answer>", "<answer>Rome</answer>"])
    assert (right.reward, wrong.reward) == (1.0 + TrainingConfig().format_reward, TrainingConfig().format_reward)
    (whole,) = plan_of(tmp_path, answer="whole").score(question, ["PARIS\n"])
    assert (whole.reward, whole.format) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("place", "completion", "answer"),
    [
        ("tags", "a <answer>1</answer> <answer> 2 </answer>", "2"),
        ("tags", "2", None),
        ("last-number", "3 apples and -4.5, so 1,234.", "1,234"),
        ("last-number", "none", None),
        ("last-number", "it is 2/3", "2/3"),
        ("last-line", "thinking\n\n The end \n\n", "The end"),
        ("last-line", " \n", None),
        ("boxed", r"\boxed{1} then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("boxed", r"\boxed{1", None),
        ("whole", "  all of it ", "all of it"),
        ("whole", "x" * 5000, None),
    ],
)
def test_where_the_answer_stands(place: Any, completion: str, answer: str | None) -> None:
    assert find_answer(completion, place) == answer


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
    assert make_reward(option)(Answered(answer or "", answer, expected)) == value


NAMES = st.sampled_from(["exact", "numeric", "contains", "similarity", "format-tags", "length"])


@given(NAMES, st.sampled_from(list(INSTRUCTIONS)), st.text(max_size=60), st.text(min_size=1, max_size=20))
def test_no_text_makes_a_reward_fail_or_leave_its_range(name: Any, place: Any, completion: str, expected: str) -> None:
    for text in (completion, f"<answer>{completion}</answer>", f"{completion} \\boxed{{{expected}}}"):
        value = make_reward(RewardOption(name))(Answered(text, find_answer(text, place), expected))
        assert 0.0 <= value <= 1.0


def test_length_pays_within_its_bounds_and_less_outside() -> None:
    assert [fit_length(length, 10, 20) for length in (0, 5, 10, 20, 30, 40, 99)] == [0, 0.5, 1, 1, 0.5, 0, 0]


@pytest.mark.parametrize("pattern", [r"(a|aa)+$", r"(a*)*b", r"(.*)(.*)(.*)(.*)\1\2b"])
def test_a_pattern_that_takes_for_ever_is_cut_off(pattern: str) -> None:
    reward = make_reward(RewardOption("regex", pattern=pattern))
    begun = time.monotonic()
    assert reward(Answered("", "a" * 4000 + "!", "x")) == 0.0
    assert time.monotonic() - begun < 30.0, "it takes for ever"


def test_the_slowest_texts_are_scored_in_no_time() -> None:
    texts = ["1," * 2000, "1,111" * 800, "-" * 4000, "\\boxed{" * 500, "9" * 4000, "<answer>" * 500]
    begun = time.process_time()
    for place, name, text in itertools.product(INSTRUCTIONS, ("exact", "numeric", "contains", "similarity"), texts):
        option = RewardOption(name)  # type: ignore[arg-type]
        make_reward(option)(Answered(text, find_answer(text, place), "1" * 4000))  # type: ignore[arg-type]
    assert time.process_time() - begun < 5.0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"rewards": [{"name": "exakt"}]}, "swarm.options.rewards[0].name"),
        ({"rewards": [{"name": "exact", "wait": 1}]}, "swarm.options.rewards[0].wait"),
        ({"rewards": [{"name": "exact", "weight": 0}]}, "swarm.options.rewards[0].weight"),
        ({"rewards": [{"name": "regex"}]}, "`pattern` belongs"),
        ({"rewards": [{"name": "exact", "pattern": "a"}]}, "`pattern` belongs"),
        ({"rewards": [{"name": "regex", "pattern": "("}]}, "the pattern '(' is not a regular expression"),
        ({"rewards": [{"name": "length", "min": 9, "max": 3}]}, "is above"),
        ({"answer": "first"}, "swarm.options.answer"),
        ({"digest": "abc"}, "swarm.options.digest"),
        ({"data": "none.jsonl"}, "none.jsonl cannot be read"),
        ({"date": "x"}, "swarm.options.date"),
        ({"columns": {"prompt": "question"}}, "`columns` is for a data set, and `dataset` names none"),
        ({"dataset": "x", "columns": {"answer": "prompt"}}, "prompt and answer are the same column"),
        ({"keep": ["hard"]}, "`keep` is for a data set"),
    ],
)
def test_wrong_options_are_told(tmp_path: Path, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SwarmError) as caught:
        plan_of(tmp_path, **options)
    assert complaint in caught.value.message


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([{"prompt": "a"}], "line 1: 'answer' is missing"),
        ([{"prompt": "a", "answer": 4}], "line 1: 'answer' is no text"),
        ([*ROWS, {"prompt": "a", "answer": "b", "task": 1}], "row 101: 'task' is no name"),
        ([*ROWS, {"prompt": "a", "answer": "b", "task": "x\u0007"}], "row 101: 'task' is no name"),
        ([{**row, "task": f"t{number}"} for number, row in enumerate(ROWS)], "has 100 tasks"),
        ([*ROWS, {"prompt": "a" * 40_000, "answer": "b"}], "row 101: a prompt of 40000 characters"),
    ],
)
def test_wrong_rows_are_told(tmp_path: Path, rows: list[dict[str, Any]], complaint: str) -> None:
    with pytest.raises(SwarmError) as caught:
        plan_of(tmp_path, rows)
    assert complaint in caught.value.message


def test_the_truth_vouches_for_answers_in_tags_that_are_compared_with(plan: FilePlan, tmp_path: Path) -> None:
    question = take(plan, 1)[0]
    pair = f"<answer>{question.entry['answer']}</answer>"
    assert plan.true_spans(question, f"so {pair}") == ((3, 3 + len(pair)),)
    assert plan_of(tmp_path, answer="last-number").true_spans(question, pair) == ()
    assert plan_of(tmp_path, rewards=[{"name": "length", "max": 9}]).true_spans(question, pair) == ()


def test_the_largest_reward_is_known_unless_functions_give_it(tmp_path: Path) -> None:
    assert plan_of(tmp_path).reward_max == 1.0 + TrainingConfig().format_reward
    assert plan_of(tmp_path, rewards=[{"name": "exact", "weight": 2.0}, {"name": "length"}]).reward_max == 3.0


TABLE: list[dict[str, Any]] = [
    {"question": f"{n} + 1?", "solution": n + 1, "topic": "even" if n % 2 else "odd", "hard": n / 2, "raw": b"1"}
    for n in range(20)
]
COLUMNS = Columns("question", "solution", "topic")


@pytest.fixture(autouse=True)
def cached_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def made(rows: list[dict[str, Any]] = TABLE) -> datasets.Dataset:
    return datasets.Dataset.from_list(rows)


def save(home: Path, form: str) -> str:
    """A copy of the data set in one of the forms that `datasets` reads; returns its name."""
    (home / "copy").mkdir()
    if form == "disk":
        made().save_to_disk(home / "copy")
        return "copy"
    made().to_parquet(home / "copy" / "a.parquet")
    return "copy" if form == "directory" else "copy/a.parquet"


@pytest.mark.parametrize("form", ["directory", "disk", "parquet"])
def test_every_form_on_disk_gives_the_same_rows(tmp_path: Path, form: str) -> None:
    keep_dataset(tmp_path, "q.jsonl", DatasetSource(save(tmp_path, form), columns=COLUMNS))
    rows, _ = load_rows(tmp_path, "q.jsonl")
    assert rows == tuple(
        {"prompt": row["question"], "answer": str(row["solution"]), "task": row["topic"], "hard": row["hard"]}
        for row in TABLE
    )


def test_a_hub_name_is_asked_with_subset_split_and_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[DatasetSource] = []

    def load(source: DatasetSource) -> datasets.Dataset:
        asked.append(source)
        return made()

    monkeypatch.setattr(dataset, "load_from_hub", load)
    source = DatasetSource("org/sums", "main", "train[:20]", "v1", COLUMNS, download_bytes=7)
    keep_dataset(tmp_path, "q.jsonl", source)
    keep_dataset(tmp_path, "q.jsonl", source)
    assert asked == [source], "it is loaded once"


def plan_from(home: Path, **options: Any) -> FilePlan:
    config = SwarmConfig("s", kind="file", options={"data": "q.jsonl", **options})
    return FilePlan(config, TrainingConfig(), home)


def test_a_plan_makes_its_file_and_two_nodes_have_the_same_questions(tmp_path: Path) -> None:
    name = save(tmp_path, "directory")
    columns = {"prompt": "question", "answer": "solution"}
    homes = [tmp_path / node for node in "ab"]
    plans = [plan_from(home, dataset=str(tmp_path / name), columns=columns, split="train[:15]") for home in homes]
    assert plans[0]._digest == plans[1]._digest
    assert (homes[0] / "q.jsonl").read_bytes() == (homes[1] / "q.jsonl").read_bytes()
    assert (homes[0] / "q.jsonl").read_text().count("\n") == 15
    with pytest.raises(SwarmError, match="is not the swarm's"):
        plan_from(tmp_path / "c", dataset=str(tmp_path / name), columns=columns, digest="0" * 64)
    assert not (tmp_path / "c").exists(), "what is another is not kept"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ({"columns": Columns("question", "answer")}, "has no column 'answer'; it has: 'question', 'solution'"),
        ({"columns": COLUMNS, "keep": ("harder",)}, "has no column 'harder'"),
        ({"columns": Columns("question", "raw")}, "'raw' is no text"),
        ({"columns": COLUMNS, "split": "test"}, 'Unknown split "test"'),
        ({"dataset": "../x y"}, "and the Hub has no such names"),
        ({"dataset": "~nobody-of-this-name/x"}, "cannot be loaded: RuntimeError"),
        ({"dataset": "copy/b.txt"}, "b.txt is none of .jsonl"),
        ({"dataset": "copy/none.csv"}, "there is no "),
        ({"revision": "main"}, "swarm.options.revision is of data sets on the Hub"),
        ({"dataset": "copy/b.txt", "subset": "main"}, "swarm.options.subset is of data sets on the Hub"),
    ],
)
def test_what_does_not_fit_is_told_and_nothing_kept(tmp_path: Path, source: dict[str, Any], complaint: str) -> None:
    name = save(tmp_path, "directory")
    (tmp_path / "copy" / "b.txt").touch()
    with pytest.raises(SwarmError) as caught:
        keep_dataset(tmp_path, "q.jsonl", DatasetSource(**{"dataset": name, **source}))
    assert complaint in caught.value.message
    assert not list(tmp_path.glob("*q.jsonl*"))


@pytest.mark.parametrize(
    ("bound", "limit", "complaint"),
    [
        ("ROWS_MAX", 19, "has 20 rows, the limit is 19"),
        ("FILE_BYTES_MAX", 500, "beyond the limits at row"),
        ("LINE_BYTES_MAX", 30, "beyond the limits at row 1"),
    ],
)
def test_the_bounds_are_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, limit: int, complaint: str
) -> None:
    monkeypatch.setattr(jsonl, bound, limit)
    name = save(tmp_path, "disk")
    with pytest.raises(SwarmError, match=complaint) as caught:
        keep_dataset(tmp_path, "q.jsonl", DatasetSource(name, columns=COLUMNS))
    assert "train[:10000]" in caught.value.fix
    assert not list(tmp_path.glob("*q.jsonl*"))


def test_no_more_rows_are_read_than_the_file_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is a gigabyte on the Hub may be more than memory holds."""
    monkeypatch.setattr(jsonl, "FILE_BYTES_MAX", 500)
    read: list[Any] = []

    def count(cell: Any, where: str) -> Any:
        read.append(cell)
        return cell

    monkeypatch.setattr(dataset, "_question", count)
    with pytest.raises(SwarmError, match="beyond the limits at row"):
        keep_dataset(tmp_path, "q.jsonl", DatasetSource(save(tmp_path, "disk"), columns=COLUMNS))
    assert len(read) < 12


def conversation(*messages: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in messages]


def test_the_users_one_message_is_the_question_and_more_are_refused(tmp_path: Path) -> None:
    made([{"prompt": conversation(("user", "1?")), "answer": "1"}]).save_to_disk(tmp_path / "a")
    keep_dataset(tmp_path, "a.jsonl", DatasetSource("a"))
    assert load_rows(tmp_path, "a.jsonl")[0] == ({"prompt": "1?", "answer": "1"},)
    made([{"prompt": conversation(("system", "Be brief."), ("user", "1?")), "answer": "1"}]).save_to_disk(
        tmp_path / "b"
    )
    with pytest.raises(SwarmError, match="more than one message") as caught:
        keep_dataset(tmp_path, "b.jsonl", DatasetSource("b"))
    assert "swarm.options.system" in caught.value.fix


def test_an_answer_that_is_no_number_is_none(tmp_path: Path) -> None:
    """As pandas writes a column of numbers of which some are missing."""
    made([{"prompt": "1?", "answer": 1.5}, {"prompt": "2?", "answer": float("nan")}]).save_to_disk(tmp_path / "a")
    with pytest.raises(SwarmError, match="row 2: the column 'answer' is empty"):
        keep_dataset(tmp_path, "a.jsonl", DatasetSource("a"))


@pytest.mark.parametrize("name", ["../x", "/etc", "a/../b", "a/b/c", "~x", ".x", "", "a b", "a/.."])
def test_what_could_lead_elsewhere_is_no_name_of_the_hub(name: str) -> None:
    assert not is_hub_id(name)
    assert is_hub_id("openai/gsm8k") and is_hub_id("squad")

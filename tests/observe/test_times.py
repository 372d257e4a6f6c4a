"""What holds a stage up is named right, with the setting that would change it."""

import re
import time
from typing import Any, get_type_hints

import pytest
from msgspec.structs import replace

from swarmd.config import Config, find_struct_type
from swarmd.core.state import Coordination, Member, Members, StageTimes
from swarmd.core.values import TrainerTimes
from swarmd.observe.metrics import Metrics
from swarmd.observe.panel import panel_of
from swarmd.observe.story import StoryTeller
from swarmd.observe.times import (
    PARTS,
    WORDS,
    describe_bottleneck,
    describe_slowest_member,
    find_bottleneck,
    split_by_part,
)
from tests.core.story import Story, announced, settings, trained
from tests.core.test_stage_times import reported
from tests.observe.counting import read
from tests.observe.printing import printed
from tests.web.page.test_health import shown

# What an ordinary stage of 100 s takes.
NODE = {"gather": 1.0, "publish": 1.0, "wait": 4.0}
TRAINER = {
    "prepare": 3.0, "prefill": 5.0, "decode": 38.0, "score": 4.0, "forward": 16.0, "backward": 22.0,
    "optimiser": 2.0, "loop": 1.0, "evaluation": 2.0, "checkpoint": 1.0,
}  # fmt: skip
PLAIN = TrainerTimes((), processor_s=85.0)


def stage(trainer: TrainerTimes = PLAIN, missing: int = 0, **changed: float) -> StageTimes:
    """An ordinary stage in which some parts took other times."""
    own = TRAINER | {name: seconds for name, seconds in changed.items() if name not in NODE}
    node = NODE | {name: seconds for name, seconds in changed.items() if name in NODE}
    parts = (("gather", node["gather"]), ("train", sum(own.values())), *list(node.items())[1:])
    return StageTimes(3, 0, parts, missing, 0.0, True, replace(trainer, parts=tuple(own.items())))  # type: ignore[arg-type]


PLANTED = [
    ("score", stage(score=200.0), "Scoring completions takes 68% of the stage (3.3 of 4.9 min)"),
    ("wait", stage(wait=200.0), "3.3 of 4.9 min are spent waiting for others: this node is faster than the swarm"),
    ("threads", stage(replace(PLAIN, idle_cores=7)), "with 7 cores idle; a higher training.threads"),
    ("gather-deadline", stage(gather=60.0, missing=2), "as those of 2 peers did not come in time"),
    ("tail", stage(replace(PLAIN, tail_s=90.0, processor_s=150.0), decode=120.0), "training.completion_tokens"),
    ("memory", stage(replace(PLAIN, processor_s=20.0, faults=40_000)), "the machine is short of memory"),
    ("checkpoint", stage(checkpoint=90.0), "waiting until the last checkpoint is on disk takes"),
    ("sync", stage(sync=70.0), "giving the weights to vLLM takes"),
    # and what is not to be taken for one of them
    ("processor", stage(replace(PLAIN, processor_s=20.0, faults=9)), "other programs use the processor"),
    ("decode", stage(replace(PLAIN, processor_s=1.0, elsewhere=True), decode=60.0), "decoding takes 49% of the stage"),
    ("decode", stage(replace(PLAIN, tail_s=5.0), decode=60.0), "training.completion_tokens or training.vllm.mode"),
    ("forward", stage(replace(PLAIN, tail_s=15.0), decode=30.0), "the passes through the model take 41%"),
    ("gather", stage(gather=60.0), "fetching peers' rollouts takes"),
    ("evaluation", stage(evaluation=90.0), "training.held_out_questions or training.held_out_every"),
]


@pytest.mark.parametrize(("cause", "times", "words"), PLANTED)
def test_planted_bottlenecks_are_named(cause: str, times: StageTimes, words: str) -> None:
    parts = split_by_part(times)
    assert sum(parts.values()) == pytest.approx(sum(seconds for _, seconds in times.parts))
    found = find_bottleneck(parts, times, settings(gather_s=90.0))
    assert found == cause
    assert words.lower() in describe_bottleneck(found, parts, times).lower()


def test_gathering_up_to_its_deadline_is_told_though_nothing_is_known_to_be_missing() -> None:
    times = stage(gather=60.0)
    assert find_bottleneck(split_by_part(times), times, settings(gather_s=60.0)) == "gather-deadline"


def test_each_part_has_words_and_names_settings_that_there_are() -> None:
    told = {part for part in PARTS if part not in ("backward", "gradients")}  # told as the passes
    assert told <= WORDS.keys()
    for _, change in WORDS.values():
        for key in re.findall(r"\b(?:training|dht|chain|coordinator)\.[a-z_.]*[a-z]", change):
            table: Any = Config
            for name in key.split("."):
                assert name in table.__struct_fields__, key
                table = find_struct_type(get_type_hints(table)[name])


def test_a_coordinator_names_its_slowest_member() -> None:
    members = Members([Member("peer-a", "ann", 0, took_s=20.0), Member("peer-b", "bob", 0, took_s=110.0)])
    slowest = describe_slowest_member(Coordination(members=members))
    assert slowest.startswith("the slowest is bob, which reports after 1m 50s; a lower coordinator.quorum or ")
    times = stage(wait=200.0)
    assert describe_bottleneck("wait", split_by_part(times), times, slowest).endswith(slowest)


def test_status_story_and_metrics_tell_where_the_time_went() -> None:
    node = Story.joined(settings())
    teller, metrics = StoryTeller(0), Metrics()
    node.tell(announced(0))
    node.at = 20.0
    times = TrainerTimes((("score", 15.0), ("decode", 4.0)), processor_s=4.0)
    node.tell(replace(trained(0), times=times), reported(0))
    node.at = 25.0
    node.tell(announced(1))
    for applied in node.heard:
        teller.apply(applied)
        metrics.apply(applied)
    sentence = "Scoring completions takes 60% of the stage (15.0 of 25.0 s); a faster reward function would change it"
    told = teller.story(30.0)
    assert any(line.startswith(sentence) for line in told.advice)
    text = printed(panel_of(shown(node.state, 30.0)))
    assert "time     25s a stage: score ██████60%, wait ██20%, decode ██16%, handover 4%" in text and sentence in text
    found = read(metrics, shown(node.state, time.time()))  # an old status gives no gauges
    assert found["swarmd_stage_time_seconds_total", "score"] == 15.0
    assert sum(value for (name, *_), value in found.items() if name == "swarmd_stage_time_seconds_total") == 25.0
    assert found["swarmd_stage_bottleneck", "score"] == 1 and found["swarmd_stage_bottleneck", "wait"] == 0

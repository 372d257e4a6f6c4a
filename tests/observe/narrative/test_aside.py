"""What was set aside of peers' rollouts is told: in the log, by `explain`, in the metrics and to the page."""

from __future__ import annotations

from msgspec.structs import replace

from swarmd.bounds import WORD_MAX
from swarmd.core.applied import Applied
from swarmd.core.events import Envelope
from swarmd.core.node.rounds import count_aside
from swarmd.core.state import State
from swarmd.core.values import SetAside
from swarmd.observe.narrative.describe import line_of
from swarmd.observe.narrative.story import sentences_of
from tests.core import story as core
from tests.observe.telemetry.test_metrics import JOINED, count

HONEST = SetAside("anna", 100, 25, "so 7 <answer>7</answer>", "so 7")
HOSTILE = SetAside("mallory", 200, 180, "!!<answer>7</answer>", "!!", "!!", 1.0, 0.0, 0.004)
TRAINED = core.trained(0)


def told(*asides: SetAside) -> tuple[str, bool]:
    event = replace(TRAINED, set_aside=asides)
    (sentence,) = sentences_of(Applied(Envelope(1, 1.0, event), State(), State(), ()), 0.0)
    return sentence.text, sentence.trouble


def test_a_peer_of_whom_something_was_set_aside_is_named_with_an_example() -> None:
    assert "set aside" not in told()[0]
    text, trouble = told(HONEST)
    assert text.endswith('of anna 25% was set aside, such as "so 7" in "so 7 <answer>7</answer>"') and not trouble


def test_a_mark_is_trouble_and_comes_with_its_evidence() -> None:
    text, trouble = told(HOSTILE, HONEST)
    assert trouble and "of mallory 90% was set aside" in text and "of anna 25%" in text
    assert (
        '"!!" stands in 100% of its right answers, 0% of its wrong ones and 0% of this node\'s own, as a payload would'
        in text
    )


def test_a_log_line_warns_of_a_mark_and_is_silent_otherwise() -> None:
    def line(*asides: SetAside) -> tuple[str, bool]:
        said = line_of(
            Applied(Envelope(1, 1.0, replace(TRAINED, set_aside=asides)), State(), State(chart="waiting"), ())
        )
        return said.level, "set aside" in said.message

    assert line() == line(HONEST) == ("info", False)
    assert line(HOSTILE) == ("warning", True)


def test_the_state_keeps_of_each_stage_what_was_set_aside_by_reason() -> None:
    node = core.Story(core.settings())
    node.join()
    node.tell(core.announced(0))
    node.tell(replace(TRAINED, set_aside=(HOSTILE, replace(HONEST, over_share=3, of_little=1))))
    assert node.state.rewards[-1].set_aside == (("unvouched", 205), ("share", 3), ("little", 1), ("mark", 1))
    node.tell(core.announced(1))
    node.tell(core.trained(1))
    assert node.state.rewards[-1].set_aside == ()


def test_what_the_state_keeps_fits_into_a_log_whatever_the_trainer_says() -> None:
    huge = SetAside("mallory", 2**63, 2**63, over_share=-5)
    assert count_aside((huge, huge, huge)) == (("unvouched", WORD_MAX),)


def test_tokens_and_marks_are_counted() -> None:
    busy = replace(HOSTILE, over_share=2, of_little=5)
    found = count(*JOINED, core.announced(0), replace(TRAINED, set_aside=(busy, HONEST)))
    assert found["swarmd_tokens_set_aside_total",] == 205
    assert found["swarmd_payload_marks_total",] == 1
    assert found["swarmd_groups_passed_over_total", "share"] == 2
    assert found["swarmd_groups_passed_over_total", "little"] == 5

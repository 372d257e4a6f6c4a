"""What became of a peer's weights is told in one line, and in the story of its round."""

from __future__ import annotations

import pytest

from swarmd.core.applied import apply
from swarmd.core.events import Envelope, Event, NodeStarted, WeightsAdopted, WeightsFetched, WeightsRefused
from swarmd.core.state import State
from swarmd.core.values import PeerWeights
from swarmd.observe.narrative.describe import line_of
from swarmd.observe.narrative.story import sentences_of
from tests.core.story import settings

THEIRS = PeerWeights("them", 7, "c" * 64, 4096, 0.9)
STARTED = apply(State(), Envelope(0, 0.0, NodeStarted(settings(), "run"))).after


@pytest.mark.parametrize(
    ("event", "level", "words"),
    [
        (WeightsFetched("weights/8", THEIRS, 3 * 2**20, 1.5), "info", "round 7 were fetched, 3.0 MiB in 1.5 s"),
        (
            WeightsFetched("weights/8", THEIRS, 3 * 2**20, 1.5, "base"),
            "warning",
            "in 1.5 s; all of them, for the earlier ones here were damaged",
        ),
        (WeightsAdopted("train/8/0", 8, 0, THEIRS, 0.2, 0.5), "info", "accuracy 0.50 here, its own had 0.20"),
        (WeightsRefused("train/8/0", "no-better", "why", "them"), "info", "of them (no-better): why"),
        (WeightsRefused("weights/8", "none-offered", "why"), "info", "a peer's weights (none-offered): why"),
        (WeightsRefused("weights/8", "no-room", "why"), "warning", "a peer's weights (no-room): why"),
    ],
)
def test_it_is_told_in_the_log_and_in_the_story_of_its_round(event: Event, level: str, words: str) -> None:
    applied = apply(STARTED, Envelope(1, 10.0, event))
    line = line_of(applied)
    assert line.level == level and words in line.message
    (sentence,) = sentences_of(applied, 0.0)
    assert (sentence.round, sentence.text, sentence.trouble) == (8, line.message, level == "warning")

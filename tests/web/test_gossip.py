"""What peers wrote comes with question, truth and reward once the node has scored it."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.web.page.played import HOSTILE, NAMES, NODE, PlayedNode
from tests.web.serving import Listener, served, until
from tests.web.test_hostile import messages_of


@pytest.fixture
def node(tmp_path: Path) -> Iterator[PlayedNode]:
    made = PlayedNode(tmp_path, 1_800_000_000.0)
    made.play(2)
    yield made
    made.close()


def test_question_truth_and_reward_are_those_of_this_nodes_trainer(node: PlayedNode) -> None:
    with served(node.paths.root) as server:
        found = messages_of(server)
        by_place = {(each["peer"], each["round"]): each for each in found}
        assert len(by_place) == len(found) == 2 + len(NAMES) - 1
        for (peer, round), each in by_place.items():
            assert each["question"] == f"What is {round} + 1? {HOSTILE}"
            assert (each["truth"], each["completions"]) == (str(round + 1), 2)
            wanted = (1.2, True, 0.7) if peer == NODE else (0.2, False, 0.1)
            assert (each["reward"], each["right"], each["mean_reward"]) == pytest.approx(wanted)
            assert server.json(f"/api/v1/node/moments/{each['seq']}")["event"]["type"] in (
                "rollouts_gathered",
                "stage_trained",
            )


def test_a_message_comes_again_once_it_is_scored(node: PlayedNode) -> None:
    with served(node.paths.root) as server:
        listener = Listener(server)
        node.work(2)
        node.open_round(3)

        def last_told() -> dict[str, str]:
            told = [json.loads(body) for _, _, body in listener.of("gossip")]
            return {each["peer"]: each["truth"] for each in told if each["round"] == 1 and each["peer"] != NODE}

        scored = {peer: "2" for peer in NAMES if peer != NODE}
        until(lambda: last_told() == scored)
        assert last_told() == scored
        listener.close()


def test_without_the_scores_the_rollouts_are_shown_as_they_came(node: PlayedNode) -> None:
    scored = {node.score(0), node.score(1)}
    for digest in scored:
        (node.paths.blobs / digest[:2] / digest).unlink()
    with served(node.paths.root) as server:
        assert {(each["truth"], each["reward"], each["right"]) for each in messages_of(server)} == {(None, None, None)}
    shutil.rmtree(node.paths.blobs)
    with served(node.paths.root) as server:
        assert messages_of(server) == []

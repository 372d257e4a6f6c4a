"""The pictures of a swarm: what is known is shown, what is not is a dash."""

from rich.console import RenderableType

from swarmd.observe.panel import (
    ROUND_ROWS_MAX,
    NodeRow,
    TrainedRound,
    held_out_table,
    node_line,
    rewards_table,
    rewards_tables,
    swarm_table,
)
from tests.observe.printing import printed


def drawn(picture: RenderableType) -> str:
    return printed(picture, 120)


def test_the_live_table_shows_a_node() -> None:
    row = NodeRow(
        "node-2",
        "round.training",
        3,
        0,
        12,
        20,
        "training",
        (0.2, 0.6),
        0.41,
        2,
        4,
        1,
        "the trainer was killed",
        at_work="training 12 of 20: drawing 3 of 9 tokens",
    )
    shown = drawn(swarm_table([row, NodeRow("node-3", "starting")], "a swarm"))
    line = next(line for line in shown.splitlines() if "node-2" in line)
    for part in ("training", " 3 ", "12/20", "0.600", "0.410", " 1"):
        assert part in line
    assert "node-2: training 12 of 20: drawing 3 of 9 tokens" in shown
    assert "node-2: skipped 4 rounds" in shown
    assert "node-2: the trainer was killed" in shown
    assert "starting" in next(line for line in shown.splitlines() if "node-3" in line)


def test_a_node_with_a_chain_says_how_its_submissions_stand() -> None:
    row = NodeRow("node-2", "waiting", 3, on_chain="12 confirmed, 2 waiting")
    assert "node-2: on chain: 12 confirmed, 2 waiting" in drawn(swarm_table([row, NodeRow("node-3", "waiting")], "s"))
    assert node_line(row).endswith("on chain: 12 confirmed, 2 waiting")
    assert "on chain" not in drawn(swarm_table([NodeRow("node-3", "waiting")], "s"))


def test_rewards_are_shown_by_round_with_the_mean_as_a_bar() -> None:
    histories = {"node-1": [TrainedRound(0, 0.1), TrainedRound(1, 0.5)], "node-2": [TrainedRound(1, 0.3)]}
    lines = drawn(rewards_table(histories)).splitlines()
    first, second = (next(line for line in lines if line.strip("│ ").startswith(number)) for number in "01")
    assert first.split("│")[1:4] == ["     0 ", "  0.100 ", "      - "]
    assert "0.400 " + "█" * 24 in second
    assert "0.100 " + "█" * 6 + " " in first


def test_many_rounds_are_shown_as_spans() -> None:
    rows = [TrainedRound(round, round / 100) for round in range(100)]
    lines = drawn(rewards_table({"node-1": rows})).splitlines()
    shown = [line for line in lines if "█" in line or "0-" in line]
    assert len(shown) <= ROUND_ROWS_MAX
    assert any("0-4" in line and "0.020" in line for line in shown)
    assert any("95-99" in line and "0.970" in line for line in shown)


def test_a_nodes_name_is_shown_as_it_is() -> None:
    name, rows = "[/]", [TrainedRound(0, 0.1, 0.2)]
    for table in (rewards_table({name: rows}), held_out_table({name: rows}), swarm_table([NodeRow(name, "ok")], "s")):
        assert name in drawn(table)


def test_held_out_accuracy_from_first_to_last() -> None:
    rows = [TrainedRound(0, 0.1, 0.2), TrainedRound(1, 0.1), TrainedRound(2, 0.5, 0.7)]
    line = next(line for line in drawn(held_out_table({"node-1": rows, "node-2": []})).splitlines() if "node-1" in line)
    assert "0.200 (round 0)" in line
    assert "0.700 (round 2)" in line


def test_stages_have_tables_of_their_own() -> None:
    rows = [TrainedRound(round, 2.0, stages=((0, 1.0), (1, 2.0 + round), (2, 3.0))) for round in range(2)]
    shown = [drawn(table) for table in rewards_tables({"node-1": rows, "node-2": rows[:1]})]
    assert [f"reward by round, stage {stage}" in table for stage, table in enumerate(shown)] == [True] * 3
    last = next(line for line in shown[1].splitlines() if line.strip("│ ").startswith("1"))
    assert last.split("│")[2:4] == ["  3.000 ", "      - "]
    assert len(rewards_tables({"node-1": [TrainedRound(0, 0.1, stages=((0, 0.1),))]})) == 1

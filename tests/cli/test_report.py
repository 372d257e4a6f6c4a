"""`swarmd report`: pictures, JSON and the card, from logs alone."""

import json
import shutil
import struct
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from swarmd.cli import app
from swarmd.core.state import SkippedRounds
from swarmd.core.values import Skill, SkipCause
from swarmd.errors import ConfigError, LogDamaged, NotFoundError, PathUnusable
from swarmd.results.history import Restart, StageResult, TrainingHistory, read_history
from swarmd.results.picture import POINTS_MAX, draw, labels_of, make_figure
from tests.eventlog.making import flip
from tests.golden.play import play, write_log

NODE = Path(__file__).parents[1] / "golden" / "crash"
SWARM = "swarm"


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a swarm of three nodes, the last of which came late."""
    root = tmp_path_factory.mktemp("swarm")
    for node in play(3, nodes=3, hours=0.1, calm_s=30.0, chain=False, hostile="none").nodes:
        write_log(root / f"node-{node.index + 1}" / "events", node)
    return root


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def size_of(png: Path) -> tuple[int, int]:
    content = png.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    return int(width), int(height)


def test_a_swarms_directory_is_one_picture_of_all_its_nodes(swarm: Path, tmp_path: Path) -> None:
    result = run(swarm, "--out", tmp_path / "swarm.png", "--svg")
    assert result.exit_code == 0
    width, height = size_of(tmp_path / "swarm.png")
    assert width == 1500 and height > 900
    for node in sorted(swarm.iterdir()):
        trained = len({stage.round for stage in read_history(node).stages})
        assert f": {trained} rounds trained, " in result.output
    svg = (tmp_path / "swarm.svg").read_text()
    assert svg.startswith("<?xml") and [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_same_log_gives_the_same_picture(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg", "a.png", "b.png"):
        assert run(NODE, "--out", tmp_path / name).exit_code == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_json_holds_the_figures_and_writes_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(NODE, "--json")
    (node,) = json.loads(result.stdout)["nodes"]
    known = read_history(NODE)
    assert [row["round"] for row in node["rounds"]] == [stage.round for stage in known.stages]
    assert [skip["cause"] for skip in node["skips"]] == [skip.cause for skip in known.skips]
    assert list(tmp_path.iterdir()) == []


def make_untrained(directory: Path) -> None:
    """A node whose log ends before its first stage was trained."""
    (directory / "events").mkdir(parents=True)
    first = sorted((NODE / "events").glob("*.seg"))[0]
    (directory / "events" / first.name).write_bytes(first.read_bytes()[:1000])


def test_of_a_node_that_trained_nothing_what_it_knows_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_untrained(tmp_path / "node")
    result = run("node")
    assert result.exit_code == 0, result.output
    assert "0 rounds trained" in result.output and "no picture: no stage has been trained" in result.output
    assert not (tmp_path / "report.png").exists()
    (figures,) = json.loads(run("node", "--json").stdout)["nodes"]
    assert figures["stages"] == figures["rounds"] == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nowhere"], NotFoundError),
        (["empty"], NotFoundError),
        ([NODE, NODE], ConfigError),
        ([SWARM, f"{SWARM}/node-1"], ConfigError),
        ([SWARM, "--card"], ConfigError),
        ([NODE, "--json", "--card"], ConfigError),
        ([NODE, "--out", "picture.gif"], ConfigError),
        ([NODE, "--out", "picture"], ConfigError),
        ([NODE, "--out", "nowhere/picture.png"], PathUnusable),
        (["damaged"], LogDamaged),
        (["untrained", "--card"], NotFoundError),
    ],
)
def test_what_cannot_be_drawn_is_a_typed_error(
    swarm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[object], error: type[Exception]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / SWARM).symlink_to(swarm)
    (tmp_path / "empty").mkdir()
    shutil.copytree(NODE / "events", tmp_path / "damaged" / "events")
    flip(sorted((tmp_path / "damaged" / "events").glob("*.seg"))[0])
    make_untrained(tmp_path / "untrained")
    result = run(*arguments)
    assert isinstance(result.exception, error), result.output


def history(place: int, rounds: int = 3, cause: SkipCause = "fault", name: str = "") -> TrainingHistory:
    stages = tuple(
        StageResult(r, 0, 0.0, float("nan") if r == 1 else 0.5, None, 1, 1, 1.0, 0, 0) for r in range(rounds)
    )
    skips = (SkippedRounds(rounds, 10**9, cause, 0.0),)
    return TrainingHistory(f"peer-{place}", name, "test", stages=stages, skips=skips, restarts=(Restart(1, 0.0),))


def test_any_names_rounds_and_figures_can_be_drawn(tmp_path: Path) -> None:
    odd = ["$\\frac{", "_hidden", "名前", "a\nb", "x" * 500, ""]
    histories = [history(place, rounds=place, name=name) for place, name in enumerate(odd)]
    draw(histories, tmp_path / "odd.png")
    assert size_of(tmp_path / "odd.png")[0] == 1500
    assert all(len(label) < 100 and "\n" not in label for label in labels_of(histories))


def test_nodes_of_one_name_are_told_apart() -> None:
    labels = labels_of([history(0, name="same"), history(1, name="same"), history(2, name="other")])
    assert len(set(labels)) == 3 and labels[0].startswith("same (") and labels[2] == "other"


def test_a_picture_marks_every_skip_with_its_cause_and_every_restart() -> None:
    one = msgspec.structs.replace(
        history(0), skips=(SkippedRounds(3, 5, "late", 0.0), SkippedRounds(6, 6, "slow", 0.0))
    )
    lane = make_figure([one]).axes[2]
    marks = {line.get_marker(): list(line.get_xdata()) for line in lane.lines}
    assert marks[">"] == [4.0] and marks["d"] == [6.0] and marks[7] == [1]


def test_a_node_that_came_late_to_an_old_swarm_is_shown_where_it_trained() -> None:
    late = msgspec.structs.replace(
        history(0),
        stages=(StageResult(100_000, 0, 0.0, 0.5, 0.5, 1, 1, 1.0, 0, 0),),
        skips=(SkippedRounds(0, 99_999, "late", 0.0), SkippedRounds(100_001, 10**9, "slow", 0.0)),
        restarts=(),
    )
    low, high = make_figure([late]).axes[2].get_xlim()
    assert 99_990 < low < 100_000 < high < 100_010


def skilled(place: int, *tasks: str) -> TrainingHistory:
    """A node that was measured by task: the last of them is drawn more from its second round on."""

    def skills(round: int) -> tuple[Skill, ...]:
        fallen = [round > 0 and task == tasks[-1] for task in tasks]
        return tuple(Skill(task, 0.5, 32, 0.9, fell, 1.0 + fell) for task, fell in zip(tasks, fallen, strict=True))

    stages = tuple(msgspec.structs.replace(stage, skills=skills(stage.round)) for stage in history(place).stages)
    return msgspec.structs.replace(history(place), stages=stages)


def test_each_task_has_a_panel_where_the_guards_rounds_are_underlaid() -> None:
    nodes = [skilled(0, "add", "sort"), skilled(1, "sort"), history(2)]
    figure = make_figure(nodes)
    _, sort, add, _, life = figure.axes
    assert [axes.get_title(loc="left") for axes in (sort, add)] == ["sort", "add"], "first what has fallen"
    accuracy, more, *others = sort.lines
    assert list(accuracy.get_ydata()) == [0.5, 0.5, 0.5] and len(others) == 2
    assert [bool(value == 0.5) for value in more.get_ydata()] == [False, True, True]
    assert len(life.get_yticks()) == 3


def test_a_long_life_is_drawn_with_bounded_points_and_bars() -> None:
    figure = make_figure([history(0, rounds=9001)])
    _, reward, life = figure.axes
    (line,) = reward.lines
    assert 1000 < len(line.get_xdata()) <= POINTS_MAX
    assert sum(len(bars.get_paths()) for bars in life.collections) < 20, "rounds without a gap are one bar"

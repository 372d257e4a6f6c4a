"""`swarmd chart`: what it lists and draws is what the charts say."""

from pathlib import Path

import pytest

from swarmd.cli.chart import chart_states, find_chart
from swarmd.core.chart import NAMES, load_charts
from swarmd.core.events import NodeStarted, WorkerStarted
from swarmd.core.state import State, Submission
from swarmd.core.values import Settings
from swarmd.errors import ExitCode
from swarmd.eventlog.store import EventLog
from tests.cli.owning import Shell
from tests.packaging.conftest import script

DRAWN = Path(__file__).resolve().parents[2] / "docs" / "charts"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A data directory whose network worker has started."""
    settings = Settings(peer="peer-f", swarm="s", role="follower", coordinator="peer-c")
    with EventLog.open(tmp_path / "events", "peer-f", "run", 1 << 20, 1 << 30) as log:
        log.append(1.0, [NodeStarted(settings, "run"), WorkerStarted("network", 7, 1)], b"")
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_the_drawn_page_is_not_stale(name: str) -> None:
    assert (DRAWN / f"{name}.md").read_text(encoding="utf-8") == script("charts").page(find_chart(load_charts(), name))


def test_the_submission_whose_turn_it_is_is_marked() -> None:
    sent = Submission("reward/1/0", "reward", chart="sent")
    done = Submission("reward/0/0", "reward", chart="confirmed")
    assert chart_states(State(submissions=(done, sent)))["submission"] == "sent"
    assert "submission" not in chart_states(State(submissions=(done,)))


def test_a_log_marks_the_state(node: Path, shell: Shell) -> None:
    listed = {line.split()[0]: line.split()[-1] for line in shell.well("chart", "--state", node).splitlines()[1:]}
    standing = {"round": "joining", "link": "connecting", "trainer": "down"}
    assert listed == standing | {"coordinator": "-", "submission": "-"}
    marked = [line for line in shell.well("chart", "round", "--state", node).splitlines() if "▶" in line]
    assert [line.split()[1] for line in marked] == ["joining"]
    assert shell.well("chart", "round", "--mermaid", "--state", node).endswith("  class joining s_active\n")


@pytest.mark.parametrize(
    ("old", "new"), [("dest: round.settling", "dest: round.setling"), ("source: starting", "source: startin")]
)
def test_a_chart_that_names_no_state_is_refused(old: str, new: str, tmp_path: Path, shell: Shell) -> None:
    for name in NAMES:
        text = (DRAWN.parents[1] / "statecharts" / f"{name}.yaml").read_text(encoding="utf-8")
        assert name != "round" or old in text
        (tmp_path / f"{name}.yaml").write_text(text.replace(old, new), encoding="utf-8")
    told = shell.fails(ExitCode.BAD_CONFIG, "chart", "--charts", tmp_path)
    assert told.startswith("error: the chart 'round' is inconsistent")

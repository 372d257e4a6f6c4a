"""Everything below a data directory has its bound on record."""

import re
from pathlib import Path

from swarmd.paths import NodeDirectory
from tests.backup.making import make_node
from tests.daemon.node import fake_node

PAGE = Path(__file__).parents[2] / "docs" / "BACKUP.md"


def listed() -> set[str]:
    """First components of the paths in the table."""
    table = PAGE.read_text(encoding="utf-8").partition("## When")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name.rstrip("/") for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_place_of_the_data_directory_is_in_the_table(tmp_path: Path) -> None:
    places = {path.relative_to(tmp_path).parts for path in vars(NodeDirectory(tmp_path)).values()} - {()}
    assert len(places) > 10 and {parts[0] for parts in places} <= listed()


def test_what_a_node_makes_is_in_the_table(tmp_path: Path) -> None:
    made = {path.name for path in make_node(tmp_path / "made").root.iterdir()}
    with fake_node(tmp_path, rounds=0) as node:
        node.start()
        node.until(lambda: node.status().get("rewards"))
        made |= {path.name for path in node.paths.root.iterdir() if not path.name.startswith("misbehaved")}
        assert node.stop() == 0
    assert made <= listed()

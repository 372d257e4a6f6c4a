"""What `make quick` chooses: from a change to the tests that it reaches, and as many as fit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import durations
from tests.durations import Duration
from tests.quick import changes, choice, commands
from tests.quick.choice import Choice, choose
from tests.quick.imports import Imports, named_in, turned_round
from tests.quick.reach import Reach, reached

BRANCH = "main"
SMALL = {
    "swarmd.orchard.basket": {"swarmd.orchard.apple"},
    "swarmd.mill.press": {"swarmd.orchard.basket"},
    "tests.orchard.story": {"swarmd.orchard.basket"},
    "tests.orchard.test_apple": {"tests.orchard.story"},
    "tests.orchard.test_basket": {"swarmd.orchard.basket"},
    "tests.mill.test_press": {"swarmd.mill.press"},
    "tests.bank.test_coin": {"swarmd.bank"},
}


def small_tree() -> Imports:
    """A few modules that import one another; nothing in it is read from a disk."""
    modules = {*SMALL, *(each for named in SMALL.values() for each in named)}
    return Imports(turned_round(SMALL), {}, dict.fromkeys(modules, ""))


def chosen_for(*changed: str, budget_s: float = 35.0) -> Choice:
    return choose(reached(changed, Imports.of_the_tree()), durations.read(), budget_s)


def names(*, distance: dict[str, int], known: dict[str, Duration], budget_s: float = 35.0) -> list[str]:
    return choose(Reach(distance), known, budget_s).files()


def test_distances_count_imports() -> None:
    far = small_tree().distances(["swarmd.orchard.apple"])
    assert far["swarmd.orchard.basket"] == 1
    assert far["tests.orchard.test_basket"] == far["tests.orchard.story"] == 2
    assert far["tests.orchard.test_apple"] == far["tests.mill.test_press"] == 3
    assert "tests.bank.test_coin" not in far


def test_a_namesake_and_its_folder_are_near_whatever_they_import() -> None:
    reach = reached(["swarmd/orchard/apple.py"], small_tree())
    assert reach.tests["tests/orchard/test_apple.py"] == 1
    assert reach.tests["tests/orchard/test_basket.py"] == 2
    assert reach.tests["tests/mill/test_press.py"] == 3
    assert "tests/bank/test_coin.py" not in reach.tests


def test_a_package_is_imported_with_its_modules() -> None:
    assert turned_round({"tests.a": {"swarmd.bank.coin"}})["swarmd.bank"] == {"tests.a"}


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ('[sys.executable, "-m", "swarmd.mill.press"]', {"swarmd.mill.press"}),
        ('[sys.executable, "-m", "swarmd", "status"]', {"swarmd.__main__"}),
        ('monkeypatch.setattr("swarmd.mill.press.LIMIT_S", 1)', {"swarmd.mill.press"}),
        ('"swarmd.nowhere"', set()),
    ],
)
def test_modules_in_quotes_count_as_imported(source: str, named: set[str]) -> None:
    assert named_in(source, {"swarmd", "swarmd.__main__", "swarmd.mill", "swarmd.mill.press"}) == named


def test_the_nearest_come_first_then_those_without_torch_then_the_shortest() -> None:
    known = {"a": Duration(1, 1, True), "b": Duration(3, 3), "c": Duration(1, 1), "d": Duration(0, 0)}
    assert names(distance={"a": 1, "b": 1, "c": 1, "d": 2}, known=known) == ["c", "b", "a", "d"]


def test_what_does_not_fit_is_left_out_and_said() -> None:
    known = {"near": Duration(10, 10), "long": Duration(500, 500), "far": Duration(1, 1)}
    choice = choose(Reach({"near": 1, "long": 2, "far": 3}), known, 35.0)
    assert choice.files() == ["near", "far"]
    assert choice.left_out == {"long": 500}
    assert choice.seconds() <= 35.0


def test_a_long_test_is_left_out_alone_unless_its_file_was_changed() -> None:
    known = {"tests/test_a.py": Duration(10, 20, False, {"test_slow[1]": 15.0})}
    reachable = choose(Reach({"tests/test_a.py": 1}), known, 35.0)
    assert [(each.file, each.without) for each in reachable.run] == [("tests/test_a.py", ("test_slow[1]",))]
    assert reachable.left_out == {"tests/test_a.py::test_slow[1]": 15.0}
    changed = choose(Reach({"tests/test_a.py": 0}), known, 35.0)
    assert [(each.file, each.without) for each in changed.run] == [("tests/test_a.py", ())]


def test_whole_nodes_and_what_is_too_far_are_never_chosen() -> None:
    distance = {"tests/e2e/test_rounds.py": 0, "tests/test_far.py": choice.FARTHEST + 1, "tests/test_near.py": 1}
    assert names(distance=distance, known={}) == ["tests/test_near.py"]


def test_a_file_in_one_process_bounds_the_time_and_waiting_tests_overlap() -> None:
    waiting = [choice.Chosen(f"{number}", 1, Duration(0.1, 8.0)) for number in range(4)]
    assert 8.0 < Choice(waiting).seconds() < 12.0
    assert Choice([choice.Chosen("one", 1, Duration(0.1, 30.0))]).seconds() > 30.0


def test_what_needs_torch_has_two_processes_where_that_pays() -> None:
    def apart(wall_s: float) -> list[list[str]]:
        files = [choice.Chosen(name, 1, Duration(wall_s, wall_s, True)) for name in ("a", "b", "c")]
        return [[each.file for each in lane] for lane in Choice(files).torch()]

    assert apart(1.0) == [["a", "b", "c"]]
    assert apart(10.0) == [["a", "c"], ["b"]]
    assert Choice([choice.Chosen("a", 1, Duration())]).torch() == []


def test_the_rest_is_everything_else_the_longest_first() -> None:
    known = {"a": Duration(1, 1), "b": Duration(9, 9), "c": Duration(20, 20, False, {"test_long": 18.0})}
    chosen = choose(Reach({"a": 1, "c": 1}), known, 35.0)
    assert choice.rest_of(chosen, ["a", "b", "c"], known) == {"c::test_long": 18.0, "b": 9.0}


def test_a_module_of_the_core() -> None:
    chosen = chosen_for("swarmd/core/node/rounds.py").files()
    assert chosen[0] == "tests/core/node/test_rounds.py"
    assert {"tests/core/node/test_pause.py", "tests/core/test_properties.py"} <= set(chosen)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("swarmd/web/http/stream.py", "tests/web/http/test_stream.py"),
        ("swarmd/dht/store/validator.py", "tests/dht/store/test_validator.py"),
        ("swarmd/training/batches/peer_schedule.py", "tests/training/batches/test_peer_schedule.py"),
        ("swarmd/cli/inspect/status.py", "tests/cli/inspect/test_status.py"),
        ("tests/chain/signer/test_ledger.py", "tests/chain/signer/test_ledger.py"),
        ("tests/anvil.py", "tests/chain/test_worker.py"),
        ("tests/dht/conftest.py", "tests/dht/wire/test_bodies.py"),
        ("docs/TRAINING.md", "tests/test_docs.py"),
        ("statecharts/round.yaml", "tests/core/node/test_rounds.py"),
        ("configs/reference.toml", "tests/cli/test_config.py"),
        ("swarmd/web/static/page.css", "tests/web/page/test_static.py"),
        ("tests/golden/chain/state.json", "tests/golden/test_golden.py"),
        ("Makefile", "tests/packaging/test_files.py"),
        ("contracts/SwarmCoordinator.sol", "tests/contracts/test_interface.py"),
    ],
)
def test_a_change_chooses_its_tests_within_the_time(changed: str, expected: str) -> None:
    chosen = chosen_for(changed)
    assert expected in chosen.files()
    assert chosen.seconds() <= 35.0


def test_a_changed_test_comes_first() -> None:
    assert (
        chosen_for("tests/core/node/test_pause.py", "swarmd/core/node/rounds.py").files()[0]
        == "tests/core/node/test_pause.py"
    )


def test_a_file_that_no_rule_knows_is_said() -> None:
    unheard_of = "-".join(("a", "file", "of", "no", "rule"))  # in one piece it would stand in this test
    assert reached([unheard_of], Imports.of_the_tree()).unknown == [unheard_of]


def test_torch_is_known_before_anything_runs() -> None:
    imports = Imports.of_the_tree()
    assert imports.loads_torch("tests/training/test_stages.py")
    assert not imports.loads_torch("tests/core/node/test_rounds.py")
    assert not imports.loads_torch("tests/dht/p2p/test_node.py")  # swarmd.dht.p2p.hivemind_import keeps it away


def git(root: Path, *words: str) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *words], cwd=root, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits on main."""
    git(tmp_path, "init", "-b", BRANCH)
    for name in ("first", "second"):
        (tmp_path / name).write_text(name)
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-m", name)
    return tmp_path


def differing(root: Path) -> list[str]:
    return changes.changed_files(root, changes.base_of(root, BRANCH))


def test_a_branch_differs_by_its_commits_and_by_what_is_not_committed(repository: Path) -> None:
    git(repository, "switch", "-c", "work")
    (repository / "third").write_text("third")
    git(repository, "add", ".")
    git(repository, "commit", "-m", "third")
    (repository / "first").unlink()
    (repository / "a new file").write_text("")
    assert differing(repository) == ["a new file", "first", "third"]


def test_main_itself_differs_by_what_is_not_committed_else_by_its_last_commit(repository: Path) -> None:
    assert differing(repository) == ["second"]
    (repository / "first").write_text("changed")
    assert differing(repository) == ["first"]


def test_a_branch_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(changes.NoSuchRevision, match="rev-parse"):
        changes.base_of(tmp_path, BRANCH)


def test_what_was_measured_replaces_the_file_and_forgets_those_that_are_gone(tmp_path: Path) -> None:
    before = {"tests/test_quick.py": Duration(9, 9), "tests/test_tidy.py": Duration(1, 2), "tests/gone.py": Duration()}
    after = durations.merged(before, {"tests/test_quick.py": Duration(1.04, 2, False, {"a": 7.0, "b": 1.0})})
    durations.write(after, tmp_path / "new" / "durations.json")
    assert durations.read(tmp_path / "new" / "durations.json") == {
        "tests/test_quick.py": Duration(1.0, 2, False, {"a": 7.0}),
        "tests/test_tidy.py": Duration(1, 2),
    }


def test_files_are_split_by_torch_and_long_tests_deselected(tmp_path: Path) -> None:
    run = [
        choice.Chosen("tests/test_a.py", 1, Duration(1, 1), ("test_slow[1]",)),
        choice.Chosen("tests/test_b.py", 1, Duration(1, 1)),
        choice.Chosen("tests/test_c.py", 1, Duration(1, 1, True)),
    ]
    free, torch = commands.free_and_torch(Choice(run), tmp_path, set())
    assert {"-n", "tests/test_a.py", "tests/test_b.py", "--deselect=tests/test_a.py::test_slow[1]"} <= set(free.words)
    assert "tests/test_c.py" in torch.words
    assert "-n" not in torch.words


def test_a_lane_that_fails_says_why_and_one_that_ends_well_is_short() -> None:
    command = commands.Command("types", ("sh", "-c", "echo an error; exit 3"), quiet=True)
    ended = commands.run(command)
    assert not ended.well
    assert "an error" in str(ended)
    assert "FAILED with 3" in str(ended)
    assert "an error" not in str(commands.Ended(command, 0, 1.0, "an error"))

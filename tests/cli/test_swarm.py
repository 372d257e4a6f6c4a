"""`swarmd swarm`: the kinds there are, the files of a new one, and swarms that are made, with and without a chain."""

import errno
import itertools
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmd.chain.operator import OrderJournal
from swarmd.cli.new import swarm_id
from swarmd.cli.swarm import QUESTIONS
from swarmd.config import Config, load_config
from swarmd.core.commands import Train
from swarmd.core.events import StageTrained
from swarmd.dht.identity.identity import load_identity
from swarmd.errors import ExitCode
from swarmd.files import hold_directory_lock
from swarmd.paths import NodeDirectory
from swarmd.swarms.registry import BUILT_IN, find_kind, make_plan
from swarmd.training.embedded import find_recipe
from tests.anvil import running_anvil
from tests.cli.owning import STRANGER, OwnChain, Shell, files

OPEN_STEPS, CLOSED_STEPS = 4, 7  # transactions

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    def install(name: str, point: str) -> None:
        metadata = tmp_path / "site" / f"{name}-3.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 3\n")
        (metadata / "entry_points.txt").write_text(f"[swarmd.swarms]\n{point}\n")

    return install


def test_every_kind_has_a_line(shell: Shell) -> None:
    lines = shell.well("swarm", "list").splitlines()
    assert [line.split()[0] for line in lines] == list(BUILT_IN)
    assert lines[2].split(maxsplit=3) == ["gsm8k", "3", "stages", BUILT_IN["gsm8k"].summary]


def test_plug_ins_are_named_with_what_brings_them(shell: Shell, install: Install) -> None:
    install("taking", "mine = swarmd.swarms.reasoning_gym:DigitsPlan")
    install("broken", "other = no_such_module:Plan")
    shown = shell.well("swarm", "list")
    assert "Four tasks on digits that the embedded model learns in minutes. (from taking 3)" in shown
    assert "other            cannot be used: ModuleNotFoundError" in shown and "(from broken 3)" in shown
    found = {kind["name"]: kind for kind in json.loads(shell.well("swarm", "list", "--json"))}
    assert found["mine"] | {"summary": ""} == {
        "name": "mine",
        "stages": 1,
        "summary": "",
        "from": "taking 3",
        "usable": True,
        "fault": "",
    }
    assert found["gsm8k"]["from"] == "swarmd" and not found["other"]["usable"]


# --- scaffolds ---

ROOT = Path(__file__).resolve().parents[2]
MADE = find_recipe("embedded")
SMALL: dict[str, Any] = {
    "steps": 2,
    "questions": 4,
    "generations": 4,
    "peer_questions": 1,
    "held_out_questions": 4,
    "device": "cpu",
    "threads": 1,
}


def train(config: Config, home: Path) -> StageTrained:
    """One small stage on the configuration as it was written."""
    from swarmd.training.cancellation import Cancellation
    from swarmd.training.engine import TrainingEngine

    small = msgspec.structs.replace(config, training=msgspec.structs.replace(config.training, **SMALL))
    engine = TrainingEngine(small, NodeDirectory(home), "a", make_plan(small.swarm, small.training, home))
    trained = engine.train(Train("train/0/0", 0, 0, ()), Cancellation())
    assert isinstance(trained, StageTrained)
    return trained


def install_package(source: Path, site: Path) -> None:
    """A distribution of its own: pip builds a wheel of the package and installs it, without the net."""
    options = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", "--quiet", *options, "--target", site, source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_swarm_from_a_file_trains(shell: Shell) -> None:
    made = shell.root / "made"
    shown = shell.well("swarm", "scaffold", "sums-and-more", "--dir", made)
    assert f"swarmd local --kind {made / 'config.toml'}" in shown
    assert {path.name for path in made.iterdir()} == {"README.md", "config.toml", "questions.jsonl"}
    assert "kind file" in shell.well("config", "check", made / "config.toml")
    trained = train(load_config(made / "config.toml"), made)
    assert trained.steps == 2 and trained.reward > 0
    assert trained.held_out is not None


def test_the_embedded_model_was_made_without_the_example_questions() -> None:
    lines = (ROOT / "configs" / "file" / "data" / QUESTIONS).read_text(encoding="utf-8").splitlines()
    shown = {lesson.question.messages[-1].content for lesson in itertools.islice(MADE.teach(MADE.make_plan(), 0), 9000)}
    assert not shown & {json.loads(line)["prompt"] for line in lines}


def test_a_plan_is_installed_found_and_trained(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    made, site = shell.root / "made", shell.root / "site"
    shell.well("swarm", "scaffold", "two-sums", "--kind", "plan", "--dir", made)
    names = {path.name for path in made.iterdir()}
    assert names == {"README.md", "config.toml", "pyproject.toml", "two_sums.py", "test_two_sums.py"}
    assert "is unknown" in shell.fails(ExitCode.BAD_CONFIG, "config", "check", made / "config.toml")
    install_package(made, site)
    monkeypatch.syspath_prepend(str(site))
    assert find_kind("two-sums").stages == 1
    assert "two-sums         1 stage   Sums of two numbers. (from two-sums 0.1.0)" in shell.well("swarm", "list")
    assert "kind two-sums" in shell.well("config", "check", made / "config.toml")
    assert train(load_config(made / "config.toml"), made).steps == 2
    del sys.modules["two_sums"]


def test_the_plan_keeps_to_its_own_test_and_to_the_house(shell: Shell) -> None:
    made = shell.root / "made"
    shell.well("swarm", "scaffold", "sums", "--kind", "plan", "--dir", made)
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "pyproject.toml", "-p", "no:cacheprovider"],
        cwd=made,
        env={"PYTHONPATH": f"{ROOT}:{made}", "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert tested.returncode == 0 and "4 passed" in tested.stdout, tested.stdout
    for tool in (("ruff", "check", "--isolated"), ("ruff", "format", "--check", "--isolated")):
        command = [Path(sys.executable).parent / tool[0], *tool[1:], "--line-length", "120", made]
        checked = subprocess.run(command, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("My Swarm",), ExitCode.BAD_CONFIG, "is not a name for a swarm"),
        (("../up",), ExitCode.BAD_CONFIG, "is not a name for a swarm"),
        (("gsm8k", "--kind", "plan"), ExitCode.BAD_CONFIG, "swarmd has a kind 'gsm8k' itself"),
        (("class", "--kind", "plan"), ExitCode.BAD_CONFIG, "'class' could not be imported"),
        (("random", "--kind", "plan"), ExitCode.BAD_CONFIG, "'random' could not be imported"),
        (("a", "--kind", "other"), ExitCode.USAGE, "other"),
    ],
)
def test_names_that_no_swarm_can_have_are_told(shell: Shell, arguments: tuple[str, ...], code: int, told: str) -> None:
    assert told in shell.fails(code, "swarm", "scaffold", *arguments, "--dir", shell.root / "made")
    assert not (shell.root / "made").exists()


def test_nothing_is_written_over(shell: Shell) -> None:
    (shell.root / "mine.txt").write_text("kept")
    told = shell.fails(ExitCode.CANNOT_CREATE, "swarm", "scaffold", "sums", "--dir", shell.root)
    assert "never written over" in told
    assert [path.name for path in shell.root.iterdir()] == ["mine.txt"]


# --- without a chain ---


def test_a_swarm_without_a_chain(shell: Shell) -> None:
    directory = shell.root / "a"
    shown = shell.well("swarm", "new", "My Digits!", "--dir", directory, "--announce", "/ip4/192.0.2.7/tcp/38331")
    manifest, config = shell.manifest("a"), load_config(directory / "config.toml")
    peer = load_identity(directory / "identity.key").peer_id
    assert manifest.id == swarm_id("My Digits!", peer) == config.swarm.id
    assert manifest.id.startswith("my-digits-")
    assert manifest.bootnodes == (f"/ip4/192.0.2.7/tcp/38331/p2p/{peer}",)
    assert (config.role, config.dht.peer, config.dht.announce) == ("coordinator", peer, ("/ip4/192.0.2.7/tcp/38331",))
    assert manifest.rounds is not None and manifest.rounds.coordinator == peer == manifest.creator
    assert config.chain is None
    assert f"swarmd run --config {directory / 'config.toml'}" in shown
    assert "this machine only" not in shown
    assert stat.S_IMODE((directory / "config.toml").stat().st_mode) == 0o600
    assert shell("config", "check", directory / "config.toml").code == 0


def test_made_again_it_stays_as_it_is(shell: Shell) -> None:
    shell.well("swarm", "new", "a", "--dir", shell.root / "a")
    before = files(shell.root / "a")
    assert "nothing was changed" in shell.well("swarm", "new", "a", "--dir", shell.root / "a", "--closed")
    assert files(shell.root / "a") == before


def test_a_run_that_died_before_the_manifest_is_taken_up(shell: Shell) -> None:
    shell.well("swarm", "new", "a", "--dir", shell.root / "a")
    first = shell.manifest("a")
    (shell.root / "a" / "swarm.toml").unlink()
    assert "kept as it is" in shell.well("swarm", "new", "a", "--dir", shell.root / "a")
    assert shell.manifest("a").id == first.id


@pytest.mark.parametrize("name", ["config.toml", "swarm.toml"])
def test_a_full_disk_leaves_no_half_of_a_file(shell: Shell, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run would keep it as it is."""
    sync = os.fsync

    def full(descriptor: int) -> None:
        if name in os.readlink(f"/proc/self/fd/{descriptor}"):  # noqa: PTH115 - of a descriptor
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    path = shell.root / "a" / name
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        told = shell.fails(ExitCode.CANNOT_CREATE, "swarm", "new", "a", "--dir", shell.root / "a")
    assert str(path) in told and "fix: " in told
    assert not [left for left in files(shell.root / "a") if name in left]
    shell.well("swarm", "new", "a", "--dir", shell.root / "a")
    assert load_config(shell.root / "a" / "config.toml").swarm.id == shell.manifest("a").id


def test_the_recipe_comes_from_a_configuration(shell: Shell) -> None:
    recipe = shell.root / "recipe.toml"
    recipe.write_text(
        'role = "coordinator"\n[swarm]\nid = "x"\nkind = "reasoning-gym"\n'
        'tasks = [{name = "chain_sum", config = {min_terms = 2}}]\n'
        '[coordinator]\nquorum = 0.5\n[training]\nsteps = 3\ndevice = "cpu"\n'
    )
    shell.well("swarm", "new", "a", "--dir", shell.root / "a", "--config", recipe, "--stage-seconds", 900)
    manifest, config = shell.manifest("a"), load_config(shell.root / "a" / "config.toml")
    assert (manifest.recipe.steps, manifest.recipe.tasks[0].config) == (3, {"min_terms": 2})
    assert manifest.rounds is not None
    assert (manifest.rounds.quorum, manifest.rounds.stage_s) == (0.5, 900.0)
    assert (config.training.device, config.training.steps, config.coordinator.quorum) == ("cpu", 3, 0.5)
    assert config.round.train_s == 1800.0
    recipe.write_text(recipe.read_text() + "[round]\ntrain_s = 3600\n")  # what a slow node needs is not dropped
    shell.well("swarm", "new", "b", "--dir", shell.root / "b", "--config", recipe)
    rounds, config = shell.manifest("b").rounds, load_config(shell.root / "b" / "config.toml")
    assert rounds is not None and (rounds.stage_s, config.round.train_s) == (1800.0, 3600.0)


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (["--listen", "/ip4/0.0.0.0/tcp/0"], ExitCode.BAD_CONFIG, "a fixed port"),
        (["--bootnode", "/ip4/192.0.2.1/tcp/1"], ExitCode.BAD_DATA, "is not the address of a node"),
        (["--member", "bob"], ExitCode.BAD_DATA, "'bob' is not a peer id"),
        (["--min-submissions", "2"], ExitCode.BAD_CONFIG, "are for a swarm on a chain"),
        (["--stage-seconds", "0"], ExitCode.BAD_CONFIG, "a stage needs an end"),
        (["--stages", "3"], ExitCode.BAD_CONFIG, "a round of 'digits' has 1"),
        (["--rpc", "ftp://x"], ExitCode.BAD_CONFIG, "not the URL of a chain's node"),
        (["--rpc", "http://127.0.0.1:1"], ExitCode.FAILURE, "127.0.0.1:1"),
        (["--rpc", "file:none.txt"], ExitCode.BAD_CONFIG, "none.txt cannot be read"),
        (["--rpc", "http://127.0.0.1:1", "--max-gwei", "nan"], ExitCode.BAD_CONFIG, "--max-gwei nan is not a price"),
        (["--min-submissions", str(2**32)], ExitCode.USAGE, "min-submissions"),
    ],
)
def test_what_cannot_be_is_told(shell: Shell, options: list[str], code: int, told: str) -> None:
    assert told in shell.fails(code, "swarm", "new", "a", "--dir", shell.root / "a", *options)
    assert not (shell.root / "a" / "swarm.toml").exists()


def test_stages_are_those_of_the_kind(shell: Shell) -> None:
    recipe = shell.root / "recipe.toml"
    recipe.write_text('role = "coordinator"\n[swarm]\nid = "x"\nkind = "gsm8k"\n')
    shell.well("swarm", "new", "a", "--dir", shell.root / "a", "--config", recipe)
    assert shell.manifest("a").recipe.stages == 3
    for content, told in (
        ('kind = "gsm8k"\nstages = 2\n', "a round of 'gsm8k' has 3"),
        ('kind = "gsm8c"\n', "Did you mean 'gsm8k'?"),
    ):
        recipe.write_text(f'role = "coordinator"\n[swarm]\nid = "x"\n{content}')
        for command in (
            ("swarm", "new", "b", "--dir", shell.root / "b", "--config"),
            ("config", "check"),
            ("run", "-c"),
        ):
            assert told in shell.fails(ExitCode.BAD_CONFIG, *command, recipe)


@pytest.mark.parametrize("name", ["", " ", "\u00a0 ", "x" * 65, "a\x1b[2Jb"])
def test_a_name_that_no_manifest_can_have_leaves_nothing(shell: Shell, name: str) -> None:
    for options in ((), ("--rpc", "http://127.0.0.1:1")):
        assert "name" in shell.fails(ExitCode.BAD_DATA, "swarm", "new", name, "--dir", shell.root / "a", *options)
    assert not (shell.root / "a").exists()


def test_a_closed_swarm_without_a_chain_keeps_its_list_in_the_manifest(shell: Shell) -> None:
    path = shell.root / "a" / "swarm.toml"
    shell.well("swarm", "new", "a", "--dir", shell.root / "a", "--closed")
    creator = shell.manifest("a").creator
    assert shell.manifest("a").members == (creator,)
    assert f'"{STRANGER}",' in shell.well("swarm", "allow", path, STRANGER)
    assert shell.manifest("a").members == (creator, STRANGER)
    assert "nothing to do" in shell.well("swarm", "allow", path, STRANGER)
    shell.well("swarm", "disallow", path, STRANGER, creator)
    assert shell.manifest("a").members == (creator,)
    shell.well("swarm", "open", path)
    assert (shell.manifest("a").membership, shell.manifest("a").members) == ("open", ())
    assert "no allow-list" in shell.fails(ExitCode.BAD_CONFIG, "swarm", "allow", path, STRANGER)
    shell.well("swarm", "close", path)
    assert shell.manifest("a").membership == "allow-list"


def test_bootnodes_without_a_chain(shell: Shell) -> None:
    path, address = shell.root / "a" / "swarm.toml", f"/ip4/192.0.2.1/tcp/1/p2p/{STRANGER}"
    shell.well("swarm", "new", "a", "--dir", shell.root / "a")
    first = shell.manifest("a").bootnodes
    shell.well("swarm", "add-bootnode", path, address)
    assert shell.manifest("a").bootnodes == (*first, address)
    shell.well("swarm", "remove-bootnode", path, *first)
    assert shell.manifest("a").bootnodes == (address,)
    assert "only bootnode" in shell.fails(ExitCode.BAD_CONFIG, "swarm", "remove-bootnode", path, address)
    assert "is not the address" in shell.fails(ExitCode.BAD_DATA, "swarm", "add-bootnode", path, "/ip4/192.0.2.1")


@pytest.mark.parametrize(
    "change",
    [
        ("close",),
        ("allow", STRANGER),
        ("add-bootnode", f"/ip4/192.0.2.1/tcp/1/p2p/{STRANGER}"),
        ("remove-bootnode", f"/ip4/192.0.2.1/tcp/1/p2p/{STRANGER}"),
    ],
    ids=["close", "allow", "add-bootnode", "remove-bootnode"],
)
def test_a_manifest_is_changed_by_one_command_at_a_time(shell: Shell, change: tuple[str, ...]) -> None:
    path = shell.root / "a" / "swarm.toml"
    shell.well("swarm", "new", "a", "--dir", shell.root / "a")
    with hold_directory_lock(path.parent):
        told = shell.fails(ExitCode.IN_USE, "swarm", change[0], path, *change[1:])
    assert "another command is at work" in told


def test_only_the_creator_changes_a_manifest(shell: Shell) -> None:
    shell.well("swarm", "new", "a", "--dir", shell.root / "a", "--closed")
    elsewhere = shell.root / "swarm.toml"
    elsewhere.write_bytes((shell.root / "a" / "swarm.toml").read_bytes())
    assert "only the creator" in shell.fails(ExitCode.BAD_CONFIG, "swarm", "allow", elsewhere, STRANGER)


def test_check_needs_no_network_and_finds_a_change(shell: Shell) -> None:
    path = shell.root / "a" / "swarm.toml"
    shell.well("swarm", "new", "a", "--dir", shell.root / "a")
    assert "valid, signed by" in shell.well("swarm", "check", path)
    path.write_text(path.read_text().replace("steps = 40", "steps = 41"))
    assert "the recipe does not have its digest" in shell.fails(ExitCode.BAD_DATA, "swarm", "check", path)
    assert "there is no manifest" in shell.fails(ExitCode.NO_INPUT, "swarm", "check", shell.root / "none")


# --- on a chain ---


def test_a_swarm_on_a_chain_from_its_creation_to_the_next_round(shell: Shell, chain: OwnChain) -> None:
    a = chain.make(shell)
    path, manifest, config = a / "swarm.toml", shell.manifest("a"), load_config(a / "config.toml")
    assert manifest.chain is not None and config.chain is not None
    assert (manifest.chain.chain_id, manifest.chain.rpc, manifest.chain.max_stage_s) == (31337, (chain.url,), 300)
    assert (config.role, config.chain.contract) == ("coordinator", manifest.chain.contract)
    assert chain.sent_by(a) == OPEN_STEPS

    nodes = [shell.root / name for name in "bc"]
    for node in nodes:
        assert "send it some" in shell.well("join", path, "--dir", node)
        chain.fund(node)
        assert "registered: in block" in shell.well("join", path, "--dir", node)
    found = json.loads(shell.well("swarm", "status", path, "--json"))
    assert (found["round"], found["registered"], found["open"], found["submissions"]) == (0, 2, True, 0)
    assert found["bootnodes"] == list(manifest.bootnodes)
    assert "anybody may advance after 300 s" in shell.well("swarm", "status", path)

    told = shell.fails(ExitCode.FAILURE, "swarm", "advance", path)
    assert re.search(r"does not allow the next stage yet: in \d+ s", told)
    shell.well("swarm", "set-policy", path, "--stage-seconds", 3600, "--min-submissions", 5)
    told = shell.fails(ExitCode.FAILURE, "swarm", "advance", path)
    assert "at 5 reports, there are 0, or in" in told
    chain.say("evm_increaseTime", 3601)
    chain.say("evm_mine")
    open_for = re.search(r"open for (\d+) s at that block", shell.well("swarm", "status", path))
    assert open_for and int(open_for[1]) > 3600, "the chain's clock is an hour ahead of this machine's"
    assert "the swarm is at round 1, stage 0" in shell.well(
        "swarm", "advance", path, "--account", nodes[0] / "account.json"
    )
    assert "the swarm is at round 2, stage 0" in shell.well("swarm", "advance", path, "--as-manager")
    told = shell.fails(
        ExitCode.FAILURE, "swarm", "advance", path, "--as-manager", "--account", nodes[0] / "account.json"
    )
    assert "OnlyStageManager" in told and "STAGE_MANAGER_ROLE" in told
    assert chain.sent_by(nodes[0]) == 2


def test_members_and_bootnodes_on_a_chain(shell: Shell, chain: OwnChain) -> None:
    a = chain.make(shell)
    path, address = a / "swarm.toml", f"/ip4/192.0.2.1/tcp/1/p2p/{STRANGER}"
    assert "open to all" in shell.well("swarm", "allow", path, STRANGER)
    shell.well("swarm", "close", path)
    assert "nothing to do" in shell.well("swarm", "allow", path, STRANGER)
    found = json.loads(shell.well("swarm", "status", path, "--json"))
    assert (found["open"], found["allowed"]) == (False, [STRANGER])
    shell.well("swarm", "disallow", path, STRANGER)
    shell.well("swarm", "add-bootnode", path, address)
    assert "nothing to do" in shell.well("swarm", "add-bootnode", path, address)
    shell.well("swarm", "open", path)
    found = json.loads(shell.well("swarm", "status", path, "--json"))
    assert (found["open"], found["allowed"], found["bootnodes"][-1]) == (True, [], address)
    shell.well("swarm", "remove-bootnode", path, address)
    assert address not in shell.well("swarm", "status", path)
    assert "'bob' is not a peer id" in shell.fails(ExitCode.BAD_CONFIG, "swarm", "allow", path, "bob")
    address = shell.manifest("a").chain.contract  # type: ignore[union-attr]
    assert "round 0, stage 0" in shell.well("swarm", "status", "--rpc", chain.url, "--contract", address)
    assert "which swarm?" in shell.fails(ExitCode.BAD_CONFIG, "swarm", "status")
    told = shell.fails(ExitCode.BAD_CONFIG, "swarm", "status", "--rpc", chain.url, "--contract", "0x12")
    assert "'0x12' is not an address" in told


def test_a_named_passphrase_is_the_one_that_counts(shell: Shell, chain: OwnChain) -> None:
    path, other = chain.make(shell) / "swarm.toml", shell.root / "other.pass"
    other.write_text("another passphrase\n")
    other.chmod(0o600)
    sent = chain.sent_by(path.parent)
    command = ("swarm", "set-policy", path, "--stage-seconds", 77, "--passphrase-file")
    assert "does not open" in shell.fails(ExitCode.NO_PERMISSION, *command, other)
    assert chain.sent_by(path.parent) == sent
    shell.well(*command, path.parent / "account.pass")


def test_a_closed_swarm_admits_its_creator_and_whom_he_names(shell: Shell, chain: OwnChain) -> None:
    a = chain.make(shell, "--closed", "--member", STRANGER, "--min-submissions", 2)
    found = json.loads(shell.well("swarm", "status", a / "swarm.toml", "--json"))
    assert (found["open"], found["allowed"]) == (False, [shell.manifest("a").creator, STRANGER])
    assert (found["min_submissions"], shell.manifest("a").membership) == (2, "allow-list")
    assert chain.sent_by(a) == CLOSED_STEPS


def test_a_creation_that_dies_at_every_step_goes_on(
    shell: Shell, chain: OwnChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = OrderJournal.add_attempt

    def die_after(self: OrderJournal, *given: object) -> None:
        note(self, *given)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    a = shell.root / "a"
    command = chain.command(a)
    shell.fails(ExitCode.FAILURE, *command)
    chain.fund(a)
    for _ in range(OPEN_STEPS):
        with monkeypatch.context() as patched:
            patched.setattr(OrderJournal, "add_attempt", die_after)
            shell.fails(ExitCode.INTERRUPTED, *command)
    assert "going on with what" in shell.well(*command)
    assert chain.sent_by(a) == OPEN_STEPS
    assert "round 0" in shell.well("swarm", "status", a / "swarm.toml")


def test_a_chain_that_is_not_local_is_asked_about(shell: Shell) -> None:
    with running_anvil("--chain-id", "100", "--block-time", "1") as url:
        chain, a = OwnChain(url), shell.root / "a"
        command = OwnChain(url).command(a)
        told = shell.fails(ExitCode.BAD_CONFIG, *command)
        assert "costs real coins" in told and "--yes" in told
        chain.fund(a)
        shown = shell.well(*command, "--yes")
        found = shell.manifest("a").chain
        assert found is not None
        assert found.chain_id == 100
        last = max(int(block) for block in re.findall(r"block (\d+) +gas", shown))
        assert chain.w3.eth.block_number >= last + found.depth


def test_the_key_in_an_endpoints_url_stays_out_of_manifest_and_output(shell: Shell, chain: OwnChain) -> None:
    a, url = shell.root / "a", f"{chain.url}/?key=canary-secret"
    command = OwnChain(url).command(a)
    said = [shell(*command)]
    chain.fund(a)
    said += [shell(*command), shell("swarm", "status", a / "swarm.toml"), shell("swarm", "advance", a / "swarm.toml")]
    assert [each.code for each in said] == [1, 0, 0, 1]
    assert not any("canary-secret" in text for each in said for text in (each.out, each.err))
    kept = {name: content for name, content in files(a).items() if b"canary-secret" in content}
    assert list(kept) == ["rpc.urls"]
    assert stat.S_IMODE((a / "rpc.urls").stat().st_mode) == 0o600
    assert load_config(a / "config.toml").chain.rpc == ("file:rpc.urls",)  # type: ignore[union-attr]
    assert shell.manifest("a").chain.rpc == ()  # type: ignore[union-attr]

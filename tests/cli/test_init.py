"""`swarmd init` at a terminal and without one: every question is a flag and a variable, nothing is overwritten."""

import json
import os
import re
import stat
from pathlib import Path

import pytest

from swarmd.cli import init as init_verb
from swarmd.cli.init import (
    SMALL,
    ProfileFit,
    estimate_profile_fit,
    list_answer_forms,
    list_profiles,
    make_base_config_text,
    select_profile,
)
from swarmd.cli.new import default_stage_seconds
from swarmd.config import load_config, parse_config
from swarmd.errors import ConfigError, ExitCode
from tests.cli.owning import Shell, Terminal, files
from tests.e2e.models import make_model

TOKEN = "hf_canarycanarycanary"
GIB = 2**30


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    for name in [name for name in os.environ if name.startswith("SWARMD_INIT_")] + ["HF_TOKEN"]:
        monkeypatch.delenv(name, raising=False)
    return Shell(capsys, tmp_path)


def init(shell: Shell, *options: object) -> str:
    return shell.well("init", "--dir", shell.root / "node", "--yes", "--no-examine", *options)


# --- without a terminal ---


def test_defaults_make_a_swarm_of_ones_own(shell: Shell) -> None:
    shown = init(shell)
    path = shell.root / "node" / "config.toml"
    config = load_config(path)
    assert (config.role, config.swarm.kind, config.training.model) == ("coordinator", "digits", "embedded")
    assert config.results.hub.repo == config.web.listen == ""
    assert f"swarmd run --config {path}" in shown and f"swarmd service install --config {path}" in shown
    assert {stat.S_IMODE((path.parent / name).stat().st_mode) for name in ("config.toml", "identity.key")} == {0o600}


def test_nothing_is_overwritten(shell: Shell) -> None:
    init(shell)
    before = files(shell.root / "node")
    assert "nothing was changed" in init(shell, "--name", "else", "--kind", "code")
    assert files(shell.root / "node") == before


def test_flags_answer_every_question(shell: Shell, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    shown = init(
        shell,
        *("--swarm", "School", "--kind", "gsm8k", "--model", "embedded", "--announce", "/ip4/192.0.2.7/tcp/38331"),
        *("--name", "ann", "--device", "cpu", "--hub-repo", "ann/", "--hub-token-file", token),
        *("--web", "127.0.0.1:8800"),
    )
    root = shell.root / "node"
    config = load_config(root / "config.toml")
    assert (config.name, config.swarm.kind, config.swarm.stages) == ("ann", "gsm8k", 3)
    assert config.dht.announce == ("/ip4/192.0.2.7/tcp/38331",)
    assert (config.training.device, config.web.listen) == ("cpu", "127.0.0.1:8800")
    assert (config.results.hub.repo, config.results.hub.token) == ("ann/", "hub.token")
    assert (root / "hub.token").read_text() == TOKEN + "\n"
    assert stat.S_IMODE((root / "hub.token").stat().st_mode) == 0o600
    assert TOKEN not in shown and TOKEN not in (root / "config.toml").read_text()
    assert '"School"' in shown and "its first round opens when 3 members are there, itself included" in shown


def test_variables_answer_as_well(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"DIR": str(shell.root / "node"), "YES": "1", "SWARM": "Env", "NAME": "bob", "HUB_REPO": "bob/model"}
    for name, value in answers.items():
        monkeypatch.setenv(f"SWARMD_INIT_{name}", value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    shell.well("init", "--no-examine")
    config = load_config(shell.root / "node" / "config.toml")
    assert (config.name, config.results.hub.repo) == ("bob", "bob/model")
    assert (shell.root / "node" / "hub.token").read_text().strip() == TOKEN


def test_every_question_has_a_flag_and_a_variable(shell: Shell) -> None:
    shown = shell.well("init", "--help")
    asked = set(re.findall(r'"(--[a-z-]+)"', Path(init_verb.__file__).read_text("utf-8")))
    assert asked >= {"--kind", "--name", "--device", "--hub-repo", "--announce", "--rpc", "--swarm"}
    assert [flag for flag in asked if flag not in shown and flag != "--yes"] == []
    assert "SWARMD_INIT_KIND" in shown


def test_joining_by_a_manifest(shell: Shell) -> None:
    shell.well("swarm", "new", "Digits", "--dir", shell.root / "a")
    init(shell, "--manifest", shell.root / "a" / "swarm.toml", "--name", "bob", "--device", "cpu")
    config = load_config(shell.root / "node" / "config.toml")
    assert (config.role, config.name, config.training.device) == ("follower", "bob", "cpu")
    assert config.swarm.id == shell.manifest("a").id


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (["--manifest", "gone.toml"], ExitCode.NO_INPUT, "there is no manifest gone.toml"),
        (["--manifest", "x", "--swarm", "y"], ExitCode.BAD_CONFIG, "--swarm were given\nfix: Leave out --swarm"),
        (["--kind", "file"], ExitCode.NO_INPUT, "there is no file of questions questions.jsonl"),
        (["--questions", "TOKEN"], ExitCode.BAD_CONFIG, "does not end in .jsonl"),
        (["--kind", "code", "--answer", "tags"], ExitCode.BAD_CONFIG, "are for the kind 'file'"),
        (["--manifest", "TOKEN", "--questions", "q.jsonl"], ExitCode.BAD_CONFIG, "are for a swarm of one's own"),
        (["--device", "gpu"], ExitCode.USAGE, "'gpu' is not one of 'auto', 'cpu'"),
        (["--name", "a\u200db"], ExitCode.BAD_CONFIG, "--name: 'a\\u200db' has characters that cannot be printed"),
        (["--web", "0.0.0.0:8800"], ExitCode.BAD_CONFIG, "other machines could reach the page"),
        (["--hub-repo", "u/n"], ExitCode.BAD_CONFIG, "--hub-token-file is not given"),
        (["--hub-repo", "u/n", "--hub-token-file", "TOKEN"], ExitCode.BAD_CONFIG, "not a token of the Hub"),
    ],
)
def test_wrong_answers_make_nothing(shell: Shell, options: list[str], code: int, told: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("two words\n")
    token.chmod(0o600)
    given = [str(token) if option == "TOKEN" else option for option in options]
    assert told in shell.fails(code, "init", "--dir", shell.root / "node", "--yes", "--no-examine", *given)
    assert not (shell.root / "node").exists()


def test_an_answer_that_does_not_fit_the_manifest_makes_nothing(shell: Shell) -> None:
    """A node without it would be made, and the next run leave that as it is."""
    shell.well("swarm", "new", "Digits", "--dir", shell.root / "a")
    given = ("--dir", shell.root / "node", "--yes", "--no-examine", "--manifest", shell.root / "a" / "swarm.toml")
    told = shell.fails(ExitCode.BAD_CONFIG, "init", *given, "--processes", 3)
    assert "must be a multiple of training.processes (3)" in told
    assert not (shell.root / "node").exists()
    shell.well("init", *given, "--processes", 2)
    assert load_config(shell.root / "node" / "config.toml").training.processes == 2


def test_without_a_terminal_and_without_yes_nothing_is_asked(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open() as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        told = shell.fails(ExitCode.BAD_CONFIG, "init", "--dir", shell.root / "node")
    assert "there is no terminal to ask at" in told and "Add --yes" in told


def test_the_node_is_examined_at_the_end(shell: Shell) -> None:
    """The whole doctor, torch included, on a node that was just made: nothing is worse than a note."""
    shell.well("swarm", "new", "Digits", "--dir", shell.root / "a", "--listen", "/ip4/127.0.0.1/tcp/38331")
    options = ("--manifest", shell.root / "a" / "swarm.toml", "--dir", shell.root / "b")
    said = shell("init", *options, "--yes")
    assert said.code == 0
    found = re.findall(r"^(error|warning) +(.*)$", said.out, re.M)
    assert [each for each in found if "disk" not in each[1]] == []
    assert "(identity.backup)" in said.out and "bootstrap" not in said.out, "offline"


# --- at a terminal ---


def test_a_person_is_asked_and_the_token_is_not_shown(shell: Shell) -> None:
    root = shell.root / "asked"
    terminal = Terminal("init", "--model", "embedded", "--no-examine")
    terminal.answer("Directory of the node", str(root))
    terminal.answer("A swarm of your own, or join one", "perhaps")
    terminal.answer("'perhaps' is not one of them", "new")
    terminal.answer("Name of your swarm", "Evening")
    terminal.answer("What is to be trained", "")
    terminal.answer("Address that others reach", "")
    terminal.answer("Endpoint of a chain", "")
    terminal.answer("Name on the leaderboard", "carol")
    terminal.answer("Device to train on", "cpu")
    terminal.answer("Push the model to the Hugging Face Hub", "carol/digits")
    terminal.answer("Token of the Hub", TOKEN)
    assert terminal.end() == 0, terminal.seen
    assert TOKEN not in terminal.seen and '"Evening"' in terminal.seen
    config = load_config(root / "config.toml")
    assert (config.name, config.swarm.kind, config.training.device) == ("carol", "digits", "cpu")
    assert (root / "hub.token").read_text().strip() == TOKEN


@pytest.mark.parametrize(("truth", "answer"), [("1,024", "last-number"), ("#### 7", "last-number"), ("Oslo", "tags")])
def test_ones_own_questions_are_asked_where_their_truth_is_paid(truth: str, answer: str, tmp_path: Path) -> None:
    path = questions(tmp_path, truth)
    assert list_answer_forms(path)[0] == answer


def test_a_person_brings_questions_and_a_model(shell: Shell) -> None:
    path, model = questions(shell.root, "7"), make_model(shell.root)
    terminal = Terminal("init", "--dir", shell.root / "own", "--no-examine", "--swarm", "Own", "--hub-repo", "")
    terminal.answer("file: your own questions", "file")
    terminal.answer("Your questions, a file", str(path))
    terminal.answer("(last-number, tags,", "")
    terminal.answer("Model: a directory", str(model))
    terminal.answer("Address that others reach", "")
    terminal.answer("Endpoint of a chain", "")
    terminal.answer("Name on the leaderboard", "ann")
    terminal.answer("Device to train on", "cpu")
    assert terminal.end() == 0, terminal.seen
    made = shell.root / "own" / "config.toml"
    config = load_config(made)
    assert (config.swarm.kind, config.swarm.options["answer"], config.training.model) == (
        "file",
        "last-number",
        str(model),
    )
    assert (config.training.completion_tokens, config.training.learning_rate) == (256, 1e-6)
    assert f"{made}: valid, coordinator" in shell.well("config", "check", made)


def questions(root: Path, truth: str) -> Path:
    path = root / "mine.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Question {n}?", "answer": truth}) + "\n" for n in range(40)))
    return path


def test_a_person_joins(shell: Shell) -> None:
    shell.well("swarm", "new", "Digits", "--dir", shell.root / "a")
    terminal = Terminal("init", "--dir", shell.root / "b", "--no-examine", "--hub-repo", "", "--device", "auto")
    terminal.answer("A swarm of your own, or join one", "join")
    terminal.answer("Its manifest", str(shell.root / "a" / "swarm.toml"))
    terminal.answer("Name on the leaderboard (empty: none)", "")
    assert terminal.end() == 0, terminal.seen
    assert load_config(shell.root / "b" / "config.toml").name == ""
    assert load_config(shell.root / "b" / "config.toml").swarm.id == shell.manifest("a").id


def test_who_goes_away_makes_nothing(shell: Shell) -> None:
    terminal = Terminal("init", "--dir", shell.root / "b")
    terminal.answer("A swarm of your own, or join one", "\x03")
    assert terminal.end() == ExitCode.INTERRUPTED
    assert not (shell.root / "b").exists()


# --- the models of a kind ---


def test_a_profile_is_weighed_by_the_models_of_its_pool(tmp_path: Path) -> None:
    small = estimate_profile_fit(SMALL, None, "cpu")
    assert (small.model, small.why) == ("embedded", "") and 0 < small.need < GIB
    path = tmp_path / "pool.toml"
    large, larger = "user/model-500B", "user/model-900B"
    text = 'role = "coordinator"\n[swarm]\nid = "s"\n[training]\nmodel = "auto"\ndevice = "cpu"\npool = '
    path.write_text(f'{text}["{larger}", "embedded", "{large}"]\n')
    assert estimate_profile_fit("pool", path, None) == small._replace(name="pool", path=path)
    path.write_text(f'{text}["{larger}", "{large}"]\n')
    fit = estimate_profile_fit("pool", path, None)
    assert fit.model == large and fit.why and fit.need > 500 * GIB
    path.write_text(f'{text}["user/model"]\n')
    assert "the size of 'user/model' is neither" in estimate_profile_fit("pool", path, None).why


def test_the_largest_model_that_fits_is_taken() -> None:
    profiles = list_profiles("gsm8k")
    assert list(profiles)[:2] == [SMALL, "cpu-0.5b"]
    needs = {SMALL: 0, "cpu-0.5b": 5, "cuda-0.5b": 6, "cuda-1.5b": 15, "cuda-7b": 70, "mac-0.5b": 5}
    weighed = [
        ProfileFit(name, path, name, needs[name], "too large" * (name == "cuda-7b")) for name, path in profiles.items()
    ]
    assert select_profile("auto", weighed).name == "cuda-1.5b"
    assert select_profile("0.5", weighed).name == "cpu-0.5b"
    assert select_profile("cuda-0.5b", weighed).name == "cuda-0.5b"
    with pytest.raises(ConfigError, match="cannot be trained here: too large"):
        select_profile("7", weighed)
    with pytest.raises(ConfigError, match="there is no model '3'"):
        select_profile("3", weighed)


@pytest.mark.parametrize("kind", ["digits", "reasoning-gym", "gsm8k", "math-hard", "code", "proposer-solver"])
def test_every_profile_makes_a_coordinators_configuration_with_one_model(kind: str) -> None:
    for name, path in list_profiles(kind).items():
        config = parse_config(make_base_config_text(kind, ProfileFit(name, path, "user/model-1B"), device="cpu"), name)
        assert (config.role, config.swarm.kind, config.swarm.coordinator) == ("coordinator", kind, "")
        assert (config.training.model, config.training.pool) == ("user/model-1B", ())
        assert config.name == "", "the profile's name is another node's"
        assert config.dht.bootstrap == () and config.training.device == "cpu"
        assert default_stage_seconds(config) >= 300


def test_a_swarm_with_a_model_of_the_hub(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def weigh(name: str, path: Path | None, device: str | None) -> ProfileFit:
        return ProfileFit(name, path, "Gensyn/Qwen2.5-0.5B-Instruct", 2 * GIB)

    monkeypatch.setattr(init_verb, "estimate_profile_fit", weigh)
    init(shell, "--kind", "gsm8k", "--model", "0.5", "--device", "cpu")
    config = load_config(shell.root / "node" / "config.toml")
    assert (config.training.model, config.training.prompt_tokens) == ("Gensyn/Qwen2.5-0.5B-Instruct", 3072)
    assert shell.manifest("node").recipe.model == config.training.model
    assert config.coordinator.stage_s > 300
    shell.well("config", "check", "--elsewhere", shell.root / "node" / "config.toml")

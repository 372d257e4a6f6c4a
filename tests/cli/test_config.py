"""`swarmd config`, and the configuration files that are shipped."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarmd.cli.config import DEFAULTS, render_config
from swarmd.config import ChainConfig, Section, TrainingConfig, parse_config, usual_peer_questions
from swarmd.errors import ExitCode
from swarmd.training.schedule import groups_per_peer_max
from tests.cli.owning import Shell

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
HEAD = 'role = "coordinator"\n[swarm]\nid = "s"\n'
SHIPPED = sorted(CONFIGS.rglob("*.toml"))
PORTLESS = "/ip4/192.0.2.1/tcp/0/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
QUIC = "/ip4/192.0.2.1/udp/0/quic-v1"
CHAIN = ChainConfig(rpc=(), chain_id=1, contract="")
# the reference cannot show their defaults and be valid
EXAMPLES = {"role", "swarm.coordinator", "dht.bootstrap", "chain.rpc", "chain.chain_id", "chain.contract"}


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key → value of all but the tables."""
    rows: dict[str, Any] = {}
    for key, value in table.items():
        rows |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return rows


def every_key(section: Section) -> dict[str, Any]:
    return flat(_plain(section))


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        fields = {field: getattr(value, field) for field in value.__struct_fields__}
        return {field: _plain(inner) for field, inner in fields.items() if inner is not None}
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_with_a_shipped_preset_one_of_several_peers_has_a_quarter_of_a_batch_at_most(path: Path) -> None:
    given = every_key(DEFAULTS.training) | tomllib.loads(path.read_text()).get("training", {})
    keys = ("questions", "peer_questions")
    training = TrainingConfig(**{key: given[key] for key in keys})
    assert 1 <= groups_per_peer_max(usual_peer_questions(training), peers=2) <= max(1, training.questions / 4)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_every_shipped_file_is_valid(path: Path, shell: Shell) -> None:
    """Large models are for machines that have them, or a network."""
    assert "valid" in shell.well("config", "check", "--elsewhere", path)


def test_the_reference_names_every_key_with_its_default() -> None:
    shown = flat(tomllib.loads((CONFIGS / "reference.toml").read_text(encoding="utf-8")))
    expected = every_key(msgspec.structs.replace(DEFAULTS, chain=CHAIN))
    assert sorted(shown) == sorted(expected)
    assert {key: shown[key] for key in shown if key not in EXAMPLES} == {
        key: expected[key] for key in expected if key not in EXAMPLES
    }


def test_show_without_a_file_prints_the_defaults(shell: Shell) -> None:
    shown = shell.well("config", "show")
    assert flat(tomllib.loads(shown)) == every_key(DEFAULTS)
    assert 'id = "example" # required' in shown
    assert "steps = 40 # default" in shown


def test_show_tells_what_the_file_set(tmp_path: Path, shell: Shell) -> None:
    file = tmp_path / "node.toml"
    file.write_text(HEAD + 'tasks = [{name = "chain_sum", config = {min_terms = 2}}]\n[training]\nsteps = 7\n')
    shown = shell.well("config", "show", file)
    assert "steps = 7 # node.toml" in shown
    assert "generations = 8 # default" in shown
    assert 'tasks = [{name = "chain_sum", config = {min_terms = 2}}] # node.toml' in shown


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_what_show_prints_is_the_same_configuration(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    config = parse_config(text, path.name)
    assert parse_config(render_config(config, tomllib.loads(text), path.name), "shown") == config


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("", ExitCode.BAD_CONFIG, "swarm"),
        ('rool = "follower"', ExitCode.BAD_CONFIG, "unknown key 'rool'\nfix: Did you mean role?"),
        (HEAD + '[web]\nlisten = "8800"', ExitCode.BAD_CONFIG, "web.listen '8800' is not HOST:PORT"),
        (
            HEAD + '[notify]\nurls = ["hooks.org/x"]',
            ExitCode.BAD_CONFIG,
            "notify.urls, entry 1 is not a URL that Apprise",
        ),
        (HEAD + '[dht]\nlisten = ["foo"]', ExitCode.BAD_CONFIG, "error: dht.listen: 'foo' is not an address"),
        (HEAD + '[dht]\nlisten = ["/ip4/0.0.0.0/tcp/70000"]', ExitCode.BAD_CONFIG, "error: dht.listen: "),
        (
            HEAD + '[dht]\nannounce = ["example.org:38331"]',
            ExitCode.BAD_CONFIG,
            "'example.org:38331' is not an address",
        ),
        (HEAD + f'[dht]\nannounce = ["{QUIC}"]', ExitCode.BAD_CONFIG, f"error: dht.announce: '{QUIC}' names no port"),
        (HEAD + '[dht]\nannounce = ["/dns4/a\\tb/tcp/1"]', ExitCode.BAD_CONFIG, "error: dht.announce: "),
        (HEAD + f'[dht]\nbootstrap = ["{PORTLESS}"]', ExitCode.BAD_CONFIG, "error: dht.bootstrap: "),
        (HEAD + '[dht]\nmembers = ["Qm"]', ExitCode.BAD_CONFIG, "error: dht.members: 'Qm' is not a peer id"),
        (
            HEAD + '[results.hub]\nrepo = "a b"',
            ExitCode.BAD_CONFIG,
            "results.hub.repo: 'a b' is not a repository of the Hub",
        ),
        (HEAD + '[training]\nmodel = "embeded"', ExitCode.NO_INPUT, 'Did you mean training.model = "embedded"?'),
        (HEAD + '[training]\nmodel = "Qwen/Qwen 3"', ExitCode.NO_INPUT, "neither a directory nor the id of a model"),
    ],
)
def test_check_names_what_is_wrong(text: str, code: int, told: str, tmp_path: Path, shell: Shell) -> None:
    file = tmp_path / "node.toml"
    file.write_text(text)
    assert told in shell.fails(code, "config", "check", file)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("embedded-nothing", "swarmd ships no model 'embedded-nothing'\nfix: Set training.model to one of: embedded,"),
        ("./nowhere", "there is no model directory nowhere"),
        ("someone/nothing", "the model someone/nothing is not on this machine, and the Hub cannot be asked"),
    ],
)
def test_a_model_that_is_not_there_is_found(
    model: str, told: str, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", fail)
    file = tmp_path / "node.toml"
    file.write_text(f'{HEAD}[training]\nmodel = "{model}"\n')
    assert told in shell.fails(ExitCode.NO_INPUT, "config", "check", file)
    there = ExitCode.OK if model == "someone/nothing" else ExitCode.NO_INPUT
    assert shell("config", "check", "--elsewhere", file).code == there


def test_questions_that_the_kind_cannot_use_are_found(tmp_path: Path, shell: Shell) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        'role = "coordinator"\ndata = "."\n[swarm]\nid = "s"\nkind = "file"\n[swarm.options]\ndata = "q.jsonl"\n'
    )
    said = shell("config", "check", file)
    assert said.code != ExitCode.OK and "q.jsonl" in said.err
    shell.well("config", "check", "--elsewhere", file)
    (tmp_path / "q.jsonl").write_text('{"prompt": "1 + 1?", "answer": "2"}\n')
    shell.well("config", "check", file)

"""One meaning has one name in all verbs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swarmd.cli import VERBS, completion, run_command
from swarmd.doctor import catalogue
from tests.cli.test_exit_codes import VERB_LEAVES

# Words of which each stands for one thing that an option names, wherever it stands.
MEANINGS = {
    "MANIFEST": {"--manifest"},
    "KEYSTORE": {"--account"},
    "KIND": {"--kind"},
    "KIND|FILE": {"--kind"},
    "KEY=VALUE": {"--set"},
    "ROUND": {"--from-round"},
    "HOST:PORT": {"--listen"},
    "CHECK": {"--only"},
}
# Of one thing there are two words only where they are two things; these would be two words for one.
SYNONYMS = [
    {"--token", "--token-file"},
    {"--keystore", "--account"},
    {"--bootstrap", "--bootnode"},
    {"--join", "--manifest"},
    {"--passphrase", "--passphrase-file"},
    {"--output", "--out", "--to-file"},
    {"--directory", "--dir"},
    {"--endpoint", "--rpc"},
    {"--force-yes", "--yes"},
]


def options() -> Iterator[tuple[str, Any]]:
    for verb, command in VERB_LEAVES:
        for parameter in command.params:
            if parameter.opts[0].startswith("--"):
                yield verb, parameter


def test_an_option_has_the_same_short_form_in_all_verbs() -> None:
    shorts = defaultdict(set)
    for _, option in options():
        shorts[option.opts[0]].add(tuple(option.opts[1:]))
    assert {name: seen for name, seen in shorts.items() if len(seen) > 1} == {}


def test_a_short_form_stands_for_one_option() -> None:
    longs = defaultdict(set)
    for _, option in options():
        for short in option.opts[1:]:
            longs[short].add(option.opts[0])
    assert {short: seen for short, seen in longs.items() if len(seen) > 1} == {}


def test_a_meaning_has_one_name() -> None:
    for verb, option in options():
        allowed = MEANINGS.get(option.metavar or "")
        assert allowed is None or option.opts[0] in allowed, f"{verb} {option.opts[0]} {option.metavar}"
    used = {option.opts[0] for _, option in options()}
    assert [pair for pair in SYNONYMS if len(pair & used) > 1] == []


# --- values ---


def completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shell: str, *words: str) -> set[str]:
    """What a shell is offered for the last word, by the way that the shell itself asks."""
    line = " ".join(("swarmd", *words))
    monkeypatch.setenv("_SWARMD_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    with pytest.raises(SystemExit):
        raise SystemExit(run_command([]))
    return set(capsys.readouterr().out.replace('"', " ").replace("'", " ").split())


def test_nothing_is_offered_of_a_user_whom_there_is_not() -> None:
    assert list(completion.files("~nobody-is-called-so/")) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("words", "offered", "not_offered"),
    [
        (("local", "--kind", "gs"), {"gsm8k"}, {"code"}),
        (("init", "--device", "c"), {"cpu", "cuda"}, {"mps"}),
        (("doctor", "--only", "acc"), {"account"}, {"contract"}),
        (("chart", "co"), {"coordinator"}, {"round"}),
        (("status", "no"), {"node-1"}, {"notes.txt"}),
        (("run", "--config", "node-1/"), {"node-1/config.toml"}, {"node-1/notes.txt"}),
        (("swarm", "check", "sw"), {"swarm.toml"}, set()),
        (("leaderboard", "--sort", "w"), {"wins"}, {"votes"}),
        (("replay", "--type", "worker_"), {"worker_started", "worker_exited"}, {"timer_fired"}),
        (("local", "--set", "chain.fees.d"), {"chain.fees.day_coins_max="}, set()),
        (("init", "--model", "emb"), {"embedded"}, {"auto"}),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_values_are_completed(
    shell: str,
    words: tuple[str, ...],
    offered: set[str],
    not_offered: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "node-1").mkdir()
    for name in ("node-1/config.toml", "node-1/notes.txt", "notes.txt", "swarm.toml"):
        (tmp_path / name).touch()
    found = completed(monkeypatch, capsys, shell, *words)
    assert offered <= found and not not_offered & found, found


def test_the_doctors_checks_are_offered() -> None:
    assert set(completion.CHECKS) == {check.name for check in catalogue.CHECKS}


def test_every_verb_is_walked() -> None:
    assert {verb.split()[0] for verb, _ in VERB_LEAVES} == set(VERBS)

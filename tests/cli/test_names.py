"""One meaning has one name in all verbs; what was called otherwise still works and says what it is called now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swarmd.cli import VERBS, load_verb, run_command
from swarmd.cli.renamed_options import OLD_NAMES, renew
from tests.cli.test_exit_codes import VERB_LEAVES
from tests.cli.test_exit_codes import leaves as leaves_of

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


def test_no_old_name_is_offered_and_every_new_one_exists() -> None:
    for verb, names in OLD_NAMES.items():
        ((_, command),) = leaves_of(load_verb(verb), (verb,))
        known = {name for parameter in command.params for name in parameter.opts}
        assert set(names.values()) <= known and not set(names) & known, verb


def test_an_old_name_works_and_says_what_it_is_called_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(["dashboard", "--swarm", "gone.toml"]) == 66
    said = capsys.readouterr().err
    assert "note: --swarm is called --manifest now" in said and "there is no manifest gone.toml" in said


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["join", "x.toml", "--token=t"], ["join", "x.toml", "--token-file=t"]),
        (["join", "x.toml", "--token", "t"], ["join", "x.toml", "--token-file", "t"]),
        (["join", "--", "--token"], ["join", "--", "--token"]),
        (["init", "--swarm", "a name"], ["init", "--swarm", "a name"]),
        (["status"], ["status"]),
        ([], []),
    ],
)
def test_only_an_old_name_is_changed(given: list[str], meant: list[str]) -> None:
    assert renew(given)[0] == meant


def test_every_verb_is_walked() -> None:
    assert {verb.split()[0] for verb, _ in VERB_LEAVES} == set(VERBS)

"""One meaning has one name in all verbs."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

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

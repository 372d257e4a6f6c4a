"""Options that were called otherwise: the old spelling works, stands in no help, and says what it is called now."""

from __future__ import annotations

from collections.abc import Sequence

# By verb, and the old name; one meaning has one name in all verbs, which tests/cli/test_names.py holds.
OLD_NAMES = {
    "local": {"--swarm": "--kind", "--svg": "--out"},
    "init": {"--join": "--manifest"},
    "dashboard": {"--swarm": "--manifest", "--bootstrap": "--bootnode"},
    "join": {"--token": "--token-file"},
    "signer": {"--keystore": "--account"},
}


def renew(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line with the names of today, and a line for each that was another."""
    names = OLD_NAMES.get(args[0], {}) if args else {}
    renewed, notes = [], []
    options_end = list(args).index("--") if "--" in args else len(args)
    for place, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name in names and place < options_end:
            notes.append(f"{name} is called {names[name]} now")
            arg = f"{names[name]}{equals}{value}"
        renewed.append(arg)
    return renewed, notes

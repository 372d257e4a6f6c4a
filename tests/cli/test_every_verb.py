"""What holds for all verbs: one exit code for one kind of error, one name for one meaning."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swarmd import errors
from swarmd.cli import VERBS, load_command, run_command
from swarmd.errors import EXIT_FOR_ROOM, ExitCode, SwarmdError
from swarmd.secret_files import Secret, SecretKind, read_secret, write_secret

MANUAL = (Path(__file__).resolve().parents[2] / "docs" / "OPERATING.md").read_text()
SECTION = MANUAL.partition("## Exit codes")[2].partition("\n## ")[0]
CODES = {code for name, code in vars(ExitCode).items() if name.isupper()}
# Files that a verb writes or makes, and those that it needs nothing of where they are not there.
WRITTEN = {"--dir", "--svg", "--out", "--jsonl", "--to", "--write", "--audit", "out", "--data"}
SENDING = ("advance", "set-policy", "add-bootnode", "remove-bootnode", "allow", "disallow", "open", "close")
NOT_READ = {
    ("identity new", "path"),
    ("identity restore", "path"),
    ("identity import", "path"),
    ("account new", "path"),
    ("account import", "path"),
    ("restore", "directory"),
    ("fork", "new"),
    ("account new", "--passphrase-file"),  # made where there is none
    ("run", "directory"),  # with --config it is the data directory, which is made
    ("swarm new", "--passphrase-file"),  # of an account: nothing is signed without a chain
    ("swarm new", "--account"),
    ("join", "--account"),
    ("join", "--passphrase-file"),
    ("join", "--token-file"),
    ("join", "--identity"),
    ("init", "--hub-token-file"),
    ("account import", "--passphrase-file"),  # made where there is none
    *(
        (f"swarm {verb}", f"--{name}") for verb in SENDING for name in ("account", "passphrase-file")
    ),  # signing is later
    ("signer", "--account"),  # its passphrase is read before
}
PEER = "12D3KooWBmAwcd4PJNJvfV89HwE48nwkRmAgo8Vy3uQEyNNHBox2"
NEEDED = {
    "model serve": ["{absent}"],
    "identity backup": ["{absent}", "{new}"],
    "identity restore": ["{absent}", "{new}"],
    "identity import": ["{absent}", "{new}"],
    "account import": ["{new}"],
    "backup make": ["{absent}", "{new}.tar.gz"],
    "restore": ["{absent}", "{new}"],
    "fork": ["{absent}", "{new}"],
    "swarm new": ["a swarm", "--dir", "{new}"],
    "swarm allow": ["{absent}", PEER],
    "swarm disallow": ["{absent}", PEER],
    "swarm add-bootnode": ["{absent}", f"/ip4/192.0.2.1/tcp/1/p2p/{PEER}"],
    "swarm remove-bootnode": ["{absent}", f"/ip4/192.0.2.1/tcp/1/p2p/{PEER}"],
    "init": ["--yes", "--dir", "{new}"],
    "log export": ["{absent}", "--jsonl", "{new}"],
    "bundle --open": ["--to", "{new}"],
    "identity check": ["{absent}"],
    "account show": ["{absent}"],
    "backup check": ["{absent}"],
    "dashboard --token-file": ["{absent}"],
    "timeline --token-file": ["{absent}", "--page"],
    "signer": ["--rpc=http://127.0.0.1:1", "--chain-id=1", f"--contract=0x{'c' * 40}", "--org=o"],
    "swarm scaffold": ["name"],
    "explain": ["{absent}", "3"],
}


def table() -> dict[int, str]:
    """What the manual says of each code."""
    rows = re.findall(r"^\| ([\d, ]+) \| (.+?) \|", SECTION, re.MULTILINE)
    return {int(code): what for codes, what in rows for code in codes.split(",")}


def leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Every verb that does something, by its whole name."""
    inner = getattr(command, "commands", {})
    if not inner:
        yield " ".join(path), command
    for name, each in inner.items():
        yield from leaves(each, (*path, name))


VERB_LEAVES = [leaf for name in VERBS for leaf in leaves(load_command(name), (name,))]


def files_of(verb: str, command: Any) -> Iterator[str]:
    """Parameters of a verb that name a file or directory which it reads."""
    for parameter in command.params:
        name = parameter.opts[0]
        is_path = parameter.type_descriptor.annotation is Path or parameter.metavar in ("FILE", "KEYSTORE", "MANIFEST")
        if is_path and name not in WRITTEN and (verb, name) not in NOT_READ:
            yield name


READ = [(verb, name) for verb, command in VERB_LEAVES for name in files_of(verb, command)]


def test_the_manual_has_every_code_once_and_no_other() -> None:
    assert set(table()) == CODES | {143}
    assert len(re.findall(r"^\| \d+", SECTION, re.MULTILINE)) == len(table()) - 1, "130 and 143 share a row"


def test_every_error_has_a_code_of_the_table() -> None:
    found = {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, SwarmdError)}
    assert {each.exit_code for each in found} - {EXIT_FOR_ROOM} <= CODES


@pytest.mark.parametrize(("verb", "name"), READ, ids=[f"{verb} {name}" for verb, name in READ])
def test_a_file_that_is_not_there_ends_every_verb_with_66(
    verb: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    absent, new = tmp_path / "absent", tmp_path / "new"
    given = [each.format(absent=absent, new=new) for each in NEEDED.get(f"{verb} {name}", NEEDED.get(verb, []))]
    if name.startswith("--"):
        given += [f"{name}={absent}"]
    elif not given:
        given = [str(absent)]
    code = run_command([*verb.split(), *given])
    said = capsys.readouterr()
    assert code == ExitCode.NO_INPUT, said.err or said.out
    assert "absent" in said.err
    assert not new.exists() or not any(new.iterdir())


def test_a_secret_ends_alike_whatever_it_is(tmp_path: Path) -> None:
    kind = SecretKind("token file", errors.ConfigError, 99)

    def code(path: Path) -> int:
        with pytest.raises(kind.error) as caught:
            read_secret(Secret(path), kind)
        return caught.value.exit_code

    path = tmp_path / "secret"
    assert code(path) == ExitCode.NO_INPUT
    path.write_text("x" * 10)
    path.chmod(0o644)
    assert code(path) == ExitCode.NO_PERMISSION
    path.chmod(0o600)
    path.write_text("x" * 200)
    assert code(path) == ExitCode.BAD_DATA
    with pytest.raises(kind.error) as caught:
        write_secret(path, b"y", kind)
    assert caught.value.exit_code == ExitCode.CANNOT_CREATE


# --- names of options ---

# Words of which each stands for one thing that an option names, wherever it stands.
MEANINGS = {
    "MANIFEST": {"--manifest"},
    "KEYSTORE": {"--account"},
    "KIND": {"--kind"},
    "KIND|FILE": {"--kind"},
    "KEY=VALUE": {"--set"},
    "ROUND": {"--from-round", "--round"},
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

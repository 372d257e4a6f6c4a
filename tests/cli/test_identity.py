"""`swarmd identity`: what it writes, what it refuses, and what it warns of."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from swarmd import animals
from swarmd.core.state import State
from swarmd.dht.identity.identity import create_identity, load_identity
from swarmd.errors import ExitCode
from swarmd.eventlog.store import LOG_BYTES_MAX, EventLog
from swarmd.paths import NodeDirectory
from tests.cli.owning import Said, Shell, Terminal
from tests.dht.making import rsa_file
from tests.eventlog.making import follower_story, write_story

SECRET = "correct horse battery"


class Home:
    """A directory with a node's data directory and a passphrase in a file."""

    def __init__(self, root: Path, shell: Shell) -> None:
        self.data = root / "data"
        self.data.mkdir()
        self.key = self.data / "identity.key"
        self.peer = create_identity(self.key).peer_id
        self.backup = root / "key.backup"
        self.passphrase = root / "passphrase"
        self.passphrase.write_text(SECRET + "\n")
        self.passphrase.chmod(0o600)
        self._shell = shell

    def run(self, *args: object) -> Said:
        said = self._shell("identity", *args)
        assert SECRET not in said.out + said.err
        return said

    def with_passphrase(self, *args: object) -> Said:
        return self.run(*args, "--passphrase-file", self.passphrase)

    def write_log(self, data: Path, rounds: int, peer: str = "") -> None:
        with EventLog.open(NodeDirectory(data).events, peer or self.peer, "run", bytes_max=LOG_BYTES_MAX) as log:
            write_story(log, follower_story(rounds), State())


@pytest.fixture
def home(tmp_path: Path, shell: Shell) -> Home:
    return Home(tmp_path, shell)


def test_a_backup_comes_back_on_a_new_host(home: Home, tmp_path: Path) -> None:
    home.write_log(home.data, 5)
    code, out, err = home.with_passphrase("backup", home.key, home.backup)
    assert (code, err) == (0, "") and home.peer in out and "at round 4" in out
    assert home.backup.stat().st_mode & 0o777 == 0o600
    code, out, err = home.with_passphrase("restore", home.backup, tmp_path / "identity.key")
    assert code == 0 and out.strip() == home.peer
    assert "was at round 4 when the backup was made" in err
    assert "make sure that it does not run any more" in err and "no event log here" in err
    assert "compare with the chain before it signs" in err
    assert (tmp_path / "identity.key").read_bytes() == home.key.read_bytes()
    assert (tmp_path / "identity.key").stat().st_mode & 0o777 == 0o600


def test_a_restore_beside_an_older_log_says_so(home: Home, tmp_path: Path) -> None:
    home.write_log(home.data, 5)
    assert home.with_passphrase("backup", home.key, home.backup)[0] == 0
    home.write_log(tmp_path / "old", 2)
    code, _, err = home.with_passphrase("restore", home.backup, tmp_path / "old" / "identity.key")
    assert code == 0 and "older than the backup: it was at round 1" in err
    home.key.unlink()
    code, _, err = home.with_passphrase("restore", home.backup, home.key)
    assert code == 0 and "older" not in err and "no event log" not in err


@pytest.mark.parametrize("named", [False, True])
def test_a_restore_into_another_nodes_directory_is_refused(home: Home, tmp_path: Path, named: bool) -> None:
    assert home.with_passphrase("backup", home.key, home.backup)[0] == 0
    home.write_log(tmp_path / "other", 2, peer="12D3KooWOther")
    target = tmp_path / "new.key" if named else tmp_path / "other" / "identity.key"
    options = ("--data", tmp_path / "other") if named else ()
    code, _, err = home.with_passphrase("restore", home.backup, target, *options)
    assert code == ExitCode.BAD_DATA and "holds the log of 12D3KooWOther" in err
    assert not target.exists()


def test_nothing_is_ever_overwritten(home: Home, tmp_path: Path) -> None:
    assert home.with_passphrase("backup", home.key, home.backup)[0] == 0
    before = home.key.read_bytes(), home.backup.read_bytes()
    for args in (("backup", home.key, home.backup), ("restore", home.backup, home.key)):
        code, _, err = home.with_passphrase(*args)
        assert code == ExitCode.CANNOT_CREATE and "exists already" in err
    rsa_file(tmp_path / "swarm.pem")
    for args in (("import", tmp_path / "swarm.pem", home.key), ("new", home.key)):
        code, _, err = home.run(*args)
        assert code == ExitCode.CANNOT_CREATE and "exists already" in err
    assert (home.key.read_bytes(), home.backup.read_bytes()) == before


def test_a_damaged_log_keeps_no_key_from_its_backup(home: Home) -> None:
    home.write_log(home.data, 2)
    segment = next(NodeDirectory(home.data).events.glob("*.seg"))
    segment.write_bytes(b"noise" * 100)
    code, _, err = home.with_passphrase("backup", home.key, home.backup)
    assert code == 0 and "does not say how far the node has come" in err and home.backup.exists()


def test_check_proves_key_and_backup(home: Home) -> None:
    assert home.with_passphrase("backup", home.key, home.backup)[0] == 0
    code, out, _ = home.with_passphrase("check", home.key, "--backup", home.backup)
    assert code == 0 and home.peer in out and "mode 0600" in out and "opens and holds this key" in out
    code, out, _ = home.with_passphrase("check", home.key, "--backup", home.backup, "--json")
    report = json.loads(out)
    assert code == 0 and report["sound"] and report["peer"] == home.peer and report["owner"] == os.geteuid()
    assert report["backup"]["file"] == str(home.backup)
    assert home.run("check", home.key)[0] == 0


def test_check_finds_what_is_wrong(home: Home, tmp_path: Path) -> None:
    assert home.with_passphrase("backup", home.key, home.backup)[0] == 0
    create_identity(tmp_path / "other.key")
    code, _, err = home.with_passphrase("check", tmp_path / "other.key", "--backup", home.backup)
    assert code == ExitCode.BAD_DATA and home.peer in err
    home.passphrase.write_text("another one\n")
    code, out, _ = home.with_passphrase("check", home.key, "--backup", home.backup, "--json")
    assert code == ExitCode.NO_PERMISSION
    assert not json.loads(out)["sound"] and "passphrase is wrong" in json.loads(out)["problem"]
    home.key.chmod(0o644)
    code, out, _ = home.run("check", home.key, "--json")
    assert code == ExitCode.NO_PERMISSION and "chmod 600" in json.loads(out)["fix"]
    assert home.run("check", tmp_path / "none")[0] == ExitCode.NO_INPUT


def test_an_rsa_identity_of_rl_swarm_is_taken_over(home: Home, tmp_path: Path) -> None:
    from swarmd.dht.p2p.hivemind_api import P2P

    P2P.generate_identity(str(tmp_path / "swarm.pem"))
    code, out, err = home.run("import", tmp_path / "swarm.pem", tmp_path / "identity.key")
    assert code == 0 and out.strip() == load_identity(tmp_path / "identity.key").peer_id
    assert "one identity runs one node" in err
    assert (tmp_path / "identity.key").read_bytes() == (tmp_path / "swarm.pem").read_bytes()
    assert (tmp_path / "identity.key").stat().st_mode & 0o777 == 0o600
    assert home.with_passphrase("backup", tmp_path / "identity.key", home.backup)[0] == 0
    assert home.with_passphrase("check", tmp_path / "identity.key", "--backup", home.backup)[0] == 0
    assert json.loads(home.run("show", tmp_path / "identity.key", "--json")[1])["kind"] == "rsa-2048"


def rl_swarm_names(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A name_utils.py with as many words as RL Swarm's, whose digests count as those of RL Swarm's words."""
    lists = ([f"a{number}" for number in range(245)], [f"n{number}" for number in range(220)])
    digests = ((hashlib.sha256("\n".join(words).encode()).hexdigest(),) for words in lists)
    monkeypatch.setattr(animals, "RL_SWARM_SHA256", animals.Words(*digests))
    file = directory / "hivemind_exp" / "name_utils.py"
    file.parent.mkdir(parents=True)
    file.write_text(f"import os\nos.abort()\nADJ = {lists[0]}\nANIMALS = {lists[1]}\n")
    return file


def test_a_name_is_made_as_rl_swarm_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = animals.read_words(rl_swarm_names(tmp_path, monkeypatch).read_text())
    assert words is not None
    name = animals.animal_name("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", words=words)
    assert name == "a215 a49 n120"  # RL Swarm: thorny fishy meerkat
    for text in ("", "ADJ = [", "\0", "A = [['x'], 1, *b]", "(" * 10_000):
        assert animals.read_words(text) is None


def test_who_brings_an_identity_along_is_told_its_name_there(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swarmd.dht.identity.identity import read_rl_swarm_name

    rsa_file(tmp_path / "swarm.pem")
    peer = load_identity(tmp_path / "swarm.pem").peer_id
    assert "RL Swarm's names are made of other words" in home.run("import", tmp_path / "swarm.pem", tmp_path / "a")[2]
    names = rl_swarm_names(tmp_path, monkeypatch)
    name = animals.animal_name(peer, words=animals.read_words(names.read_text()) or animals.OWN)
    assert name.startswith("a") and name != animals.animal_name(peer)
    moved = names.rename(tmp_path / "moved.py")
    for key, options in (("b", ("--names", moved)), ("c", ())):
        code, out, err = home.run("import", tmp_path / "swarm.pem", tmp_path / key, *options)
        assert (code, out.strip()) == (0, peer) and f'`name = "{name}"`' in err
        assert read_rl_swarm_name(tmp_path / key, peer) == name, "`swarmd join --identity` takes it from there"
        moved.rename(names) if key == "b" else None
    code, _, err = home.run("import", tmp_path / "swarm.pem", tmp_path / "d", "--names", tmp_path / "swarm.pem")
    assert code == ExitCode.BAD_DATA and "does not hold" in err and not (tmp_path / "d").exists()
    assert (
        home.run("import", tmp_path / "swarm.pem", tmp_path / "d", "--names", tmp_path / "no")[0] == ExitCode.NO_INPUT
    )


@pytest.mark.parametrize("content", [b"", b"-----BEGIN RSA PRIVATE KEY-----\n", b"\x08\x00\x12\x80", bytes(100_000)])
def test_what_is_no_identity_is_not_imported(home: Home, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "swarm.pem").write_bytes(content)
    code, _, err = home.run("import", tmp_path / "swarm.pem", tmp_path / "identity.key")
    assert code == ExitCode.BAD_DATA and "error: " in err and "Traceback" not in err
    assert not (tmp_path / "identity.key").exists()
    assert home.run("import", tmp_path / "none.pem", tmp_path / "identity.key")[0] == ExitCode.NO_INPUT
    assert home.run("import", tmp_path, tmp_path / "identity.key")[0] == ExitCode.NO_PERMISSION


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty, not one line of text\nfix: Write the passphrase into it"),
        (b"a\nb\n", "one line"),
        (b"\xff" * 9, "UTF-8"),
        (b"short\n", "characters"),
    ],
)
def test_a_passphrase_file_holds_one_line(home: Home, content: bytes, says: str) -> None:
    home.passphrase.write_bytes(content)
    code, _, err = home.with_passphrase("backup", home.key, home.backup)
    assert code == ExitCode.BAD_DATA and says in err and not home.backup.exists()


def test_a_passphrase_file_is_private(home: Home) -> None:
    home.passphrase.chmod(0o640)
    code, _, err = home.with_passphrase("backup", home.key, home.backup)
    assert code == ExitCode.NO_PERMISSION and "chmod 600" in err


def test_a_passphrase_may_come_through_a_link_or_a_pipe(home: Home, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(home.passphrase)
    reader, writer = os.pipe()
    os.write(writer, SECRET.encode())
    os.close(writer)
    for place, out in ((tmp_path / "link", tmp_path / "a"), (f"/dev/fd/{reader}", tmp_path / "b")):
        assert home.run("backup", home.key, out, "--passphrase-file", place)[0] == 0
        assert home.with_passphrase("check", home.key, "--backup", out)[0] == 0
    os.close(reader)


def at_terminal(*args: object, answers: dict[str, str]) -> tuple[int, str]:
    """(exit status, all that the terminal showed) of `swarmd identity ...`, each question answered in turn."""
    terminal = Terminal("identity", *args)
    for question, answer in answers.items():
        terminal.answer(question, answer)
    return terminal.end(), terminal.seen


def test_a_terminal_asks_twice_and_shows_nothing(home: Home, tmp_path: Path) -> None:
    new, again = "\nPassphrase of the new backup: ", "Once more: "
    status, shown = at_terminal("backup", home.key, home.backup, answers={new: SECRET, again: SECRET})
    assert status == 0 and SECRET not in shown
    opened = {"Passphrase of the backup: ": SECRET}
    status, shown = at_terminal("restore", home.backup, tmp_path / "identity.key", answers=opened)
    assert status == 0 and SECRET not in shown and home.peer in shown
    assert shown.startswith("Passphrase of the backup: ")
    two = {new: SECRET, again: "something else"}
    status, shown = at_terminal("backup", home.key, tmp_path / "second", answers=two)
    assert status == ExitCode.NO_PERMISSION and "differ" in shown and not (tmp_path / "second").exists()

"""`swarmd account`: as a person and as a script use it."""

import io
import stat
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from swarmd.cli import run_command
from swarmd.errors import ExitCode
from tests.anvil import running_anvil
from tests.cli.owning import Terminal

KEY = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"  # anvil's first account
ADDRESS = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
PASSPHRASE = "correct horse battery"


def run(*args: object, given: str = "") -> subprocess.CompletedProcess[str]:
    """The verb in this process, `given` on standard input."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        code = run_command(["account", *map(str, args)])
    done = subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())
    assert "Traceback" not in done.stderr
    assert KEY not in done.stdout + done.stderr
    assert PASSPHRASE not in done.stdout + done.stderr
    return done


def secret(path: Path, content: str = PASSPHRASE + "\n") -> Path:
    path.write_text(content, encoding="utf-8")
    path.chmod(0o600)
    return path


def test_new_makes_an_account_and_a_random_passphrase(tmp_path: Path) -> None:
    made = run("new", tmp_path / "a.json", "--passphrase-file", tmp_path / "a.pass")
    assert made.returncode == 0
    assert made.stdout.startswith("0x") and len(made.stdout) == 43
    assert "a.pass holds a new random passphrase" in made.stderr
    for name in ("a.json", "a.pass"):
        mode = stat.S_IMODE((tmp_path / name).stat().st_mode)
        assert mode == 0o600
    assert (tmp_path / "a.pass").read_text(encoding="utf-8").strip() not in made.stdout + made.stderr
    assert run("show", tmp_path / "a.json").stdout == made.stdout
    (tmp_path / "a.pass").write_text("\ufeff" + (tmp_path / "a.pass").read_text())  # as some editors begin a text
    assert run("show", tmp_path / "a.json", "--passphrase-file", tmp_path / "a.pass").stdout == made.stdout


def test_new_overwrites_nothing_and_asks_nothing_before_it_says_so(tmp_path: Path) -> None:
    secret(tmp_path / "a.json", "mine")
    made = run("new", tmp_path / "a.json", "--passphrase-file", tmp_path / "a.pass")
    assert made.returncode == ExitCode.CANNOT_CREATE
    assert "exists already" in made.stderr
    assert not (tmp_path / "a.pass").exists()
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == "mine"


def test_new_needs_a_passphrase(tmp_path: Path) -> None:
    without = run("new", tmp_path / "a.json")
    assert without.returncode == ExitCode.NO_PERMISSION
    assert "--passphrase-file" in without.stderr
    poor = run("new", tmp_path / "a.json", "--passphrase-file", secret(tmp_path / "p", "short\n"))
    assert poor.returncode == ExitCode.BAD_DATA
    assert not (tmp_path / "a.json").exists()


def test_import_reads_the_key_from_standard_input(tmp_path: Path) -> None:
    done = run("import", tmp_path / "a.json", "--passphrase-file", secret(tmp_path / "p"), given=f"0x{KEY}\n")
    assert (done.returncode, done.stdout) == (0, ADDRESS + "\n")
    assert KEY not in (tmp_path / "a.json").read_text(encoding="utf-8")
    assert run("show", tmp_path / "a.json").stdout == ADDRESS + "\n"


@pytest.mark.parametrize("given", ["", "no key\n", KEY[:-2], KEY + "00", "0" * 64])
def test_import_refuses_what_is_no_key_before_it_makes_a_passphrase(tmp_path: Path, given: str) -> None:
    done = run("import", tmp_path / "a.json", "--passphrase-file", tmp_path / "new", given=given)
    assert done.returncode == ExitCode.BAD_DATA
    assert "key" in done.stderr
    assert not given or given not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_prompts_are_not_echoed(tmp_path: Path) -> None:
    terminal = Terminal("account", "import", tmp_path / "a.json")
    terminal.answer("Private key: ", KEY)
    terminal.answer("\nPassphrase of the new keystore: ", PASSPHRASE)
    terminal.answer("Once more: ", PASSPHRASE)
    assert terminal.end() == 0 and ADDRESS in terminal.seen
    assert KEY not in terminal.seen and PASSPHRASE not in terminal.seen


def test_show_asks_a_node_for_the_balance(tmp_path: Path) -> None:
    run("import", tmp_path / "a.json", "--passphrase-file", secret(tmp_path / "p"), given=KEY)
    with running_anvil("--balance", "12") as url:
        done = run("show", tmp_path / "a.json", "--rpc", url)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        ADDRESS,
        "chain: 31337",
        "balance: 12 coins (12000000000000000000 wei)",
        "transactions: 0",
    ]


def test_show_says_what_is_wrong_with_the_node_without_the_key_in_its_url(tmp_path: Path) -> None:
    run("import", tmp_path / "a.json", "--passphrase-file", secret(tmp_path / "p"), given=KEY)
    done = run("show", tmp_path / "a.json", "--rpc", "http://127.0.0.1:9/v2/sesame-open-the-door")
    assert done.returncode == ExitCode.FAILURE
    assert "127.0.0.1:9" in done.stderr and "sesame" not in done.stderr
    assert run("show", tmp_path / "a.json", "--rpc", "nonsense").returncode == ExitCode.BAD_CONFIG


def test_a_key_given_as_an_argument_is_not_repeated(tmp_path: Path) -> None:
    done = run("import", tmp_path / "a.json", KEY.strip())
    assert done.returncode == ExitCode.USAGE
    assert KEY.strip().removeprefix("0x") not in done.stderr and "[redacted]" in done.stderr


@pytest.mark.parametrize("prompt", ["Private key: ", "new keystore: "])
def test_what_is_typed_and_no_text_is_refused_and_not_shown(tmp_path: Path, prompt: str) -> None:
    terminal = Terminal("account", "import", tmp_path / "a.json")
    if prompt != "Private key: ":
        terminal.answer("Private key: ", KEY)
    terminal.answer(prompt, "gr\udcfcn correct horse")  # in Latin-1
    assert terminal.end() == ExitCode.BAD_DATA
    shown = terminal.seen
    assert "what was typed is not text in" in shown and "Traceback" not in shown and "horse" not in shown
    assert not (tmp_path / "a.json").exists()

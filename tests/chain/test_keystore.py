"""Keystores: what is written can be read, and whatever is wrong with a file is said without its secrets."""

import json
import os
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swarmd.chain.keystore import (
    create_keystore,
    create_passphrase,
    import_key,
    load_account,
    load_passphrase,
    read_keystore,
    read_keystore_address,
)
from swarmd.config import ChainConfig
from swarmd.errors import ExitCode, KeystoreError
from swarmd.paths import NodeDirectory

KEY = "4c0883a69102937d6231471b5dbb6204fe5129617082792ae468d01a3f362318"
ADDRESS = "0x2c7536E3605D9C16a7a3D7b1898e529396a65c23"
PASSPHRASE = "correct horse battery"
WORK = 2**10  # scrypt at this is quick

# The vector of the format's own description that `create_keystore` makes none like.
VECTOR_KEY = "7a28b5ba57c53603b0b07b56bba752f7784bf506fa95edc395f5cf6c7514fe9d"
VECTOR_ADDRESS = "0x008AeEda4D805471dF9b2A5B0f38A0C3bCBA786b"
PBKDF2_VECTOR = {
    "crypto": {
        "cipher": "aes-128-ctr",
        "cipherparams": {"iv": "6087dab2f9fdbbfaddc31a909735c1e6"},
        "ciphertext": "5318b4d5bcd28de64ee5559e671353e16f075ecae9f99c7a79a38af5f869aa46",
        "kdf": "pbkdf2",
        "kdfparams": {
            "c": 262144,
            "dklen": 32,
            "prf": "hmac-sha256",
            "salt": "ae3cd4e7013836a3df6bd7241b12db061dbe2c6785853cce422d148a624ce0bd",
        },
        "mac": "517ead924a9d0dc3124507e3393d175ce3ff7c1e96529c6c555ce9e51205e9b2",
    },
    "id": "3198bc9c-6672-5ab3-d995-4942343ae5b6",
    "version": 3,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A keystore of the known key."""
    found = tmp_path / "account.json"
    import_key(found, KEY, PASSPHRASE, WORK)
    return found


def private(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    path.chmod(0o600)
    return path


def altered(path: Path, change: Callable[[Any], None]) -> Path:
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    return private(path, json.dumps(content))


def expect_refusal(call: Callable[[], Any], *words: str) -> str:
    """The whole text of the refusal, its traceback included, which must not hold the secrets."""
    with pytest.raises(KeystoreError) as caught:
        call()
    assert caught.value.exit_code in (
        ExitCode.BAD_DATA,
        ExitCode.NO_INPUT,
        ExitCode.CANNOT_CREATE,
        ExitCode.NO_PERMISSION,
    )
    for word in words:
        assert word in str(caught.value)
    text = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert KEY not in text.lower() and PASSPHRASE not in text
    return text


def test_what_is_made_is_private_and_opens(tmp_path: Path) -> None:
    made = create_keystore(tmp_path / "new.json", PASSPHRASE, WORK)
    mode = stat.S_IMODE((tmp_path / "new.json").stat().st_mode)
    assert mode == 0o600
    read = read_keystore(tmp_path / "new.json", PASSPHRASE)
    assert read.address == made.address == read_keystore_address(tmp_path / "new.json")
    assert read.key == made.key
    assert create_keystore(tmp_path / "other.json", PASSPHRASE, WORK).address != made.address


def test_a_new_keystore_costs_much_to_guess(tmp_path: Path, strong_passphrases: None) -> None:
    create_keystore(tmp_path / "new.json", PASSPHRASE)
    assert json.loads((tmp_path / "new.json").read_text())["crypto"]["kdfparams"]["n"] == 2**17


@pytest.mark.parametrize("form", [KEY, "0x" + KEY, KEY.upper()])
def test_a_key_is_imported_in_every_usual_form(tmp_path: Path, form: str) -> None:
    assert import_key(tmp_path / "a.json", form, PASSPHRASE, WORK).address == ADDRESS
    assert read_keystore(tmp_path / "a.json", PASSPHRASE).address == ADDRESS
    assert KEY not in (tmp_path / "a.json").read_text(encoding="utf-8").lower()


def test_the_formats_own_vector_opens(tmp_path: Path) -> None:
    account = read_keystore(private(tmp_path / "v.json", json.dumps(PBKDF2_VECTOR)), "testpassword")
    assert (account.address, bytes(account.key).hex()) == (VECTOR_ADDRESS, VECTOR_KEY)


@pytest.mark.parametrize("key", ["", "0x", KEY[:-1], KEY + "0", "g" * 64, "0" * 64, "f" * 64, " " + KEY])
def test_what_is_no_key_is_refused_without_repeating_it(tmp_path: Path, key: str) -> None:
    with pytest.raises(KeystoreError) as caught:
        import_key(tmp_path / "a.json", key, PASSPHRASE, WORK)
    assert len(key) < 3 or key not in "".join(traceback.format_exception(caught.value))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("passphrase", ["", "short", "x" * 5000, "two\nlines of it"])
def test_a_poor_passphrase_is_refused(tmp_path: Path, passphrase: str) -> None:
    expect_refusal(lambda: create_keystore(tmp_path / "a.json", passphrase, WORK), "passphrase")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    expect_refusal(lambda: create_keystore(path, PASSPHRASE, WORK), "exists already")
    expect_refusal(lambda: import_key(path, KEY, PASSPHRASE, WORK), "exists already")
    (tmp_path / "link.json").symlink_to(tmp_path / "nowhere.json")
    expect_refusal(lambda: create_keystore(tmp_path / "link.json", PASSPHRASE, WORK), "exists already")
    assert path.read_bytes() == before
    assert not (tmp_path / "nowhere.json").exists()


def test_a_file_that_cannot_be_used_is_refused(path: Path, tmp_path: Path) -> None:
    expect_refusal(lambda: read_keystore(tmp_path / "none.json", PASSPHRASE), "none.json", "swarmd account new")
    expect_refusal(lambda: read_keystore(tmp_path, PASSPHRASE), "not a regular file")
    os.mkfifo(tmp_path / "pipe", 0o600)
    expect_refusal(lambda: read_keystore(tmp_path / "pipe", PASSPHRASE), "not a regular file")
    (tmp_path / "link").symlink_to(path)
    expect_refusal(lambda: read_keystore(tmp_path / "link", PASSPHRASE), "cannot be opened")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_file_that_others_may_read_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    expect_refusal(lambda: read_keystore(path, PASSPHRASE), f"{mode:04o}", "chmod 600")
    expect_refusal(lambda: read_keystore_address(path), f"{mode:04o}")


def test_a_wrong_passphrase_is_refused(path: Path) -> None:
    expect_refusal(lambda: read_keystore(path, "another one"), "passphrase")
    expect_refusal(lambda: read_keystore(path, ""), "passphrase")


@pytest.mark.parametrize("field", ["ciphertext", "mac"])
def test_a_damaged_file_is_refused(path: Path, field: str) -> None:
    def flip(content: Any) -> None:
        first = content["crypto"][field][0]
        content["crypto"][field] = ("0" if first != "0" else "1") + content["crypto"][field][1:]

    expect_refusal(lambda: read_keystore(altered(path, flip), PASSPHRASE), "damaged")


def test_an_address_that_is_not_the_keys_is_refused(path: Path) -> None:
    altered(path, lambda content: content.update(address="11" * 20))
    expect_refusal(lambda: read_keystore(path, PASSPHRASE), ADDRESS, "11" * 20)


def test_a_file_without_an_address_opens_and_says_none(path: Path) -> None:
    altered(path, lambda content: content.pop("address"))
    assert read_keystore(path, PASSPHRASE).address == ADDRESS
    expect_refusal(lambda: read_keystore_address(path), "--passphrase-file")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda content: content.update(version=1), "version 1"),
        (lambda content: content.pop("version"), "version"),
        (lambda content: content.pop("crypto"), "crypto"),
        (lambda content: content.update(address="0x12"), "address"),
    ],
)
def test_a_file_of_another_form_is_refused(path: Path, change: Callable[[Any], None], word: str) -> None:
    expect_refusal(lambda: read_keystore(altered(path, change), PASSPHRASE), word)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "7", '"text"', "[" * 60_000, '{"version": 3e999}', KEY])
def test_what_is_no_keystore_is_refused(tmp_path: Path, content: str) -> None:
    expect_refusal(lambda: read_keystore(private(tmp_path / "a.json", content), PASSPHRASE), "not a keystore")


def test_a_file_that_is_too_large_is_refused(path: Path) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(" " * 70_000)
    expect_refusal(lambda: read_keystore(path, PASSPHRASE), "larger")


def config(keystore: str = "account.json", passphrase: str = "account.pass") -> ChainConfig:
    return ChainConfig(("http://localhost",), 1, "0x" + "0" * 40, keystore=keystore, passphrase=passphrase)


def test_the_configured_account_is_loaded(path: Path, tmp_path: Path) -> None:
    private(tmp_path / "account.pass", PASSPHRASE + "\n")
    assert load_account(config(), NodeDirectory(tmp_path)).address == ADDRESS
    assert load_account(config(str(path), str(tmp_path / "account.pass")), NodeDirectory(Path("/"))).address == ADDRESS


def test_a_passphrase_file_that_cannot_be_used_is_refused(path: Path, tmp_path: Path) -> None:
    expect_refusal(lambda: load_account(config(), NodeDirectory(tmp_path)), "passphrase file", "account.pass")
    private(tmp_path / "account.pass", "\n")
    expect_refusal(lambda: load_account(config(), NodeDirectory(tmp_path)), "empty")
    private(tmp_path / "account.pass", "x" * 5000)
    expect_refusal(lambda: load_account(config(), NodeDirectory(tmp_path)), "larger")
    (tmp_path / "account.pass").write_bytes(b"\xff\xfe")
    expect_refusal(lambda: load_account(config(), NodeDirectory(tmp_path)), "UTF-8")
    private(tmp_path / "account.pass", f"\ufeff{PASSPHRASE}\n")  # as some editors begin a text
    assert load_account(config(), NodeDirectory(tmp_path)).address == ADDRESS
    private(tmp_path / "account.pass", PASSPHRASE).chmod(0o644)
    expect_refusal(lambda: load_account(config(), NodeDirectory(tmp_path)), "chmod 600")


def test_credentials_of_the_service_manager_are_taken(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd gives them to the service with modes of its own, in a directory that only it may enter."""
    kept = tmp_path / "credentials"
    kept.mkdir(mode=0o700)
    path.rename(kept / "key")
    private(kept / "pass", PASSPHRASE)
    for file in kept.iterdir():
        file.chmod(0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(kept))
    given = config("credential:key", "credential:pass")
    assert load_account(given, NodeDirectory(tmp_path)).address == ADDRESS
    expect_refusal(lambda: load_account(config("credential:none", "credential:pass"), NodeDirectory(tmp_path)), "none")
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    expect_refusal(lambda: load_account(given, NodeDirectory(tmp_path)), "LoadCredential=pass:FILE")


@pytest.mark.parametrize("name", ["", "../account.json", "a/b", ".", "..", "a\0b"])
def test_a_credential_is_a_plain_name(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "inner").mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "inner"))
    private(tmp_path / "account.pass", PASSPHRASE)
    expect_refusal(
        lambda: load_account(config(f"credential:{name}"), NodeDirectory(tmp_path)), "not the name of a credential"
    )


def test_a_random_passphrase_is_private_long_and_new(tmp_path: Path) -> None:
    made = create_passphrase(tmp_path / "a")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    assert len(made) >= 40 and made != create_passphrase(tmp_path / "b")
    assert load_passphrase("a", tmp_path) == made
    expect_refusal(lambda: create_passphrase(tmp_path / "a"), "exists already")


@pytest.mark.parametrize("module", ["swarmd.chain.endpoints", "swarmd.chain.keystore", "swarmd.chain.worker"])
def test_deep_nesting_is_an_error_and_does_not_end_the_process(module: str) -> None:
    """py_ecc lifts the limit on recursion that keeps JSON parsers from the end of the stack."""
    code = f"import {module}, eth_account, web3, msgspec; msgspec.json.decode(b'[' * 200_000)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, "RecursionError" in done.stderr) == (1, True)

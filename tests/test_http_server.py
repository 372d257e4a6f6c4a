"""What every server of swarmd asks of a token and of its address."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.errors import ConfigError
from swarmd.http_server import TOKEN_CHARS_MIN, Address, bears_token, check_listen, load_token


def kept(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize(
    "text", ["", "x" * (TOKEN_CHARS_MIN - 1), "two words of some length", "ümläute" * 4, "a\nb" * 9]
)
def test_a_token_that_is_short_or_no_plain_word_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"no token in {tmp_path}") as refused:
        load_token(kept(tmp_path / "token", text), tmp_path)
    assert not text or text not in str(refused.value)


def test_a_token_of_the_least_length_is_taken_without_the_end_of_its_line(tmp_path: Path) -> None:
    kept(tmp_path / "token", "x" * TOKEN_CHARS_MIN + "\n")
    assert load_token("token", tmp_path) == "x" * TOKEN_CHARS_MIN
    assert load_token("", tmp_path) == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_an_address_that_others_reach_needs_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match="asks for no token"):
        check_listen(Address(host, 1), "", "the page")
    check_listen(Address(host, 1), "x" * TOKEN_CHARS_MIN, "the page")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_an_address_of_this_machine_alone_needs_none(host: str) -> None:
    check_listen(Address(host, 1), "", "the page")
    assert bears_token("", "") and not bears_token("", "token") and not bears_token("Basic token", "token")

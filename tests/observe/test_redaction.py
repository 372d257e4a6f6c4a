"""Canary secrets never reach the log, and what is no secret stays readable."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
import structlog

from swarmd.observe.logs import configure
from swarmd.observe.redaction import REDACTED, redact_field, redact_text

CANARY = "C4n4ryC4n4ryC4n4ryC4n4ry"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    handlers = logging.getLogger().handlers[:]
    stream = io.StringIO()
    configure("debug", "json", stream)
    yield stream
    structlog.reset_defaults()
    logging.getLogger().handlers[:] = handlers


@pytest.mark.parametrize(
    "text",
    [
        f"token={CANARY}",
        f"HF_TOKEN: '{CANARY}'",
        f'{{"api_key": "{CANARY}"}}',
        f"password = {CANARY}",
        f"hf_{CANARY}",
        f"sk-{CANARY}",
        f"Authorization: Bearer {CANARY}",
        f"https://user:{CANARY}@host/path",
        f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----",
        f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}",
    ],
)
def test_secrets_in_free_text_are_covered(text: str, stream: io.StringIO) -> None:
    structlog.get_logger("x").info(f"before {text} after", detail={"deep": [text]})
    logging.getLogger("library").warning("said %s", text)
    assert CANARY not in stream.getvalue()
    assert REDACTED in stream.getvalue()


def test_keys_of_wallets_and_providers_are_covered() -> None:
    assert redact_text("key 0x" + "ab" * 32) == f"key {REDACTED}"
    assert redact_text("https://rpc.example/v3/" + "0a" * 16) == f"https://rpc.example/v3/{REDACTED}"


@pytest.mark.parametrize("name", ["private_key", "token", "clientSecret", "password", "HF_TOKEN", "mnemonic"])
def test_telling_names_hide_their_text(name: str) -> None:
    assert redact_field(name, CANARY) == REDACTED
    assert redact_field("outer", {name: CANARY, "plain": "seen"}) == {name: REDACTED, "plain": "seen"}


def test_what_is_no_secret_stays() -> None:
    assert redact_field("tokens_per_s", 120.5) == 120.5
    assert redact_field("tokens", 7) == 7
    assert redact_field("digest", "ab" * 32) == "ab" * 32
    assert redact_field("block_hash", "0x" + "ab" * 32) == "0x" + "ab" * 32
    assert redact_text("generated tokens: 1234567") == "generated tokens: 1234567"
    assert redact_text("12D3KooWBEyWMqJ3EbBrbsy5uyh9C1ZAouqvBwAEvU9ZTdceVdSU") != REDACTED


def test_lines_are_json_with_text_for_what_json_cannot_say(stream: io.StringIO) -> None:
    structlog.get_logger("part").warning("words", seq=3, value=float("nan"), inner=[float("inf")])
    line = json.loads(stream.getvalue())
    assert (line["level"], line["message"], line["logger"]) == ("warning", "words", "part")
    assert (line["seq"], line["value"], line["inner"]) == (3, "nan", ["inf"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", line["timestamp"])


def test_levels_are_heeded() -> None:
    stream = io.StringIO()
    configure("warning", "json", stream)
    structlog.get_logger("x").info("quiet")
    structlog.get_logger("x").error("loud")
    structlog.reset_defaults()
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["loud"]


def test_text_form_is_readable() -> None:
    stream = io.StringIO()
    configure("info", "text", stream)
    structlog.get_logger("part").info("words", seq=3, password=CANARY)
    structlog.reset_defaults()
    assert "words" in stream.getvalue() and "seq=3" in stream.getvalue()
    assert CANARY not in stream.getvalue()


def test_an_exception_is_logged_with_its_cause(stream: io.StringIO) -> None:
    try:
        raise ValueError("inner") from KeyError("cause")
    except ValueError:
        structlog.get_logger("x").exception("it broke")
    line = json.loads(stream.getvalue())
    assert "KeyError: 'cause'" in line["exception"] and "ValueError: inner" in line["exception"]

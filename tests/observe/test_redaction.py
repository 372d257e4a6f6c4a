"""Canary secrets never reach the log, and what is no secret stays readable."""

import inspect
import io
import json
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from swarmd.config import ChainConfig, Config, Section, SwarmConfig, find_struct_type
from swarmd.core.events import LinkUp, ModelPushed, WorkerExited
from swarmd.observe.logs import set_up_logging
from swarmd.observe.redaction import (
    REDACTED,
    Redactor,
    find_url_secrets,
    known_secrets,
    redact_field,
    redact_text,
    secret_locations,
    variables_withheld_from,
)

CANARY = "C4n4ryC4n4ryC4n4ryC4n4ry"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    handlers = logging.getLogger().handlers[:]
    stream = io.StringIO()
    set_up_logging("debug", "json", stream)
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
        f"authorization: bearer {CANARY}",
        f"'Authorization': 'Basic {CANARY}'",
        f"passphrase: {CANARY}",
        f"https://user:a@{CANARY}@host",
        f"https://host/v2/{CANARY}/rest, and more",
        f"('https://host:8545/{CANARY}', 8545)",
        f"https://host?a=1&b={CANARY}#end",
        f"wss://host/{CANARY[:8]}/{CANARY}",
        f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----",
        f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}",
    ],
)
def test_secrets_in_free_text_are_covered(text: str, stream: io.StringIO) -> None:
    structlog.get_logger("x").info(f"before {text} after", detail={"deep": [text]})
    logging.getLogger("library").warning("said %s", text)
    assert CANARY not in stream.getvalue()
    assert REDACTED in stream.getvalue()


HEX = "0x" + "ab" * 32
PUBLIC_HEX = (
    f"transaction {HEX} is on the chain",
    f"block 12 {HEX} has the parent {HEX}",
    f"key of the record, digest {HEX[2:]}",
    f"the blob /data/blobs/ab/{HEX[2:]} is missing",
    f"file:///data/blobs/{HEX[2:]}",
    HEX,
    HEX[2:],
)
KEY_HEX = (
    f"the secret b'{HEX}'",
    f"hash {'0x' + 'cd' * 32} was signed with the key {HEX}",
    f"{HEX} is not a valid private key",
    f"keys: [{HEX}, {HEX[2:]}]",
)


@pytest.mark.parametrize("text", PUBLIC_HEX)
def test_hashes_and_digests_stay(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize("text", KEY_HEX)
def test_keys_of_wallets_are_covered(text: str) -> None:
    covered = redact_text(text)
    assert HEX[2:] not in covered and REDACTED in covered


def test_of_an_address_scheme_host_and_words_stay() -> None:
    assert redact_text("https://rpc.example:1/v3/" + "0a" * 16) == f"https://rpc.example:1/v3/{REDACTED}"
    assert redact_text("https://me:word@rpc.example/v3?k=1") == f"https://{REDACTED}@rpc.example/v3?{REDACTED}"
    assert redact_text("at ws://rpc.example:8546/abc.") == f"at ws://rpc.example:8546/{REDACTED}"
    for plain in ("https://docs.example/long-words-that-say-it/page.html", "ws://127.0.0.1:8546", "a://b, me@c"):
        assert redact_text(plain) == plain


KEYS = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-", min_size=24, max_size=64).filter(
    lambda key: any(letter.isdigit() or letter.isupper() for letter in key)
)
PLACES = (
    "https://{}@h",
    "https://u:{}@h/p",
    "http://h/{}",
    "http://h/v3/{}/x",
    "https://h/?k={}",
    "ws://h/{}",
    "wss://h/#{}",
)


@given(
    KEYS, st.sampled_from(PLACES), st.sampled_from(("{}", "'{}'", "({}),", '{{"url":"{}"}}', "<{}>", "reached {}: 401"))
)
def test_no_key_in_an_address_is_ever_shown(key: str, place: str, around: str) -> None:
    assert key not in redact_text(around.format(place.format(key)))


@given(
    st.binary(min_size=32, max_size=32).map(bytes.hex),
    st.sampled_from(("0x", "")),
    st.sampled_from(("key", "private key", "secret", "Passphrase", "PRIVATE_KEY", "token", "mnemonic")),
    st.sampled_from((" {}", ": {}", "={}", " is {}", "\n{}", " [{}]", ' "{}"', " '{}' is wrong")),
    st.text("abcdefg .,\n", max_size=200),
)
def test_no_key_of_a_wallet_is_ever_shown(secret: str, sign: str, word: str, after: str, noise: str) -> None:
    told = f"{noise} {word}{after.format(sign + secret)} {noise}"
    assert secret not in redact_text(told)
    assert secret in redact_text(f"{noise} block {sign}{secret} {noise}")


def test_secrets_of_the_configuration_are_covered_wherever_they_stand() -> None:
    address = "https://me:pass.word@rpc.example/eth/k3y.of.mine?token=q.u.e.r.y"
    assert find_url_secrets(address) == ["pass.word", "k3y.of.mine", "q.u.e.r.y"]
    assert find_url_secrets("http://127.0.0.1:8545/mainnet") == []
    assert find_url_secrets("file:endpoints.txt") == []
    assert find_url_secrets("http://[broken") == ["http://[broken"]
    stream = io.StringIO()
    set_up_logging("info", "json", stream, find_url_secrets(address))
    structlog.get_logger("x").info("no path k3y.of.mine", deep={"a": ["pass.word"]}, other="mainnet")
    structlog.reset_defaults()
    line = json.loads(stream.getvalue())
    assert (line["message"], line["deep"], line["other"]) == (f"no path {REDACTED}", {"a": [REDACTED]}, "mainnet")


def test_a_password_is_one_though_it_is_a_word_and_so_is_what_a_query_calls_a_key() -> None:
    address = "https://me:correct-horse@rpc.example/mainnet?key=battery-staple&page=latest"
    assert find_url_secrets(address) == ["correct-horse", "battery-staple"]
    assert find_url_secrets("https://open-sesame@rpc.example/mainnet") == ["open-sesame"]


@pytest.mark.parametrize(
    "text", ["_-" * 2048, "a_" * 2048, "http://" + "-" * 4000, "token " * 700, "://" * 1400, ("ab" * 32 + " ") * 63]
)
def test_no_line_of_a_peer_or_worker_takes_long(text: str) -> None:
    """Some expressions take quadratic time: seconds, in which the daemon does nothing else."""
    began = time.process_time()
    redact_text(text)
    assert time.process_time() - began < 0.5


def test_a_cut_leaves_no_part_of_a_known_secret() -> None:
    cover = Redactor(["correct-horse-battery"])
    assert cover.cut("x" * 10 + "correct-horse-battery", 20) == "x" * 10 + REDACTED
    assert cover.cut("x" * 30, 20) == "x" * 20


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


def test_what_a_worker_says_goes_into_the_log_of_events_without_secrets() -> None:
    known = "plain-words-that-open-a-door"
    cover = Redactor([known]).redact_struct
    exit_ = WorkerExited("trainer", f"ended with status 1; last output:\ntoken={CANARY} and {known}", code=1)
    covered = cover(exit_)
    assert isinstance(covered, WorkerExited) and covered.code == 1
    assert CANARY not in covered.reason and known not in covered.reason and "ended with status 1" in covered.reason
    pushed = cover(ModelPushed(3, "a/b", error=f"401 for https://hub.example/{CANARY}?token={known}"))
    assert isinstance(pushed, ModelPushed) and CANARY not in pushed.error and known not in pushed.error
    up = cover(LinkUp(3, (f"/dns4/{known}/tcp/1", "/ip4/127.0.0.1/tcp/1")))
    assert up == LinkUp(3, (f"/dns4/{REDACTED}/tcp/1", "/ip4/127.0.0.1/tcp/1"))
    plain = LinkUp(3)
    assert cover(plain) is plain


SMELLS = re.compile(r"(?i)token|passw|passphrase|\bkey|keystore|secret|credential|webhook|mnemonic|\burls?\b|identity")
ADDRESS = re.compile(r"(?i)\burls?\b|https?|webhook")
INNOCENT = {
    "data": "a directory",
    "dht.peer": "a peer id",
    "training.completion_tokens": "a number",
    "training.prompt_tokens": "a number",
    "chain.sender": "a word",
}
LOCATED = "quagga-walks-by-Axolotl7-home"
BARE = Config(SwarmConfig(id="s"), chain=ChainConfig(rpc=(), chain_id=1, contract=f"0x{'1' * 40}"))


def fields_of(kind: type[Section], where: str = "") -> Iterator[tuple[str, str, type]]:
    """Each key with dots, the comment on its line and its type."""
    hints = get_type_hints(kind)
    source = inspect.getsource(kind)
    for field in msgspec.structs.fields(kind):
        inner = find_struct_type(hints[field.name])
        if inner is not None:
            if field.name != "tasks":
                yield from fields_of(inner, f"{where}{field.name}.")
            continue
        found = re.search(rf"^    {field.name}: .*?(?:#(.*))?$", source, re.M)
        assert found, field.name
        yield f"{where}{field.name}", found[1] or "", hints[field.name]


def suspicious() -> dict[str, bool]:
    """Keys that may hold or name a secret, and whether what they hold is an address."""
    found = {}
    for key, comment, kind in fields_of(Config):
        said = f"{key.replace('.', ' ')} {comment}".replace("_", " ")
        if key not in INNOCENT and SMELLS.search(said) and "str" in str(kind):
            found[key] = bool(ADDRESS.search(said))
    return found


def with_value(key: str, value: str) -> Config:
    """A configuration in which one key is set."""
    tables: dict[str, Any] = msgspec.to_builtins(BARE)
    *path, last = key.split(".")
    table = tables
    for name in path:
        table = table.setdefault(name, {})
    table[last] = [value] if key in ("chain.rpc", "notify.urls") else value
    return msgspec.convert(tables, Config)


def test_the_search_for_such_keys_finds_those_that_are_known() -> None:
    known = {"results.hub.token", "web.token", "notify.urls", "chain.rpc", "dht.identity"}
    assert known | {"chain.keystore", "chain.passphrase", "chain.proxy.token", "chain.proxy.url"} <= set(suspicious())
    assert {place.key for place in secret_locations(BARE)} <= set(suspicious())


@pytest.mark.parametrize("key", suspicious())
def test_what_a_suspicious_key_names_or_holds_is_known(key: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f'{{"ciphertext":"{LOCATED.encode().hex()}"}}' if key == "chain.keystore" else LOCATED)
    wanted = {LOCATED, LOCATED.encode().hex()}
    ways = [f"https://me:{LOCATED}@host/path", f"https://host/{LOCATED}"] if suspicious()[key] else [str(file)]
    if key in ("chain.rpc", "notify.urls"):
        ways.append(f"file:{file}")
    for way in ways:
        assert wanted & known_secrets(with_value(key, way), tmp_path, {}, signing=True), (
            f"{key} = {way!r} is no place of swarmd/observe/redaction.py; if it holds no secret, say so in INNOCENT"
        )


def test_a_secret_that_lies_open_is_known_all_the_more(tmp_path: Path) -> None:
    file = tmp_path / "urls"
    file.write_text(f"# ours\nhttps://rpc.example/{LOCATED}\n{LOCATED[::-1]}\n")
    file.chmod(0o644)
    (tmp_path / "link").symlink_to(file)
    for named in ("file:urls", "file:link"):
        assert {LOCATED, LOCATED[::-1]} <= known_secrets(with_value("chain.rpc", named), tmp_path, {})


def test_secrets_of_the_environment_are_known_without_a_configuration(tmp_path: Path) -> None:
    environ = {
        "HF_TOKEN": "token-of-the-hub",
        "MY_API_KEY": "k€y/1",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20push-word,x=other-word",
        "PIP_INDEX_URL": "https://me:index-word@pypi.example/simple",
        "TOKENIZERS_PARALLELISM": "parallel",
        "SSL_KEY": "/etc/ssl/key.pem",
        "HOME": "/srv/swarmd",
    }
    found = known_secrets(None, tmp_path, environ)
    assert found == {"token-of-the-hub", "push-word", "other-word", "index-word"}
    assert variables_withheld_from("network", environ) >= {"HF_TOKEN", "MY_API_KEY", "OTEL_EXPORTER_OTLP_HEADERS"}

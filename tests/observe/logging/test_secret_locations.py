"""No key of the configuration that may hold a secret is forgotten where secrets are covered and looked for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from swarmd.config import ChainConfig, Config, Section, SwarmConfig, section_of
from swarmd.observe.logging.redaction import known_secrets, secret_locations, withheld_from

SMELLS = re.compile(r"(?i)token|passw|passphrase|\bkey|keystore|secret|credential|webhook|mnemonic|\burls?\b|identity")
ADDRESS = re.compile(r"(?i)\burls?\b|https?|webhook")
INNOCENT = {
    "data": "a directory",
    "dht.peer": "a peer id",
    "training.completion_tokens": "a number",
    "training.prompt_tokens": "a number",
    "chain.sender": "a word",
}
CANARY = "quagga-walks-by-Axolotl7-home"
BARE = Config(SwarmConfig(id="s"), chain=ChainConfig(rpc=(), chain_id=1, contract=f"0x{'1' * 40}"))


def fields_of(kind: type[Section], where: str = "") -> Iterator[tuple[str, str, type]]:
    """Each key with dots, the comment on its line and its type."""
    hints = get_type_hints(kind)
    source = inspect.getsource(kind)
    for field in msgspec.structs.fields(kind):
        inner = section_of(hints[field.name])
        if isinstance(inner, type) and issubclass(inner, Section):
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
    file.write_text(f'{{"ciphertext":"{CANARY.encode().hex()}"}}' if key == "chain.keystore" else CANARY)
    wanted = {CANARY, CANARY.encode().hex()}
    ways = [f"https://me:{CANARY}@host/path", f"https://host/{CANARY}"] if suspicious()[key] else [str(file)]
    if key in ("chain.rpc", "notify.urls"):
        ways.append(f"file:{file}")
    for way in ways:
        assert wanted & known_secrets(with_value(key, way), tmp_path, {}, signing=True), (
            f"{key} = {way!r} is no place of swarmd/observe/logging/redaction.py; "
            "if it holds no secret, say so in INNOCENT"
        )


def test_a_secret_that_lies_open_is_known_all_the_more(tmp_path: Path) -> None:
    file = tmp_path / "urls"
    file.write_text(f"# ours\nhttps://rpc.example/{CANARY}\n{CANARY[::-1]}\n")
    file.chmod(0o644)
    (tmp_path / "link").symlink_to(file)
    for named in ("file:urls", "file:link"):
        assert {CANARY, CANARY[::-1]} <= known_secrets(with_value("chain.rpc", named), tmp_path, {})


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
    assert withheld_from("network", environ) >= {"HF_TOKEN", "MY_API_KEY", "OTEL_EXPORTER_OTLP_HEADERS"}

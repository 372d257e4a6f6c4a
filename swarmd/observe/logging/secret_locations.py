"""Every place where a node's configuration or environment holds a secret, and the secrets' texts as far as readable.

What is read here is only ever used to cover or to look for it; nothing is kept on disk.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import msgspec

from swarmd.config import Config
from swarmd.errors import SwarmdError
from swarmd.observe.logging.redaction import SECRET_CHARACTERS_MIN, address_secrets, service_secrets
from swarmd.secret_files import SecretKind, locate_secret

SECRET_BYTES_MAX = 64 * 1024
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
PUSH_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS")  # name=value, with commas between
SEED_BYTES = slice(4, 36)  # of the file of an Ed25519 identity, see swarmd.dht.identity.identity
ED25519_FILE_BYTES = 68

Part = Literal["network", "trainer", "chain", "web"]  # a process beside the daemon
Form = Literal["text", "addresses", "services", "keystore", "key"]

_ANY = SecretKind("secret", SwarmdError, SECRET_BYTES_MAX)
_SECRET_VARIABLE = re.compile(r"(?i)token(?!iz)|secret|passw|passphrase|mnemonic|(?:api|private|access)_?key|_key$")
_CIPHERTEXT = re.compile(r"\"ciphertext\"\s*:\s*\"(?:0x)?([0-9a-fA-F]{16,})\"")


class SecretLocation(NamedTuple):
    """One place: `key` of the configuration, and the file or credential that it names."""

    key: str
    named: str
    form: Form = "text"  # of the file: lines, URLs a line each, an encrypted key, a key in binary
    signs: bool = False  # it is, or opens, a key that signs


def secret_locations(config: Config) -> list[SecretLocation]:
    """The files and credentials that a configuration names for its secrets."""
    found = [
        SecretLocation("dht.identity", config.dht.identity, "key", signs=True),
        SecretLocation("results.hub.token", config.results.hub.token),
        SecretLocation("training.reference.token", config.training.reference.token),
        SecretLocation("web.token", config.web.token),
    ]
    found += [SecretLocation("notify.urls", _file_in(url), "services") for url in config.notify.urls]
    if config.chain is not None:
        found.append(SecretLocation("chain.proxy.token", config.chain.proxy.token))
        found.append(SecretLocation("chain.passphrase", config.chain.passphrase, signs=True))
        found.append(SecretLocation("chain.keystore", config.chain.keystore, "keystore", signs=True))
        found += [SecretLocation("chain.rpc", _file_in(url), "addresses") for url in config.chain.rpc]
    return [place for place in found if place.named]


def known_secrets(
    config: Config | None, root: Path, environ: Mapping[str, str] = os.environ, signing: bool = False
) -> frozenset[str]:
    """The texts of all secrets that this process can read: of files, of URLs in the configuration, of the environment.

    What cannot be read is left out: whoever needs it says what is wrong with it.

    Args:
        config: the node's; without it, only the environment is read.
        root: the data directory, which files are relative to.
        signing: the keys and the account's passphrase, too, which only those read who must cover what all others say.
    """
    places = secret_locations(config) if config is not None else ()
    of_files = [secrets_in(place, root) for place in places if signing or not place.signs]
    return secrets_outside_files(config, environ).union(*of_files)


def secrets_outside_files(config: Config | None, environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The texts of the secrets that stand in the configuration itself and in the environment; no file is read."""
    found = list(_texts_of_environment(environ))
    if config is not None:
        urls = _urls_in(msgspec.to_builtins(config))
        found += [text for key, url in urls for text in _secrets_of(key)(url)]
    return _all_spellings(found)


def secrets_in(place: SecretLocation, root: Path) -> frozenset[str]:
    """The texts of the secrets in one file; none where it cannot be read."""
    return _all_spellings(_texts(place, root))


def secret_values(config: Config) -> list[tuple[str, str]]:
    """(key, what of the value may be shown) of the URLs that hold a secret in the configuration itself."""
    urls = _urls_in(msgspec.to_builtins(config))
    return [(key, _shown(key, url)) for key, url in urls if _secrets_of(key)(url)]


def _secrets_of(key: str) -> Callable[[str], list[str]]:
    return service_secrets if key == "notify.urls" else address_secrets


def _shown(key: str, url: str) -> str:
    """Scheme, host and port; the scheme of what is not a URL, or one of Apprise's, with a token for a host."""
    if key == "notify.urls":
        return f"{url.partition(':')[0]}://"
    try:
        return f"{urlsplit(url).scheme}://{urlsplit(url).netloc.rpartition('@')[2]}"
    except ValueError:
        return url.partition(":")[0]


def withheld_from(part: Part, environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Names of the variables that hold, or may hold, a secret which is no business of this part of a node."""
    secret = {name for name in environ if _SECRET_VARIABLE.search(name)}
    withheld: dict[Part, set[str]] = {
        "network": {*secret, *PROXIES, *PUSH_HEADERS},
        "trainer": {*PUSH_HEADERS},  # it fetches models, pushes them and tells trackers
        "chain": {*secret, *PUSH_HEADERS},
        "web": secret,
    }
    return frozenset(withheld[part])


def _texts_of_environment(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        if name in PUSH_HEADERS:
            yield from (unquote(pair.partition("=")[2]).split(" ")[-1] for pair in value.split(","))
        elif name in PROXIES or "://" in value:
            yield from address_secrets(value)
        elif _SECRET_VARIABLE.search(name) and not value.startswith("/"):  # a path names a secret and is none
            yield value


def _urls_in(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every URL in a configuration, with its key, but that of the block explorer, which is for all to see."""
    if isinstance(value, str) and "://" in value:
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _urls_in(inner, f"{key}.{name}".lstrip(".")) if name != "explorer" else ()
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _urls_in(inner, key)


def _all_spellings(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(spelt for text in texts if len(text) >= SECRET_CHARACTERS_MIN for spelt in _spellings(text))


def _spellings(text: str) -> Iterator[str]:
    """The ways in which libraries write a text: as it is, in a URL, in JSON."""
    yield from {text, unquote(text), quote(text), quote(text, safe=""), json.dumps(text)[1:-1]}


def _texts(place: SecretLocation, root: Path) -> Iterator[str]:
    with contextlib.suppress(SwarmdError, OSError, UnicodeDecodeError):
        content = _read(locate_secret(place.named, root, _ANY).path)
        if place.form == "key":
            yield from _texts_of_key(content)
        elif place.form == "keystore":
            yield from _CIPHERTEXT.findall(content.decode())
        else:
            for line in filter(None, map(str.strip, content.decode().splitlines())):
                is_url = place.form in ("addresses", "services") and "://" in line
                yield from _secrets_of(place.key)(line) if is_url else (line,)


def _texts_of_key(content: bytes) -> Iterator[str]:
    secrets = [content, content[SEED_BYTES]] if len(content) == ED25519_FILE_BYTES else [content]
    for secret in secrets:
        yield from (secret.hex(), base64.b64encode(secret).decode())


def _read(path: Path) -> bytes:
    """Whoever may read the file: a secret that lies open is to be covered all the more."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(SECRET_BYTES_MAX) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""


def _file_in(url: str) -> str:
    """What a URL's place names instead of holding it: file:PATH, credential:NAME."""
    if url.startswith("credential:"):
        return url
    return url.removeprefix("file:") if url.startswith("file:") and not url.startswith("file://") else ""

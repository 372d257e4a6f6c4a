"""Keeps secrets out of logs and pages: by the name of a field, by the look of its text, and by known texts.

Every place where a node's configuration or environment holds a secret is listed here. The secrets read from there are
used only to redact or find them, and are not kept on disk.

Hashes and digests look like a wallet's private key, and must stay readable: 64 hex digits are redacted only if the
words around them speak of a key.
"""

import base64
import contextlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import reduce
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit

import msgspec

from swarmd.config import Config
from swarmd.errors import SwarmdError
from swarmd.secret_files import SecretKind, locate_secret

REDACTED = "[redacted]"
DEPTH_MAX = 6  # deeper structures are replaced as a whole
BEFORE_CHARACTERS = 64  # text searched before 64 hex digits for a word that says what they are
AFTER_CHARACTERS = 40  # the same after them
PART_CHARACTERS_MIN = 4  # shortest beginning of a secret that is redacted at a cut
SECRET_CHARACTERS_MIN = 6  # a shorter part of an address is not a secret, and would match in many words

_SECRET_NAME = re.compile(r"key|token|secret|passw|passphrase|credential|mnemonic|authorization|cookie", re.IGNORECASE)

_SECRET_TEXTS = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\b(?:hf|sk|ghp|gho|glpat|xox[bap])[_-][A-Za-z0-9_-]{16,}"),
    re.compile(
        r"(?i)(?:api[_-]?key|private[_-]?key|secret|password|passwd|passphrase|mnemonic|token)[\"']?\s*[=:]\s*[\"']?(?!\s)([^\s\"',;}]{6,})"
    ),
)
_BEARER = re.compile(r"(?i)(\b(?:bearer|authorization[\"']?\s*[:=]\s*[\"']?[a-z]+)\s+)[A-Za-z0-9._~+/=-]{8,}")
_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,15}://)([^\s/?#<>\"]*)([^\s\"<>]*)")
_PATH_PART = re.compile(r"[A-Za-z0-9_=-]{16,}")
_PLAIN_WORDS = re.compile(r"[a-z]{1,20}(?:[_-][a-z]{1,20})*")

_HOST = re.compile(r"(localhost|[a-zA-Z0-9-]+(\.[a-zA-Z0-9-]+)+)?(:\d+)?")  # a host name or address, or nothing

_HEX = re.compile(r"(?<![0-9A-Za-z])(?:0[xX])?[0-9a-fA-F]{64}(?![0-9A-Za-z])")
_SAYS_WHAT = re.compile(
    r"(?i)(?P<key>private|secret|key|pass(?:phrase|word|wd)|token(?!iz)|mnemonic|credential)"
    r"|hash|digest|sha-?256|checksum|block|transaction|\btx|blob|topic|root"
)
_IS_A_KEY = re.compile(r"(?i)private|secret|\bkey|passphrase|mnemonic")

_WORDS_OF_WORKERS = ("reason", "error", "what", "note")  # fields that quote a process or a library
_TEXTS_OF_WORKERS = (  # fields of texts that workers make themselves
    "addresses",
    "name",
    "device",
    "model",
    "numbers",
    "other_weights",
    "repo",
    "url",
)

S = TypeVar("S", bound=msgspec.Struct)
Processor = Callable[[Any, str, MutableMapping[str, Any]], MutableMapping[str, Any]]


class Redactor:
    """Redacts what looks like a secret, and the secrets that are known by their text."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._known = sorted(set(secrets), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        return redact_text(self.redact_known(text))

    def redact_known(self, value: Any) -> Any:
        """Redact only known secrets in a value of texts, dicts and lists."""
        if isinstance(value, str):
            return reduce(lambda text, secret: text.replace(secret, REDACTED), self._known, value)
        if isinstance(value, dict):
            return {self.redact_known(key): self.redact_known(inner) for key, inner in value.items()}
        return [self.redact_known(inner) for inner in value] if isinstance(value, list | tuple) else value

    def cut(self, text: str, characters_max: int) -> str:
        """Cut a text to a length, and redact the beginning of a known secret if the cut leaves one at its end."""
        text = text[:characters_max]
        for secret in self._known:
            for size in range(min(len(secret) - 1, len(text)), PART_CHARACTERS_MIN - 1, -1):
                if text.endswith(secret[:size]):
                    return text[:-size] + REDACTED
        return text

    def redact_struct(self, struct: S) -> S:
        """Redact the fields of a Struct that quote processes and libraries. Fields that the node works with, such as
        ids, stay."""
        told = {name: getattr(struct, name, None) for name in (*_WORDS_OF_WORKERS, *_TEXTS_OF_WORKERS)}
        covered = {name: self._redact_field_text(name, text) for name, text in told.items() if text}
        changed = {name: text for name, text in covered.items() if text != told[name]}
        return msgspec.structs.replace(struct, **changed) if changed else struct

    def _redact_field_text(self, name: str, text: Any) -> Any:
        if name in _WORDS_OF_WORKERS:
            return self(text)
        return tuple(self.redact_known(text)) if isinstance(text, tuple) else self.redact_known(text)


def make_redacting_processor(secrets: Iterable[str] = ()) -> Processor:
    """A structlog processor that redacts secrets; `secrets` are those known by their text."""
    cover = Redactor(secrets)

    def redact(logger: Any, method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for name in list(fields):
            fields[name] = cover.redact_known(redact_field(name, cover.redact_known(fields[name])))
        return fields

    return redact


def find_url_secrets(address: str) -> list[str]:
    """The parts of a URL that may be secret: its password, and parts of path and query that are not plain words."""
    if "://" not in address:
        return []
    try:
        parts = urlsplit(address)
    except ValueError:  # not a URL, but perhaps a secret
        return [address]
    user, colon, password = parts.netloc.rpartition("@")[0].partition(":")
    found = [password if colon else user]  # the user or password, whatever it looks like
    found += [part for part in parts.path.split("/") if not _PLAIN_WORDS.fullmatch(part)]
    for part in (*parts.query.split("&"), *parts.fragment.split("&")):
        name, _, text = part.rpartition("=")
        if _SECRET_NAME.search(name) or not _PLAIN_WORDS.fullmatch(text):
            found.append(text)
    return [part for part in found if len(part) >= SECRET_CHARACTERS_MIN]


def find_service_secrets(url: str) -> list[str]:
    """The parts of an Apprise URL that may be secret: those of any URL, and its host, which is often a token."""
    host = urlsplit(url).netloc.rpartition("@")[2] if "[" not in url else ""
    parts = [host, *host.split(":")] if not _HOST.fullmatch(host) else []
    return find_url_secrets(url) + [part for part in parts if len(part) >= SECRET_CHARACTERS_MIN]


def redact_field(name: str, value: Any, depth: int = 0) -> Any:
    """A value without secrets. Text under a secret's name is redacted entirely; numbers (a count of tokens) stay."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth > DEPTH_MAX or _SECRET_NAME.search(name):
        return REDACTED
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, bytes):
        return f"({len(value)} bytes)"
    if isinstance(value, dict):
        return {str(key): redact_field(str(key), inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact_field(name, inner, depth + 1) for inner in value]
    return redact_text(str(value))


def redact_text(text: str) -> str:
    """Redact what looks like a secret in free text."""
    for pattern in _SECRET_TEXTS:
        text = pattern.sub(_redact_match, text)
    text = _BEARER.sub(lambda match: match[1] + REDACTED, text)
    return _redact_hex_keys(_URL.sub(_redact_url, text))


def _redact_match(match: re.Match[str]) -> str:
    """Redact the secret group, or the whole match if there is no group."""
    if not match.re.groups:
        return REDACTED
    whole, secret = match[0], match[1]
    return whole if secret.isdigit() else whole[: len(whole) - len(secret)] + REDACTED


def _redact_url(match: re.Match[str]) -> str:
    """Redact user, query, and path parts that are not words; a websocket URL keeps only host and port."""
    scheme, place, rest = match.groups()
    user, at, host = place.rpartition("@")
    shown = scheme + (REDACTED + at if user else at) + host
    if scheme.lower() in ("ws://", "wss://"):
        return shown + (f"/{REDACTED}" if rest.strip("/.,;:)]'") else rest)
    if scheme.lower() == "file://":
        return shown + rest
    marked = re.search(r"[?#]", rest)
    path, query = (rest[: marked.start()], marked[0] + REDACTED) if marked else (rest, "")
    return shown + _PATH_PART.sub(lambda part: part[0] if _PLAIN_WORDS.fullmatch(part[0]) else REDACTED, path) + query


def _redact_hex_keys(text: str) -> str:
    """Redact 64 hex digits that the words around them call a key."""
    pieces, at, is_key = [], 0, None
    for match in _HEX.finditer(text):
        is_key = _is_key(text, at, match, is_key)
        pieces += [text[at : match.start()], REDACTED if is_key else match[0]]
        at = match.end()
    return "".join([*pieces, text[at:]])


def _is_key(text: str, at: int, match: re.Match[str], before: bool | None) -> bool | None:
    """Decide by the nearest word before; else as for the previous digits (which end at `at`); else by a word after."""
    said = list(_SAYS_WHAT.finditer(text, max(at, match.start() - BEFORE_CHARACTERS), match.start()))
    if said:
        return said[-1]["key"] is not None
    if before is not None and match.start() - at <= BEFORE_CHARACTERS:
        return before
    return True if _IS_A_KEY.search(text, match.end(), match.end() + AFTER_CHARACTERS) else None


# --- where secrets are ---

SECRET_BYTES_MAX = 64 * 1024
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
PUSH_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS")  # name=value, with commas between
SEED_BYTES = slice(4, 36)  # in the file of an Ed25519 identity, see swarmd.dht.identity.identity
ED25519_FILE_BYTES = 68

Part = Literal["network", "trainer", "chain", "web"]  # a process besides the daemon
Form = Literal["text", "addresses", "services", "keystore", "key"]

_ANY = SecretKind("secret", SwarmdError, SECRET_BYTES_MAX)
_SECRET_VARIABLE = re.compile(r"(?i)token(?!iz)|secret|passw|passphrase|mnemonic|(?:api|private|access)_?key|_key$")
_CIPHERTEXT = re.compile(r"\"ciphertext\"\s*:\s*\"(?:0x)?([0-9a-fA-F]{16,})\"")


class SecretLocation(NamedTuple):
    """A file or credential that holds a secret, and `key`, the configuration key that names it."""

    key: str
    named: str
    form: Form = "text"  # format of the file: lines, a URL per line, an encrypted key, a binary key
    signs: bool = False  # it is a signing key, or decrypts one


def secret_locations(config: Config) -> list[SecretLocation]:
    """The files and credentials that a configuration names for its secrets."""
    found = [
        SecretLocation("dht.identity", config.dht.identity, "key", signs=True),
        SecretLocation("results.hub.token", config.results.hub.token),
        SecretLocation("training.reference.token", config.training.reference.token),
        SecretLocation("web.token", config.web.token),
    ]
    found += [SecretLocation("notify.urls", _secret_file_in_url(url), "services") for url in config.notify.urls]
    found.append(SecretLocation("notify.heartbeat_url", _secret_file_in_url(config.notify.heartbeat_url), "addresses"))
    if config.chain is not None:
        found.append(SecretLocation("chain.proxy.token", config.chain.proxy.token))
        found.append(SecretLocation("chain.passphrase", config.chain.passphrase, signs=True))
        found.append(SecretLocation("chain.keystore", config.chain.keystore, "keystore", signs=True))
        found += [SecretLocation("chain.rpc", _secret_file_in_url(url), "addresses") for url in config.chain.rpc]
    return [place for place in found if place.named]


def known_secrets(
    config: Config | None, root: Path, environ: Mapping[str, str] = os.environ, signing: bool = False
) -> frozenset[str]:
    """The texts of all secrets that this process can read, from files, URLs in the configuration, and the environment.

    What cannot be read is left out: the part that needs it reports the error.

    Args:
        config: the node's; without it, only the environment is read.
        root: the data directory, which files are relative to.
        signing: whether to include signing keys and the account's passphrase, to redact other processes' output.
    """
    places = secret_locations(config) if config is not None else ()
    of_files = [secrets_in(place, root) for place in places if signing or not place.signs]
    return secrets_outside_files(config, environ).union(*of_files)


def secrets_outside_files(config: Config | None, environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The texts of the secrets in the configuration itself and in the environment; no file is read."""
    found = list(_find_environment_secrets(environ))
    if config is not None:
        urls = _find_urls(msgspec.to_builtins(config))
        found += [text for key, url in urls for text in _secret_finder_for(key)(url)]
    return _all_spellings(found)


def secrets_in(place: SecretLocation, root: Path) -> frozenset[str]:
    """The texts of the secrets in one file; none if it cannot be read."""
    return _all_spellings(_read_secret_texts(place, root))


def list_secret_urls(config: Config) -> list[tuple[str, str]]:
    """(key, the part that may be shown) of each URL in the configuration that holds a secret."""
    urls = _find_urls(msgspec.to_builtins(config))
    return [(key, _shown_url_part(key, url)) for key, url in urls if _secret_finder_for(key)(url)]


def _secret_finder_for(key: str) -> Callable[[str], list[str]]:
    return find_service_secrets if key == "notify.urls" else find_url_secrets


def _shown_url_part(key: str, url: str) -> str:
    """Scheme, host and port of a URL; only the scheme if it is Apprise's, whose host is often a token, or not valid."""
    if key == "notify.urls":
        return f"{url.partition(':')[0]}://"
    try:
        return f"{urlsplit(url).scheme}://{urlsplit(url).netloc.rpartition('@')[2]}"
    except ValueError:
        return url.partition(":")[0]


def variables_withheld_from(part: Part, environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Names of environment variables that may hold a secret and that this process does not need."""
    secret = {name for name in environ if _SECRET_VARIABLE.search(name)}
    withheld: dict[Part, set[str]] = {
        "network": {*secret, *PROXIES, *PUSH_HEADERS},
        "trainer": {*PUSH_HEADERS},  # it needs tokens for models and trackers
        "chain": {*secret, *PUSH_HEADERS},
        "web": secret,
    }
    return frozenset(withheld[part])


def _find_environment_secrets(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        if name in PUSH_HEADERS:
            yield from (unquote(pair.partition("=")[2]).split(" ")[-1] for pair in value.split(","))
        elif name in PROXIES or "://" in value:
            yield from find_url_secrets(value)
        elif _SECRET_VARIABLE.search(name) and not value.startswith("/"):  # a path is not a secret
            yield value


def _find_urls(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Each URL in a configuration, with its key."""
    if isinstance(value, str) and "://" in value:
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _find_urls(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _find_urls(inner, key)


def _all_spellings(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(spelt for text in texts if len(text) >= SECRET_CHARACTERS_MIN for spelt in _spellings(text))


def _spellings(text: str) -> Iterator[str]:
    """The forms in which libraries may write a text: as it is, in a URL, in JSON."""
    yield from {text, unquote(text), quote(text), quote(text, safe=""), json.dumps(text)[1:-1]}


def _read_secret_texts(place: SecretLocation, root: Path) -> Iterator[str]:
    with contextlib.suppress(SwarmdError, OSError, UnicodeDecodeError):
        content = _read_any_mode(locate_secret(place.named, root, _ANY).path)
        if place.form == "key":
            yield from _key_spellings(content)
        elif place.form == "keystore":
            yield from _CIPHERTEXT.findall(content.decode())
        else:
            for line in filter(None, map(str.strip, content.decode("utf-8-sig").splitlines())):
                is_url = place.form in ("addresses", "services") and "://" in line
                yield from _secret_finder_for(place.key)(line) if is_url else (line,)


def _key_spellings(content: bytes) -> Iterator[str]:
    secrets = [content, content[SEED_BYTES]] if len(content) == ED25519_FILE_BYTES else [content]
    for secret in secrets:
        yield from (secret.hex(), base64.b64encode(secret).decode())


def _read_any_mode(path: Path) -> bytes:
    """Read a file whatever its mode, because a world-readable secret needs redacting even more."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(SECRET_BYTES_MAX) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""


def _secret_file_in_url(url: str) -> str:
    """The file or credential that a `file:PATH` or `credential:NAME` names; empty for a real URL."""
    if url.startswith("credential:"):
        return url
    return url.removeprefix("file:") if url.startswith("file:") and not url.startswith("file://") else ""

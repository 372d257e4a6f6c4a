"""Keeping secrets out of the log: by the name of a field, and by the look of its text.

Hashes and digests look like a wallet's private key, and are needed: 64 hex digits are covered where the words around
them speak of a key, and stay elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, MutableMapping
from functools import reduce
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

REDACTED = "[redacted]"
DEPTH_MAX = 6  # deeper structures are replaced as a whole
BEFORE_CHARACTERS = 64  # of text before 64 hex digits in which a word says what they are
AFTER_CHARACTERS = 40  # and after them
PART_CHARACTERS_MIN = 4  # of a secret's front that counts as a part of it
SECRET_CHARACTERS_MIN = 6  # a shorter part of an address is no secret, and would stand in many words

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

_HOST = re.compile(r"(localhost|[a-zA-Z0-9-]+(\.[a-zA-Z0-9-]+)+)?(:\d+)?")  # a name, an address, or none

_HEX = re.compile(r"(?<![0-9A-Za-z])(?:0[xX])?[0-9a-fA-F]{64}(?![0-9A-Za-z])")
_SAYS_WHAT = re.compile(
    r"(?i)(?P<key>private|secret|key|pass(?:phrase|word|wd)|token(?!iz)|mnemonic|credential)"
    r"|hash|digest|sha-?256|checksum|block|transaction|\btx|blob|topic|root"
)
_IS_A_KEY = re.compile(r"(?i)private|secret|\bkey|passphrase|mnemonic")

_WORDS_OF_WORKERS = ("reason", "error", "what", "note")  # fields that hold what a process or a library said
_TEXTS_OF_WORKERS = ("addresses", "name", "device", "model", "numbers", "repo", "url")  # and what they made themselves

S = TypeVar("S", bound=msgspec.Struct)
Processor = Callable[[Any, str, MutableMapping[str, Any]], MutableMapping[str, Any]]


class Redactor:
    """Gives texts without what is known to be a secret, or looks like one.

    Args:
        secrets: those known by their text.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._known = sorted(set(secrets), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        return redact_text(self.hide(text))

    def hide(self, value: Any) -> Any:
        """A value of texts, dicts and lists without the known secrets; what only looks like one stays."""
        if isinstance(value, str):
            return reduce(lambda text, secret: text.replace(secret, REDACTED), self._known, value)
        if isinstance(value, dict):
            return {self.hide(key): self.hide(inner) for key, inner in value.items()}
        return [self.hide(inner) for inner in value] if isinstance(value, list | tuple) else value

    def cut(self, text: str, characters_max: int) -> str:
        """A text cut to a length, without the front part of a known secret that the cut may leave at its end."""
        text = text[:characters_max]
        for secret in self._known:
            for size in range(min(len(secret) - 1, len(text)), PART_CHARACTERS_MIN - 1, -1):
                if text.endswith(secret[:size]):
                    return text[:-size] + REDACTED
        return text

    def within(self, struct: S) -> S:
        """A Struct covered in what a process or a library said. What the node works by, ids above all, stays."""
        told = {name: getattr(struct, name, None) for name in (*_WORDS_OF_WORKERS, *_TEXTS_OF_WORKERS)}
        covered = {name: self._covered(name, text) for name, text in told.items() if text}
        changed = {name: text for name, text in covered.items() if text != told[name]}
        return msgspec.structs.replace(struct, **changed) if changed else struct

    def _covered(self, name: str, text: Any) -> Any:
        if name in _WORDS_OF_WORKERS:
            return self(text)
        return tuple(self.hide(text)) if isinstance(text, tuple) else self.hide(text)


def redacting(secrets: Iterable[str] = ()) -> Processor:
    """A structlog processor that gives the line without its secrets; `secrets` are those known by their text."""
    cover = Redactor(secrets)

    def redact(logger: Any, method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for name in list(fields):
            fields[name] = cover.hide(redact_field(name, cover.hide(fields[name])))
        return fields

    return redact


def address_secrets(address: str) -> list[str]:
    """What a provider may have hidden in a URL: its password, and what in path and query is no plain word."""
    if "://" not in address:
        return []
    try:
        parts = urlsplit(address)
    except ValueError:  # no address, but perhaps a secret
        return [address]
    user, colon, password = parts.netloc.rpartition("@")[0].partition(":")
    found = [password if colon else user]  # whatever it looks like
    found += [part for part in parts.path.split("/") if not _PLAIN_WORDS.fullmatch(part)]
    for part in (*parts.query.split("&"), *parts.fragment.split("&")):
        name, _, text = part.rpartition("=")
        if _SECRET_NAME.search(name) or not _PLAIN_WORDS.fullmatch(text):
            found.append(text)
    return [part for part in found if len(part) >= SECRET_CHARACTERS_MIN]


def service_secrets(url: str) -> list[str]:
    """What an Apprise URL may hide: as any address, and what stands in the place of a host, often a token."""
    host = urlsplit(url).netloc.rpartition("@")[2] if "[" not in url else ""
    parts = [host, *host.split(":")] if not _HOST.fullmatch(host) else []
    return address_secrets(url) + [part for part in parts if len(part) >= SECRET_CHARACTERS_MIN]


def redact_field(name: str, value: Any, depth: int = 0) -> Any:
    """A value without secrets. Text under a telling name goes as a whole; numbers (a count of tokens) stay."""
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
    """Free text without what looks like a secret."""
    for pattern in _SECRET_TEXTS:
        text = pattern.sub(_cover, text)
    text = _BEARER.sub(lambda match: match[1] + REDACTED, text)
    return _without_keys(_URL.sub(_cover_address, text))


def _cover(match: re.Match[str]) -> str:
    """Cover the secret group, or the whole match when there is none."""
    if not match.re.groups:
        return REDACTED
    whole, secret = match[0], match[1]
    return whole if secret.isdigit() else whole[: len(whole) - len(secret)] + REDACTED


def _cover_address(match: re.Match[str]) -> str:
    """An address without user, query, and what in its path is no word; of a websocket, host and port alone."""
    scheme, place, rest = match.groups()
    user, at, host = place.rpartition("@")
    shown = scheme + (REDACTED + at if user else at) + host
    if scheme.lower() in ("ws://", "wss://"):
        return shown + (f"/{REDACTED}" if rest.strip("/.,;:)]'") else rest)
    if scheme.lower() == "file://":
        return shown + rest
    marked = re.search(r"[?#]", rest)
    path, query = (rest[: marked.start()], marked[0] + REDACTED) if marked else (rest, "")
    return shown + _PATH_PART.sub(_cover_part, path) + query


def _cover_part(match: re.Match[str]) -> str:
    return match[0] if _PLAIN_WORDS.fullmatch(match[0]) else REDACTED


def _without_keys(text: str) -> str:
    """Cover 64 hex digits that the words around them call a key."""
    pieces, at, is_key = [], 0, None
    for match in _HEX.finditer(text):
        is_key = _is_key(text, at, match, is_key)
        pieces += [text[at : match.start()], REDACTED if is_key else match[0]]
        at = match.end()
    return "".join([*pieces, text[at:]])


def _is_key(text: str, at: int, match: re.Match[str], before: bool | None) -> bool | None:
    """The nearest word before decides; else what the digits close before were, which end `at`; else a word after."""
    said = list(_SAYS_WHAT.finditer(text, max(at, match.start() - BEFORE_CHARACTERS), match.start()))
    if said:
        return said[-1]["key"] is not None
    if before is not None and match.start() - at <= BEFORE_CHARACTERS:
        return before
    return True if _IS_A_KEY.search(text, match.end(), match.end() + AFTER_CHARACTERS) else None

"""Keeping secrets out of the log: by the name of a field, and by the look of its text."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any

REDACTED = "[redacted]"
DEPTH_MAX = 6  # deeper structures are replaced as a whole

_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|mnemonic|authorization|cookie", re.IGNORECASE)
_HASH_NAME = re.compile(r"hash|digest|block|transaction|^tx", re.IGNORECASE)

_SECRET_TEXTS = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\b(?:hf|sk|ghp|gho|glpat|xox[bap])[_-][A-Za-z0-9_-]{16,}"),
    re.compile(r"(?<=\bBearer )[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),  # user:password@host
    re.compile(r"(?<=/)[0-9a-f]{32,}(?=[/?\s\"']|$)"),  # a provider's key in the path of an RPC address
    re.compile(
        r"(?i)(?<![A-Za-z])(?:[A-Za-z_-]*(?:api[_-]?key|private[_-]?key|secret|password|passwd|mnemonic|access[_-]?token"
        r"|auth[_-]?token|_token|token))[\"']?\s*[=:]\s*[\"']?(?!\s)([^\s\"',;}]{6,})"
    ),
)
_PRIVATE_KEY = re.compile(r"\b0x[0-9a-fA-F]{64}\b")  # of a wallet; looks like a transaction hash


def redact(logger: Any, method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """structlog processor: the line without its secrets."""
    for name in list(fields):
        fields[name] = redact_field(name, fields[name])
    return fields


def redact_field(name: str, value: Any, depth: int = 0) -> Any:
    """A value without secrets. Text under a telling name goes as a whole; numbers (a count of tokens) stay."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth > DEPTH_MAX or _SECRET_NAME.search(name):
        return REDACTED
    if isinstance(value, str):
        return redact_text(value, hashes_allowed=bool(_HASH_NAME.search(name)))
    if isinstance(value, bytes):
        return f"({len(value)} bytes)"
    if isinstance(value, dict):
        return {str(key): redact_field(str(key), inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact_field(name, inner, depth + 1) for inner in value]
    return redact_text(str(value))


def redact_text(text: str, hashes_allowed: bool = False) -> str:
    """Free text without what looks like a secret."""
    for pattern in _SECRET_TEXTS:
        text = pattern.sub(_cover, text)
    return text if hashes_allowed else _PRIVATE_KEY.sub(REDACTED, text)


def _cover(match: re.Match[str]) -> str:
    """Cover the secret group, or the whole match when there is none."""
    if not match.re.groups:
        return REDACTED
    whole, secret = match[0], match[1]
    return whole if secret.isdigit() else whole[: len(whole) - len(secret)] + REDACTED

"""URLs of endpoints: where they stand, and what of them may be shown. The rest is often somebody's key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from swarmd.errors import ConfigError
from swarmd.http_server import is_loopback
from swarmd.regular_files import read_start
from swarmd.secret_files import CREDENTIAL, SecretKind, locate_secret

ENDPOINTS_MAX = 32
FILE_BYTES_MAX = 64 * 1024  # of a file of URLs
URLS = SecretKind("file of chain.rpc's URLs", ConfigError, FILE_BYTES_MAX)
SECRET_CHARS_MIN = 6  # shorter parts of a URL are words that any message may have


def read_urls(entries: Sequence[str], root: Path) -> list[str]:
    """The URLs of chain.rpc, with those of its files and credentials; a path is relative to `root`, the data directory.

    Raises:
        ConfigError: a file cannot be read, there is no endpoint, too many, or one is no URL.
    """
    urls = [url for entry in entries for url in _urls_of(entry, root)]
    if not 0 < len(urls) <= ENDPOINTS_MAX:
        raise ConfigError(f"chain.rpc names {len(urls)} endpoints; 1 to {ENDPOINTS_MAX} are possible")
    for url in urls:
        check_url(url)
    return list(dict.fromkeys(urls))


def _urls_of(entry: str, root: Path) -> list[str]:
    if not entry.startswith(("file:", CREDENTIAL)):
        return [entry]
    path = locate_secret(entry.removeprefix("file:"), root, URLS).path
    try:
        lines = [line.strip() for line in read_start(path, FILE_BYTES_MAX).decode().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"chain.rpc: the file {path} cannot be read: {reason}", "One URL a line") from None
    return [line for line in lines if line and not line.startswith("#")]


def check_url(url: str) -> None:
    """Raise ConfigError unless it is a whole URL of a known scheme; the message shows no secret."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https", "ws", "wss") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(
            f"chain.rpc: one of the endpoints, of {len(url)} characters, is no URL of a node",  # it may be a bare key
            "Write it as https://host/path, http://host:port or wss://host/path",
        )


def name_of(url: str) -> str:
    """scheme://host:port, which is all of a URL that may be shown."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port}" if parts.port else f"{parts.scheme}://{host}"


def proxy_for(url: str) -> str | None:
    """The proxy that HTTP_PROXY or HTTPS_PROXY name for an endpoint; None where none is meant, and for this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or proxy_bypass(host):
        return None
    return getproxies().get(parts.scheme)


def secrets_of(url: str) -> tuple[str, ...]:
    """The parts of a URL that no message may have, longest first."""
    parts = urlsplit(url)
    pieces = {url, parts.path, parts.query, parts.username or "", parts.password or "", *parts.path.split("/")}
    pieces |= {value for pair in parts.query.split("&") for value in pair.split("=")}
    return tuple(sorted((piece for piece in pieces if len(piece) >= SECRET_CHARS_MIN), key=len, reverse=True))

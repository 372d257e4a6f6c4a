"""Settings shared by all HTTP servers: the listening address, who may reach it, the bearer token."""

import asyncio
import hmac
import ipaddress
import re
import signal
from pathlib import Path
from typing import NamedTuple

from swarmd.errors import ConfigError, ExitCode
from swarmd.secret_files import SecretKind, locate_secret, read_secret

NETWORK_BITS = 64  # prefix length by which IPv6 clients are counted: one customer has at least a /64
UNKNOWN = "?"
PAGE_PORT = 8800  # default port of a node's page
TOKEN_CHARS_MIN = 16
TOKEN = SecretKind("token file", ConfigError, 4096, "Write a random token into it: `openssl rand -hex 32`, mode 0600")


class Address(NamedTuple):
    host: str
    port: int


def parse_listen(text: str, port: int, key: str = "--listen") -> Address:
    """Parse HOST:PORT, given under `key`. Raises ConfigError; its example uses `port`."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\s]+)):(\d{1,5})", text)
    if found is not None and int(found[3]) > 65535:
        raise ConfigError(
            f"{key} {text!r} is not HOST:PORT: ports end at 65535",
            f"Write it like this: {found[0].removesuffix(found[3])}{port}",
        )
    if found is None:
        raise ConfigError(f"{key} {text!r} is not HOST:PORT", f"Write it like this: 127.0.0.1:{port} or [::1]:{port}")
    return Address(found[1] or found[2], int(found[3]))


def check_listen(address: Address, token: str, what: str, option: str = "--token-file FILE") -> None:
    """Raise ConfigError if other machines could reach `what` without a token; `option` is how to set one."""
    if not is_loopback(address.host) and not token:
        raise ConfigError(
            f"{what} would listen on {address.host}, where others can reach it, and asks for no token",
            f"Give {option}, or listen on 127.0.0.1",
        )


def is_loopback(host: str) -> bool:
    """Whether the host is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_ip_or_localhost(host: str) -> bool:
    """Whether a Host header gives an IP address or localhost, with or without a port.

    An attacker's host name can be made to resolve to this server (DNS rebinding), whose pages could then read it.
    """
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]]+))(?::\d{1,5})?", host)
    if found is None:
        return False
    name = found[1] or found[2]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower().removesuffix(".") == "localhost"
    return True


def load_token(named: str, root: Path, kind: SecretKind = TOKEN, chars_min: int = TOKEN_CHARS_MIN) -> str:
    """Read the bearer token from a file, relative to `root`, or `credential:NAME`; empty if `named` is empty.

    Args:
        chars_min: 1 for a token that another service issued.

    Raises `kind.error` if it cannot be read, others may read it, it is too short, or it is not plain text.
    """
    if not named:
        return ""
    secret = locate_secret(named, root, kind)
    token = read_secret(secret, kind).decode("utf-8-sig", "replace").strip()
    if len(token) < chars_min or not re.fullmatch(r"[!-~]+", token):
        long = f"One of {chars_min} or more letters and digits, on one line"
        fix = long if chars_min > 1 else "Write it there, on one line and nothing else"
        raise kind.error(f"there is no token in {secret.path}", fix).with_exit_code(ExitCode.BAD_DATA)
    return token


def bears_token(authorization: str, token: str) -> bool:
    """Whether an Authorization header carries the token; with an empty token everyone is admitted."""
    if not token:
        return True
    scheme, _, given = authorization.partition(" ")
    right = hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode())
    return scheme.lower() == "bearer" and right


def client_network_of(host: str) -> str:
    """The client's IPv4 address or IPv6 /64 network, for limits per client."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host or UNKNOWN
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), NETWORK_BITS), strict=False))


def stop_signal_future() -> asyncio.Future[None]:
    """A future that is done at the first SIGTERM or SIGINT; a second signal has its default effect."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[None] = loop.create_future()

    def set_stopped() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        stopped.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, set_stopped)
    return stopped

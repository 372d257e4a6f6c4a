"""The signer as a process: what it is given, checked; its parts put together; its orderly end."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from eth_account.signers.local import LocalAccount

from swarmd.chain.audit import AuditLog, Line, now
from swarmd.chain.keystore import load_account
from swarmd.chain.ledger import Ledger
from swarmd.chain.rpc import Rpc
from swarmd.chain.signer import Signer
from swarmd.chain.signer_http import Access, Door, listening
from swarmd.chain.urls import read_urls
from swarmd.chain.wallet import Wallet
from swarmd.config import ChainConfig
from swarmd.errors import ChainError, ConfigError, KeystoreError, PathUnusable
from swarmd.paths import DataPaths
from swarmd.private import Kind, locate_secret, read_secret

TOKEN_CHARS_MIN = 16
TOKEN = Kind("token file", KeystoreError, 4096, "Write a random token into it: `openssl rand -hex 32`, mode 0600")

log = logging.getLogger(__name__)


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int


class Order(NamedTuple):
    """What a signer is to do."""

    chain: ChainConfig
    data: DataPaths  # that relative files of `chain` lie in
    listen: Address
    access: Access
    audit: Path


def parse_listen(text: str) -> Address:
    """HOST:PORT. Raises ConfigError."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\s]+)):(\d{1,5})", text)
    if found is None or int(found[3]) > 65535:
        raise ConfigError(f"--listen {text!r} is no HOST:PORT", "For example 127.0.0.1:3000 or [::1]:3000")
    return Address(found[1] or found[2], int(found[3]))


def check_listen(address: Address, token: str) -> None:
    """Raise ConfigError where strangers could have things signed."""
    if not is_loopback(address.host) and not token:
        raise ConfigError(
            f"the signer would listen on {address.host}, where others can reach it, and asks for no token",
            "Give --token-file FILE, or listen on 127.0.0.1",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def load_token(named: str, root: Path) -> str:
    """The bearer token in a file; empty where none is named.

    Raises:
        KeystoreError: it cannot be read, others may read it, or it is too short or no plain text.
    """
    if not named:
        return ""
    secret = locate_secret(named, root, TOKEN)
    token = read_secret(secret, TOKEN).decode("ascii", "replace").strip()
    if len(token) < TOKEN_CHARS_MIN or not re.fullmatch(r"[!-~]+", token):
        raise KeystoreError(
            f"there is no token in {secret.path}", f"One of {TOKEN_CHARS_MIN} or more letters and digits, on one line"
        )
    return token


async def run_signer(order: Order) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        KeystoreError, ConfigError, ChainMismatch: it does not start.
        LogInUse, LogDamaged, LogWriteFailed: the audit log cannot be used, or not any more.
    """
    check_listen(order.listen, order.access.token)
    urls = read_urls(order.chain.rpc, order.data.root)
    account = load_account(order.chain, order.data)
    rpc = Rpc(urls, order.chain.chain_id, order.chain.call_s)
    try:
        async with _opened(order, rpc, account) as (signer, audit):
            await _check(signer)
            await _serve(order, signer, audit)
    finally:
        await rpc.close()


@asynccontextmanager
async def _opened(order: Order, rpc: Rpc, account: LocalAccount) -> AsyncIterator[tuple[Signer, AuditLog]]:
    if not order.audit.parent.is_dir():
        fix = f"Make it first: `mkdir -m 700 -p {order.audit.parent}`"
        raise PathUnusable(f"there is no directory {order.audit.parent} for the audit log", fix)
    ledger = Ledger()
    audit = AuditLog(order.audit, ledger.carried)
    try:
        for line in audit.lines:
            if line.account and line.account != account.address:
                raise KeystoreError(
                    f"the audit log {order.audit} is of the account {line.account}, the key is of {account.address}",
                    "Give each account an audit log of its own with --audit",
                )
            ledger.take(line)
        audit.lines.clear()
        yield Signer(order.chain, rpc, lambda caller: Wallet(order.chain, caller, account), audit, ledger), audit
    finally:
        audit.close()


async def _check(signer: Signer) -> None:
    """Refuse another chain or contract; while no endpoint answers, requests are answered that it is so."""
    try:
        await signer.check()
    except ChainError as error:
        log.warning("nothing can be signed yet: %s", error)


async def _serve(order: Order, signer: Signer, audit: AuditLog) -> None:
    door = Door(signer, order.access)
    stopped = _on_signals()
    async with listening(door.app(), *order.listen) as url:
        audit.append(Line(now(), "started", account=signer.account))
        log.info("listening on %s for %s", url, signer.account)
        following = asyncio.create_task(signer.run())
        ends: set[asyncio.Future[Any]] = {following, door.broken, stopped}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        log.info("stopping")
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    if door.broken.done():
        raise door.broken.result()
    audit.append(Line(now(), "stopped", account=signer.account))


def _on_signals() -> asyncio.Future[None]:
    """Done at the first SIGTERM or SIGINT; the second one has its usual effect."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        stopped.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    return stopped

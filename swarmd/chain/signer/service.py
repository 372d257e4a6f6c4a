"""The signer as a process: what it is given, checked; its parts put together; its orderly end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from eth_account.signers.local import LocalAccount

from swarmd import http_server
from swarmd.chain.endpoints.rpc import Rpc
from swarmd.chain.endpoints.urls import read_urls
from swarmd.chain.keystore import load_account
from swarmd.chain.signer.audit import AuditLine, AuditLog, now
from swarmd.chain.signer.budget import Budget
from swarmd.chain.signer.http import STOP_S, Access, SignerApp
from swarmd.chain.signer.ledger import SignerLedger
from swarmd.chain.signer.signer import Signer
from swarmd.chain.submitting.attempts import DYNAMIC_FEE
from swarmd.chain.submitting.wallet import wallet_of
from swarmd.config import ChainConfig
from swarmd.errors import ChainError, KeystoreDamaged, KeystoreError, PathUnusable
from swarmd.paths import DataPaths, quoted
from swarmd.uvicorn_server import listening

TOKEN = http_server.TOKEN._replace(error=KeystoreError)

log = logging.getLogger(__name__)


class SignerSetup(NamedTuple):
    """What a signer is to do."""

    chain: ChainConfig
    data: DataPaths  # that relative files of `chain` lie in
    listen: http_server.Address
    access: Access
    audit: Path


def load_token(named: str, root: Path) -> str:
    """The bearer token in a file, as `swarmd.http_server.load_token` reads it. Raises KeystoreError."""
    return http_server.load_token(named, root, TOKEN)


async def run_signer(order: SignerSetup) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        KeystoreError, ConfigError, ChainMismatch: it does not start.
        LogInUse, LogDamaged, LogWriteFailed: the audit log cannot be used, or not any more.
    """
    http_server.check_listen(order.listen, order.access.token, "the signer")
    urls = read_urls(order.chain.rpc, order.data.root)
    account = load_account(order.chain, order.data)
    rpc = Rpc(urls, order.chain.chain_id, order.chain.call_s)
    rpc.has_base_fee = not order.chain.fees.legacy
    try:
        async with _opened(order, rpc, account) as (signer, audit):
            await _check(signer)
            await _serve(order, signer, audit)
    finally:
        await rpc.close()


@asynccontextmanager
async def _opened(order: SignerSetup, rpc: Rpc, account: LocalAccount) -> AsyncIterator[tuple[Signer, AuditLog]]:
    if not order.audit.parent.is_dir():
        fix = f"Make it first: `mkdir -m 700 -p {quoted(order.audit.parent)}`"
        raise PathUnusable(f"there is no directory {order.audit.parent} for the audit log", fix)
    ledger = SignerLedger()
    audit = AuditLog(order.audit, ledger.carried)
    try:
        for line in audit.lines:
            if line.account and line.account != account.address:
                raise KeystoreDamaged(
                    f"the audit log {order.audit} is of the account {line.account}, the key is of {account.address}",
                    "Give each account an audit log of its own with --audit",
                )
            ledger.apply(line)
            rpc.has_base_fee |= line.raw.startswith(f"0x{DYNAMIC_FEE:02x}")
        audit.lines.clear()
        budget = Budget(order.chain.fees)
        budget.restore(*ledger.spent)
        yield (
            Signer(order.chain, rpc, lambda caller: wallet_of(order.chain, caller, account, budget), audit, ledger),
            audit,
        )
    finally:
        audit.close()


async def _check(signer: Signer) -> None:
    """Refuse another chain or contract; while no endpoint answers, requests are answered that it is so."""
    try:
        await signer.check()
    except ChainError as error:
        log.warning("nothing can be signed yet: %s", error)


async def _serve(order: SignerSetup, signer: Signer, audit: AuditLog) -> None:
    door = SignerApp(signer, order.access)
    stopped = http_server.on_signals()
    async with listening(door.app(), order.listen, STOP_S) as url:
        audit.append(AuditLine(now(), "started", account=signer.account))
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
    audit.append(AuditLine(now(), "stopped", account=signer.account))

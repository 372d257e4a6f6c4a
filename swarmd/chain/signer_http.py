"""The signer's HTTP server, with the interface of RL Swarm's login server: it validates requests for the signer."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from eth_account.signers.local import LocalAccount
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from swarmd import errors, http_server, uvicorn_server
from swarmd.bounds import DECODE_ERRORS, RateLimiter
from swarmd.chain.contract import advice_for_error
from swarmd.chain.endpoints import RpcPool, read_endpoint_urls
from swarmd.chain.keystore import load_account
from swarmd.chain.senders import DYNAMIC_FEE, NAMES
from swarmd.chain.signer import AuditLine, AuditLog, Signer, SignerLedger, SignerRequest, current_timestamp
from swarmd.config import ChainConfig
from swarmd.http_server import bears_token
from swarmd.logger import get_logger
from swarmd.paths import NodeDirectory, quote_for_shell

BODY_BYTES_MAX = 64 * 1024
BODY_S = 5.0  # timeout for a request's body
REQUESTS_MAX = 64  # concurrent requests
STOP_S = 20.0  # longest time that running requests get when the server stops
MINUTE_S = 60.0

WINNERS_MAX = 100
PLACE_MAX = 2**31 - 1  # highest round or stage
REWARD_MAX = 2**63 - 1
Place = Annotated[int, msgspec.Meta(ge=0, le=PLACE_MAX)]
Reward = Annotated[int, msgspec.Meta(ge=-REWARD_MAX, le=REWARD_MAX)]
PEER = re.compile(r"^[0-9A-Za-z._-]{1,128}\Z")
Peer = Annotated[str, msgspec.Meta(pattern=PEER.pattern)]

log = get_logger(__name__)


class SignerRequestBody(msgspec.Struct, rename="camel"):
    """Fields of every request. Unknown fields are ignored."""

    org_id: str
    peer_id: Peer


class RegisterBody(SignerRequestBody):
    def to_request(self) -> SignerRequest:
        return SignerRequest("register", self.peer_id)


class RewardBody(SignerRequestBody, kw_only=True):
    round_number: Place
    stage_number: Place
    reward: Reward

    def to_request(self) -> SignerRequest:
        return SignerRequest("reward", self.peer_id, self.round_number, self.stage_number, self.reward)


class WinnerBody(SignerRequestBody, kw_only=True):
    round_number: Place
    winners: Annotated[tuple[Peer, ...], msgspec.Meta(max_length=WINNERS_MAX)]

    def to_request(self) -> SignerRequest:
        return SignerRequest("winners", self.peer_id, self.round_number, winners=self.winners)


AnyBody = RegisterBody | RewardBody | WinnerBody


class AccessRules(NamedTuple):
    """Who may request what."""

    orgs: frozenset[str]
    token: str = ""  # empty: none is required
    peers: frozenset[str] = frozenset()  # empty: all
    per_minute: int = 0  # requests; 0: without a limit


class SignerApp:
    """The signer's HTTP application: validates requests and passes them to the signer."""

    def __init__(self, signer: Signer, access: AccessRules) -> None:
        self._signer = signer
        self._access = access
        self._under_way = 0
        self._rate = RateLimiter(access.per_minute, access.per_minute / MINUTE_S)
        self.broken: asyncio.Future[errors.LogWriteFailed] = asyncio.get_running_loop().create_future()

    def make_asgi_app(self) -> ASGIApp:
        """Return the ASGI application. A request counts against its minute when it is admitted."""
        routes = [
            Route("/api/register-peer", partial(self._handle_submit, RegisterBody), methods=["POST"]),
            Route("/api/submit-reward", partial(self._handle_submit, RewardBody), methods=["POST"]),
            Route("/api/submit-winner", partial(self._handle_submit, WinnerBody), methods=["POST"]),
            Route(uvicorn_server.HEALTH, self._handle_health),
        ]
        return uvicorn_server.make_json_app(routes, self._check_token, int(MINUTE_S))

    # --- routes ---

    async def _handle_submit(self, kind: type[AnyBody], request: Request) -> Response:
        if self._access.per_minute and not self._rate.try_charge():
            raise uvicorn_server.HttpRefusal(429, "too many requests")
        if self._under_way >= REQUESTS_MAX:
            raise uvicorn_server.HttpRefusal(500, "busy", original=f"{REQUESTS_MAX} requests are under way")
        self._under_way += 1
        try:
            body = await self._read_body(request, kind)
            if body.org_id not in self._access.orgs:
                raise uvicorn_server.HttpRefusal(404, "user not found")
            if self._access.peers and body.peer_id not in self._access.peers:
                raise uvicorn_server.HttpRefusal(403, "this peer is not served here")
            asked = body.to_request()._replace(org=body.org_id, remote=uvicorn_server.remote_of(request))
            return uvicorn_server.json_response(200, {"hash": await self._submit_to_signer(asked)})
        finally:
            self._under_way -= 1

    async def _submit_to_signer(self, asked: SignerRequest) -> str:
        """Return the transaction's hash. Raises HttpRefusal."""
        try:
            return await self._signer.submit(asked)
        except errors.ContractRefused as error:
            if error.code in NAMES:
                words = [f"Error: {error.code}()", advice_for_error(error.code)]
                status = 400 if asked.kind == "register" else 500
                raise uvicorn_server.HttpRefusal(status, error.code, metaMessages=words) from None
            raise uvicorn_server.HttpRefusal(500, "the contract refused it", original=error.message) from None
        except (errors.ChainError, errors.ChainMismatch) as error:
            raise uvicorn_server.HttpRefusal(500, error.message, original=type(error).__name__) from None
        except errors.LogWriteFailed as error:
            if not self.broken.done():
                self.broken.set_result(error)
            raise uvicorn_server.HttpRefusal(500, "the audit log cannot be written", original=error.message) from None

    async def _handle_health(self, request: Request) -> Response:
        trouble = self._signer.trouble
        told = {"status": "degraded" if trouble else "ok"}
        if self._signer.budget.is_nearly_spent:
            told["budget"] = "nearly spent"
        return uvicorn_server.json_response(503 if trouble else 200, told)

    def _check_token(self, request: Request) -> None:
        if "origin" in request.headers:  # a page in a browser, which could reach loopback
            raise uvicorn_server.HttpRefusal(403, "not for browsers")
        if not bears_token(request.headers.get("authorization", ""), self._access.token):
            raise uvicorn_server.HttpRefusal(401, "unauthorized")

    async def _read_body(self, request: Request, kind: type[AnyBody]) -> AnyBody:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise _bad_request("the content type is not application/json")
        content = await uvicorn_server.read_body(request, BODY_BYTES_MAX, BODY_S)
        try:
            return msgspec.json.decode(content, type=kind, strict=False)  # JavaScript clients may write 5 as "5"
        except msgspec.ValidationError as error:
            raise _bad_request(str(error)[:200]) from None
        except (*DECODE_ERRORS, ValueError):
            raise _bad_request("the body is not JSON") from None


def _bad_request(why: str) -> uvicorn_server.HttpRefusal:
    return uvicorn_server.HttpRefusal(400, "bad request", original=why)


TOKEN = http_server.TOKEN._replace(error=errors.KeystoreError)


class SignerSetup(NamedTuple):
    chain: ChainConfig
    data: NodeDirectory  # relative paths in `chain` are relative to it
    listen: http_server.Address
    access: AccessRules
    audit: Path


async def run_signer(order: SignerSetup) -> None:
    """Serve until SIGTERM or SIGINT. Raises KeystoreError, ConfigError, ChainMismatch: it cannot start; LogInUse,
    LogDamaged, LogWriteFailed: the audit log cannot be used."""
    http_server.check_listen(order.listen, order.access.token, "the signer")
    urls = read_endpoint_urls(order.chain.rpc, order.data.root)
    account = load_account(order.chain, order.data)
    rpc = RpcPool(urls, order.chain.chain_id)
    rpc.has_base_fee = not order.chain.fees.legacy
    try:
        async with _open_signer(order, rpc, account) as (signer, audit):
            try:
                await signer.check_chain()  # raises for another chain or contract
            except errors.ChainError as error:  # until an endpoint answers, requests are refused with this error
                log.warning("nothing can be signed yet: %s", error)
            await _serve_until_signal(order, signer, audit)
    finally:
        await rpc.close()


@asynccontextmanager
async def _open_signer(
    order: SignerSetup, rpc: RpcPool, account: LocalAccount
) -> AsyncIterator[tuple[Signer, AuditLog]]:
    if not order.audit.parent.is_dir():
        fix = f"Make it first: `mkdir -m 700 -p {quote_for_shell(order.audit.parent)}`"
        raise errors.PathUnusable(f"there is no directory {order.audit.parent} for the audit log", fix)
    ledger = SignerLedger()
    audit = AuditLog(order.audit, ledger.lines_for_new_file)
    try:
        for line in audit.lines:
            if line.account and line.account != account.address:
                raise errors.KeystoreDamaged(
                    f"the audit log {order.audit} is of the account {line.account}, the key is of {account.address}",
                    "Give each account an audit log of its own with --audit",
                )
            ledger.apply_line(line)
            rpc.has_base_fee |= line.raw.startswith(f"0x{DYNAMIC_FEE:02x}")
        audit.lines.clear()
        yield Signer(order.chain, rpc, account, audit, ledger), audit
    finally:
        audit.close()


async def _serve_until_signal(order: SignerSetup, signer: Signer, audit: AuditLog) -> None:
    app = SignerApp(signer, order.access)
    stopped = http_server.stop_signal_future()
    async with uvicorn_server.serve_in_background(app.make_asgi_app(), order.listen, STOP_S) as url:
        audit.append(AuditLine(current_timestamp(), "started", account=signer.account))
        log.info("listening on %s for %s", url, signer.account)
        following = asyncio.create_task(signer.run())
        ends: set[asyncio.Future[Any]] = {following, app.broken, stopped}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        log.info("stopping")
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    if app.broken.done():
        raise app.broken.result()
    audit.append(AuditLine(current_timestamp(), "stopped", account=signer.account))

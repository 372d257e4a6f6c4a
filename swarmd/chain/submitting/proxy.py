"""A sender through a signer proxy: RL Swarm's login server, `swarmd signer`, or whatever speaks their HTTP interface.

The proxy holds the key and says what it sent, but not what became of it: only the chain tells. So an attempt is nothing
but the note that a request may have been made.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from swarmd.chain.contract import ERRORS, advice, refusal_of
from swarmd.chain.endpoints.endpoint import name_of
from swarmd.chain.endpoints.rpc import RpcCaller
from swarmd.chain.ethereum import Ethereum
from swarmd.chain.submitting.sender import Fate, Mined, call_of
from swarmd.config import ChainConfig
from swarmd.core.commands import Submit
from swarmd.core.values import Prepared, SubmissionKind
from swarmd.errors import ConfigError, ContractRefused, EndpointFailed, ExitCode, KeystoreError, RpcRefused, SignerError
from swarmd.http_client import read_start
from swarmd.paths import NodeDirectory
from swarmd.secret_files import SecretKind, locate_secret, read_secret

CALL_S = 10.0  # a call of the proxy ends within this
ANSWER_BYTES_MAX = 64 * 1024  # more of a proxy's answer is not read
HASH_CHARS_MAX = 128
REASON_CHARS_MAX = 200
TOKEN_BYTES_MAX = 4096
METHODS: dict[SubmissionKind, str] = {
    "register": "register-peer",
    "reward": "submit-reward",
    "winners": "submit-winner",
}
NAMES = frozenset(ERRORS.values())
HINTS = {
    400: "it does not understand the request: is chain.proxy.org right?",
    401: "it wants another bearer token: check chain.proxy.token",
    403: "it does not allow this node: check chain.proxy.token and its allow-list",
    404: "it knows no such user or path: check chain.proxy.org and chain.proxy.url, and log in there",
    413: "the request is too long for it",
    429: "it wants to be asked less often",
}


TOKEN = SecretKind("signer proxy's bearer token", KeystoreError, TOKEN_BYTES_MAX, "Ask the proxy's operator for one")


def open_proxy(config: ChainConfig, data: NodeDirectory, caller: RpcCaller) -> Proxy:
    """The configured proxy.

    Raises:
        ConfigError: its URL is none that can be asked.
        KeystoreError: its token cannot be read.
    """
    _check_url(config.proxy.url)
    return Proxy(config, caller, read_token(config.proxy.token, data.root))


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.username is not None or parts.query:
        raise ConfigError(
            "chain.proxy.url is no plain URL of a signer proxy",
            "Write it as http://host:port/api; a token has its own key",
        )


def read_token(named: str, root: Path) -> str:
    """The bearer token in a file relative to `root`, or in `credential:NAME`; empty where none is named.

    Raises:
        KeystoreError: it cannot be read, others may read it, or it is no token.
    """
    if not named:
        return ""
    secret = locate_secret(named, root, TOKEN)
    token = read_secret(secret, TOKEN).strip()
    if not token or not all(0x21 <= byte < 0x7F for byte in token):
        raise KeystoreError(
            f"there is no bearer token in {secret.path}", "Write it there, on one line and nothing else"
        ).ending(ExitCode.BAD_DATA)
    return token.decode("ascii")


class Proxy:
    """See `swarmd.chain.submitting.sender.Sender`.

    Args:
        config: the proxy's URL, and the organisation that it knows the account under.
        caller: of the chain.
        token: bearer token, empty for none.
    """

    repeatable = False
    budget = None  # the signer's

    def __init__(self, config: ChainConfig, caller: RpcCaller, token: str = "") -> None:
        self._config = config
        self._chain = Ethereum(caller)
        self._url = config.proxy.url.rstrip("/")
        self._name = name_of(self._url)
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    @property
    def account(self) -> str:
        """As configured: the proxy does not say it."""
        return self._config.proxy.account

    async def prepare(self, peer: str, command: Submit, attempts: Sequence[Prepared]) -> Prepared | None:
        """Note that a request is about to be made. Where the account is known, the contract is asked first."""
        if command.kind not in METHODS:
            raise ContractRefused(
                "not-offered", f"a signer proxy does not offer to {command.kind}", 'Set drive = "never"'
            )
        if self.account:
            await self._rehearse(peer, command)
        return Prepared()

    async def _rehearse(self, peer: str, command: Submit) -> None:
        content = call_of(command, peer, "never")
        try:
            await self._chain.call(self._config.contract, content, self.account)
        except RpcRefused as refused:
            raise refusal_of(refused, command.kind) or refused from None

    async def withdraw(self, attempts: Sequence[Prepared]) -> Prepared | None:
        """What was asked for cannot be taken back."""
        return None

    async def trace(self, attempts: Sequence[Prepared]) -> Fate:
        """Always "waiting": a proxy does not report its transactions."""
        return "waiting"

    async def is_known(self, prepared: Prepared) -> bool:
        """Always false: a proxy does not report its transactions."""
        return False

    async def explain(self, peer: str, command: Submit, mined: Mined) -> None:
        """There are no transactions of ours to explain."""

    async def send(self, peer: str, command: Submit, prepared: Prepared) -> str | None:
        """Make the request, see `Sender`; gives the hash that the proxy answers with, empty where it names none."""
        status, answer = await self._post(METHODS[command.kind], self._body(peer, command))
        said = _parsed(answer)
        if status == 200 and isinstance(said, dict):
            return _printable(str(said.get("hash") or ""), HASH_CHARS_MAX)
        error = str(said.get("error", "") if isinstance(said, dict) else "")
        if error in NAMES:
            raise ContractRefused(error, f"the contract refused it to the signer proxy: {error}", advice(error))
        raise self._failure(status, error)

    def _body(self, peer: str, command: Submit) -> dict[str, Any]:
        body: dict[str, Any] = {"orgId": self._config.proxy.org}
        if command.kind == "reward":
            body |= {"roundNumber": command.round, "stageNumber": command.stage, "reward": command.reward}
        elif command.kind == "winners":
            body |= {"roundNumber": command.round, "winners": list(command.winners)}
        return body | {"peerId": peer}

    async def _post(self, method: str, body: dict[str, Any]) -> tuple[int, bytes]:
        content = json.dumps(body).encode()
        patience = aiohttp.ClientTimeout(total=CALL_S)
        url = f"{self._url}/{method}"
        try:
            async with (
                aiohttp.ClientSession(timeout=patience) as session,
                session.post(url, data=content, headers=self._headers, allow_redirects=False) as answer,
            ):
                return answer.status, await read_start(answer.content, ANSWER_BYTES_MAX)
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL):
            raise SignerError(f"the signer proxy {self._name} cannot be reached: is it running?") from None
        except TimeoutError:
            raise EndpointFailed(f"the signer proxy {self._name} did not answer within {CALL_S:g} s") from None
        except aiohttp.ClientError as error:
            raise EndpointFailed(f"the signer proxy {self._name} broke off ({type(error).__name__})") from None

    def _failure(self, status: int, error: str) -> SignerError | EndpointFailed:
        """From 500 on, and for an answer that makes no sense, the submission may be on its way all the same."""
        words = _printable(error, REASON_CHARS_MAX)
        said = f" ({words})" if words else ""
        if 300 <= status < 500:
            hint = HINTS.get(status, "it did not do as asked: check chain.proxy.url")
            return SignerError(f"the signer proxy {self._name} answered {status}{said}; {hint}", status, words)
        return EndpointFailed(f"the signer proxy {self._name} answered {status}{said} and may have submitted or not")


def _printable(text: str, most: int) -> str:
    """As it may stand on a terminal, and in the log, which holds no halves of a character."""
    return "".join(each for each in text[:most] if each.isprintable())


def _parsed(answer: bytes) -> Any:
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        return None

"""What the signer's tests stand on: the signer as a process, and a client that speaks as RL Swarm's nodes do."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import requests
from eth_account import Account
from eth_utils.crypto import keccak

from swarmd.chain.endpoints import RpcPool
from swarmd.chain.keystore import import_key
from swarmd.chain.signer import AuditLog, Signer, SignerLedger
from swarmd.config import FeesConfig
from tests.chain.grounds import CHAIN_ID, Ground
from tests.forked import ForkedStreams, fork

KEY = keccak(text="the signer's key").hex()
ADDRESS = str(Account.from_key(KEY).address)
PASSPHRASE = "canary passphrase of the signer"
TOKEN = "canary-token-0123456789abcdef"
ORG = "7d0c1b1e-2f6a-4d3f-8f43-5b1d0a3f2a11"
SECRETS = (KEY, PASSPHRASE, TOKEN, "secret-key")  # the last is in the URL of a Middleman
RICH_WEI = 10**21
START_S = 60.0
STOP_S = 60.0
WORK = 2**10
IMPORTED = (
    "swarmd.cli.servers",
    "swarmd.chain.signer_http",
    "swarmd.observe.logs",
    "swarmd.daemon.process",
)


def fund(ground: Ground) -> None:
    ground.say("anvil_setBalance", ADDRESS, hex(RICH_WEI))


def account_files(home: Path) -> None:
    """Keystore, passphrase and token, made once."""
    if not (home / "account.json").exists():
        import_key(home / "account.json", KEY, PASSPHRASE, WORK)
        for name, content in (("account.pass", PASSPHRASE), ("token", TOKEN)):
            (home / name).write_text(content + "\n", encoding="utf-8")
            (home / name).chmod(0o600)


def options(ground: Ground, rpc: str = "", **changed: str) -> list[str]:
    given = {
        "rpc": rpc or ground.url,
        "chain-id": str(CHAIN_ID),
        "contract": ground.contract,
        "account": "account.json",
        "passphrase-file": "account.pass",
        "listen": "127.0.0.1:0",
        "org": ORG,
        "audit": "audit.jsonl",
    }
    given |= {name.replace("_", "-"): value for name, value in changed.items()}
    return [part for name, value in given.items() if value for part in (f"--{name}", value)]


OWNER = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"


def told(ground: Ground, kind: type) -> list[Any]:
    return [entry for entries in ground.logs().values() for entry in entries if isinstance(entry, kind)]


def sent(ground: Ground) -> int:
    """Transactions of the account that blocks have."""
    return int(ground.say("eth_getTransactionCount", ADDRESS, "latest"), 16)


def by_hand(ground: Ground) -> None:
    """Blocks come only when asked for."""
    ground.say("evm_setAutomine", False)


def take_nonce(ground: Ground, nonce: int) -> None:
    """Another program that has the key outbids whatever waits with this nonce, and is mined."""
    transfer = {"nonce": nonce, "gas": 21000, "gasPrice": 10**11, "to": OWNER, "value": 1, "chainId": CHAIN_ID}
    raw = Account.from_key(KEY).sign_transaction(transfer).raw_transaction
    ground.say("eth_sendRawTransaction", "0x" + raw.hex())
    ground.mine()


class Running:
    """A signer's process."""

    def __init__(self, process: asyncio.subprocess.Process | ForkedStreams, home: Path) -> None:
        self.process = process
        self.home = home
        self.url = ""
        self.said: list[str] = []
        self._listening = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.said.append(line.decode())
            if "listening on" in self.said[-1]:
                self.url = json.loads(self.said[-1])["message"].split()[2]
                self._listening.set()
        self._listening.set()

    async def listens(self) -> None:
        with anyio.fail_after(START_S):
            await self._listening.wait()
        assert self.url, self.said

    async def ended(self) -> int:
        with anyio.fail_after(STOP_S):
            await self._reader
            return await self.process.wait()

    async def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def kill(self) -> None:
        self.process.kill()
        await self.ended()

    def audit(self) -> list[dict[str, Any]]:
        lines = (self.home / "audit.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def lines(self, what: str) -> list[dict[str, Any]]:
        return [line for line in self.audit() if line["what"] == what]

    def whats(self, submission: str = "") -> list[str]:
        return [line["what"] for line in self.audit() if submission in line.get("submission", "")]

    async def post(self, method: str, body: Any, **more: Any) -> requests.Response:
        """One request, as `requests` writes it; `body` may be bytes."""
        more.setdefault("timeout", 30)
        more |= {"data": body} if isinstance(body, bytes) else {"json": body}
        return await asyncio.to_thread(requests.post, f"{self.url}/api/{method}", **more)

    # What a node of RL Swarm 0.4 sends to the proxy on port 3000. It ends at any status but 200 and 500.

    async def register(self, peer: str, **more: Any) -> requests.Response:
        return await self.post("register-peer", {"orgId": ORG, "peerId": peer}, **more)

    async def report(self, peer: str, round: int, reward: int) -> requests.Response:
        place = {"roundNumber": round, "stageNumber": 0}
        return await self.post("submit-reward", {"orgId": ORG, **place, "reward": reward, "peerId": peer})

    async def vote(self, peer: str, round: int, *winners: str) -> requests.Response:
        body = {"orgId": ORG, "roundNumber": round, "winners": winners, "peerId": peer}
        return await self.post("submit-winner", body)


async def start(home: Path, *args: str, by_exec: bool = False) -> Running:
    """A signer in this directory; it may end at once."""
    account_files(home)
    if not by_exec:
        return Running(await fork(IMPORTED, "swarmd", "signer", *args, cwd=home), home)
    command = [sys.executable, "-m", "swarmd", "signer", *args]
    return Running(await asyncio.create_subprocess_exec(*command, cwd=home, stderr=asyncio.subprocess.PIPE), home)


@asynccontextmanager
async def signing(home: Path, *args: str, by_exec: bool = False) -> AsyncIterator[Running]:
    """A signer that listens, until the block ends. Whatever it said and wrote is searched for secrets."""
    running = await start(home, *args, by_exec=by_exec)
    try:
        await running.listens()
        yield running
    finally:
        if running.process.returncode is None:
            await running.kill()
        check_for_secrets(running)


def check_for_secrets(running: Running) -> None:
    """None of them stands in a log line or the audit log."""
    written = "".join(running.said)
    for path in running.home.glob("audit.jsonl*"):
        written += path.read_text(encoding="utf-8")
    assert [secret for secret in SECRETS if secret in written] == []


class Seat:
    """A signer in this process, and what it wrote."""

    def __init__(self, signer: Signer, audit: AuditLog, ledger: SignerLedger) -> None:
        self.signer = signer
        self.audit = audit
        self.ledger = ledger
        self.whats: list[str] = []
        self.lines: list[Any] = []
        self._append, audit.append = audit.append, self._take  # type: ignore[method-assign]

    def _take(self, line: Any) -> None:
        self._append(line)
        self.lines.append(line)
        self.whats.append(line.what)

    async def look(self) -> None:
        """One look at the chain, as the signer takes it by itself."""
        await self.signer._check_open_submissions()

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(100):
            await self.look()
            if condition():
                return
            await anyio.sleep(0.02)
        raise AssertionError(self.whats)


@asynccontextmanager
async def seated(ground: Ground, home: Path, **settings: Any) -> AsyncIterator[Seat]:
    fund(ground)
    config = ground.config(**({"sender": "wallet", "fees": FeesConfig(stuck_s=0.01)} | settings))
    rpc = RpcPool(config.rpc, config.chain_id, 2.0)
    ledger = SignerLedger()
    audit = AuditLog(home / "audit.jsonl", ledger.lines_for_new_file)
    for line in audit.lines:
        ledger.apply_line(line)
    signer = Signer(config, rpc, Account.from_key(KEY), audit, ledger)
    try:
        yield Seat(signer, audit, ledger)
    finally:
        audit.close()
        await rpc.close()

"""A node's side of submissions, reduced to its log, with faults at every place where a process can die."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import anyio
from eth_account import Account
from eth_account.signers.local import LocalAccount
from eth_utils.crypto import keccak
from msgspec.structs import replace

from swarmd.chain.coordinator import CoordinatorContract
from swarmd.chain.endpoints import RpcPool
from swarmd.chain.ethereum import EthereumClient
from swarmd.chain.senders import SubmissionSender, make_wallet
from swarmd.chain.submitter import Submitter
from swarmd.config import ChainConfig, FeesConfig
from swarmd.core.commands import Broadcast, Submit
from swarmd.core.events import (
    CommandFailed,
    Event,
    SubmissionConfirmed,
    SubmissionIncluded,
    SubmissionLost,
    SubmissionPrepared,
    SubmissionRefused,
)
from swarmd.core.values import SubmissionAttempt, SubmissionKind
from tests.chain.grounds import Ground

TICK_S = 0.005
RICH_WEI = 10**20
ENDS = (SubmissionConfirmed, SubmissionRefused)


class Killed(BaseException):
    """The process dies here."""


class Places:
    """Counts the places where a process can die, and lets it die at some of them."""

    def __init__(self, *deaths: int) -> None:
        self._deaths = set(deaths)
        self.passed = 0
        self.names: list[str] = []

    def pass_by(self, name: str) -> None:
        place, self.passed = self.passed, self.passed + 1
        self.names.append(name)
        if place in self._deaths:
            raise Killed(name)


class Calls:
    """An `RpcPool` that is cut off before or after a request, and whose answers a test may change."""

    def __init__(
        self,
        rpc: RpcPool,
        places: Places | None = None,
        change: Callable[[str, Any], Any] = lambda method, answer: answer,
    ) -> None:
        self._rpc = rpc
        self._places = places or Places()
        self._change = change
        self.act: Callable[[str, Sequence[Any]], Awaitable[None]] | None = None  # before each request

    async def call(self, method: str, params: Sequence[Any], kind: Any) -> Any:
        self._places.pass_by(f"before {method}")
        if self.act is not None:
            await self.act(method, params)
        result = await self._rpc.call(method, params, kind)
        self._places.pass_by(f"after {method}")
        return self._change(method, result)


def account_named(ground: Ground, name: str, wei: int = RICH_WEI) -> LocalAccount:
    """An account with a key of its own, and so much."""
    account: LocalAccount = Account.from_key(keccak(text=name))
    ground.say("anvil_setBalance", account.address, hex(wei))
    return account


def settings(ground: Ground, **given: Any) -> ChainConfig:
    """A configuration for senders; what concerns fees goes to its own table."""
    fees = {name: given.pop(name) for name in list(given) if name in FeesConfig.__struct_fields__}
    return ground.config(**({"sender": "wallet", "depth": 1, "fees": FeesConfig(**({"stuck_s": 0.3} | fees))} | given))


NODES: list[Node] = []  # made by a test, to be stopped at its end


class Node:
    """What the core does about submissions, and a worker that may be killed and started again."""

    def __init__(
        self,
        ground: Ground,
        config: ChainConfig,
        sender: Callable[[Calls], SubmissionSender],
        peer: str = "me",
        places: Places | None = None,
    ) -> None:
        self.ground = ground
        self.config = config
        self.peer = peer
        self.facts: list[Event] = []  # the log
        self.wanted: dict[str, Submit] = {}
        self.lives = 0
        self.handing = True  # hands over Broadcasts
        self.retries = True  # hands over at once what failed
        self.mines = True  # what confirms an included submission
        self.calls: Calls | None = None
        self.act: Callable[[str, Sequence[Any]], Awaitable[None]] | None = None  # before each request, see `Calls`
        self.ticks = 0
        self.on_tick: Callable[[], None] = lambda: None
        self._make_sender = sender
        self.places = places or Places()
        self._due: list[Submit | Broadcast] = []
        self._task: asyncio.Task[None] | None = None
        NODES.append(self)

    # --- the core ---

    def want(self, kind: SubmissionKind, **fields: Any) -> Submit:
        """Intend a submission."""
        name = "/".join(str(each) for each in (kind, fields.get("round", 0), fields.get("stage", 0)))
        order = Submit(f"submit/{name}/0", name, kind, **fields)
        self.wanted[name] = order
        self._due.append(order)
        return order

    def order(self, submission: str) -> Submit:
        """What the core would say again, with all attempts in the log."""
        wanted = self.wanted[submission]
        logged = [each.prepared for each in self.of(SubmissionPrepared, submission)]
        prepared = tuple(dict.fromkeys((*wanted.prepared, *logged)))
        return replace(wanted, prepared=prepared[-8:])

    def of(self, kind: type[Any], submission: str = "") -> list[Any]:
        """Facts of a kind."""
        return [
            each for each in self.facts if isinstance(each, kind) and (not submission or each.submission == submission)
        ]

    def is_done(self, submission: str) -> bool:
        return any(self.of(end, submission) for end in ENDS)

    def _emit(self, event: Event) -> None:
        self.places.pass_by(f"before {type(event).__name__}")
        self.facts.append(event)
        if isinstance(event, SubmissionPrepared):
            self._due.append(Broadcast(f"broadcast/{event.submission}", event.submission, event.prepared))
        elif isinstance(event, SubmissionLost):
            self._due.append(self.order(event.submission))
        elif isinstance(event, CommandFailed) and self.retries:
            self._due += [self.order(name) for name in self.wanted if f"/{name}/" in event.command]
        elif isinstance(event, SubmissionIncluded) and self.mines:
            self.ground.mine(self.config.depth)
        self.places.pass_by(f"after {type(event).__name__}")

    # --- the worker ---

    async def confirmed(self) -> int:
        assert self.calls is not None
        return int(await self.calls.call("eth_blockNumber", [], str), 16) - self.config.depth

    def _start(self) -> None:
        """A new life of the worker, which is told what the log says."""
        self.lives += 1
        if self.lives > 1:
            self._due = [self.order(each) for each in self.wanted if not self.is_done(each)]
        self._rpc = RpcPool(self.config.rpc, self.config.chain_id, 2.0)
        calls = self.calls = Calls(self._rpc, self.places)
        coordinator = CoordinatorContract(calls, self.config.contract)
        sender = self._make_sender(calls)
        self._submitter = Submitter(
            self.config, self.peer, coordinator, EthereumClient(calls), sender, self.confirmed, self._emit
        )
        self._task = asyncio.create_task(self._submitter.run())

    async def stop(self) -> None:
        """End the present life; the next `run` begins another."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        with suppress(asyncio.CancelledError, Killed):
            await task
        await self._rpc.close()

    async def _tick(self) -> None:
        if self._task is None:
            self._start()
        self.ticks += 1
        self.calls.act = self.act
        self.on_tick()
        due = [each for each in self._due if self.handing or isinstance(each, Submit)]
        self._due = [each for each in self._due if each not in due]
        for command in due:
            self._submitter.handle_command(command)
        self._submitter.on_head()
        await asyncio.sleep(TICK_S)
        if self._task is not None and self._task.done():
            await self._bury()

    async def _bury(self) -> None:
        assert self._task is not None
        if not isinstance(self._task.exception(), Killed):
            self._task.result()
        await self.stop()

    async def run(self, until: Callable[[], bool] | None = None, timeout_s: float = 60.0) -> None:
        """Go on, through as many lives as it takes, until all that is wanted is done."""
        reached = until or (lambda: all(self.is_done(each) for each in self.wanted))
        with anyio.move_on_after(timeout_s):
            while not reached():
                try:
                    await self._tick()
                except Killed:
                    await self.stop()
        assert reached(), f"it did not come about: {self.story()}"

    def story(self) -> list[str]:
        """The facts, for people."""
        return [str(each)[:300] for each in self.facts]

    def codes(self) -> list[str]:
        """Of refusals."""
        return [each.code for each in self.of(SubmissionRefused)]


def wallet_node(ground: Ground, config: ChainConfig, account: LocalAccount, peer: str = "me", *deaths: int) -> Node:
    """A node with a key."""
    return Node(ground, config, lambda calls: make_wallet(config, calls, account), peer, Places(*deaths))


def nonce_of(ground: Ground, account: LocalAccount | str) -> int:
    """Transactions of an account that were mined."""
    address = account if isinstance(account, str) else account.address
    return int(ground.say("eth_getTransactionCount", address, "latest"), 16)


def attempts_of(node: Node, submission: str) -> list[SubmissionAttempt]:
    """All attempts in the log, each once."""
    return list(dict.fromkeys(each.prepared for each in node.of(SubmissionPrepared, submission)))


async def stop_all() -> None:
    """No worker outlives its test."""
    for node in NODES:
        await node.stop()
    NODES.clear()

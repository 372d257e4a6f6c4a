"""A swarm's contract on a chain, made by an operator's own account, step by step.

Each step is one transaction. It is signed and written into a journal before it is sent, so that a run that died can be
taken up again: what the journal has is looked for on the chain and sent again as it is, and nothing is created twice.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec
from eth_abi.abi import encode

from swarmd.chain.contract import encode_call, read_call
from swarmd.chain.coordinator import Coordinator
from swarmd.chain.operator.transactions import OperatorTransactions, OrderReceipt
from swarmd.chain.ports import RoundPolicy
from swarmd.errors import ChainMismatch, ConfigError, NotFoundError

MEMBERSHIP_MANAGER = "MEMBERSHIP_MANAGER_ROLE"
PEERS_AT_ONCE = 50  # peer ids put on the allow-list by one transaction: 1.5 million units of gas
STAGES_BUILT = (1, 2, 3)  # stage counts that the contract is compiled for
DEPLOY_GAS = 4_700_000  # what all steps of an open swarm take together, a little more than measured


class Artefact(msgspec.Struct, frozen=True):
    """One file of contracts/build."""

    bytecode: str

    @property
    def creation(self) -> bytes:
        """What a creating transaction carries, before the constructor's arguments."""
        return bytes.fromhex(self.bytecode.removeprefix("0x"))


class DeploymentPlan(msgspec.Struct, frozen=True):
    """What to deploy: the contract's version and constructor arguments."""

    stages: int
    policy: RoundPolicy
    bootnodes: tuple[str, ...]
    members: tuple[str, ...] | None = None  # on the allow-list of a closed swarm; None: open to all


class Deployed(NamedTuple):
    """A contract that is there and as planned."""

    contract: str
    from_block: int
    receipts: tuple[OrderReceipt, ...]


def shipped_contracts() -> Path:
    """Where the built contracts lie: beside the package in a checkout, inside it in an installed wheel."""
    package = Path(__file__).resolve().parent.parent.parent
    inside = package / "contracts"
    return inside if inside.is_dir() else package.parent / "contracts" / "build"


@lru_cache(maxsize=8)
def read_artefact(name: str) -> Artefact:
    """A built contract by its name. Raises NotFoundError when this installation has none."""
    path = shipped_contracts() / f"{name}.json"
    try:
        return msgspec.convert(json.loads(path.read_text(encoding="utf-8")), Artefact)
    except (OSError, ValueError) as error:
        raise NotFoundError(f"the built contract {path} cannot be read: {error}", "Install swarmd again") from error


def check_stages(stages: int) -> None:
    """Raise ConfigError unless the contract is built for so many stages."""
    if stages not in STAGES_BUILT:
        built = " or ".join([", ".join(map(str, STAGES_BUILT[:-1])), str(STAGES_BUILT[-1])])
        raise ConfigError(f"there is no contract for rounds of {stages} stages, only of {built}")


async def deploy(orders: OperatorTransactions, plan: DeploymentPlan) -> Deployed:
    """Create implementation and proxy and set the proxy up as planned; go on where an earlier run ended.

    Raises:
        ConfigError: the contract is not built for so many stages.
        ChainMismatch: the journal is of another chain, or what stands at the address is no such contract.
        ContractRefused: a step was reverted.
        ChainError: an endpoint failed, the account cannot pay, or a transaction was not mined in time.
    """
    check_stages(plan.stages)
    implementation = await orders.carry_out(
        "implementation", None, read_artefact(f"LockedSwarmCoordinator-{plan.stages}").creation
    )
    begin = encode_call("initialize(address)", orders.account)
    arguments = encode(["address", "bytes"], [implementation.contract, begin])
    proxy = await orders.carry_out("proxy", None, read_artefact("ERC1967Proxy").creation + arguments)
    coordinator = Coordinator(orders.caller, proxy.contract, proxy.block)
    await coordinator.check()
    if await coordinator.stages() != plan.stages:
        raise ChainMismatch(f"the contract {proxy.contract} has rounds of another number of stages than asked for")
    receipts = [implementation, proxy, *await _set_up(orders, coordinator, plan)]
    return Deployed(proxy.contract, proxy.block, tuple(receipts))


async def _set_up(orders: OperatorTransactions, coordinator: Coordinator, plan: DeploymentPlan) -> list[OrderReceipt]:
    steps = [
        await set_policy(orders, coordinator, plan.policy),
        await add_bootnodes(orders, coordinator, plan.bootnodes),
    ]
    if plan.members is not None:
        steps += await close_membership(orders, coordinator, plan.members)
    return [receipt for receipt in steps if receipt is not None]


# Each of these does nothing where the contract is as wanted already, unless the journal has the step in hand.


async def set_policy(
    orders: OperatorTransactions, coordinator: Coordinator, policy: RoundPolicy
) -> OrderReceipt | None:
    """Set the round policy, as an owner."""
    if not orders.has("policy") and await coordinator.policy() == policy:
        return None
    return await orders.carry_out("policy", coordinator.contract, encode_call("setRoundPolicy(uint32,uint32)", *policy))


async def add_bootnodes(
    orders: OperatorTransactions, coordinator: Coordinator, addresses: tuple[str, ...]
) -> OrderReceipt | None:
    """Append those that the contract does not have yet."""
    known = await coordinator.bootnodes()
    missing = [address for address in addresses if address not in known]
    if not missing and not orders.has("bootnodes"):
        return None
    return await orders.carry_out("bootnodes", coordinator.contract, encode_call("addBootnodes(string[])", missing))


async def remove_bootnode(orders: OperatorTransactions, coordinator: Coordinator, address: str) -> OrderReceipt | None:
    """Remove an address from the contract's list."""
    known = await coordinator.bootnodes()
    if address not in known:
        return None
    call = encode_call("removeBootnode(uint256)", known.index(address))
    return await orders.carry_out("bootnode", coordinator.contract, call)


async def close_membership(
    orders: OperatorTransactions, coordinator: Coordinator, peers: tuple[str, ...]
) -> list[OrderReceipt | None]:
    """Close the swarm to all but the allow-list, and put these peers on it."""
    steps = [await become_membership_manager(orders, coordinator), await set_open(orders, coordinator, False)]
    return steps + await allow_peers(orders, coordinator, peers)


async def become_membership_manager(orders: OperatorTransactions, coordinator: Coordinator) -> OrderReceipt | None:
    """Grant this account the role, as an owner, where it does not have it."""
    role = await _role(orders, coordinator, MEMBERSHIP_MANAGER)
    if not orders.has("role") and await has_role(orders, coordinator, MEMBERSHIP_MANAGER):
        return None
    return await orders.carry_out(
        "role", coordinator.contract, encode_call("grantRole(bytes32,address)", role, orders.account)
    )


async def has_role(orders: OperatorTransactions, coordinator: Coordinator, name: str) -> bool:
    """Whether this account has a role of the contract."""
    role = await _role(orders, coordinator, name)
    asked = "hasRole(bytes32,address)"
    (has,) = await read_call(orders.chain, coordinator.contract, asked, ["bool"], role, orders.account)
    return bool(has)


async def _role(orders: OperatorTransactions, coordinator: Coordinator, name: str) -> bytes:
    (role,) = await read_call(orders.chain, coordinator.contract, f"{name}()", ["bytes32"])
    return bytes(role)


async def set_open(orders: OperatorTransactions, coordinator: Coordinator, open: bool) -> OrderReceipt | None:
    """Open the swarm to all, or close it to all but the allow-list."""
    name = "open" if open else "close"
    if not orders.has(name) and await coordinator.membership_open() == open:
        return None
    return await orders.carry_out(name, coordinator.contract, encode_call("setMembershipOpen(bool)", open))


async def allow_peers(
    orders: OperatorTransactions, coordinator: Coordinator, peers: tuple[str, ...]
) -> list[OrderReceipt | None]:
    """Put peers on the allow-list. Where the swarm is open it cannot be asked who is on it, so all are put there."""
    return await _change_list(orders, coordinator, peers, allow=True)


async def disallow_peers(
    orders: OperatorTransactions, coordinator: Coordinator, peers: tuple[str, ...]
) -> list[OrderReceipt | None]:
    """Take peers off the allow-list."""
    return await _change_list(orders, coordinator, peers, allow=False)


async def _change_list(
    orders: OperatorTransactions, coordinator: Coordinator, peers: tuple[str, ...], allow: bool
) -> list[OrderReceipt | None]:
    signature = "allowPeers(string[])" if allow else "disallowPeers(string[])"
    closed = not await coordinator.membership_open()
    receipts: list[OrderReceipt | None] = []
    for number, first in enumerate(range(0, len(peers), PEERS_AT_ONCE), 1):
        batch = peers[first : first + PEERS_AT_ONCE]
        name = f"{'allow' if allow else 'disallow'} {number}"
        if closed and not orders.has(name):
            on_list = await coordinator.members(batch)
            batch = tuple(peer for peer, is_on in zip(batch, on_list, strict=True) if is_on != allow)
        if batch:
            receipts.append(await orders.carry_out(name, coordinator.contract, encode_call(signature, list(batch))))
    return receipts

"""What this node submits through: the key of an account, or a signer proxy that holds one.

A sender prepares attempts, sends them, and tells what became of them. It remembers nothing: what was tried stands in
the event log and comes back with every `Submit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from swarmd.chain.fees import Budget
from swarmd.config import ChainConfig
from swarmd.core.commands import Submit
from swarmd.core.values import BlockRef, Prepared, Value

if TYPE_CHECKING:
    from swarmd.chain.endpoints.rpc import RpcCaller
    from swarmd.paths import NodeDirectory


from typing import TYPE_CHECKING, Any

import rlp  # type: ignore[import-untyped]
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from swarmd.chain.contract import encode_call
from swarmd.chain.fees import Price
from swarmd.chain.ports import SignedTransaction
from swarmd.core.values import Drive
from swarmd.errors import ChainError

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount


class Mined(Value, frozen=True):
    """An attempt that a block has."""

    hash: str
    block: BlockRef
    succeeded: bool  # False: the contract reverted it, or it only took a withdrawn attempt's place


Fate = Mined | Literal["waiting", "gone"]  # gone: none of the attempts can be mined any more


class Sender(Protocol):
    """One way to the contract. Everything may raise ChainError, which passes."""

    @property
    def account(self) -> str:
        """The account that submissions come from, checksummed; empty while unknown."""

    @property
    def budget(self) -> Budget | None:
        """Of what the account signs for in a day; None where somebody else signs."""

    @property
    def repeatable(self) -> bool:
        """Whether sending an attempt twice is sending it once."""

    async def prepare(self, peer: str, command: Submit, attempts: Sequence[Prepared]) -> Prepared | None:
        """The next attempt after these; None where the bounds on fees allow none that would replace them.

        Raises:
            ContractRefused: the contract would revert it.
            ChainError: not now; the message says why.
        """

    async def withdraw(self, attempts: Sequence[Prepared]) -> Prepared | None:
        """An attempt that does nothing in the place of the last one; None where there can be none."""

    async def send(self, peer: str, command: Submit, prepared: Prepared) -> str | None:
        """Send an attempt; what it is called, or None where it was not taken for a reason that `trace` will tell.

        Raises:
            ContractRefused: the contract would revert it.
            ChainError: it was not sent; the message says why.
            EndpointFailed: it may have been sent.
        """

    async def trace(self, attempts: Sequence[Prepared]) -> Fate:
        """What became of the attempts, of which there is at least one."""

    async def is_known(self, prepared: Prepared) -> bool:
        """Whether the chain's nodes are seen to have this attempt."""

    async def explain(self, peer: str, command: Submit, mined: Mined) -> None:
        """Ask why a mined attempt was reverted. Raises ContractRefused where the contract says it."""


def make_sender(config: ChainConfig, data: NodeDirectory, caller: RpcCaller) -> Sender | None:
    """The sender that the configuration asks for, None where nothing is to be submitted.

    Raises:
        KeystoreError: the account's key or the proxy's token cannot be read.
    """
    if config.sender == "wallet":
        from swarmd.chain.submitting.wallet import open_wallet

        return open_wallet(config, data, caller)
    if config.sender == "proxy":
        from swarmd.chain.submitting.proxy import open_proxy

        return open_proxy(config, data, caller)
    return None


DYNAMIC_FEE = 2  # first byte of a transaction of EIP-1559; one of the old kind begins with an RLP list
STEPS: dict[Drive, str] = {"policy": "advance()", "manager": "updateStageAndRound()"}


class AccountKey:
    """See `swarmd.chain.ports.Signatory`.

    Args:
        account: with its key.
        chain_id: the chain that every transaction is signed for.
        drive: by which call the contract is moved on.
    """

    def __init__(self, account: LocalAccount, chain_id: int, drive: Drive) -> None:
        self._account = account
        self._chain_id = chain_id
        self._drive: Drive = drive

    @property
    def account(self) -> str:
        return str(self._account.address)

    def content_of(self, command: Submit, peer: str) -> bytes:
        return call_of(command, peer, self._drive)

    def sign(self, said: SignedTransaction) -> Prepared:
        return sign(self._account, self._chain_id, said)

    def read(self, prepared: Prepared) -> SignedTransaction:
        return read_signed(prepared)


def call_of(command: Submit, peer: str, drive: Drive) -> bytes:
    """The contract's call that brings a submission about."""
    if command.kind == "register":
        return encode_call("registerPeer(string)", peer)
    if command.kind == "reward":
        signature = "submitReward(uint256,uint256,int256,string)"
        return encode_call(signature, command.round, command.stage, command.reward, peer)
    if command.kind == "winners":
        return encode_call("submitWinners(uint256,string[],string)", command.round, command.winners, peer)
    if drive not in STEPS:
        raise ChainError('chain.drive is "never": this node does not move the contract on')
    return encode_call(STEPS[drive])


def sign(account: LocalAccount, chain_id: int, said: SignedTransaction) -> Prepared:
    """Sign a transaction that carries no value. The chain's id is part of what is signed."""
    fields: dict[str, Any] = {
        "chainId": chain_id,
        "nonce": said.nonce,
        "gas": said.gas,
        "to": to_checksum_address(said.to),
        "value": 0,
        "data": said.content,
    }
    if said.price.tip_wei is None:
        fields["gasPrice"] = said.price.fee_wei
    else:
        fields |= {"maxFeePerGas": said.price.fee_wei, "maxPriorityFeePerGas": said.price.tip_wei}
    raw = bytes(account.sign_transaction(fields).raw_transaction)
    cost_wei = said.gas * said.price.fee_wei
    return Prepared("0x" + keccak(raw).hex(), said.nonce, raw, str(said.price.fee_wei), str(cost_wei))


def read_signed(prepared: Prepared) -> SignedTransaction:
    """What a logged attempt says. Raises ChainError when it is no transaction that `sign` makes."""
    try:
        if prepared.raw[0] == DYNAMIC_FEE:
            _, nonce, tip, fee, gas, to, _, content, *_ = rlp.decode(prepared.raw[1:])
            price = Price(_number(fee), _number(tip))
        else:
            nonce, fee, gas, to, _, content, *_ = rlp.decode(prepared.raw)
            price = Price(_number(fee))
        return SignedTransaction(_number(nonce), price, _number(gas), to_checksum_address(to), bytes(content))
    except (IndexError, ValueError, TypeError, rlp.exceptions.RLPException):
        raise ChainError(f"the logged attempt {prepared.hash} holds no transaction") from None


def _number(encoded: bytes) -> int:
    return int.from_bytes(encoded, "big")

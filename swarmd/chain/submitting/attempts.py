"""Signed transactions: making one, and reading back from one that was logged what it was signed for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rlp  # type: ignore[import-untyped]
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from swarmd.chain.contract import encode_call
from swarmd.chain.fees import Price
from swarmd.chain.ports import SignedTransaction
from swarmd.core.commands import Submit
from swarmd.core.values import Drive, Prepared
from swarmd.errors import ChainError

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount

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

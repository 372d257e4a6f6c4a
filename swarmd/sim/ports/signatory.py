"""An account's key without the mathematics: what is signed is readable, and no other node makes the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from swarmd.chain.fees import Price
from swarmd.chain.ports import SignedTransaction
from swarmd.core.commands import Submit
from swarmd.core.values import Prepared
from swarmd.errors import ChainError
from swarmd.sim.ports.chain import Tx, sign
from swarmd.sim.ports.contract import Call

if TYPE_CHECKING:
    from swarmd.sim.node import SimNode

CONTRACT = "0xcontract"

_raw = msgspec.msgpack.Decoder(Tx)
_content = msgspec.msgpack.Decoder(tuple[Call, str])
_encode = msgspec.msgpack.encode


class SimSignatory:
    """See `swarmd.chain.ports.Signatory`.

    Args:
        node: whose account it is; the world hears of everything that is signed.
    """

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self.account = node.account

    def content_of(self, command: Submit, peer: str) -> bytes:
        chain = self._node.settings.chain
        if command.kind == "advance" and (chain is None or chain.drive == "never"):
            raise ChainError('chain.drive is "never": this node does not move the contract on')
        place = (command.round, command.stage)
        call = Call(command.kind, self.account, peer, *place, command.reward, command.winners)
        return _encode((call, command.submission))

    def sign(self, said: SignedTransaction) -> Prepared:
        call, submission = call_in(said.content) if said.content else (Call("idle", said.to), "")
        tx = sign(call, said.nonce, said.price.fee_wei, submission, said.price.tip_wei or 0)
        cost_wei = said.gas * said.price.fee_wei
        self._node.world.note_signed(self._node, tx)
        return Prepared(tx.hash, tx.nonce, _encode(tx), str(tx.fee), str(cost_wei))

    def read(self, prepared: Prepared) -> SignedTransaction:
        if not prepared.raw:
            raise ChainError(f"the logged attempt {prepared.hash} holds no transaction")
        tx = tx_in(prepared.raw)
        idle = tx.call.kind == "idle"
        content = b"" if idle else _encode((tx.call, tx.submission))
        gas = int(prepared.cost_wei) // max(tx.fee, 1)
        return SignedTransaction(tx.nonce, Price(tx.fee, tx.tip), gas, self.account if idle else CONTRACT, content)


def tx_in(raw: bytes) -> Tx:
    """The transaction that was signed."""
    return _raw.decode(raw)


def call_in(content: bytes) -> tuple[Call, str]:
    """What a transaction asks of the contract, and for which submission."""
    return _content.decode(content)

"""The next nonce of an account several of whose transactions are in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swarmd.chain.endpoints.rpc import RpcCaller
from swarmd.chain.fees import quantity
from swarmd.chain.ports import HeldNonces


class NonceCaller:
    """A Caller that names no nonce for the next transaction that another one in flight has.

    An endpoint may not have, or may have dropped, what another endpoint took.

    Args:
        caller: of the chain.
        held: the nonces in flight.
    """

    def __init__(self, caller: RpcCaller, held: HeldNonces) -> None:
        self._caller = caller
        self._held = held

    async def request(self, method: str, params: Sequence[Any]) -> Any:
        """See `RpcCaller`."""
        result = await self._caller.request(method, params)
        if method != "eth_getTransactionCount" or params[-1] != "pending":
            return result
        nonce, held = quantity(result, "nonce"), self._held()
        while nonce in held:
            nonce += 1
        return hex(nonce)

"""The contract's interface: encodes calls by signature, decodes results by type, turns reverts into typed errors.

web3.py's contract objects are not used: they choose between two overloads by the arguments, and their decoder has no
bounds (docs/adr/0025).
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from eth_abi.abi import encode
from eth_utils.crypto import keccak

from swarmd.chain.logs import MalformedAbi, decode_values, replace_unprintable
from swarmd.errors import ChainError, ChainMismatch, ContractRefused, RpcRefused

if TYPE_CHECKING:
    from swarmd.chain.ethereum import EthereumClient

RESULT_BYTES_MAX = 4 * (1 << 20)  # of one call's result
TEXT_CHARS_MAX = 200  # of a revert's message

# What nodes say if the contract, or other code at its address, failed.
FAILURES = re.compile(r"revert|invalid opcode|stack (under|over)flow|out of gas|EVM error|VM exec|jump", re.IGNORECASE)

# The contract's errors by signature, with advice on each. The names are part of the interface: the signer proxy's
# answers
# contain them too.
ADVICE: Mapping[str, str] = {
    "OnlyOwner()": "Use an account that has OWNER_ROLE",
    "OnlyStageManager()": "Use an account that has STAGE_MANAGER_ROLE, or leave it to the round policy",
    "OnlyBootnodeManager()": "Use an account that has BOOTNODE_MANAGER_ROLE",
    "OnlyMembershipManager()": "Use an account that has MEMBERSHIP_MANAGER_ROLE; an owner can grant it",
    "InvalidBootnodeIndex()": "Read the list of bootnodes again: it has no entry at this index",
    "InvalidRoundNumber()": "The round has not begun on the chain; wait until it has",
    "InvalidStageNumber()": "The stage has not begun on the chain, or no round has it",
    "WinnerAlreadyVoted()": "The peer has voted in this round; a vote is final",
    "PeerIdAlreadyRegistered()": "Look up which account the peer id is registered to: only that one can submit for it",
    "InvalidVoterPeerId()": "The peer id is not registered to this account: register it, or use the account that did",
    "RewardAlreadySubmitted()": "The peer has reported a reward for this stage; it is final",
    "InvalidVote()": "Name each winner once",
    "StageOutOfBounds()": "No round has this stage",
    "PeerNotAllowed()": "Membership is closed: ask a membership manager of the swarm to allow this peer id",
    "AdvanceNotAllowed()": "The round policy does not allow the next stage yet",
    "InvalidInitialization()": "The contract is initialised already",
    "NotInitializing()": "The contract is initialised already",
    "UUPSUnauthorizedCallContext()": "Call the proxy, not the implementation",
    "FailedCall()": "The call that the contract made for you failed without a reason",
    "ERC1967NonPayable()": "Send no value with an upgrade without a call",
    "AddressEmptyCode(address)": "There is no contract at the address of the new implementation",
    "ERC1967InvalidImplementation(address)": "The new implementation is not a contract that works behind the proxy",
    "UUPSUnsupportedProxiableUUID(bytes32)": "The new implementation is made for another kind of proxy",
}
PANICS: Mapping[int, str] = {
    0x01: "an assertion failed",
    0x11: "a number overflowed",
    0x12: "division by zero",
    0x31: "pop of an empty array",
    0x32: "an array has no such index",
    0x41: "too much memory",
}


def function_selector(signature: str) -> bytes:
    """The four bytes that name a function or error."""
    return bytes(keccak(text=signature)[:4])


ERRORS: Mapping[str, str] = {"0x" + function_selector(each).hex(): each.split("(")[0] for each in ADVICE}
_ADVICE = {signature.split("(")[0]: text for signature, text in ADVICE.items()}
ERROR_SELECTOR = "0x" + function_selector("Error(string)").hex()
PANIC_SELECTOR = "0x" + function_selector("Panic(uint256)").hex()


def advice_for_error(name: str) -> str:
    """Return advice on an error of the contract; empty if the error is unknown."""
    return _ADVICE.get(name, "")


def encode_call(signature: str, *arguments: Any) -> bytes:
    """Encode a call's selector and arguments, e.g. of "setRoundPolicy(uint32,uint32)". Raises EncodingError."""
    selector, types = _parse_signature(signature)
    return selector + encode(types, arguments)


@lru_cache(maxsize=256)
def _parse_signature(signature: str) -> tuple[bytes, tuple[str, ...]]:
    listed = signature[signature.index("(") + 1 : -1]
    return function_selector(signature), tuple(listed.split(",")) if listed else ()


def decode_result(types: Sequence[str], data: bytes) -> tuple[Any, ...]:
    """Decode a call's result; arrays become tuples. Raises ChainError if it does not fit the types."""
    try:
        if len(data) > RESULT_BYTES_MAX:
            raise MalformedAbi("too long")
        return decode_values(types, data)
    except ValueError as error:
        raise ChainError(f"the contract's answer holds no ({', '.join(types)}): {error}") from None


async def call_view(
    chain: "EthereumClient", contract: str, signature: str, types: Sequence[str], *arguments: Any, block: str = "latest"
) -> tuple[Any, ...]:
    """Return the result of a view at a block (its number as hex, or a tag). Raises ContractRefused: the contract
    reverted it, or has no such function, or one with another result; ChainMismatch: there is no contract at the
    address; ChainError: no endpoint answers, or the answer is malformed."""
    try:
        result = await chain.call_contract(contract, encode_call(signature, *arguments), block=block)
    except RpcRefused as refused:
        raise refusal_from_revert(refused, signature) or refused from None
    if types and not result:
        await check_contract_exists(chain, contract)
        raise ContractRefused(
            "",
            f"the contract {contract} has no {signature} at block {block}",
            "Check chain.contract: it is the address of the swarm's proxy",
        )
    try:
        return decode_result(types, result)
    except ChainError as error:
        raise ContractRefused("", f"{contract} {signature}: {error.message}") from None


async def check_contract_exists(chain: "EthereumClient", contract: str) -> None:
    """Raise ChainMismatch if there is no contract at the address."""
    if not await chain.has_code(contract):
        raise ChainMismatch(
            f"there is no contract at {contract}",
            "Check the contract's address and the chain; a test chain that was restarted has lost its contracts",
        )


def refusal_from_revert(refused: RpcRefused, what: str) -> ContractRefused | None:
    """Turn a revert into a typed error; None if the endpoint refused for another reason. `what` names the call. The
    error's `code` is the contract error's name, "Error" for a revert with a message, "Panic" for a compiler check."""
    data = refused.data if refused.data.startswith("0x") else ""
    if len(data) <= 2 and refused.code != 3 and not FAILURES.search(refused.message):
        return None
    code, reason = decode_revert_data(data)
    return ContractRefused(
        code, f"{what.split('(')[0]} was refused: {reason or refused.message}", advice_for_error(code)
    )


def decode_revert_data(data: str) -> tuple[str, str]:
    """Return the error's name and message from revert data; both may be empty."""
    selector = data[:10].lower()
    if selector in ERRORS:
        return ERRORS[selector], ERRORS[selector]
    if selector in (ERROR_SELECTOR, PANIC_SELECTOR):
        kind = "string" if selector == ERROR_SELECTOR else "uint256"
        try:
            (said,) = decode_values([kind], bytes.fromhex(data[10:]))
        except ValueError:  # malformed value
            said = "" if selector == ERROR_SELECTOR else 0
        if selector == ERROR_SELECTOR:
            return "Error", replace_unprintable(said[:TEXT_CHARS_MAX])
        return "Panic", PANICS.get(said, f"panic {said:#x}"[:TEXT_CHARS_MAX])
    return "", f"an error that swarmd does not know ({selector})" if len(data) >= 10 else ""

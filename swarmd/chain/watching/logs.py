"""What the contract said: an entry of eth_getLogs as a fact, checked and bounded.

Anybody may register any text as a peer id and vote for any texts, so an entry that oversteps the bounds is left out and
counted, never an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
from eth_utils.crypto import keccak

from swarmd.chain.decoding import WORD, AbiReader, MalformedAbi, account_of
from swarmd.core.events import (
    AnyChainLog,
    OtherLog,
    PolicyLog,
    RegistrationLog,
    RewardLog,
    StageLog,
    VoteLog,
)

PEER_CHARS_MAX = 256
PEER_BYTES_MAX = 4 * PEER_CHARS_MAX
WINNERS_MAX = 1000
PEERS_MAX = 16_384  # peer ids in one change of the allow-list, and on the list
PLACE_MAX = 2**31 - 1  # highest round or stage
SECONDS_MAX = 2**32 - 1
DATA_CHARS_MAX = 2 * (1 << 20)  # of one entry, as hex
Hash = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{64}\Z")]
Quantity = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{1,16}\Z")]


class LogEntry(msgspec.Struct, rename="camel", gc=False):
    """An entry of eth_getLogs, as nodes write it."""

    address: str
    topics: tuple[str, ...]
    data: str
    block_number: Quantity
    block_hash: Hash
    transaction_hash: Hash
    log_index: Quantity
    block_timestamp: str | None = None  # some nodes give it
    removed: bool = False


def topic_of(signature: str) -> str:
    """The first topic of an event, by its signature."""
    return "0x" + keccak(text=signature).hex()


def seconds_of(quantity: str) -> float:
    """A block's time; nonsense, what is below 0, and the far future become 0."""
    try:
        seconds = int(quantity, 16)
    except ValueError:
        return 0.0
    return float(seconds) if 0 <= seconds < 1 << 40 else 0.0


def decode_log(entry: Mapping[str, Any], rejected: Counter[str] | None = None) -> AnyChainLog | None:
    """What an entry says, None where it says nothing or nothing new.

    Args:
        entry: as JSON-RPC has it.
        rejected: counts entries that make no sense or overstep a bound, by the reason.
    """
    try:
        checked = msgspec.convert(dict(entry), LogEntry)
    except msgspec.ValidationError:
        _count(rejected, "no log entry")
        return None
    return decode_entry(checked, rejected)


def decode_entry(entry: LogEntry, rejected: Counter[str] | None = None) -> AnyChainLog | None:
    """As `decode_log`, for an entry that is typed already."""
    say = SAYINGS.get(entry.topics[0]) if entry.topics else None
    if say is None:
        return None
    try:
        if len(entry.data) > DATA_CHARS_MAX:
            raise MalformedAbi("too long")
        return say(entry, AbiReader(bytes.fromhex(entry.data[2:])))
    except MalformedAbi as error:
        _count(rejected, str(error))
    except ValueError:
        _count(rejected, "no hex")
    return None


def _count(rejected: Counter[str] | None, reason: str) -> None:
    if rejected is not None:
        rejected[reason] += 1


def _stage(entry: LogEntry, content: AbiReader) -> StageLog:
    return StageLog(*_origin(entry), _place(_topic(entry, 1)), _place(content.unsigned(0)))


def _registration(entry: LogEntry, content: AbiReader) -> RegistrationLog:
    return RegistrationLog(*_origin(entry), account_of(_topic(entry, 1)), _peer(content, content.offset(0, 0)))


def _reward(entry: LogEntry, content: AbiReader) -> RewardLog:
    account, round, stage = account_of(_topic(entry, 1)), _place(_topic(entry, 2)), _place(_topic(entry, 3))
    peer = _peer(content, content.offset(0, WORD))
    return RewardLog(*_origin(entry), account, peer, round, stage, str(content.signed(0)))


def _vote(entry: LogEntry, content: AbiReader) -> VoteLog:
    account, round = account_of(_topic(entry, 1)), _place(_topic(entry, 2))
    peer = _peer(content, content.offset(0, 0))
    return VoteLog(*_origin(entry), account, peer, round, _peers(content, content.offset(0, WORD), WINNERS_MAX))


def _policy(entry: LogEntry, content: AbiReader) -> PolicyLog:
    values = content.unsigned(0), content.unsigned(WORD)
    if max(values) > SECONDS_MAX:
        raise MalformedAbi("out of range")
    return PolicyLog(*_origin(entry), *values)


def _other(name: str) -> Callable[[LogEntry, AbiReader], OtherLog]:
    return lambda entry, content: OtherLog(*_origin(entry), name)


def _origin(entry: LogEntry) -> tuple[int, str]:
    return int(entry.log_index, 16), entry.transaction_hash


def _topic(entry: LogEntry, place: int) -> int:
    if len(entry.topics) <= place:
        raise MalformedAbi("too short")
    return int(entry.topics[place][:66], 16)


def _place(number: int) -> int:
    if not 0 <= number <= PLACE_MAX:
        raise MalformedAbi("out of range")
    return number


def _peer(content: AbiReader, at: int) -> str:
    peer = content.text(at, PEER_BYTES_MAX)
    if len(peer) > PEER_CHARS_MAX:
        raise MalformedAbi("too long")
    return peer


def _peers(content: AbiReader, at: int, most: int) -> tuple[str, ...]:
    first = at + WORD
    places = range(first, first + content.count(at, most) * WORD, WORD)
    return tuple(_peer(content, content.offset(first, place)) for place in places)


# RoundAdvanced and CumulativeRewardsUpdated are not among them: each repeats what another event of its transaction
# says.
SAYINGS: dict[str, Callable[[LogEntry, AbiReader], AnyChainLog]] = {
    topic_of("StageAdvanced(uint256,uint256)"): _stage,
    topic_of("PeerRegistered(address,string)"): _registration,
    topic_of("RewardSubmitted(address,uint256,uint256,int256,string)"): _reward,
    topic_of("WinnerSubmitted(address,string,uint256,string[])"): _vote,
    topic_of("RoundPolicyChanged(address,uint256,uint256)"): _policy,
}
OTHERS = (
    "BootnodesAdded(address,uint256)",
    "BootnodeRemoved(address,uint256)",
    "AllBootnodesCleared(address)",
    "RoleGranted(bytes32,address,address)",
    "RoleRevoked(bytes32,address,address)",
    "MembershipChanged(address,bool)",
    "PeersAllowed(address,string[])",
    "PeersDisallowed(address,string[])",
    "Initialized(uint64)",
    "Upgraded(address)",
)
SAYINGS |= {topic_of(signature): _other(signature.split("(")[0]) for signature in OTHERS}
STAGE_TOPIC = topic_of("StageAdvanced(uint256,uint256)")
REWARD_TOPIC = topic_of("RewardSubmitted(address,uint256,uint256,int256,string)")
VOTE_TOPIC = topic_of("WinnerSubmitted(address,string,uint256,string[])")
OPEN_TOPIC = topic_of("MembershipChanged(address,bool)")
ALLOWED_TOPIC = topic_of("PeersAllowed(address,string[])")
DISALLOWED_TOPIC = topic_of("PeersDisallowed(address,string[])")


def decode_peers(entry: LogEntry) -> tuple[str, ...]:
    """The peer ids of PeersAllowed or PeersDisallowed. Raises Malformed (a ValueError)."""
    content = AbiReader(bytes.fromhex(entry.data[2:]))
    return _peers(content, content.offset(0, 0), PEERS_MAX)

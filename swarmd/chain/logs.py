r"""Decodes the contract's logs: ABI-encoded values, and entries of eth_getLogs as events, within bounds.

- eth_abi decodes the same values, but slowly and without bounds: a few bytes of offsets that all point at one long text
  expand to gigabytes.
- Bytes that are not UTF-8 are escaped in a text (``\\xff``), so that two different texts never become one.
- Anyone may register any text as a peer id and vote for any texts. So an entry beyond the bounds is omitted and
  counted; it is never an error.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from swarmd.core import events
from swarmd.core.values import BlockRef

WORD = 32
TEXT_BYTES_MAX = 1 << 20
ITEMS_MAX = 100_000


class MalformedAbi(ValueError):
    """The bytes do not hold the wanted value; the message is the reason in two words."""


class AbiReader:
    """Reads ABI-encoded values; positions are byte offsets from the beginning."""

    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded
        self._budget = len(encoded)  # bytes of text that may still be read, so that offsets cannot multiply a text

    def read_unsigned(self, at: int) -> int:
        """An unsigned integer of 256 bits."""
        if at < 0 or at + WORD > len(self._encoded):
            raise MalformedAbi("too short")
        return int.from_bytes(self._encoded[at : at + WORD], "big")

    def read_signed(self, at: int) -> int:
        """A signed integer of 256 bits."""
        unsigned = self.read_unsigned(at)
        return unsigned - (1 << 256) if unsigned >> 255 else unsigned

    def read_address(self, at: int) -> str:
        return address_from_word(self.read_unsigned(at))

    def read_bytes(self, at: int, most: int = TEXT_BYTES_MAX) -> bytes:
        """Read length-prefixed bytes, at most `most`."""
        length = self.read_unsigned(at)
        if length > most:
            raise MalformedAbi("too long")
        if at + WORD + length > len(self._encoded):
            raise MalformedAbi("too short")
        self._budget -= length
        if self._budget < 0:
            raise MalformedAbi("overlapping")
        return self._encoded[at + WORD : at + WORD + length]

    def read_text(self, at: int, most: int = TEXT_BYTES_MAX) -> str:
        return self.read_bytes(at, most).decode("utf-8", "backslashreplace")

    def read_count(self, at: int, most: int = ITEMS_MAX) -> int:
        """Read the number of items in an array, at most `most`."""
        count = self.read_unsigned(at)
        if count > most:
            raise MalformedAbi("too many")
        if at + WORD + count * WORD > len(self._encoded):
            raise MalformedAbi("too short")
        return count

    def read_offset(self, base: int, at: int) -> int:
        """Return the position of a value whose offset from `base` is stored at `at`."""
        return base + min(self.read_unsigned(at), len(self._encoded))


Taker = Callable[[AbiReader, int], Any]
STATIC: dict[str, Taker] = {
    "address": AbiReader.read_address,
    "bool": lambda content, at: content.read_unsigned(at) != 0,
    "bytes32": lambda content, at: content.read_unsigned(at).to_bytes(WORD, "big"),
}
DYNAMIC: dict[str, Taker] = {"string": AbiReader.read_text, "bytes": AbiReader.read_bytes}


def decode_values(types: Sequence[str], encoded: bytes) -> tuple[Any, ...]:
    """Decode values of these types: integers, address, bool, bytes32, string, bytes and arrays. Raises MalformedAbi."""
    content = AbiReader(encoded)
    return tuple(_decode_value(content, kind, 0, place * WORD) for place, kind in enumerate(types))


def _decode_value(content: AbiReader, kind: str, base: int, at: int) -> Any:
    if kind.endswith("[]"):
        at = content.read_offset(base, at)
        first = at + WORD
        count = content.read_count(at)
        return tuple(_decode_value(content, kind[:-2], first, first + place * WORD) for place in range(count))
    if kind in DYNAMIC:
        return DYNAMIC[kind](content, content.read_offset(base, at))
    if kind.startswith("int"):
        return content.read_signed(at)
    return STATIC.get(kind, AbiReader.read_unsigned)(content, at)


@lru_cache(maxsize=8192)
def address_from_word(number: int) -> str:
    return to_checksum_address((number & ((1 << 160) - 1)).to_bytes(20, "big"))


def replace_unprintable(text: str) -> str:
    """Return untrusted text for a terminal, with unprintable characters as blanks."""
    return "".join(each if each.isprintable() else " " for each in text)


PEER_CHARS_MAX = 256
PEER_BYTES_MAX = 4 * PEER_CHARS_MAX
WINNERS_MAX = 1000
PEERS_MAX = 16_384  # peer ids in one change of the allow-list, and on the list
PLACE_MAX = 2**31 - 1  # highest round or stage
SECONDS_MAX = 2**32 - 1
DATA_CHARS_MAX = 2 * (1 << 20)  # hex characters of one entry's data
Hash = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{64}\Z")]
Quantity = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{1,16}\Z")]


class LogEntry(msgspec.Struct, rename="camel", gc=False):
    """An entry of eth_getLogs."""

    address: str
    topics: tuple[str, ...]
    data: str
    block_number: Quantity
    block_hash: Hash
    transaction_hash: Hash
    log_index: Quantity
    block_timestamp: str | None = None  # given by some nodes
    removed: bool = False


class BlockHeader(msgspec.Struct, rename="camel", gc=False):
    """The fields of a block's header that swarmd uses."""

    number: Quantity
    hash: Hash
    parent_hash: Hash
    timestamp: str

    def to_block_ref(self) -> BlockRef:
        """Convert the header to the form used in events."""
        return BlockRef(int(self.number, 16), self.hash, self.parent_hash, parse_block_time(self.timestamp))


def event_topic(signature: str) -> str:
    return "0x" + keccak(text=signature).hex()


def parse_block_time(quantity: str) -> float:
    """Return a block's time in POSIX seconds; 0 if it is malformed, negative or in the far future."""
    try:
        seconds = int(quantity, 16)
    except ValueError:
        return 0.0
    return float(seconds) if 0 <= seconds < 1 << 40 else 0.0


def decode_log_entry(entry: LogEntry, rejected: Counter[str] | None = None) -> events.AnyChainLog | None:
    """Return the event in an entry; None if it has none, or nothing new. `rejected` counts malformed entries."""
    say = SAYINGS.get(entry.topics[0]) if entry.topics else None
    if say is None:
        return None
    try:
        if len(entry.data) > DATA_CHARS_MAX:
            raise MalformedAbi("too long")
        return say(entry, AbiReader(bytes.fromhex(entry.data[2:])))
    except ValueError as error:
        if rejected is not None:
            rejected[str(error) if isinstance(error, MalformedAbi) else "no hex"] += 1
    return None


def _decode_stage(entry: LogEntry, content: AbiReader) -> events.StageLog:
    return events.StageLog(
        *_index_and_transaction(entry),
        _check_round_or_stage(_topic_as_int(entry, 1)),
        _check_round_or_stage(content.read_unsigned(0)),
    )


def _decode_registration(entry: LogEntry, content: AbiReader) -> events.RegistrationLog:
    return events.RegistrationLog(
        *_index_and_transaction(entry),
        address_from_word(_topic_as_int(entry, 1)),
        _read_peer(content, content.read_offset(0, 0)),
    )


def _decode_reward(entry: LogEntry, content: AbiReader) -> events.RewardLog:
    account, round, stage = (
        address_from_word(_topic_as_int(entry, 1)),
        _check_round_or_stage(_topic_as_int(entry, 2)),
        _check_round_or_stage(_topic_as_int(entry, 3)),
    )
    peer = _read_peer(content, content.read_offset(0, WORD))
    return events.RewardLog(*_index_and_transaction(entry), account, peer, round, stage, str(content.read_signed(0)))


def _decode_vote(entry: LogEntry, content: AbiReader) -> events.VoteLog:
    account, round = address_from_word(_topic_as_int(entry, 1)), _check_round_or_stage(_topic_as_int(entry, 2))
    peer = _read_peer(content, content.read_offset(0, 0))
    return events.VoteLog(
        *_index_and_transaction(entry),
        account,
        peer,
        round,
        _read_peers(content, content.read_offset(0, WORD), WINNERS_MAX),
    )


def _decode_policy(entry: LogEntry, content: AbiReader) -> events.PolicyLog:
    values = content.read_unsigned(0), content.read_unsigned(WORD)
    if max(values) > SECONDS_MAX:
        raise MalformedAbi("out of range")
    return events.PolicyLog(*_index_and_transaction(entry), *values)


def _other_event_decoder(name: str) -> Callable[[LogEntry, AbiReader], events.OtherLog]:
    return lambda entry, content: events.OtherLog(*_index_and_transaction(entry), name)


def _index_and_transaction(entry: LogEntry) -> tuple[int, str]:
    return int(entry.log_index, 16), entry.transaction_hash


def _topic_as_int(entry: LogEntry, place: int) -> int:
    if len(entry.topics) <= place:
        raise MalformedAbi("too short")
    return int(entry.topics[place][:66], 16)


def _check_round_or_stage(number: int) -> int:
    if not 0 <= number <= PLACE_MAX:
        raise MalformedAbi("out of range")
    return number


def _read_peer(content: AbiReader, at: int) -> str:
    peer = content.read_text(at, PEER_BYTES_MAX)
    if len(peer) > PEER_CHARS_MAX:
        raise MalformedAbi("too long")
    return peer


def _read_peers(content: AbiReader, at: int, most: int) -> tuple[str, ...]:
    first = at + WORD
    places = range(first, first + content.read_count(at, most) * WORD, WORD)
    return tuple(_read_peer(content, content.read_offset(first, place)) for place in places)


# RoundAdvanced and CumulativeRewardsUpdated are omitted: each repeats another event of its transaction.
SAYINGS: dict[str, Callable[[LogEntry, AbiReader], events.AnyChainLog]] = {
    event_topic("StageAdvanced(uint256,uint256)"): _decode_stage,
    event_topic("PeerRegistered(address,string)"): _decode_registration,
    event_topic("RewardSubmitted(address,uint256,uint256,int256,string)"): _decode_reward,
    event_topic("WinnerSubmitted(address,string,uint256,string[])"): _decode_vote,
    event_topic("RoundPolicyChanged(address,uint256,uint256)"): _decode_policy,
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
SAYINGS |= {event_topic(signature): _other_event_decoder(signature.split("(")[0]) for signature in OTHERS}
STAGE_TOPIC = event_topic("StageAdvanced(uint256,uint256)")
REWARD_TOPIC = event_topic("RewardSubmitted(address,uint256,uint256,int256,string)")
VOTE_TOPIC = event_topic("WinnerSubmitted(address,string,uint256,string[])")
OPEN_TOPIC = event_topic("MembershipChanged(address,bool)")
ALLOWED_TOPIC = event_topic("PeersAllowed(address,string[])")
DISALLOWED_TOPIC = event_topic("PeersDisallowed(address,string[])")


def decode_allow_list_change(entry: LogEntry) -> tuple[str, ...]:
    """Return the peer ids of PeersAllowed or PeersDisallowed. Raises MalformedAbi."""
    content = AbiReader(bytes.fromhex(entry.data[2:]))
    return _read_peers(content, content.read_offset(0, 0), PEERS_MAX)

"""From log entries to facts: one `ChainBlock` a block that has any, and a mark now and then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Protocol

from swarmd.chain.ports import NotThere
from swarmd.chain.watching.logs import LogEntry, decode_entry
from swarmd.core.events import AnyChainLog, ChainBlock
from swarmd.core.values import BlockRef
from swarmd.worker.ports import EventSink

MARK_BLOCKS = 256  # a block without logs is reported when the last report lies so far back,
MARK_S = 600.0  # or so long
BLOCK_CHARS_MAX = 3_000_000  # of one block's entries, as hex; a fact has to fit into a frame
SMALL_CHARS = 8192  # entries up to here go first where a block has more than that
ENTRY_CHARS = 300  # what an entry takes besides its text


class EntryDecoder(Protocol):
    """Says what an entry of the contract means: `swarmd.chain.watching.logs.decode_entry`."""

    def __call__(self, entry: LogEntry, rejected: Counter[str], /) -> AnyChainLog | None:
        """The fact in an entry; None where there is none, which `rejected` counts by its reason. Raises nothing."""


class BlockReporter:
    """Observes blocks, in order.

    Args:
        emit: takes the facts.
        decode: what an entry says; counts what makes no sense.
    """

    def __init__(self, emit: EventSink, decode: EntryDecoder = decode_entry) -> None:
        self._emit = emit
        self._decode = decode
        self._last: BlockRef | None = None
        self.rejected: Counter[str] = Counter()

    def begin_at(self, block: BlockRef) -> None:
        """What comes next follows this block, which is known already."""
        self._last = block

    def report(self, block: BlockRef, entries: Sequence[LogEntry]) -> tuple[AnyChainLog, ...]:
        """Observe a block, if it has logs or is due as a mark. Returns its logs."""
        logs = facts_from_logs(entries, self.rejected, self._decode)
        if logs or self._is_due(block):
            self._emit(ChainBlock(block, logs))
            self._last = block
        return logs

    def _is_due(self, block: BlockRef) -> bool:
        last = self._last
        return last is None or block.number - last.number >= MARK_BLOCKS or block.at - last.at >= MARK_S


def facts_from_logs(
    entries: Sequence[LogEntry], rejected: Counter[str], decode: EntryDecoder = decode_entry
) -> tuple[AnyChainLog, ...]:
    """What a block's entries say, up to BLOCK_CHARS_MAX; what is longest is left out first."""
    sizes = [len(entry.data) + ENTRY_CHARS for entry in entries]
    room = {True: BLOCK_CHARS_MAX}
    room[False] = BLOCK_CHARS_MAX - sum(size for size in sizes if size <= SMALL_CHARS)
    said = []
    for entry, size in zip(entries, sizes, strict=True):
        if size > room[size <= SMALL_CHARS]:
            rejected["block too large"] += 1
            continue
        room[size <= SMALL_CHARS] -= size
        if (log := decode(entry, rejected)) is not None:
            said.append(log)
    return tuple(said)


def by_block(entries: Sequence[LogEntry]) -> list[tuple[int, list[LogEntry]]]:
    """Entries, sorted already, by their block's number.

    Raises:
        NotThere: those of one number are of different blocks, because the chain changed in between.
    """
    groups = [(number, list(group)) for number, group in groupby(entries, lambda entry: int(entry.block_number, 16))]
    for number, group in groups:
        if len({entry.block_hash for entry in group}) > 1:
            raise NotThere(f"block {number} changed while it was read")
    return groups

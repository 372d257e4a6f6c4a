"""Reads blocks, log entries and announcements of new heads, from whichever endpoint answers.

Logs near the head are requested by block hash. There are often several nodes behind one URL, and a node that does not
have the block yet then says so; for a range of numbers it would return nothing.
"""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import anyio
import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.chain.endpoints import FOREIGN_S, EndpointHealth, RpcPool, WebSocketEndpoint
from swarmd.chain.logs import BlockHeader, LogEntry, decode_log_entry
from swarmd.chain.ports import BlockNotFound, LogFilter, LogRange
from swarmd.core.events import AnyChainLog, ChainBlock
from swarmd.core.state import BLOCKS_KEPT
from swarmd.core.values import BlockRef
from swarmd.errors import ChainError, ChainMismatch, EndpointFailed, RpcRefused
from swarmd.logger import get_logger
from swarmd.worker.messages import EventSink

RANGE_BLOCKS = 2000  # blocks in one request for logs; halved if an endpoint refuses
TOGETHER = 16  # concurrent calls
GROW_AFTER = 8  # ranges answered in a row before the next one is twice as long

A = TypeVar("A")
T = TypeVar("T")
log = get_logger(__name__)


class PendingRange(NamedTuple):
    """A range of blocks whose logs have been requested."""

    first: int
    last: int
    task: asyncio.Task[list[LogEntry] | None]

    def cancel(self) -> None:
        """Cancel the request, and ignore its error."""
        self.task.cancel()
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())


class RpcBlockReader:
    """Reads blocks and one contract's logs, `range_blocks` in a request; halved while endpoints refuse."""

    def __init__(self, rpc: RpcPool, contract: str, range_blocks: int = RANGE_BLOCKS) -> None:
        self._rpc = rpc
        self._contract = contract
        self._range_most = range_blocks
        self._range = range_blocks
        self._answered = 0  # ranges answered since the last refusal

    async def get_head(self) -> BlockRef:
        return await self.get_block("latest")

    async def get_block(self, block: int | str) -> BlockRef:
        tag = hex(block) if isinstance(block, int) else block
        header = await self._rpc.call("eth_getBlockByNumber", [tag, False], BlockHeader | None)  # type: ignore[arg-type]
        if header is None:
            raise BlockNotFound(f"the chain has no block {block} yet")
        return header.to_block_ref()

    async def get_blocks(self, numbers: Iterable[int]) -> list[BlockRef]:
        return await gather_limited(self.get_block, numbers)

    async def get_logs_of_blocks(
        self, blocks: Iterable[BlockRef], filters: Sequence[LogFilter] = ()
    ) -> list[list[LogEntry]]:
        return await gather_limited(partial(self.get_logs_of_block, filters=filters), blocks)

    async def is_syncing(self) -> bool:
        """Return whether the endpoint is still catching up; False if it does not know the method."""
        try:
            return bool(await self._rpc.call("eth_syncing", [], Any))
        except RpcRefused:
            return False

    async def get_logs_of_block(self, block: BlockRef, filters: Sequence[LogFilter] = ()) -> list[LogEntry]:
        """Return the log entries of one block. Raises BlockNotFound if the endpoint does not have it."""
        try:
            return await self._get_logs({"blockHash": block.hash}, filters)
        except RpcRefused as refused:
            raise BlockNotFound(f"no logs of block {block.number} {block.hash}: {refused.message}") from None

    async def iter_log_ranges(
        self, first: int, last: int, filters: Sequence[LogFilter] = (), backwards: bool = False
    ) -> AsyncIterator[LogRange]:
        """Yield log entries in ranges that the endpoints accept. Raises ChainError if one block's cannot be read."""
        asked = self._request_range(first, last, filters, backwards)
        try:
            while asked is not None:
                entries, begin, end = await asked.task, asked.first, asked.last
                if entries is not None:
                    first, last = (first, begin - 1) if backwards else (end + 1, last)
                # prefetch the next range while the caller handles this one
                asked = self._request_range(first, last, filters, backwards)
                if entries is not None:
                    yield LogRange(begin, end, entries)
        finally:
            if asked is not None:
                asked.cancel()

    def _request_range(
        self, first: int, last: int, filters: Sequence[LogFilter], backwards: bool
    ) -> PendingRange | None:
        """Start the request for the next range; None if there is none."""
        if first > last:
            return None
        length = min(self._range, last - first + 1)
        begin = last - length + 1 if backwards else first
        task = asyncio.create_task(self._get_logs_of_range(begin, length, filters))
        return PendingRange(begin, begin + length - 1, task)

    async def _get_logs_of_range(self, begin: int, length: int, filters: Sequence[LogFilter]) -> list[LogEntry] | None:
        """Return the entries of a range; None if it was refused and a shorter one may be answered."""
        try:
            bounds = {"fromBlock": hex(begin), "toBlock": hex(begin + length - 1)}
            entries = await self._get_logs(bounds, filters)
        except (RpcRefused, EndpointFailed) as error:
            if length == 1:
                raise ChainError(f"the logs of block {begin} cannot be read: {error.message}") from None
            self._range, self._answered = max(1, length // 2), 0
            log.info("logs of %d blocks refused, %d next: %s", length, self._range, error.message)
            return None
        self._answered += 1
        if self._answered >= GROW_AFTER and self._range < self._range_most:
            self._range, self._answered = min(self._range * 2, self._range_most), 0
        return entries

    async def _get_logs(self, where: dict[str, Any], filters: Sequence[LogFilter]) -> list[LogEntry]:
        """Return the contract's entries; with filters, those that pass one of them, with one request for each filter.

        Some endpoints ignore address or blocks: raises ChainError for an entry that was not requested. Entries of other
        topics, from an endpoint that ignores topics, are left out.
        """
        asked: dict[str, Any] = where | {"address": self._contract}
        each = [asked | {"topics": [list(topics) for topics in one]} for one in filters] or [asked]
        found = await gather_limited(lambda one: self._rpc.call("eth_getLogs", [one], list[LogEntry]), each)
        standing = [
            entry for entries in found for entry in entries if not entry.removed and _matches_filters(entry, filters)
        ]
        for entry in standing:
            if not _matches_request(entry, asked):
                number = int(entry.block_number, 16)
                raise ChainError(f"an endpoint gave a log entry of block {number} that it was not asked for")
        return sorted({(entry.block_hash, entry.log_index): entry for entry in standing}.values(), key=log_sort_key)


def _matches_request(entry: LogEntry, asked: dict[str, Any]) -> bool:
    if entry.address.lower() != asked["address"].lower():
        return False
    if "blockHash" in asked:
        return bool(entry.block_hash == asked["blockHash"])
    return int(asked["fromBlock"], 16) <= int(entry.block_number, 16) <= int(asked["toBlock"], 16)


def _matches_filters(entry: LogEntry, filters: Sequence[LogFilter]) -> bool:
    """Return whether an entry passes one of the filters; without filters, all do."""
    topics = [topic.lower() for topic in entry.topics]
    return not filters or any(
        len(topics) >= len(wanted)
        and all(not some or topic in some for topic, some in zip(topics, wanted, strict=False))
        for wanted in filters
    )


def log_sort_key(entry: LogEntry) -> tuple[int, int]:
    """Return the sort key: block number, index in the block."""
    return int(entry.block_number, 16), int(entry.log_index, 16)


async def gather_limited(call: Callable[[A], Awaitable[T]], arguments: Iterable[A]) -> list[T]:
    """Return the results of calls, at most TOGETHER of them concurrently. Raises the first error."""
    limit = asyncio.Semaphore(TOGETHER)

    async def call_with_limit(argument: A) -> T:
        async with limit:
            return await call(argument)

    results: list[T] = []
    for result in await asyncio.gather(*map(call_with_limit, arguments), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results


KEPT_MAX = 256 + BLOCKS_KEPT  # most recent blocks that are remembered


BlockCheck = Callable[[BlockRef], Awaitable[bool]]  # whether the chain still has a block; raises ChainError


class RecentBlocks:
    """Blocks in the order of their numbers, at least one; the last is the tip, and there may be gaps."""

    def __init__(self, blocks: Sequence[BlockRef]) -> None:
        self._blocks = sorted(blocks, key=lambda block: block.number)

    @property
    def tip(self) -> BlockRef:
        """The last block that was read."""
        return self._blocks[-1]

    def find_block(self, number: int) -> BlockRef | None:
        place = bisect_left(self._blocks, number, key=lambda block: block.number)
        found = self._blocks[place] if place < len(self._blocks) else None
        return found if found is not None and found.number == number else None

    def append_block(self, block: BlockRef) -> None:
        self._blocks = [*self._blocks[1 - KEPT_MAX :], block]

    def drop_blocks_after(self, number: int) -> None:
        self._blocks = [block for block in self._blocks if block.number <= number]

    async def find_fork(self, is_on_chain: BlockCheck) -> BlockRef | None:
        """Return the last block that is still on the chain (then all before it are, too); None if none is."""
        low, high, step = 0, len(self._blocks), 1
        while low < high:  # steps back from the tip double until a block is on the chain; then the gap is halved
            middle = max(high - step, 0) if low == 0 else (low + high) // 2
            if await is_on_chain(self._blocks[middle]):
                low = middle + 1
            else:
                high, step = middle, step * 2
        return self._blocks[low - 1] if low else None

    def __len__(self) -> int:
        return len(self._blocks)


MARK_BLOCKS = 256  # a block without logs is reported if the last report is this many blocks back,
MARK_S = 600.0  # or that many seconds
BLOCK_CHARS_MAX = 3_000_000  # hex characters of one block's entries; an event must fit into a frame
ENTRY_CHARS = 300  # size of an entry apart from its data


# Decodes an entry into an event; returns None for an entry without one, and counts the reason. Never raises.
EntryDecoder = Callable[[LogEntry, Counter[str]], AnyChainLog | None]


class BlockReporter:
    """Emits an event for each block with logs, and occasionally for one without, in order."""

    def __init__(self, emit: EventSink, decode: EntryDecoder = decode_log_entry) -> None:
        self._emit = emit
        self._decode = decode
        self._last: BlockRef | None = None
        self.rejected: Counter[str] = Counter()

    def resume_after(self, block: BlockRef) -> None:
        self._last = block

    def report_block(self, block: BlockRef, entries: Sequence[LogEntry]) -> tuple[AnyChainLog, ...]:
        """Emit a block if it has logs, or if a block without logs is due. Returns its logs."""
        logs = facts_from_logs(entries, self.rejected, self._decode)
        if logs or self._is_report_due(block):
            self._emit(ChainBlock(block, logs))
            self._last = block
        return logs

    def _is_report_due(self, block: BlockRef) -> bool:
        last = self._last
        return last is None or block.number - last.number >= MARK_BLOCKS or block.at - last.at >= MARK_S


def facts_from_logs(
    entries: Sequence[LogEntry], rejected: Counter[str], decode: EntryDecoder = decode_log_entry
) -> tuple[AnyChainLog, ...]:
    """Return the events in a block's entries, up to BLOCK_CHARS_MAX; the longest entries are left out first."""
    room, large = BLOCK_CHARS_MAX, set[int]()
    for place in sorted(range(len(entries)), key=lambda place: len(entries[place].data)):
        room -= len(entries[place].data) + ENTRY_CHARS
        if room < 0:
            rejected["block too large"] += 1
            large.add(place)
    said = [decode(entry, rejected) for place, entry in enumerate(entries) if place not in large]
    return tuple(log for log in said if log is not None)


def group_by_block(entries: Sequence[LogEntry]) -> list[tuple[int, list[LogEntry]]]:
    """Group sorted entries by block number. Raises BlockNotFound if entries of one number have different block hashes,
    because the chain was reorganised in between."""
    groups = [(number, list(group)) for number, group in groupby(entries, lambda entry: int(entry.block_number, 16))]
    for number, group in groups:
        if len({entry.block_hash for entry in group}) > 1:
            raise BlockNotFound(f"block {number} changed while it was read")
    return groups


SLOW_POLLS = 5  # polling interval while a subscription works, in units of poll_s
RETRY_S = 0.25  # between two attempts to subscribe
DEAF_AFTER = 3  # new blocks found by polling that a subscription did not announce, before it is dropped

_headers = msgspec.json.Decoder(BlockHeader)


class HeadSubscription:
    """Keeps a subscription open (`swarmd.chain.ports.HeadNotifier`); polls every `poll_s` without one."""

    def __init__(self, rpc: RpcPool, contract: str, poll_s: float) -> None:
        self._rpc = rpc
        self._contract = contract
        self._poll_s = poll_s
        self._news = asyncio.Event()
        self._lost = asyncio.Event()
        self._header: BlockRef | None = None
        self._unannounced = 0
        self._not_before: dict[str, float] = {}
        self.live = ""  # name of the endpoint whose subscription works

    async def run(self) -> None:
        """Keep a subscription to new heads open until cancelled."""
        while self._rpc.websocket_endpoints:
            for health in self._rpc.websocket_endpoints:
                if max(health.retry_at, self._not_before.get(health.endpoint.url, 0.0)) <= monotonic():
                    await self._subscribe_at(health)
            await anyio.sleep(RETRY_S)

    async def _subscribe_at(self, health: EndpointHealth) -> None:
        """Subscribe at one endpoint and wait until the connection is lost."""
        endpoint = health.endpoint
        assert isinstance(endpoint, WebSocketEndpoint)
        self._lost.clear()
        endpoint.on_notification, endpoint.on_close = self._on_notification, self._lost.set
        try:
            await self._rpc.call_endpoint(health, "eth_subscribe", ["newHeads"], str)
            await self._rpc.call_endpoint(health, "eth_subscribe", ["logs", {"address": self._contract}], str)
        except RpcRefused as error:
            log.warning("%s takes no subscriptions: %s", endpoint.name, error.message)
            self._not_before[endpoint.url] = monotonic() + FOREIGN_S
            return
        except (EndpointFailed, ChainMismatch):  # counted by the endpoint's health, and reported by the watcher
            return
        self.live, self._unannounced = endpoint.name, 0
        self._news.set()  # there may be blocks from before the subscription
        log.info("subscribed at %s", endpoint.name)
        await self._lost.wait()
        self.live = ""
        await endpoint.disconnect()
        health.record_failure(endpoint.make_failure("lost the subscription"))
        self._news.set()

    def _on_notification(self, subscription: str, result: msgspec.Raw) -> None:
        with suppress(*DECODE_ERRORS):  # a log entry, which ends the wait as well
            self._header = _headers.decode(result).to_block_ref()
        self._unannounced = 0
        self._news.set()

    async def wait_for_head(self, soon: bool = False) -> BlockRef | None:
        pause_s = self._poll_s * (SLOW_POLLS if self.live and not soon else 1)
        with anyio.move_on_after(pause_s):
            await self._news.wait()
        self._news.clear()
        header, self._header = self._header, None
        return header

    def end_wait(self) -> None:
        self._news.set()

    def record_unannounced_head(self) -> None:
        """See `HeadNotifier`; drops a subscription that announces nothing."""
        self._unannounced += 1
        if self.live and self._unannounced >= DEAF_AFTER:
            log.warning("%s announces no blocks any more", self.live)
            self._lost.set()

"""Fetching a file of weights from all peers that have it at once, chunk by chunk, until it is whole or time is over.

Whoever sends something else than what its manifest names is not asked again; whoever does not answer, or has no room,
is asked again later, for a bounded time. A chunk that a slow peer is at is asked of another one, too, and where
that is slow of one more; of the owner in any case, so that no number of peers that hang keeps a chunk from coming. What
has come stays on the disk, and the next attempt goes on with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Protocol

import anyio
from anyio import to_thread

from swarmd.bounds import Backoff
from swarmd.dht.ports import Chunks
from swarmd.errors import NetworkDown, RecordRejected, SwarmdError, WeightsUnavailable, WeightsUnfinished
from swarmd.files import write_failure
from swarmd.logger import get_logger
from swarmd.weights.manifest import ChunkedFile, WeightsManifest, WeightsOffer, decode_manifest
from swarmd.weights.offered import PartialFile

CHUNK_S = 60.0  # for one chunk: 4 MiB at 70 KiB a second
FAILURES_MAX = 5  # of one peer, one after another, before it is asked no more
PATIENCE_S = 60.0  # with a peer that gives nothing: one that many fetch from at once says no to most of them for long
AGAIN = Backoff(1.0, 8.0)  # a bounded peer says no until its bounds allow more
LANES = 2  # chunks on their way from one peer
DOUBTED_S = 5.0  # that a chunk may take before another peer, with nothing else to do, is asked for it, too
MANIFEST_S = 20.0  # for a manifest from its owner
MANIFEST_ATTEMPTS = 3  # at an owner before others are asked, and in all at one that takes long to say no

log = get_logger(__name__)


class FetchedFile(Protocol):
    """Where a fetched chunk goes, see `swarmd.weights.offered.PartialFile`."""

    file: ChunkedFile
    missing: set[int]

    def put(self, index: int, chunk: bytes) -> None:
        """Keep a chunk. Raises RecordRejected, NoSpaceLeft, LogWriteFailed."""


async def fetch_manifest(source: Chunks, peers: Collection[str], offer: WeightsOffer) -> WeightsManifest:
    """The manifest of an offer, from the first peer that gives one which keeps to the offer.

    Args:
        peers: whom to ask, the owner first; the others may only say that they have it.

    Raises:
        WeightsUnavailable: none does; it says why the last did not.
    """
    reason, liars, slow = "nobody offers it", set[str](), Counter[str]()
    for peer, within_s, pause_s in _in_turn(peers):
        if peer in liars or slow[peer] == MANIFEST_ATTEMPTS:
            continue
        await anyio.sleep(pause_s)
        asked_at = anyio.current_time()
        try:
            encoded = await source.fetch(peer, offer.manifest.hex(), offer.manifest_bytes, within_s)
            manifest = decode_manifest(encoded, offer.manifest.hex())
            _check_offer(manifest, offer)
            return manifest
        except (NetworkDown, RecordRejected) as error:
            reason = f"{peer}: {error}"
            log.info("no manifest of weights from %s", reason)
            if isinstance(error, RecordRejected):
                liars.add(peer)
            slow[peer] += anyio.current_time() - asked_at > DOUBTED_S
    raise WeightsUnavailable(f"the manifest of the weights of round {offer.round} is not to be had: {reason}")


def _in_turn(peers: Collection[str]) -> Iterator[tuple[str, float, float]]:
    """Whom to ask for a manifest, for how many seconds at most, and after how many.

    An owner that says no may have no time just now, for it gives as many chunks as it may, or be kept from having any:
    it is asked a few times, and again after each of the others.
    """
    owner, *others = peers
    for attempt in range(MANIFEST_ATTEMPTS):
        yield owner, MANIFEST_S, AGAIN.after(attempt) if attempt else 0.0
    for other in others:
        yield other, DOUBTED_S, 0.0
        yield owner, MANIFEST_S, 0.0


def _check_offer(manifest: WeightsManifest, offer: WeightsOffer) -> None:
    said = (offer.architecture.hex(), offer.tokenizer.hex(), offer.round)
    if (manifest.architecture, manifest.tokenizer, manifest.round) != said:
        raise RecordRejected("malformed", "the manifest says another architecture, tokenizer or round than its offer")


async def fetch_weights(
    source: Chunks,
    peers: Collection[str],
    manifest: WeightsManifest,
    path: Path,
    timeout_s: float,
    bytes_max: int,
    base: Path | None = None,
) -> Path:
    """The whole file of a manifest, under its final name only when its digest is right.

    Args:
        peers: who offers it, its owner first.
        path: where it is to be; what an earlier attempt has left beside it is gone on with.
        timeout_s: longest that it may take.
        bytes_max: largest file that is fetched.
        base: a file that is here and for which the manifest may have a delta, named by its digest; None without one.

    Raises:
        WeightsUnavailable: it is too large.
        WeightsUnfinished: time is over, or no peer is left that gives it.
        RecordRejected: the chunks, or the delta, make another file than the manifest says.
        NoSpaceLeft, LogWriteFailed: it cannot be written.
    """
    delta = manifest.delta_from(base.stem) if base is not None else None
    if base is None or delta is None:
        return await _fetch_file(source, peers, manifest.whole, path, timeout_s, bytes_max)
    from swarmd.weights.tensors import apply_delta  # with it numpy, whose threads would not be confined

    change = path.with_suffix(".delta")
    await _fetch_file(source, peers, delta.file, change, timeout_s, bytes_max)
    made = await to_thread.run_sync(PartialFile, path, manifest.whole)
    try:
        await to_thread.run_sync(apply_delta, base, change, made.partial)
    except OSError as error:
        raise write_failure(error, path, "writing") from error
    change.unlink()
    made.missing.clear()
    return await to_thread.run_sync(made.finish)


async def _fetch_file(
    source: Chunks, peers: Collection[str], file: ChunkedFile, path: Path, timeout_s: float, bytes_max: int
) -> Path:
    if file.size_bytes > bytes_max:
        raise WeightsUnavailable(
            f"the weights have {file.size_bytes} bytes, no more than {bytes_max} are fetched", "Allow more"
        )
    partial = await to_thread.run_sync(PartialFile, path, file)
    with anyio.move_on_after(timeout_s):
        await fetch_chunks(source, peers, partial)
    if partial.missing:
        raise WeightsUnfinished(
            f"{len(partial.missing)} of {len(file)} chunks of the weights are not to be had from {len(peers)} peers",
            "What has come is kept; try again when peers that offer them are there",
        )
    return await to_thread.run_sync(partial.finish)


async def fetch_chunks(source: Chunks, peers: Collection[str], into: FetchedFile) -> None:
    """Fetch what is missing; returns when all is there, or no peer is left.

    Args:
        peers: whom to ask, the owner first.

    Raises:
        NoSpaceLeft, LogWriteFailed: a chunk cannot be written.
    """
    lanes = _Lanes(source, into, next(iter(peers), ""))
    async with anyio.create_task_group() as tasks:
        for peer in [*peers] * LANES:
            tasks.start_soon(lanes.run, peer)
    if lanes.failed:
        raise lanes.failed[0]


class _Lanes:
    """Chunks on their way, each from one peer, and from others where it takes long."""

    def __init__(self, source: Chunks, into: FetchedFile, owner: str) -> None:
        self._source = source
        self._into = into
        self._owner = owner
        self._left = sorted(into.missing, reverse=True)
        self._under_way: dict[int, dict[str, tuple[float, anyio.CancelScope]]] = {}  # chunk → peer → since when
        self._dropped: set[str] = set()
        self._gave_at: dict[str, float] = {}  # peer → when it gave something last, or was asked first
        self._changed = anyio.Event()
        self._over = anyio.Event()
        self.failed: list[Exception] = []  # by the disk, which no other peer mends

    async def run(self, peer: str) -> None:
        """Fetch from a peer until nothing is missing, or it is asked no more."""
        failures = 0
        self._gave_at[peer] = anyio.current_time()
        while self._into.missing and peer not in self._dropped and not self.failed:
            index = self._choose(peer)
            if index is None:
                changed = self._changed
                with anyio.move_on_after(DOUBTED_S):
                    await changed.wait()
            elif await self._fetch(peer, index):
                failures = 0
            elif (failures := failures + 1) >= FAILURES_MAX and self._gives_nothing(peer):
                self._dropped.add(peer)
            else:
                with anyio.move_on_after(AGAIN.after(failures)):
                    await self._over.wait()

    def _gives_nothing(self, peer: str) -> bool:
        return anyio.current_time() - self._gave_at[peer] >= PATIENCE_S

    def _choose(self, peer: str) -> int | None:
        """A chunk that nobody fetches, else one that all its askers have been at for long; None where there is neither.

        For the owner it is enough that one has: it alone is trusted, and others may take turns at hanging.
        """
        if self._left:
            return self._left.pop()
        doubted = anyio.current_time() - DOUBTED_S
        for index, askers in self._under_way.items():
            if peer in askers or index not in self._into.missing:
                continue
            since = [asked_at for asked_at, _ in askers.values()]
            if (min(since) if peer == self._owner else max(since)) <= doubted:
                return index
        return None

    async def _fetch(self, peer: str, index: int) -> bool:
        """One chunk from a peer. False where it was not to be had; another peer was faster: True."""
        askers = self._under_way.setdefault(index, {})
        with anyio.CancelScope() as scope:
            askers[peer] = anyio.current_time(), scope
            came = await self._try(peer, index)
        askers.pop(peer)
        if index not in self._into.missing:
            for _, other in askers.values():
                other.cancel()
        elif not askers:
            self._left.append(index)
        if not askers:
            self._under_way.pop(index, None)
        if not self._into.missing or self.failed:
            self._over.set()
        self._changed.set()
        self._changed = anyio.Event()
        return scope.cancelled_caught or came

    async def _try(self, peer: str, index: int) -> bool:
        file = self._into.file
        try:
            chunk = await self._source.fetch(peer, file.chunk_digest(index), file.chunk_size(index), CHUNK_S)
            if index in self._into.missing:
                await to_thread.run_sync(self._into.put, index, chunk)
            self._gave_at[peer] = anyio.current_time()
            return True
        except NetworkDown as error:
            log.debug("chunk %d not from %s: %s", index, peer, error)
            return False
        except RecordRejected as error:
            self._dropped.add(peer)
            log.warning("weights are no longer fetched from %s: %s", peer, error)
        except SwarmdError as error:
            self.failed.append(error)
        return True

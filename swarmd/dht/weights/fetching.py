"""Fetching a file of weights from all peers that have it at once, chunk by chunk, until it is whole or time is over.

Whoever sends something else than what its manifest names is not asked again; whoever does not answer, or has no room,
is asked again later, a bounded number of times. What has come stays on the disk, and the next attempt goes on with it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

import anyio
from anyio import to_thread

from swarmd.dht.ports import Chunks
from swarmd.errors import NetworkDown, RecordRejected, SwarmdError, WeightsUnavailable
from swarmd.eventlog.files import write_failure
from swarmd.weights.chunks import PartialFile
from swarmd.weights.manifest import ChunkedFile, WeightsManifest, decode_manifest
from swarmd.weights.offer import WeightsOffer

CHUNK_S = 60.0  # for one chunk: 4 MiB at 70 KiB a second
FAILURES_MAX = 5  # of one peer, one after another, before it is asked no more
AGAIN_S = 1.0  # after a failure, then twice as long each time: a bounded peer says no until its bounds allow more
LANES = 2  # chunks on their way from one peer

log = logging.getLogger(__name__)


class FetchedFile(Protocol):
    """Where a fetched chunk goes, see `swarmd.weights.chunks.PartialFile`."""

    file: ChunkedFile
    missing: set[int]

    def put(self, index: int, chunk: bytes) -> None:
        """Keep a chunk. Raises RecordRejected, NoSpaceLeft, LogWriteFailed."""


async def fetch_manifest(source: Chunks, peers: Collection[str], offer: WeightsOffer) -> WeightsManifest:
    """The manifest of an offer, from the first peer that gives one which keeps to the offer.

    Raises:
        WeightsUnavailable: none does; it says why the last did not.
    """
    reason = "nobody offers it"
    for peer in peers:
        try:
            encoded = await source.fetch(peer, offer.manifest.hex(), offer.manifest_bytes, CHUNK_S)
            manifest = decode_manifest(encoded, offer.manifest.hex())
            _check_offer(manifest, offer)
            return manifest
        except (NetworkDown, RecordRejected) as error:
            reason = f"{peer}: {error}"
            log.info("no manifest of weights from %s", reason)
    raise WeightsUnavailable(f"the manifest of the weights of round {offer.round} is not to be had: {reason}")


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
        peers: who offers it.
        path: where it is to be; what an earlier attempt has left beside it is gone on with.
        timeout_s: longest that it may take.
        bytes_max: largest file that is fetched.
        base: a file that is here and for which the manifest may have a delta, named by its digest; None without one.

    Raises:
        WeightsUnavailable: it is too large, time is over, or no peer is left that gives it.
        RecordRejected: the chunks, or the delta, make another file than the manifest says.
        NoSpaceLeft, LogWriteFailed: it cannot be written.
    """
    delta = manifest.delta_from(base.stem) if base is not None else None
    if base is None or delta is None:
        return await _fetch_file(source, peers, manifest.whole, path, timeout_s, bytes_max)
    from swarmd.weights.delta import apply_delta  # with it numpy, whose threads would not be confined

    change = path.with_suffix(".delta")
    await _fetch_file(source, peers, delta.file, change, timeout_s, bytes_max)
    made = PartialFile(path, manifest.whole)
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
        raise WeightsUnavailable(
            f"{len(partial.missing)} of {len(file)} chunks of the weights are not to be had from {len(peers)} peers",
            "What has come is kept; try again when peers that offer them are there",
        )
    return await to_thread.run_sync(partial.finish)


async def fetch_chunks(source: Chunks, peers: Collection[str], into: FetchedFile) -> None:
    """Fetch what is missing; returns when all is there, or no peer is left.

    Raises:
        NoSpaceLeft, LogWriteFailed: a chunk cannot be written.
    """
    left, dropped, failed = sorted(into.missing, reverse=True), set[str](), list[Exception]()

    async def lane(peer: str) -> None:
        failures = 0
        while left and peer not in dropped and not failed:
            index = left.pop()
            try:
                chunk = await source.fetch(peer, into.file.chunk_digest(index), into.file.chunk_size(index), CHUNK_S)
                await to_thread.run_sync(into.put, index, chunk)
                failures = 0
            except NetworkDown as error:
                left.append(index)
                failures += 1
                log.debug("chunk %d not from %s: %s", index, peer, error)
                if failures == FAILURES_MAX:
                    dropped.add(peer)
                else:
                    await anyio.sleep(AGAIN_S * 2 ** (failures - 1))
            except RecordRejected as error:
                left.append(index)
                dropped.add(peer)
                log.warning("weights are no longer fetched from %s: %s", peer, error)
            except SwarmdError as error:  # the disk's, which no other peer mends
                failed.append(error)

    while left and not failed and (asked := [peer for peer in peers if peer not in dropped]):
        async with anyio.create_task_group() as tasks:
            for peer in asked * LANES:
                tasks.start_soon(lane, peer)
    if failed:
        raise failed[0]

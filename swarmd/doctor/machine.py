"""Checks of the machine: Python, accelerator and memory, the model, the sandbox, disk and clock."""

import asyncio
import ctypes
import os
import platform
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from itertools import islice
from pathlib import Path

import msgspec
import psutil
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from swarmd import __version__
from swarmd.config import Config, StorageConfig, TrainingConfig
from swarmd.doctor.children import ModelFit, ProbeAnswer
from swarmd.doctor.examination import Finding, Subject, error, in_thread, note, ok_finding, warning
from swarmd.errors import ConfigError, SandboxUnavailable, SwarmdError
from swarmd.eventlog.store import log_disk_bytes
from swarmd.host import check_host
from swarmd.installed import extra_command, install_command
from swarmd.paths import NodeDirectory
from swarmd.sandbox import Sandbox
from swarmd.sandbox.sandbox import RISKY
from swarmd.swarms.options import ProgramOptions, VerifiersOptions
from swarmd.swarms.registry import read_options
from swarmd.training.checkpoint_files import CHECKPOINTS_KEPT
from swarmd.training.models.known import KINDS
from swarmd.training.models.parallelism import find_parallelism
from swarmd.training.models.source import AUTO, compare_weights, find_configured_model, require_model

DISTRIBUTION = "swarmd"
GIB, MIB = 2**30, 2**20

# --- Python ---


def _uses_deepspeed(training: TrainingConfig) -> bool:
    try:
        return find_parallelism(training).kind == "zero"
    except ConfigError:  # `check_device` reports it
        return False


# (package, extra that installs it, whether a configuration needs it)
EXTRAS: tuple[tuple[str, str, Callable[[Config], bool]], ...] = (
    ("peft", "lora", lambda config: config.training.lora.rank > 0),
    (
        "bitsandbytes",
        "gpu",
        lambda config: config.training.quantization != "none" or config.training.optimizer == "adamw_8bit",
    ),
    ("deepspeed", "deepspeed", lambda config: _uses_deepspeed(config.training)),
    ("vllm", "vllm", lambda config: config.training.vllm.mode == "colocate"),
    ("wandb", "wandb", lambda config: "wandb" in config.results.trackers),
    ("trackio", "trackio", lambda config: "trackio" in config.results.trackers),
    ("flash-attn", "", lambda config: config.training.attention == "flash_attention_2"),
)


def check_python(subject: Subject) -> Iterator[Finding]:
    """Check the interpreter, the packages that swarmd needs, and those that only this configuration needs."""
    here = platform.python_version()
    try:
        wanted = metadata(DISTRIBUTION)["Requires-Python"] or ""
        listed = [Requirement(line) for line in requires(DISTRIBUTION) or []]
    except PackageNotFoundError:  # running from a source checkout
        wanted, listed = "", []
    if wanted and not SpecifierSet(wanted).contains(here):
        yield error(
            "python.version",
            "Python is too old or too new",
            f"this is Python {here} ({sys.executable}), swarmd asks for {wanted}",
            "Make a virtual environment of a Python that fits, and install swarmd there",
        )
    for each in listed:
        if each.marker is None or each.marker.evaluate({"extra": ""}):
            yield from _compare_version(each, install_command(str(each)))
    for package, extra, needed in EXTRAS:
        if subject.config is not None and needed(subject.config):
            requirement = next((each for each in listed if each.name == package), Requirement(package))
            yield from _compare_version(requirement, extra_command(extra) if extra else install_command(package))
    yield ok_finding(f"Python {here} at {sys.executable}, swarmd {__version__}, {len(listed)} packages asked for")


def _compare_version(requirement: Requirement, install: str) -> Iterator[Finding]:
    try:
        here = version(requirement.name)
    except PackageNotFoundError:
        evidence = f"{requirement.name} is not installed, swarmd asks for {requirement.specifier or 'any version'}"
        yield error("python.missing", "A package is missing", evidence, f"Run `{install}`")
        return
    if not requirement.specifier.contains(here, prereleases=True):
        yield warning(
            "python.package",
            "A package has another version than swarmd asks for",
            f"{requirement.name} {here} is installed, swarmd asks for {requirement.specifier}",
            f"Run `{install_command(f'{requirement.name}{requirement.specifier}')}`",
        )


# --- accelerator and memory ---

TIGHT_SHARE = 0.9  # of the free memory; above it no second program fits
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
TORCH_FIX = "Install torch again for this machine (pytorch.org says how), then `swarmd doctor --only device`"


def check_limits(subject: Subject) -> Iterator[Finding]:
    """Check the machine's limits, as a start does."""
    try:
        check_host()
    except ConfigError as failure:
        yield error("limits.host", "No node can run here", failure.message, failure.fix)
    else:
        yield ok_finding("files enough, and locks among processes")


async def check_device(subject: Subject) -> list[Finding]:
    """Check device, driver and precision, and whether the model fits into memory, by a torch in a child process."""
    training = subject.config.training if subject.config else TrainingConfig()
    try:
        seen = await asyncio.shield(subject.torch_probe)
    except SwarmdError as failure:
        return [error("device.torch", "torch cannot be used", failure.message, TORCH_FIX)]
    found = list(_examine_device(seen, training))
    # A running node's own memory is not free, so nothing can be concluded.
    if subject.config is not None and not seen.fault and not (await in_thread(lambda: subject.daemon)).is_running:
        found += _examine_memory(seen, training)
    return found


def _examine_device(seen: ProbeAnswer, training: TrainingConfig) -> Iterator[Finding]:
    if not seen.names and NVIDIA_DRIVER.exists():
        driver = NVIDIA_DRIVER.read_text(encoding="ascii", errors="replace").partition("\n")[0]
        built = f"built for CUDA {seen.cuda}" if seen.cuda else "built without CUDA"
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        shown = f"; CUDA_VISIBLE_DEVICES is {hidden!r}" if hidden is not None else ""
        yield warning(
            "device.driver",
            "There is an NVIDIA driver, but torch finds no GPU",
            f"{driver}; torch {seen.torch} is {built}{shown}",
            "Install the torch that fits the driver (pytorch.org says which), and look at CUDA_VISIBLE_DEVICES",
        )
    if seen.fault:
        fix = seen.fix or 'Set training.device = "auto", or make the device visible to torch'
        yield error("device.missing", "The configured device is not there", seen.fault, fix)
        return
    if seen.device == "cpu" and training.dtype in ("float16", "bfloat16"):
        yield warning(
            "device.half",
            "16-bit numbers on a CPU: some operations fail, others are slow",
            f'training.dtype is "{training.dtype}", and the device is a CPU',
            'Set training.dtype = "auto" or "float32"',
        )
    count, asked = len(seen.names), training.processes
    if seen.device == "cuda" and asked != count:
        evidence = f"training.processes is {asked}, torch sees {count}: {', '.join(seen.names)}"
        if asked > count:
            fix = "Lower training.processes to the number of accelerators"
            yield error("device.few", "More trainer processes than accelerators", evidence, fix)
        else:
            fix = "Set training.processes to their number, or run a node for each with its own CUDA_VISIBLE_DEVICES"
            yield note("device.idle", "Not all accelerators are used", evidence, fix)
    try:
        find_parallelism(training)
    except ConfigError as failure:
        yield error("device.accelerate", "training.accelerate cannot be used", failure.message, failure.fix)
    names = f" ({', '.join(seen.names)})" if seen.names else ""
    yield ok_finding(f"{seen.device}{names}, {seen.numbers}, torch {seen.torch}, {_format_gib(seen.total)} of memory")


def _examine_memory(seen: ProbeAnswer, training: TrainingConfig) -> Iterator[Finding]:
    if seen.unknown:
        # A directory without a model is an error; a Hub id whose size is unknown is not.
        if "neither in swarmd's table" in seen.unknown and training.model != AUTO:
            yield note("memory.unknown", "The model's size is not known", seen.unknown, "Download it first")
        else:
            fix = seen.fix or "Correct training.model or training.pool"
            yield error("memory.model", "The model cannot be used", seen.unknown, fix)
        return
    chosen = find_chosen_fit(seen)
    if chosen is None:
        least = min(seen.weighed, key=lambda each: each.need)
        free = f"{_format_gib(seen.free)} are free" + (f", bounded by {seen.limit}" if seen.limit else "")
        yield error(
            "memory.short",
            "The model does not fit",
            f"{least.model} takes about {_format_gib(least.need)} on {seen.device}, {free} "
            f"({least.why or 'too large'})",
            "Free memory, choose a smaller model, or adapters with quantisation: `swarmd model fit --config FILE` "
            "weighs them",
        )
        return
    evidence = (
        f"{chosen.model} takes about {_format_gib(chosen.need)} of {_format_gib(seen.free)} free on {seen.device}"
    )
    if chosen.need > TIGHT_SHARE * seen.free:
        fix = "Lower the token counts, or stop other "
        yield warning("memory.tight", "The model only just fits", evidence, f"{fix}programs")
    yield ok_finding(evidence)


def find_chosen_fit(seen: ProbeAnswer) -> ModelFit | None:
    """The configured model, or the largest of the pool that fits; None if none fits."""
    return max((each for each in seen.weighed if each.fits), key=lambda each: each.need, default=None)


def _format_gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


# --- the model ---


def check_model(subject: Subject) -> Iterator[Finding]:
    """Whether each configured model is on this machine, or can be downloaded from the Hub."""
    training = subject.config_and_data[0].training
    for name in training.pool if training.model == AUTO else (training.model,):
        wanted = msgspec.structs.replace(training, model=name)
        if name in KINDS:
            continue
        try:
            snapshot = find_configured_model(wanted)
        except SwarmdError:
            continue  # `check_config` reports it
        if snapshot is None and subject.offline:
            fix = "Download it before the start: `hf download` and its name"
            yield note("model.absent", "The model has to be downloaded", f"{name} is not on this machine", fix)
            continue
        try:
            require_model(wanted)
            if snapshot is None:
                yield ok_finding(f"the Hub has {name}{training.revision and f', revision {training.revision}'}")
            elif snapshot.is_dir() and (differ := compare_weights(wanted, str(snapshot))):
                fix = "Get the model from where the manifest's creator has it, unless other weights are meant here"
                yield warning("model.other", "This node begins from other weights than its swarm", differ, fix)
        except SwarmdError as failure:
            if snapshot is None:
                yield error("model.nowhere", "The model cannot be loaded", failure.message, failure.fix)
            else:
                yield error("model.unusable", "The model cannot be used", failure.message, failure.fix)


# --- the sandbox ---


def check_sandbox(subject: Subject) -> Iterator[Finding]:
    """Set up a sandbox, as the node does at its start, for the kinds of swarm that run programs or tasksets."""
    swarm = subject.config_and_data[0].swarm
    try:
        options = read_options(swarm)
        if not isinstance(options, ProgramOptions | VerifiersOptions):
            yield ok_finding(f"the kind {swarm.kind} runs no programs")
            return
        limits = options.limits if isinstance(options, ProgramOptions) else None
        sandbox = Sandbox(limits, options.sandbox)
    except SandboxUnavailable as failure:
        fix = "Install bubblewrap (package `bubblewrap`) or allow unprivileged user namespaces; docs/OPERATING.md, "
        fix += "section Sandbox, has the drop-in for systemd"
        yield error("sandbox.unavailable", "Programs cannot be confined on this machine", failure.message, fix)
        return
    except (SwarmdError, msgspec.ValidationError):
        return  # `check_config` reports it
    if sandbox.isolation == RISKY:
        yield warning(
            "sandbox.off",
            "Untrusted programs run without a sandbox",
            f"[swarm.options] of {subject.path} has {RISKY}: they can read whatever the node can, keys included",
            f'Take `sandbox = "{RISKY}"` out of [swarm.options], or give the node a machine of its own',
        )
    yield ok_finding(f"{sandbox.isolation} works here")


# --- the disk ---

INODES_MIN = 2048  # a node creates some thousands of files: segments, blobs, checkpoints
FILES_COUNTED_MAX = 100_000  # in the blob store and the checkpoints
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "fuse.glusterfs", "ceph", "afs")


async def check_disk(subject: Subject) -> list[Finding]:
    """Check the disk of the data directory: rights, room, i-nodes, network file systems."""
    config, data = subject.config_and_data
    try:
        chosen = find_chosen_fit(await asyncio.shield(subject.torch_probe))
    except SwarmdError:
        chosen = None  # `check_device` reports it
    # the kept ones, and the one being written
    checkpoints = chosen.checkpoint * (CHECKPOINTS_KEPT + 1) if chosen else 0
    return await in_thread(lambda: list(examine_disk(data, config.storage, checkpoints)))


def examine_disk(data: NodeDirectory, storage: StorageConfig, checkpoints: int) -> Iterator[Finding]:
    """Compare free space with what the node may use; `checkpoints` in bytes."""
    whole = data.root.absolute()
    place = next(each for each in (whole, *whole.parents) if each.exists())
    status, free = os.statvfs(place), shutil.disk_usage(place).free
    if status.f_flag & os.ST_RDONLY or not os.access(place, os.W_OK | os.X_OK):
        evidence = f"user {os.geteuid()} cannot write to {place}, or its file system is mounted read-only"
        fix = "Mount it writable, give the directory to the node's user, or name another one with --data"
        yield error("disk.read-only", "The data directory cannot be written to", evidence, fix)
    real = place.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if real.is_relative_to(part.mountpoint)]
    mount = max(mounts, key=lambda part: len(part.mountpoint), default=None)
    if mount is not None and mount.fstype in REMOTE:
        yield warning(
            "disk.remote",
            "The data directory is on a network file system, where locks and syncs do not always hold",
            f"{place} is on {mount.mountpoint}, a file system of the kind {mount.fstype}",
            "Put it on a disk of this machine",
        )
    if free < storage.free_bytes_min:
        yield error(
            "disk.full",
            "The disk is full",
            f"{free / MIB:.1f} MiB are free for {place}, storage.free_bytes_min is "
            f"{storage.free_bytes_min / MIB:.1f} MiB",
            "Free some space, or lower storage.free_bytes_min",
        )
    elif free < storage.free_bytes_min + max(
        0, storage.log_bytes_max + storage.blob_bytes_max + checkpoints - _measure_used_bytes(data)
    ):
        log, blobs, kept = (size / GIB for size in (storage.log_bytes_max, storage.blob_bytes_max, checkpoints))
        yield warning(
            "disk.budget",
            "The node may use more than is free",
            f"{free / GIB:.2f} GiB are free for {place}; the bounds allow {log:.2f} GiB of log, {blobs:.2f} GiB of "
            f"rollouts and {kept:.2f} GiB of checkpoints",
            "Free some space, or lower storage.log_bytes_max or storage.blob_bytes_max",
        )
    if status.f_files and status.f_favail < INODES_MIN:
        evidence = f"{status.f_favail} of {status.f_files} i-nodes are left for {place}"
        fix = "Remove small files that nobody needs (`df -i` shows where they are), or use another file system"
        yield warning("disk.inodes", "Few i-nodes are left", evidence, fix)
    yield ok_finding(f"{free / GIB:.1f} GiB are free for {data.root}" + (f" ({mount.fstype})" if mount else ""))


def _measure_used_bytes(data: NodeDirectory) -> int:
    """Disk space that the node already uses, counted as its bounds do."""
    try:
        size = log_disk_bytes(data.events)
    except SwarmdError:
        size = 0
    for place in (data.blobs, data.checkpoints):
        found = (Path(directory, name) for directory, inner, names in os.walk(place) for name in (*inner, *names))
        for path in islice(found, FILES_COUNTED_MAX):
            try:
                size += path.lstat().st_size
            except OSError:  # a running node removed it meanwhile
                continue
    return size


# --- the clock ---

SKEW_MAX_S = 3.0  # hivemind refuses a node whose clock differs by more, and drops its records
SKEW_NOTED_S = 1.0
UNSYNCHRONISED = 5  # adjtimex(2): TIME_ERROR
CLOCK_FIX = "`timedatectl set-ntp true`, or start chrony; in a virtual machine or container look at the host's clock"


async def check_clock(subject: Subject) -> list[Finding]:
    """Compare the clock with peers' clocks, if they can be asked, and ask the kernel whether it is synchronised."""
    dialled = [] if subject.offline or subject.config is None else await asyncio.shield(subject.dial_results)
    skews = {each.address: each.skew_s for each in dialled if each.skew_s is not None}
    found = judge_clock_skews(skews)
    if not is_clock_synchronised():
        evidence = "adjtimex(2) says that the clock is unsynchronised"
        found.append(note("clock.free", "Nothing keeps the clock right", evidence, CLOCK_FIX))
    measured = f"{len(skews)} peers differ by {max(map(abs, skews.values())):.2f} s at most" if skews else ""
    return [*found, *([ok_finding(measured or "a time service keeps it")] if measured or not found else [])]


def judge_clock_skews(skews: dict[str, float]) -> list[Finding]:
    """Judge peers' clocks minus ours, in seconds, by address: the median decides whose clock is wrong. If their number
    is even, ours is added, so that the median is a real clock and not the mean of two."""
    if not skews:
        return []
    middle = statistics.median([*skews.values(), *[0.0] * (len(skews) % 2 == 0)])
    shown = ", ".join(f"{address}: {skew_s:+.2f} s" for address, skew_s in list(skews.items())[:4])
    alone = " (only one peer could be asked, so it may be that one's)" if len(skews) == 1 else ""
    way = f"{abs(middle):.2f} s {'behind' if middle > 0 else 'ahead of'}"
    found = [
        note(
            "clock.peer",
            "A peer's clock is wrong",
            f"{address} differs by {skew_s:+.2f} s, the median is {middle:+.2f} s",
            "Tell whoever runs that node",
        )
        for address, skew_s in skews.items()
        if abs(skew_s - middle) > SKEW_MAX_S
    ]
    evidence = f"this clock is {way} the peers'{alone}: {shown}"
    if abs(middle) > SKEW_MAX_S:
        title = "The clock is wrong: peers turn away a node whose clock differs by more than 3 s"
        found.append(error("clock.skew", title, evidence, CLOCK_FIX))
    elif abs(middle) > SKEW_NOTED_S:
        title = "The clock is drifting away; at 3 s peers turn the node away"
        found.append(warning("clock.drift", title, evidence, CLOCK_FIX))
    return found


def is_clock_synchronised() -> bool:
    """Whether a time service synchronises the clock; True if the kernel does not say."""
    buffer = ctypes.create_string_buffer(256)  # struct timex has 208 bytes; modes = 0 changes nothing
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    return adjtimex is None or int(adjtimex(buffer)) != UNSYNCHRONISED

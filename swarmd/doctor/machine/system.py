"""Python, packages, and the bounds that the system sets for processes."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import psutil
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from swarmd import __version__
from swarmd.config import Config, TrainingConfig
from swarmd.doctor.finding import Finding, FindingKind, well
from swarmd.doctor.subject import Subject
from swarmd.doctor.waiting import in_thread
from swarmd.errors import ConfigError
from swarmd.http_server import is_loopback
from swarmd.installed import extra_command, install_command
from swarmd.training.distributed.parallelism import find_spread
from swarmd.training.models.memory import measure_host

DISTRIBUTION = "swarmd"
FILES_MIN = 1024  # open files at once: sockets of p2pd, segments, data sets
FILES_WANTED = 4096  # what a node in a large swarm may use
GIB = 2**30

PYTHON_OLD = FindingKind(
    "python.version",
    "error",
    "Python is too old or too new",
    "swarmd was not made for this Python, and what it needs may not install or run on it.",
    "Make a virtual environment of a Python that fits, and install swarmd there",
)
PACKAGES_UNKNOWN = FindingKind(
    "packages.unknown",
    "note",
    "swarmd is not installed as a package",
    "It runs from its sources, so what it needs is not written down where pip can compare.",
    "Install it in an environment of its own: docs/OPERATING.md, Install",
)
PACKAGE_MISSING = FindingKind(
    "packages.missing",
    "error",
    "A package is missing",
    "swarmd cannot start, or a worker ends as soon as it needs the package.",
)
PACKAGE_VERSION = FindingKind(
    "packages.version",
    "warning",
    "A package has another version than swarmd asks for",
    "Something else changed it. Nobody has tried this version with this swarmd; it may fail, or compute differently.",
)
EXTRA_MISSING = FindingKind(
    "extras.missing",
    "error",
    "The configuration needs a package that is not installed",
    "The trainer ends with code 78 at its start.",
)
FILES_FEW = FindingKind(
    "limits.files",
    "warning",
    "Few files may be open at once",
    "Peers' connections are files: with so few, the network worker fails in a swarm of some dozens of nodes.",
    "Raise it: `LimitNOFILE=16384` in the unit, or `ulimit -n 16384` in the shell before the start",
)
FILES_MODEST = FindingKind(
    "limits.files-modest",
    "note",
    "A modest bound on open files",
    "It is enough for a small swarm.",
    "For a large one raise it: `LimitNOFILE=16384` in the unit, or `ulimit -n 16384` in the shell before the start",
)
GROUP_LIMIT = FindingKind(
    "limits.cgroup",
    "note",
    "A control group bounds the memory",
    "The kernel ends the trainer when the group reaches its limit, however much the machine has.",
    "Raise it where the service or the container is set up (`MemoryMax=`, `--memory`), if more is to be used",
)
SWAP_NONE = FindingKind(
    "limits.swap",
    "note",
    "There is no swap",
    "When memory runs out the kernel ends the trainer at once; swarmd starts it again with smaller parts.",
    "Add some where the model only just fits, or choose a smaller one: `swarmd model fit`",
)
PROXY_SET = FindingKind(
    "proxies.set",
    "note",
    "Programs are sent through a proxy",
    "Downloads, pushes and HTTP endpoints of the chain go through it. Peers do not: the DHT has TCP of its own.",
)
PROXY_LOOPBACK = FindingKind(
    "proxies.loopback",
    "warning",
    "The proxy is asked even for this machine",
    "A vLLM server on this machine is then looked for at the proxy.",
    "Set `NO_PROXY=localhost,127.0.0.1,::1` beside HTTPS_PROXY",
)


def _is_of_deepspeed(training: TrainingConfig) -> bool:
    try:
        return find_spread(training).kind == "zero"
    except ConfigError:  # the check of the device tells
        return False


# (package, extra that brings it, whether a configuration needs it)
EXTRAS: tuple[tuple[str, str, Callable[[Config], bool]], ...] = (
    ("peft", "lora", lambda config: config.training.lora.rank > 0),
    (
        "bitsandbytes",
        "gpu",
        lambda config: config.training.quantization != "none" or config.training.optimizer == "adamw_8bit",
    ),
    ("deepspeed", "deepspeed", lambda config: _is_of_deepspeed(config.training)),
    ("vllm", "vllm", lambda config: config.training.vllm.mode != "off"),
    ("unsloth", "unsloth", lambda config: config.training.unsloth),
    ("wandb", "wandb", lambda config: config.results.wandb),
    ("trackio", "trackio", lambda config: config.results.trackio),
    ("flash-attn", "", lambda config: config.training.attention == "flash_attention_2"),
)


async def check_python(subject: Subject) -> list[Finding]:
    """The interpreter against what the distribution asks for."""
    here = platform.python_version()
    try:
        wanted = metadata(DISTRIBUTION)["Requires-Python"] or ""
    except PackageNotFoundError:
        wanted = ""
    if wanted and not SpecifierSet(wanted).contains(here):
        return [PYTHON_OLD.found(f"this is Python {here} ({sys.executable}), swarmd asks for {wanted}")]
    return [well("python", "Python", f"Python {here} at {sys.executable}, swarmd {__version__}")]


async def check_packages(subject: Subject) -> list[Finding]:
    """Every requirement of the distribution, without its extras."""
    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return [PACKAGES_UNKNOWN.found("there is no distribution of this name in this environment")]
    wanted = [each for each in map(_requirement, lines) if each is not None and not _is_extra(each)]
    found = [finding for each in wanted for finding in _compare(each, PACKAGE_MISSING, install_command(str(each)))]
    return found or [well("packages", "Packages", f"all {len(wanted)} packages have versions that swarmd asks for")]


async def check_extras(subject: Subject) -> list[Finding]:
    """Packages that only this configuration needs."""
    config = subject.whole[0]
    needed = [(package, extra) for package, extra, wanted in EXTRAS if wanted(config)]
    found = [finding for package, extra in needed for finding in _examine_extra(package, extra)]
    names = ", ".join(package for package, _ in needed) or "none"
    return found or [well("extras", "Optional packages", f"needed by this configuration: {names}")]


def _examine_extra(package: str, extra: str) -> Iterator[Finding]:
    requirement = _requirement_of(package) or Requirement(package)
    yield from _compare(requirement, EXTRA_MISSING, extra_command(extra) if extra else install_command(package))


def _requirement_of(package: str) -> Requirement | None:
    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return None
    return next((each for each in map(_requirement, lines) if each is not None and each.name == package), None)


def _requirement(line: str) -> Requirement | None:
    try:
        return Requirement(line)
    except InvalidRequirement:
        return None


def _is_extra(requirement: Requirement) -> bool:
    """Does it belong to an extra, or to another system than this?"""
    return requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})


def _compare(requirement: Requirement, missing: FindingKind, install: str) -> Iterator[Finding]:
    try:
        here = version(requirement.name)
    except PackageNotFoundError:
        yield missing.found(f"{requirement.name} is not installed, {_asked(requirement)}", f"Run `{install}`")
        return
    if not requirement.specifier.contains(here, prereleases=True):
        yield PACKAGE_VERSION.found(
            f"{requirement.name} {here} is installed, swarmd asks for {requirement.specifier}",
            f"Run `{install_command(f'{requirement.name}{requirement.specifier}')}`",
        )


def _asked(requirement: Requirement) -> str:
    return f"swarmd asks for {requirement.specifier}" if len(requirement.specifier) else "the configuration needs it"


async def check_limits(subject: Subject) -> list[Finding]:
    """Open files, the control group's memory, swap."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = list(_examine_files(soft, hard))
    room = await in_thread(measure_host)
    if room.limit:
        evidence = f"{room.limit} allows {room.total / GIB:.1f} GiB, {room.free / GIB:.1f} GiB of them are free"
        found.append(GROUP_LIMIT.found(evidence))
    if psutil.swap_memory().total == 0:
        found.append(SWAP_NONE.found(f"the machine has {psutil.virtual_memory().total / GIB:.1f} GiB of memory"))
    return found or [well("limits", "Limits", f"{soft} open files, no bound on memory but the machine's")]


def _examine_files(soft: int, hard: int) -> Iterator[Finding]:
    if soft == resource.RLIM_INFINITY or soft >= FILES_WANTED:
        return
    kind = FILES_FEW if soft < FILES_MIN else FILES_MODEST
    most = "without bound" if hard == resource.RLIM_INFINITY else str(hard)
    yield kind.found(f"{soft} files may be open at once here; this user may raise it to {most}")


async def check_proxies(subject: Subject) -> list[Finding]:
    """HTTPS_PROXY and its like, which workers inherit."""
    proxies = {scheme: url for scheme, url in getproxies().items() if scheme in ("http", "https", "all")}
    if not proxies:
        return [well("proxies", "Proxies", "none is set")]
    shown = ", ".join(f"{scheme}: {_host_of(url)}" for scheme, url in sorted(proxies.items()))
    found = [
        PROXY_SET.found(f"{shown}; NO_PROXY is {os.environ.get('NO_PROXY') or os.environ.get('no_proxy') or 'empty'}")
    ]
    local = [url for url in _local_services(subject.config) if not proxy_bypass(urlsplit(url).hostname or "")]
    if local:
        found.append(PROXY_LOOPBACK.found(f"the configuration names {', '.join(local)}"))
    return found


def _host_of(url: str) -> str:
    """A proxy without the user and password that its URL may have."""
    parts = urlsplit(url if "://" in url else f"//{url}")
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


def _local_services(config: Config | None) -> list[str]:
    """Programs on this machine that are asked by a library that heeds the variables."""
    if config is None or config.training.vllm.mode != "server":
        return []
    parts = urlsplit(config.training.vllm.url)
    return [f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"] if is_loopback(parts.hostname or "") else []

"""Which files make a service of a node, out of what its configuration asks for."""

from __future__ import annotations

import contextlib
import grp
import re
import stat
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

import msgspec

from swarmd.config import Config, load_config
from swarmd.errors import UnitError
from swarmd.observe.logging.secret_locations import secret_values
from swarmd.secret_files import CREDENTIAL
from swarmd.units import writing
from swarmd.units.files import Planned
from swarmd.units.settings import PROGRAM_KINDS, STOP_MARGIN_S, STOP_S
from swarmd.units.writing import Form, Unit, render

OUR_DROP_INS = (
    "00-instance.conf",
    "10-cpu.conf",
    "10-devices.conf",
    "20-programs.conf",
    "30-credentials.conf",
    "40-stop.conf",
)
INSTANCE = re.compile(r"[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?")  # with "swarmd-" before it, the name of a user
DEVICES = ("nvidiactl", "nvidia[0-9]*", "nvidia-uvm", "kfd", "dri/renderD*")  # of accelerators, below /dev
STOP_SLACK_S = 5.0  # as swarmd.daemon.service has it


class ServicePaths(msgspec.Struct, frozen=True):
    """Where a service's files lie. `instance` is empty for the one node of `swarmd.service`."""

    instance: str = ""
    user: bool = False
    units: Path = Path("/etc/systemd/system")
    etc: Path = Path("/etc/swarmd")
    dev: Path = Path("/dev")
    state: Path = Path("/var/lib")

    @property
    def unit(self) -> str:
        return f"swarmd@{self.instance}.service" if self.instance else "swarmd.service"

    @property
    def failure(self) -> str:
        return f"swarmd-failure@{self.instance}.service" if self.instance else "swarmd-failure.service"

    @property
    def template(self) -> str:
        """The file that the unit is made of."""
        return "swarmd@.service" if self.instance else "swarmd.service"

    @property
    def failure_template(self) -> str:
        return "swarmd-failure@.service" if self.instance else "swarmd-failure.service"

    @property
    def config(self) -> Path:
        return self.etc / f"{self.instance or 'node'}.toml"

    @property
    def data(self) -> Path:
        """The node's data. systemd has that of a user who exists only while the unit runs below `private`."""
        named = self.state / f"swarmd{'-' * bool(self.instance)}{self.instance}"
        return named.resolve() if self.user or named.exists() else self.state / "private" / named.name

    @property
    def credentials(self) -> Path:
        """Secrets, one file each, for root alone."""
        return self.etc / "credentials"

    def drop_in(self, name: str, unit: str = "") -> Path:
        return self.units / f"{unit or self.unit}.d" / name


def find_place(instance: str = "", user: bool = False, home: Path | None = None) -> ServicePaths:
    """The usual place. Raises UnitError for a name that no instance can have, or a user without a home."""
    if instance and not INSTANCE.fullmatch(instance):
        raise UnitError(
            f"{instance!r} is no name for an instance", "Use 1 to 24 small letters, digits and hyphens between them"
        )
    if not user:
        return ServicePaths(instance)
    try:
        own = home or Path.home()
    except RuntimeError as error:
        raise UnitError("a user's service lies in the home directory, and this user has none", "Set HOME") from error
    units, etc = own / ".config/systemd/user", own / ".config/swarmd"
    return ServicePaths(instance, True, units, etc, state=own / ".local/share")


def place_with(data: Path) -> ServicePaths | None:
    """The service that has its data there, if it is configured."""
    named = re.fullmatch(rf"swarmd(?:-({INSTANCE.pattern}))?", data.resolve().name)
    for user in (False, True) if named else ():
        with contextlib.suppress(OSError, UnitError):  # root's, who asks is not; or of a user without a home
            place = find_place((named and named[1]) or "", user)
            if place.data.resolve() == data.resolve() and place.config.is_file():
                return place
    return None


def other_instances(place: ServicePaths) -> set[str]:
    """Units of this one's template that are installed or enabled beside it."""
    drop_ins = {
        path.parent.name.removesuffix(".d")
        for path in place.units.glob("swarmd@?*.service.d/*.conf")
        if path.name in OUR_DROP_INS
    }
    enabled = {path.name for path in place.units.glob("*.wants/swarmd@?*.service")}
    return (drop_ins | enabled) - {place.unit}


def plan(
    place: ServicePaths, command: str, config: Config | None, gpu: bool | None = None, programs: bool | None = None
) -> list[Planned]:
    """The units and drop-ins of a node.

    Args:
        place: where they lie.
        command: how swarmd is called.
        config: the node's, where there is one already.
        gpu: whether it needs an accelerator's devices; None: as configuration and machine say.
        programs: whether it runs programs that models wrote; None: as the kind of swarm says.
    """
    form = Form(command, bool(place.instance), place.user)
    target = "starts and stops all nodes"
    files = [
        _file(place.units / place.template, writing.node_unit(form), f"the unit of {place.unit}"),
        _file(place.units / place.failure_template, writing.failure_unit(form), "tells when systemd gives the node up"),
        _file(place.units / "swarmd.target", writing.target_unit(place.user), target),
    ]
    return files + list(_drop_ins(place, config, gpu, programs))


def plan_config(place: ServicePaths, source: Path, config: Config) -> Planned:
    """The node's configuration, to be copied from `source`.

    Raises:
        UnitError: it holds a secret, and everybody could read it: the unit's user, who must, exists only while it runs.
    """
    held = secret_values(config)
    if held and not place.user:
        told = ", ".join(f"{key} has more than {shown}" for key, shown in held)
        raise UnitError(
            f"{source} holds a secret, and {place.config} can be read by all: {told}",
            f"chain.rpc and notify.urls take file:NAME, a file of mode 0600 in {source.parent / config.data}, or "
            "credential:NAME; another address has a token of its own beside it. See docs/SYSTEMD.md, Secrets",
        )
    readers, mode = ("you alone", 0o600) if place.user else ("all", 0o644)
    text = source.read_text(encoding="utf-8")
    return Planned(place.config, text, f"the node's configuration, readable by {readers}", marked=False, mode=mode)


def _file(path: Path, unit: Unit, why: str) -> Planned:
    return Planned(path, render(unit), why)


def _drop_ins(place: ServicePaths, config: Config | None, gpu: bool | None, programs: bool | None) -> Iterator[Planned]:
    if place.instance:
        why = f"says that {place.unit} is installed, so that the template stays for it"
        yield _file(place.drop_in("00-instance.conf"), writing.instance_drop_in(place.instance), why)
    if not place.user:
        yield from _devices(place, needs_devices(config, place.dev) if gpu is None else gpu)
    if runs_programs(config) if programs is None else programs:
        why = "lets the sandbox for programs work, by giving up that no namespace is made"
        yield _file(place.drop_in("20-programs.conf"), writing.programs_drop_in(place.user), why)
    names = credential_names(config) if config else ()
    if names and place.user:
        raise UnitError(
            f"a user's service is passed no credentials, and the configuration asks for {', '.join(names)}",
            "Name files of mode 0600 in the data directory instead",
        )
    if names:
        for unit in (place.unit, place.failure):
            secrets = writing.credentials_drop_in(names, str(place.credentials))
            yield _file(place.drop_in("30-credentials.conf", unit), secrets, f"passes {', '.join(names)} to {unit}")
    stop_s = ceil(2 * config.workers.stop_s + STOP_SLACK_S) + STOP_MARGIN_S if config else STOP_S
    if stop_s > STOP_S:
        why = f"workers.stop_s takes longer than {STOP_S} s"
        yield _file(place.drop_in("40-stop.conf"), writing.stop_drop_in(stop_s), why)


def _devices(place: ServicePaths, gpu: bool) -> Iterator[Planned]:
    if not gpu:
        why = "hides devices and more: this node trains on the CPU"
        yield _file(place.drop_in("10-cpu.conf"), writing.cpu_drop_in(), why)
    elif groups := device_groups(place.dev):
        why = f"lets it use the accelerator, whose devices belong to {', '.join(groups)}"
        yield _file(place.drop_in("10-devices.conf"), writing.devices_drop_in(groups), why)


def needs_devices(config: Config | None, dev: Path = Path("/dev")) -> bool:
    """Whether the node is to use an accelerator: what the configuration says, else whether the machine has one."""
    device = config.training.device if config else "auto"
    return device != "cpu" and (device != "auto" or any(True for _ in _nodes(dev)))


def _nodes(dev: Path) -> Iterator[Path]:
    return (path for pattern in DEVICES for path in sorted(dev.glob(pattern)))


def device_groups(dev: Path = Path("/dev")) -> tuple[str, ...]:
    """Groups that a service must be in to open the accelerator's devices; by number where they have no name here."""
    closed = [path.stat() for path in _nodes(dev)]
    numbers = {status.st_gid for status in closed if not status.st_mode & stat.S_IWOTH and status.st_gid}
    return tuple(sorted(map(_name_of_group, numbers)))


def _name_of_group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:  # as in a container, which has the host's devices and not its groups
        return str(number)


def runs_programs(config: Config | None) -> bool:
    """Whether the kind of swarm has models write programs."""
    return config is not None and config.swarm.kind in PROGRAM_KINDS


def credential_names(config: Config) -> tuple[str, ...]:
    """Names of the credentials that a configuration asks for."""
    texts = _texts(msgspec.to_builtins(config))
    found = [text.removeprefix(CREDENTIAL) for text in texts if text.startswith(CREDENTIAL)]
    return tuple(dict.fromkeys(found))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def read_config(path: Path) -> Config | None:
    """The configuration, None where there is none yet. Raises ConfigError."""
    return load_config(path) if path.exists() else None

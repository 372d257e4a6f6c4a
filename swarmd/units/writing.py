"""Units as text: one node, a template for several, the target over them, what tells of a failure, and drop-ins."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from swarmd.units.settings import CPU, HARDENING, LIFE, ORDER, PROGRAMS, Setting

COLUMNS = 118
SHIPPED_COMMAND = "/opt/swarmd/bin/swarmd"


class Form(msgspec.Struct, frozen=True):
    """Which unit is written: `swarmd.service` or `swarmd@.service`, for the machine or for a user."""

    command: str = SHIPPED_COMMAND  # how swarmd is called, as ExecStart takes it
    template: bool = False
    user: bool = False

    @property
    def stem(self) -> str:
        """Name of the configuration file, without its suffix."""
        return "%i" if self.template else "node"

    @property
    def own(self) -> str:
        """Name of the node's user and directories. Apart from one another, for each belongs to a user of its own."""
        return "swarmd-%i" if self.template else "swarmd"

    @property
    def unit(self) -> str:
        return "swarmd@%i.service" if self.template else "swarmd.service"

    @property
    def etc(self) -> str:
        return "%E/swarmd" if self.user else "/etc/swarmd"

    @property
    def config(self) -> str:
        return f"{self.etc}/{self.stem}.toml"

    @property
    def data(self) -> str:
        return f"%h/.local/share/{self.own}" if self.user else f"/var/lib/{self.own}"

    @property
    def cache(self) -> str:
        return f"%C/{self.own}" if self.user else f"/var/cache/{self.own}"

    @property
    def failure(self) -> str:
        """The unit that tells of this one's failure, as OnFailure names it."""
        return "swarmd-failure@%i.service" if self.template else "swarmd-failure.service"


class Unit(NamedTuple):
    """A unit's sections, each a title and its settings."""

    head: str  # comment at the top
    sections: tuple[tuple[str, tuple[Setting, ...]], ...]


def node_unit(form: Form) -> Unit:
    """The unit of a node."""
    name = "swarmd node %i" if form.template else "swarmd node"
    what = "Several nodes, one for each name" if form.template else "One node"
    head = f"{what}; `swarmd service install` writes this file, docs/SYSTEMD.md explains it."
    opening = (
        Setting("Description", name),
        *ORDER,
        Setting("OnFailure", form.failure, "When it is left alone, that is told ([notify] in the configuration)."),
    )
    start = (
        Setting("Type", "notify"),
        Setting("NotifyAccess", "main"),
        Setting("ExecStart", f"{form.command} run --config {form.config} --data {form.data}"),
        *LIFE,
        *_places(form),
        Setting("Environment", "PYTHONFAULTHANDLER=1", "A crash leaves a traceback in the journal."),
        Setting(
            "EnvironmentFile",
            f"-{form.etc}/{form.stem}.env",
            "For example CUDA_VISIBLE_DEVICES=1, HTTPS_PROXY=http://... or OMP_NUM_THREADS=4.",
        ),
    )
    closing = (Setting("WantedBy", f"{'default' if form.user else 'multi-user'}.target swarmd.target"),)
    sections = (("Unit", opening), ("Service", (*start, *HARDENING)), ("Install", closing))
    return Unit(head, tuple((title, _granted(settings, form)) for title, settings in sections))


def _places(form: Form) -> tuple[Setting, ...]:
    if form.user:
        return (Setting("Environment", f"HF_HOME={form.cache}/huggingface", "Downloaded models."),)
    return (
        Setting("DynamicUser", "yes", "A user of its own, that has nothing but these directories."),
        Setting("User", form.own),
        Setting("StateDirectory", form.own),
        Setting("StateDirectoryMode", "0700"),
        Setting("CacheDirectory", form.own),
        Setting("CacheDirectoryMode", "0700"),
        Setting("WorkingDirectory", form.data),
        Setting("Environment", f"HOME={form.cache} HF_HOME={form.cache}/huggingface"),
    )


def _granted(settings: Sequence[Setting], form: Form) -> tuple[Setting, ...]:
    """What the manager can do. A reason that is left out with its line is handed to the next one that shares it."""
    if not form.user:
        return tuple(settings)
    kept, why = [], ""
    for setting in settings:
        why = setting.why or why
        if setting.user:
            kept.append(setting._replace(why=why))
            why = ""
    return tuple(kept)


def failure_unit(form: Form) -> Unit:
    """The unit that tells of a node that systemd has given up."""
    telling = (
        Setting("Type", "oneshot"),
        Setting("ExecStart", f"{form.command} notify --config {form.config} --data {form.data} --unit {form.unit}"),
        Setting("TimeoutStartSec", "120"),
        *_places(form),
        *HARDENING,
        *CPU,
        Setting("MemoryDenyWriteExecute", "yes"),
    )
    head = f"Tells of {form.unit} when systemd leaves it alone; see [notify] in the configuration."
    sections = (("Unit", (Setting("Description", f"tell of {form.unit}"),)), ("Service", _granted(telling, form)))
    return Unit(head, sections)


def target_unit(user: bool = False) -> Unit:
    """All nodes of a machine, or of a user, together."""
    opening = (Setting("Description", "all swarmd nodes"),)
    head = "`systemctl start swarmd.target` starts all nodes that are enabled, `stop` stops all."
    wanted = Setting("WantedBy", "default.target" if user else "multi-user.target")
    return Unit(head, (("Unit", opening), ("Install", (wanted,))))


def instance_drop_in(instance: str) -> Unit:
    """What shows that an instance is installed, though it be neither enabled nor running."""
    setting = Setting("Description", f"swarmd node {instance}")
    return Unit("This instance is installed; `swarmd service uninstall` takes it away.", (("Unit", (setting,)),))


def cpu_drop_in() -> Unit:
    """What a node without an accelerator does not need."""
    return Unit("A node that trains on the CPU needs less; for an accelerator remove this file.", (("Service", CPU),))


def programs_drop_in(user: bool = False) -> Unit:
    """What the sandbox for programs needs; see docs/OPERATING.md, section Sandbox."""
    head = "Kinds of swarm whose answers are programs run them in a sandbox, which needs namespaces and mounts."
    return Unit(head, (("Service", tuple(setting for setting in PROGRAMS if setting.user or not user)),))


def devices_drop_in(groups: Sequence[str]) -> Unit:
    """Groups that the accelerator's devices belong to."""
    setting = Setting("SupplementaryGroups", " ".join(groups), "They own the devices of the accelerator.")
    return Unit("The accelerator of this machine is open to these groups only.", (("Service", (setting,)),))


def credentials_drop_in(names: Sequence[str], directory: str) -> Unit:
    """Secrets that the configuration names as credential:NAME."""
    head = "systemd reads these as root and shows them to this unit alone. Encrypted ones: LoadCredentialEncrypted=."
    settings = tuple(Setting("LoadCredential", f"{name}:{directory}/{name}") for name in names)
    return Unit(head, (("Service", settings),))


def stop_drop_in(seconds: int) -> Unit:
    """Time for an orderly stop that takes longer than the unit allows."""
    setting = Setting("TimeoutStopSec", str(seconds), "Twice workers.stop_s of the configuration, and a margin.")
    return Unit("The configuration gives the workers more time to stop.", (("Service", (setting,)),))


def render(unit: Unit) -> str:
    """The unit as a file."""
    blocks = [*_comment(unit.head)]
    for title, settings in unit.sections:
        blocks += ["", f"[{title}]"]
        for setting in settings:
            blocks += [*_comment(setting.why), f"{setting.key}={setting.value}"]
    return "\n".join(blocks) + "\n"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, COLUMNS, break_on_hyphens=False)]


def shipped() -> dict[str, str]:
    """The files of this repository, by path, that packagers and readers take as they are."""
    one, several = Form(), Form(template=True)
    units = {
        "swarmd.service": node_unit(one),
        "swarmd@.service": node_unit(several),
        "configs/systemd/swarmd.target": target_unit(),
        "configs/systemd/swarmd-failure.service": failure_unit(one),
        "configs/systemd/swarmd-failure@.service": failure_unit(several),
        "configs/systemd/cpu.conf": cpu_drop_in(),
        "configs/systemd/programs.conf": programs_drop_in(),
    }
    return {path: render(unit) for path, unit in units.items()}


def write_shipped(root: Path) -> list[Path]:
    """Write the files of `shipped` below `root`. Returns their paths."""
    written = []
    for name, text in shipped().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written

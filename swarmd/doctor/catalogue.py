"""All checks in their order, and all kinds of findings; `python -m swarmd.doctor.catalogue docs/DOCTOR.md` writes the
tables of the manual.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from swarmd.doctor import examination
from swarmd.doctor.examination import Check
from swarmd.doctor.finding import FindingKind
from swarmd.doctor.machine import bytecode, clock, device, disk, hub, sandboxed, system
from swarmd.doctor.network import announce, bootstrap, ports
from swarmd.doctor.node import configuration, history, keys, running, service
from swarmd.doctor.onchain import contract, endpoints
from swarmd.errors import ConfigError

TORCH_S = 120.0  # to load torch and its libraries on a busy machine
NETWORK_S = 60.0  # to start p2pd and to dial
CHAIN_S = 45.0
LOG_S = 60.0
BEGIN, END = "<!-- findings: python -m swarmd.doctor.catalogue docs/DOCTOR.md -->", "<!-- end of the findings -->"

CHECKS = (
    Check("python", "Python", system.check_python, "machine"),
    Check("packages", "Packages", system.check_packages, "machine"),
    Check("extras", "Optional packages", system.check_extras),
    Check("bytecode", "Compiled packages", bytecode.check_bytecode, "machine"),
    Check("device", "Device", device.check_device, "machine", TORCH_S),
    Check("memory", "Memory", device.check_memory, "config", TORCH_S),
    Check("model", "Model", hub.check_model),
    Check("limits", "Limits", system.check_limits, "machine"),
    Check("proxies", "Proxies", system.check_proxies, "machine"),
    Check("programs", "Programs", disk.check_programs, "machine"),
    Check("sandbox", "Sandbox", sandboxed.check_sandbox, "config", NETWORK_S),
    Check("config", "Configuration", configuration.check_config, "machine"),
    Check("secrets", "Files with secrets", configuration.check_secrets),
    Check("directory", "Data directory", configuration.check_data),
    Check("disk", "Disk", disk.check_disk, "config", TORCH_S),
    Check("identity", "Identity", keys.check_identity),
    Check("log", "Event log", history.check_log_health, "config", LOG_S),
    Check("daemon", "Daemon", running.check_daemon),
    Check("leftovers", "Leftovers", running.check_leftovers),
    Check("unit", "Service", service.check_unit),
    Check("ports", "Ports", ports.check_ports),
    Check("announce", "Announced addresses", announce.check_announce),
    Check("bootstrap", "Bootstrap nodes", bootstrap.check_bootstrap, "network", NETWORK_S),
    Check("clock", "Clock", clock.check_clock, "machine", NETWORK_S),
    Check("rpc", "Endpoints", endpoints.check_rpc, "chain", CHAIN_S),
    Check("contract", "Contract", contract.check_contract, "chain", CHAIN_S),
    Check("account", "Account", contract.check_account, "account", CHAIN_S),
)
MODULES: tuple[ModuleType, ...] = (
    system,
    bytecode,
    device,
    hub,
    disk,
    sandboxed,
    service,
    configuration,
    keys,
    history,
    running,
    ports,
    announce,
    bootstrap,
    clock,
    endpoints,
    contract,
    examination,
)
KINDS = tuple(kind for module in MODULES for kind in vars(module).values() if isinstance(kind, FindingKind))


def choose_checks(only: Sequence[str]) -> tuple[Check, ...]:
    """The checks of these names; all where none is named. Raises ConfigError for a name that is none."""
    names = [check.name for check in CHECKS]
    for name in only:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(names)}"
            raise ConfigError(f"there is no check {name!r}", hint)
    return tuple(check for check in CHECKS if check.name in only) if only else CHECKS


def render_tables() -> str:
    """All kinds of findings as Markdown, a table for each check."""
    parts = []
    for check in (*CHECKS, Check("doctor", "The examination itself", system.check_python)):
        kinds = [kind for kind in KINDS if kind.check == check.name]
        if kinds:
            rows = [_row(kind) for kind in kinds]
            parts.append(
                "\n".join([f"### {check.name}", "", "| id | severity | meaning | fix |", "|---|---|---|---|", *rows])
            )
    return "\n\n".join(parts)


def _row(kind: FindingKind) -> str:
    cells = (f"`{kind.id}`", kind.severity, f"{kind.title}. {kind.meaning}", kind.fix or "As the finding says")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def main() -> int:
    """Put the tables into the page that is named."""
    page = Path(sys.argv[1])
    text = page.read_text(encoding="utf-8")
    head, tail = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    page.write_text(f"{head}\n{render_tables()}\n{tail}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

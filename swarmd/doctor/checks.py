"""All checks, in reporting order. docs/DOCTOR.md has a line on each."""

import difflib
from collections.abc import Sequence

from swarmd.doctor import chain, machine, network, node
from swarmd.doctor.examination import Check
from swarmd.errors import ConfigError

TORCH_S = 120.0  # to load torch and its libraries on a busy machine
DIAL_S = 60.0  # to start p2pd and to dial

CHECKS = (
    Check("python", "machine", machine.check_python),
    Check("limits", "machine", machine.check_limits),
    Check("device", "machine", machine.check_device, TORCH_S),
    Check("clock", "machine", machine.check_clock, DIAL_S),
    Check("config", "machine", node.check_config),
    Check("model", "node", machine.check_model),
    Check("sandbox", "node", machine.check_sandbox, 60.0),
    Check("disk", "node", machine.check_disk, TORCH_S),
    Check("directory", "node", node.check_directory, 60.0),
    Check("identity", "node", node.check_identity),
    Check("log", "node", node.check_log, 60.0),
    Check("daemon", "node", node.check_daemon),
    Check("unit", "node", node.check_unit),
    Check("ports", "network", network.check_ports),
    Check("bootstrap", "network", network.check_bootstrap, DIAL_S, online=True),
    Check("rpc", "chain", chain.check_rpc, 45.0, online=True),
    Check("account", "chain", chain.check_account, 60.0),
)


def choose_checks(only: Sequence[str]) -> tuple[Check, ...]:
    """Select checks by name; all if none is named. Raises ConfigError for an unknown name."""
    names = [check.name for check in CHECKS]
    for name in only:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(names)}"
            raise ConfigError(f"there is no check {name!r}", hint)
    return tuple(check for check in CHECKS if check.name in only) if only else CHECKS

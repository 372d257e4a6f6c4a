"""The sandbox, for the kinds of swarm that run programs."""

from __future__ import annotations

from importlib import import_module

import msgspec

from swarmd.doctor.finding import Finding, FindingKind, well
from swarmd.doctor.subject import Subject
from swarmd.doctor.waiting import in_thread
from swarmd.errors import SandboxUnavailable, SwarmdError
from swarmd.sandbox import Sandbox
from swarmd.sandbox.sandbox import RISKY
from swarmd.swarms.options import decode_options

RUNS_PROGRAMS = {  # kind: (module, options)
    "code": ("swarmd.swarms.code.settings", "CodeOptions"),
    "proposer-solver": ("swarmd.swarms.proposer.settings", "ProposerOptions"),
}

SANDBOX_MISSING = FindingKind(
    "sandbox.unavailable",
    "error",
    "Programs cannot be kept in on this machine",
    "This kind of swarm runs programs that models wrote, this node's and peers'. Without a sandbox none is run, and "
    "the node ends with code 78.",
    "Install bubblewrap (package `bubblewrap`) or allow unprivileged user namespaces; docs/OPERATING.md, section "
    "Sandbox, has the drop-in for systemd",
)
SANDBOX_RISKY = FindingKind(
    "sandbox.off",
    "warning",
    "Programs of strangers run without a sandbox",
    "They can read whatever the node can, keys included.",
    'Take `sandbox = "none-i-accept-the-risk"` out of [swarm.options], or give the node a machine of its own',
)


async def check_sandbox(subject: Subject) -> list[Finding]:
    """Set one up, as the node does at its start."""
    swarm = subject.whole[0].swarm
    if swarm.kind not in RUNS_PROGRAMS:
        return [well("sandbox", "Sandbox", f"the kind {swarm.kind} runs no programs")]
    module, name = RUNS_PROGRAMS[swarm.kind]
    try:
        options = decode_options(swarm.options, getattr(import_module(module), name))
    except (SwarmdError, msgspec.ValidationError):
        return []  # the check of the configuration says so
    try:
        sandbox = await in_thread(Sandbox, options.limits, options.sandbox)
    except SandboxUnavailable as error:
        return [SANDBOX_MISSING.found(error.message)]
    if sandbox.isolation == RISKY:
        return [SANDBOX_RISKY.found(f"[swarm.options] of {subject.path} has {RISKY}")]
    return [well("sandbox", "Sandbox", f"{sandbox.isolation} works here")]

"""Carrying out checks: side by side, each with a deadline of its own, none of which can bring the others down."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import anyio
import msgspec

from swarmd import __version__
from swarmd.doctor.finding import DoctorReport, Finding, FindingKind, Skipped, sort_findings, well, worst_of
from swarmd.doctor.subject import Subject
from swarmd.doctor.waiting import in_thread
from swarmd.errors import SwarmdError
from swarmd.files import refusal
from swarmd.observe.logging.redaction import REDACTED
from swarmd.observe.logging.secret_locations import (
    SecretLocation,
    secret_locations,
    secrets_in,
    secrets_outside_files,
)

SECRETS_S = 5.0  # to read the files with secrets, which lie on whatever disks
ANSWER_S = 2.0  # for a data directory to show that its disk answers

CRASHED = FindingKind(
    "doctor.crashed",
    "warning",
    "A check failed itself",
    "What it looks at is not known to be well or unwell. The other checks are not touched.",
    "Please report it with the evidence",
)
LATE = FindingKind(
    "doctor.late",
    "warning",
    "A check did not end in time",
    "What it looks at did not answer: a disk or another machine that hangs, or a machine that is very busy.",
    "Try again with `swarmd doctor --only` and the check's name, when the machine is quieter",
)

Need = Literal["machine", "config", "network", "account", "chain"]  # an account is looked at offline, too


class Check(NamedTuple):
    """One check: `needs` says what must be there for it, `title` names what it looks at."""

    name: str
    title: str
    run: Callable[[Subject], Awaitable[list[Finding]]]
    needs: Need = "config"
    deadline_s: float = 20.0


Tell = Callable[[str, bool], None]  # a check's name; whether it has ended


def obstacle(check: Check, subject: Subject) -> str:
    """Why a check is not made; empty when it is."""
    if check.needs != "machine" and subject.config is None:
        return "there is no configuration" if subject.fault is None else "the configuration cannot be used"
    if check.needs in ("network", "chain") and subject.offline:
        return "offline"
    if check.needs in ("chain", "account") and subject.config is not None and subject.config.chain is None:
        return "the swarm has no chain"
    return ""


async def examine(subject: Subject, checks: Sequence[Check], tell: Tell = lambda name, ended: None) -> DoctorReport:
    """Make the checks and report. `tell` hears of each check's begin and end."""
    findings: list[Finding] = []
    obstacles = {check.name: obstacle(check, subject) for check in checks}

    async def make(check: Check) -> None:
        tell(check.name, False)
        findings.extend(await findings_of(check, subject))
        tell(check.name, True)

    async with anyio.create_task_group() as tasks:
        for check in checks:
            if not obstacles[check.name]:
                tasks.start_soon(make, check)
    secrets, unread = await _secrets_of(subject)
    findings = [cover(finding, secrets) for finding in (*findings, *unread)]
    return DoctorReport(
        at=time.time(),
        version=__version__,
        verdict=worst_of(findings),
        config=str(subject.path or ""),
        data=str(subject.data.root if subject.data else ""),
        offline=subject.offline,
        findings=sort_findings(findings, [*(check.name for check in checks), LATE.check]),
        skipped=tuple(Skipped(name, reason) for name, reason in obstacles.items() if reason),
    )


async def _secrets_of(subject: Subject) -> tuple[frozenset[str], list[Finding]]:
    """What is to be covered in findings, and a finding about the files with secrets that could not be read in time."""
    config, data = subject.config, subject.data
    if config is None or data is None:
        return frozenset(), []
    found = set(secrets_outside_files(config))
    silent: list[str] = []

    async def read(place: SecretLocation) -> None:
        try:
            with anyio.fail_after(SECRETS_S):
                found.update(await in_thread(secrets_in, place, data.root))
        except TimeoutError:
            silent.append(f"{data.root / place.named}, which {place.key} names")

    async with anyio.create_task_group() as tasks:
        for place in secret_locations(config):
            if not place.signs:
                tasks.start_soon(read, place)
    late = f"not read within {SECRETS_S:g} s, and what they hold may show here: {'; '.join(sorted(silent))}"
    return frozenset(found), [LATE.found(late)] if silent else []


def cover(finding: Finding, secrets: Iterable[str]) -> Finding:
    """The finding without any text that is known to be secret."""
    evidence, fix = finding.evidence, finding.fix
    for secret in sorted(secrets, key=len, reverse=True):
        evidence, fix = evidence.replace(secret, REDACTED), fix.replace(secret, REDACTED)
    return msgspec.structs.replace(finding, evidence=evidence, fix=fix)


async def findings_of(check: Check, subject: Subject) -> list[Finding]:
    """What one check finds; that it failed or hung is a finding too."""
    try:
        with anyio.fail_after(check.deadline_s):
            return await check.run(subject) or [well(check.name, check.title, "nothing to object to")]
    except TimeoutError:
        late = f"the check {check.name} gave no result within {check.deadline_s:g} s"
        if await _is_answering(subject):
            return [_about(check, LATE.found(late))]
        root = subject.data.root if subject.data else ""
        return [_about(check, LATE.found(f"{late}: {root} does not answer", f"Look at the disk that {root} is on"))]
    except SwarmdError as error:
        return [_about(check, CRASHED.found(f"the check {check.name} failed: {error.message}", error.fix))]
    except Exception as error:
        refused = refusal(error)
        if refused is not None:
            return [_about(check, CRASHED.found(f"the check {check.name} failed: {refused.message}", refused.fix))]
        where = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        return [_about(check, CRASHED.found(f"the check {check.name} failed: {told}"))]


async def _is_answering(subject: Subject) -> bool:
    """Whether the data directory, if there is one, can be looked into, be it empty or missing."""
    if subject.data is None:
        return True
    root = subject.data.root

    def look() -> None:
        with contextlib.suppress(OSError):
            next(root.iterdir(), None)

    try:
        with anyio.fail_after(ANSWER_S):
            await in_thread(look)
    except TimeoutError:
        return False
    return True


def _about(check: Check, finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, check=check.name)

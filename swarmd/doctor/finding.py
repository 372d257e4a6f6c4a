"""What an examination finds: kinds of findings, single findings, and the report of them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from swarmd.errors import ExitCode
from swarmd.observe.logging.redaction import redact_text

Severity = Literal["ok", "note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("ok", "note", "warning", "error")
EVIDENCE_LENGTH_MAX = 2000  # characters; what a peer, an endpoint or a library says is not bounded otherwise


class Finding(msgspec.Struct, frozen=True):
    """One thing that was found: `id` is that of its kind, or the check's name where all is well."""

    check: str
    id: str
    severity: Severity
    title: str
    evidence: str
    fix: str = ""


class FindingKind(msgspec.Struct, frozen=True):
    """A finding that a check may make.

    Args:
        id: the check's name, a dot, and a word of its own.
        severity: how bad it is.
        title: a few words.
        meaning: what follows from it, for the manual.
        fix: what to do, in general; a finding may say it more exactly.
    """

    id: str
    severity: Severity
    title: str
    meaning: str
    fix: str = ""

    @property
    def check(self) -> str:
        return self.id.partition(".")[0]

    def found(self, evidence: str, fix: str = "") -> Finding:
        """A finding of this kind; `fix` in place of the general one."""
        shown = redact_text(evidence[:EVIDENCE_LENGTH_MAX])
        return Finding(self.check, self.id, self.severity, self.title, shown, redact_text(fix or self.fix))


class Skipped(msgspec.Struct, frozen=True):
    """A check that was not made."""

    check: str
    reason: str


class DoctorReport(msgspec.Struct, frozen=True):
    """What `swarmd doctor` prints as JSON.

    Attributes:
        format: raised when a field changes its meaning.
        at: POSIX seconds.
        verdict: the worst severity of all findings.
        config, data: paths of what was examined, empty where there is none.
    """

    at: float
    version: str
    verdict: Severity
    config: str
    data: str
    offline: bool
    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...] = ()
    format: int = 1

    @property
    def exit_code(self) -> int:
        """0 when nothing is worse than a note, 1 with a warning, 2 with an error."""
        codes: dict[Severity, int] = {"warning": ExitCode.FAILURE, "error": ExitCode.UNFIT}
        return codes.get(self.verdict, ExitCode.OK)


def well(check: str, title: str, evidence: str) -> Finding:
    """A finding that all is well."""
    return Finding(check, check, "ok", title, redact_text(evidence[:EVIDENCE_LENGTH_MAX]))


def worst_of(findings: Sequence[Finding]) -> Severity:
    """The worst severity, "ok" where there is nothing."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default="ok")


def sort_findings(findings: Sequence[Finding], order: Sequence[str]) -> tuple[Finding, ...]:
    """The worst first, and among equals in the order of the checks."""
    return tuple(
        sorted(findings, key=lambda each: (-SEVERITIES.index(each.severity), order.index(each.check), each.id))
    )

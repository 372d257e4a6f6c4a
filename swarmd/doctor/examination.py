"""The doctor's examination: its subject, the running of checks, and their findings.

- Checks run concurrently, each with its own deadline. A check that fails or hangs becomes a finding, and the others
  continue.
- A check is an async function, or a plain generator, which runs in its own thread: access to the data directory may
  hang in the kernel for ever, as on a dead network disk, and must not keep the doctor from ending.
- Expensive results that several checks need are computed once (`Subject`).
- Secrets that the configuration names are redacted in all reports.
"""

import asyncio
import contextlib
import inspect
import os
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent import futures
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import anyio
import msgspec

from swarmd import __version__
from swarmd.bounds import DECODE_ERRORS
from swarmd.config import Config, TrainingConfig, load_config
from swarmd.core.state import State
from swarmd.doctor.children import DialResult, ProbeAnswer, ProbeQuestion, ask_dialler, ask_torch
from swarmd.errors import ExitCode, SwarmdError
from swarmd.eventlog.fold import load_state
from swarmd.eventlog.segment import list_segments
from swarmd.files import make_path_error
from swarmd.observe import redaction
from swarmd.observe.control import DaemonReply, ask_status
from swarmd.paths import NodeDirectory
from swarmd.training.models.source import AUTO

SECRETS_S = 5.0  # timeout for reading secret files, which may lie on slow disks
ANSWER_S = 2.0  # timeout for the data directory's disk
EVIDENCE_LENGTH_MAX = 2000  # characters; text from peers, endpoints and libraries has no other bound

Severity = Literal["ok", "note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("ok", "note", "warning", "error")
T = TypeVar("T")


# --- findings ---


class Finding(msgspec.Struct, frozen=True):
    """One finding; if all is well, `id` is the check's name."""

    check: str
    id: str
    severity: Severity
    title: str
    evidence: str
    fix: str = ""


def ok_finding(evidence: str) -> Finding:
    """A finding that all is well; dropped if the check also found a warning or an error."""
    return _make_finding("ok", "", "", evidence)


def _make_finding(severity: Severity, id: str, title: str, evidence: str, fix: str = "") -> Finding:
    return Finding(
        "doctor", id, severity, title, redaction.redact_text(evidence[:EVIDENCE_LENGTH_MAX]), redaction.redact_text(fix)
    )


note = partial(_make_finding, "note")  # worth knowing; nothing is wrong
warning = partial(_make_finding, "warning")  # the node may fail later, or works worse than it could
error = partial(_make_finding, "error")  # the node does not start, or cannot take part


class SkippedCheck(msgspec.Struct, frozen=True):
    """A check that did not run."""

    check: str
    reason: str


class DoctorReport(msgspec.Struct, frozen=True):
    """What `swarmd doctor` prints as JSON; paths are empty if there was nothing to examine."""

    at: float  # POSIX seconds
    version: str
    verdict: Severity  # the worst severity of all findings
    config: str
    data: str
    offline: bool
    findings: tuple[Finding, ...]
    skipped: tuple[SkippedCheck, ...] = ()
    format: int = 1  # raised when a field's meaning changes

    @property
    def exit_code(self) -> int:
        """0 when nothing is worse than a note, 1 with a warning, 2 with an error."""
        codes: dict[Severity, int] = {"warning": ExitCode.FAILURE, "error": ExitCode.UNFIT}
        return codes.get(self.verdict, ExitCode.OK)


# --- the subject ---


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run a function in a daemon thread, which does not keep the process from ending if it hangs."""
    outcome: futures.Future[T] = futures.Future()

    def run_function() -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            outcome.set_result(function(*arguments))
        except Exception as error:
            outcome.set_exception(error)

    threading.Thread(target=run_function, daemon=True).start()
    return await asyncio.wrap_future(outcome)


class Subject:
    """What to examine: a machine, and optionally a configuration, its data directory, and the daemon. `data`: overrides
    the configuration's data directory. `offline`: contact no other machine."""

    def __init__(self, path: Path | None, data: Path | None = None, offline: bool = False) -> None:
        self.path = path
        self.offline = offline
        self.config: Config | None = None
        self.fault: SwarmdError | None = None
        try:
            self.config = load_config(path) if path is not None else None
        except SwarmdError as failure:
            self.fault = failure
        if data is None and path is not None and self.config is not None:
            data = path.parent / self.config.data
        self.data = NodeDirectory(data) if data is not None else None

    @property
    def config_and_data(self) -> tuple[Config, NodeDirectory]:
        """Configuration and data directory; only for checks that need both."""
        assert self.config is not None and self.data is not None, "such a check is left out without them"
        return self.config, self.data

    # Computed once for all checks, which await them through `asyncio.shield`; a failure is cached, too.

    @cached_property
    def torch_probe(self) -> asyncio.Future[ProbeAnswer]:
        """Devices and the model's memory."""
        return asyncio.ensure_future(self._ask_torch())

    @cached_property
    def dial_results(self) -> asyncio.Future[list[DialResult]]:
        """The results of dialling the bootstrap nodes."""
        return asyncio.ensure_future(self._dial())

    # The following properties read the disk, which may hang: use them only in threads.

    @property
    def has_log(self) -> bool:
        """Whether the data directory holds a node's log."""
        return self.data is not None and self.data.events.is_dir() and bool(list_segments(self.data.events))

    @property
    def user_id(self) -> int:
        """Uid of the node's user; if root examines it, that of the data directory's owner."""
        place = self.data.root if self.data else Path()
        return place.stat().st_uid if os.geteuid() == 0 and place.exists() else os.geteuid()

    @cached_property
    def state(self) -> State | None:
        """The state from the log; None if there is no log, or it is unreadable, which `check_log` reports."""
        try:
            return load_state(self.data.events)[0] if self.data is not None and self.has_log else None
        except SwarmdError:
            return None

    @cached_property
    def daemon(self) -> DaemonReply:
        return ask_status(self.data.control) if self.data is not None else DaemonReply()

    async def _ask_torch(self) -> ProbeAnswer:
        """Get devices and the model's size from a child process. Raises ChildFailed."""
        training = self.config.training if self.config else TrainingConfig()
        kept = await in_thread(self._read_chosen_model) if training.model == AUTO else ""
        (answer,) = await ask_torch([ProbeQuestion(training, kept)])
        return answer

    def _read_chosen_model(self) -> str:
        """The model that `auto` has chosen; empty if none yet."""
        if self.data is None:
            return ""
        try:
            return str(msgspec.json.decode(self.data.model.read_bytes())["model"])
        except (OSError, *DECODE_ERRORS, KeyError, TypeError):
            return ""

    async def _dial(self) -> list[DialResult]:
        """Dial the bootstrap nodes other than this one. Raises ChildFailed."""
        dht = self.config_and_data[0].dht
        addresses = [each for each in dht.bootstrap if not (dht.peer and each.endswith(f"/p2p/{dht.peer}"))]
        return await ask_dialler(addresses) if addresses else []


# --- running checks ---


class Check(NamedTuple):
    """One check. The group "machine" needs no configuration; `online` checks contact other machines."""

    name: str
    group: Literal["machine", "node", "network", "chain"]
    run: Callable[[Subject], Iterator[Finding] | Awaitable[list[Finding]]]
    deadline_s: float = 20.0
    online: bool = False


def find_skip_reason(check: Check, subject: Subject) -> str:
    """Why to skip a check; empty to run it."""
    if check.group != "machine" and subject.config is None:
        return "there is no configuration" if subject.fault is None else "the configuration cannot be used"
    if check.group == "chain" and subject.config is not None and subject.config.chain is None:
        return "the swarm has no chain"
    return "offline" if check.online and subject.offline else ""


async def examine(
    subject: Subject, checks: Sequence[Check], tell: Callable[[str, bool], None] = lambda name, ended: None
) -> DoctorReport:
    """Run the checks and return the report. `tell`: called at the start and end of each check."""
    findings: list[Finding] = []
    obstacles = {check.name: find_skip_reason(check, subject) for check in checks}

    async def run_check(check: Check) -> None:
        tell(check.name, False)
        found = await _run_check_safely(check, subject)
        if any(each.severity in ("warning", "error") for each in found):
            found = [each for each in found if each.severity != "ok"]
        findings.extend(msgspec.structs.replace(each, check=check.name, id=each.id or check.name) for each in found)
        tell(check.name, True)

    async with anyio.create_task_group() as tasks:
        for check in checks:
            if not obstacles[check.name]:
                tasks.start_soon(run_check, check)
    secrets, unread = await _collect_secrets(subject)
    order = [*(check.name for check in checks), "doctor"]
    hide = redaction.Redactor(secrets).redact_known
    findings = [
        msgspec.structs.replace(each, evidence=hide(each.evidence), fix=hide(each.fix)) for each in (*findings, *unread)
    ]
    findings.sort(key=lambda each: (-SEVERITIES.index(each.severity), order.index(each.check), each.id))
    return DoctorReport(
        at=time.time(),
        version=__version__,
        verdict=findings[0].severity if findings else "ok",
        config=str(subject.path or ""),
        data=str(subject.data.root if subject.data else ""),
        offline=subject.offline,
        findings=tuple(findings),
        skipped=tuple(SkippedCheck(name, reason) for name, reason in obstacles.items() if reason),
    )


async def _run_check_safely(check: Check, subject: Subject) -> list[Finding]:
    """Run one check, turning a failure or a hang into a finding."""
    try:
        with anyio.fail_after(check.deadline_s):
            if inspect.iscoroutinefunction(check.run):
                found = await check.run(subject)
            else:
                found = await in_thread(lambda: list(check.run(subject)))  # type: ignore[arg-type]
            return found or [ok_finding("nothing to object to")]
    except TimeoutError:
        evidence = f"the check {check.name} gave no result within {check.deadline_s:g} s"
        if await _is_disk_answering(subject):
            return [late_finding(evidence)]
        root = subject.data.root if subject.data else ""
        return [late_finding(f"{evidence}: {root} does not answer", f"Check the disk that {root} is on")]
    except Exception as failure:
        known = failure if isinstance(failure, SwarmdError) else make_path_error(failure)
        where = traceback.extract_tb(failure.__traceback__)[-1]
        words = known.message if known else f"{type(failure).__name__}: {failure} ({where.filename}:{where.lineno})"
        fix = known.fix if known else "Please report it with the evidence"
        return [warning("doctor.crashed", "A check failed itself", f"the check {check.name} failed: {words}", fix)]


def late_finding(evidence: str, fix: str = "") -> Finding:
    fix = fix or "Try again with `swarmd doctor --only` and the check's name, when the machine is quieter"
    return warning("doctor.late", "A check did not end in time", evidence, fix)


async def _is_disk_answering(subject: Subject) -> bool:
    """Whether the data directory's disk responds, even if the directory is empty or missing."""
    if subject.data is None:
        return True
    root = subject.data.root

    def list_root() -> None:
        with contextlib.suppress(OSError):
            next(root.iterdir(), None)

    try:
        with anyio.fail_after(ANSWER_S):
            await in_thread(list_root)
    except TimeoutError:
        return False
    return True


async def _collect_secrets(subject: Subject) -> tuple[frozenset[str], list[Finding]]:
    """Collect the secrets to redact, and findings about secret files that could not be read in time."""
    config, data = subject.config, subject.data
    if config is None or data is None:
        return frozenset(), []
    found = set(redaction.secrets_outside_files(config))
    silent: list[str] = []

    async def read_secret_location(place: redaction.SecretLocation) -> None:
        try:
            with anyio.fail_after(SECRETS_S):
                found.update(await in_thread(redaction.secrets_in, place, data.root))
        except TimeoutError:
            silent.append(f"{data.root / place.named}, which {place.key} names")

    async with anyio.create_task_group() as tasks:
        for place in redaction.secret_locations(config):
            if not place.signs:
                tasks.start_soon(read_secret_location, place)
    evidence = f"not read within {SECRETS_S:g} s, and what they hold may show here: {'; '.join(sorted(silent))}"
    return frozenset(found), [late_finding(evidence)] if silent else []

"""Nodes for the doctor to examine, whole ones and broken ones."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swarmd.core.events import Event, NodeStarted
from swarmd.core.state import State
from swarmd.core.values import ChainSettings
from swarmd.dht.identity.identity import create_identity
from swarmd.doctor.checks import choose_checks
from swarmd.doctor.children import ModelFit, ProbeAnswer
from swarmd.doctor.examination import DoctorReport, Finding, Subject, examine
from swarmd.eventlog.store import EventLog
from tests.core.story import settings
from tests.eventlog.making import write_planned

GIB = 2**30
CPU = ProbeAnswer(
    torch="2",
    cuda="",
    device="cpu",
    numbers="float32",
    free=8 * GIB,
    total=16 * GIB,
    weighed=(ModelFit("embedded", GIB // 4, GIB // 16, True),),
)
NODE = Path(__file__).with_name("late_node.py")


class Made:
    """A node's directory: configuration, identity, private data directory."""

    def __init__(self, root: Path, text: str = "", **tables: str) -> None:
        self.root = root
        self.data = root / "data"
        self.data.mkdir(parents=True, mode=0o700)
        self.peer = create_identity(self.key).peer_id
        self.config = root / "config.toml"
        self.write(text)

    @classmethod
    def of(cls, config: Path, data: Path) -> Made:
        """A node that was made otherwise."""
        made = cls.__new__(cls)
        made.root, made.data, made.config, made.peer = config.parent, data, config, ""
        return made

    @property
    def key(self) -> Path:
        return self.data / "identity.key"

    def write(self, text: str, head: str = 'role = "coordinator"') -> None:
        self.config.write_text(f'{head}\n[swarm]\nid = "test"\n{text}\n')
        self.config.chmod(0o600)

    def log(self, *events: Event, peer: str = "", at: float = 1.0, chain: ChainSettings | None = None) -> Path:
        """Write a log as the node would; returns its directory."""
        with EventLog.open(self.data / "events", peer or self.peer, "run") as log:
            write_planned(log, (NodeStarted(settings(chain=chain), "run"), *events), State(), at)
        return self.data / "events"

    def subject(self, offline: bool = True, probe: ProbeAnswer = CPU) -> Subject:
        made = Subject(self.config, offline=offline)
        made._ask_torch = _giving(probe)  # type: ignore[method-assign]
        return made

    def report(self, *names: str, offline: bool = True, probe: ProbeAnswer = CPU) -> DoctorReport:
        checks = choose_checks(names)
        return asyncio.run(examine(self.subject(offline, probe), checks))

    def find(self, name: str, **given: Any) -> dict[str, Finding]:
        """The findings of one check by their ids."""
        return {finding.id: finding for finding in self.report(name, **given).findings}

    def severities(self, name: str, **given: Any) -> dict[str, str]:
        """What one check objects to or notes: severities by id."""
        return {id: each.severity for id, each in self.find(name, **given).items() if each.severity != "ok"}


def _giving(answer: ProbeAnswer) -> Callable[[], Awaitable[ProbeAnswer]]:
    async def give() -> ProbeAnswer:
        return answer

    return give


def ids(report: DoctorReport, *severities: str) -> list[str]:
    return [finding.id for finding in report.findings if finding.severity in severities]


@contextmanager
def nodes(*offsets_s: float) -> Iterator[list[str]]:
    """Real DHT nodes, each in a process of its own with its clock set off; gives their addresses."""
    running = [
        subprocess.Popen(
            [sys.executable, str(NODE), str(offset_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(NODE.parent.parent.parent)},
            start_new_session=True,
        )
        for offset_s in offsets_s
    ]
    try:
        yield [_line(process) for process in running]
    finally:
        for process in running:
            process.communicate("", timeout=30)


def _line(process: Any) -> str:
    line = str(process.stdout.readline()).strip()
    assert line.startswith("/ip4/"), line
    return line


def quoted(addresses: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{address}"' for address in addresses) + "]"

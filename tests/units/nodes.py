"""Nodes under the private systemd, installed as an operator does it, with scripted workers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from swarmd.core.events import Event
from swarmd.daemon.control import ControlError, ask
from swarmd.eventlog.reader import read_commits
from swarmd.paths import DataPaths
from swarmd.units.files import mark
from swarmd.units.plan import ServicePaths, plan
from tests.units.private_systemd import TREE, VENV, PrivateSystemd

CONFIG = """
role = "coordinator"
[swarm]
id = "test"
[coordinator]
rounds_max = {rounds}
[workers]
silent_s = 120
stop_s = 4
"""
QUICK = "RestartSec=100ms"  # what the tests of restarts need not wait for
T = TypeVar("T")


class Node:
    """One instance, `swarmd@NAME.service`; or, with an empty name, `swarmd.service`."""

    def __init__(self, machine: PrivateSystemd, name: str) -> None:
        self.machine = machine
        self.name = name
        self.unit = f"swarmd@{name}.service" if name else "swarmd.service"
        self.config = f"/etc/swarmd/{name or 'node'}.toml"
        self.data = f"/var/lib/swarmd{'-' * bool(name)}{name}"

    def lay(self, rounds: int = 2) -> None:
        """The files that `install` would write, and a configuration, without running it."""
        files = plan(ServicePaths(self.name), f"{VENV}/bin/swarmd", None, gpu=False)
        for planned in files:
            self.machine.put(str(planned.path), mark(planned.text))
        self.machine.put(self.config, CONFIG.format(rounds=rounds))

    def install(self, *options: str, config: str = "", rounds: int = 2) -> str:
        """`swarmd service install`, as root. Returns what it said."""
        self.machine.put("/run/node.toml", config or CONFIG.format(rounds=rounds))
        named = ("--instance", self.name) if self.name else ()
        return self.machine.run(f"{VENV}/bin/swarmd", "service", "install", *named, "-c", "/run/node.toml", *options)

    def drop_in(self, *lines: str) -> None:
        """Further settings of [Service]."""
        text = "\n".join(("[Service]", *lines, ""))
        self.machine.put(f"/etc/systemd/system/{self.unit}.d/90-test.conf", text)
        self.machine.run("systemctl", "daemon-reload")

    def fake(self, *lines: str, network: str = "ok", trainer: str = "ok") -> None:
        """Scripted workers."""
        program = f"{VENV}/bin/python {TREE}/tests/daemon/run_fake.py {self.config} {self.data} {network} {trainer}"
        self.drop_in("ExecStart=", f"ExecStart={program}", QUICK, *lines)

    def execute(self, program: str, *lines: str) -> None:
        """Any program in the unit's place."""
        self.drop_in("ExecStart=", f"ExecStart={program}", QUICK, *lines)

    def systemctl(self, verb: str, *options: str) -> None:
        self.machine.run("systemctl", verb, *options, self.unit)

    def show(self, key: str) -> str:
        """A property of the unit."""
        return self.machine.run("systemctl", "show", self.unit, "--property", key, "--value").strip()

    def journal(self) -> str:
        return self.machine.run("journalctl", "--unit", self.unit, "--output", "cat", "--no-pager")

    @property
    def paths(self) -> DataPaths:
        """Its data directory, seen from outside."""
        return DataPaths(self.machine.path(self.data))

    def events(self) -> list[Event]:
        if not self.paths.events.is_dir():
            return []
        return [event for commit in read_commits(self.paths.events) for event in commit.events]

    def events_of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events() if isinstance(event, kind)]

    def status(self) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = json.loads(ask(self.paths.control, "status"))
        except ControlError:
            return {}
        return answer

    def until(self, condition: Callable[[], T], longest_s: float = 120.0) -> T:
        """Wait for a condition; fails with the journal."""
        try:
            return self.machine.until(condition, longest_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.unit}:\n{self.journal()[-4000:]}") from None

    def until_finished(self) -> None:
        self.until(lambda: self.status().get("round", {}).get("reason") == "the swarm has run its rounds")

    def processes(self) -> list[int]:
        """Of the unit, as numbered inside."""
        listed = self.machine.call("cat", f"/sys/fs/cgroup{self.show('ControlGroup') or '/none'}/cgroup.procs")
        return [int(pid) for pid in listed.stdout.split()]

    def end(self) -> None:
        """Whatever happened, leave the machine as it was."""
        named = f"/etc/systemd/system/{self.unit}.d {self.config} {self.data} {self.data.replace('lib', 'lib/private')}"
        commands = f"systemctl kill -s KILL {self.unit}; systemctl disable --now {self.unit}; rm -rf {named}"
        self.machine.call("sh", "-c", f"{commands}; systemctl reset-failed {self.unit}")


@contextmanager
def node_on(machine: PrivateSystemd, name: str) -> Iterator[Node]:
    node = Node(machine, name)
    try:
        yield node
    finally:
        node.end()


def read_text(path: Path) -> str:
    return path.read_text() if path.exists() else ""

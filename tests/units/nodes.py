"""Nodes under the private systemd, installed as an operator does it, with scripted workers."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from swarmd.core.events import Event
from swarmd.eventlog.reader import read_commits
from swarmd.observe.control import ControlError, send_request
from swarmd.paths import NodeDirectory
from tests.units.private_systemd import TREE, VENV, PrivateSystemd

SWARMD = f"{VENV}/bin/swarmd"
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
T = TypeVar("T")


class Node:
    """One instance, `swarmd@NAME.service`; or, with an empty name, `swarmd.service`."""

    def __init__(self, machine: PrivateSystemd, name: str) -> None:
        self.machine = machine
        self.name = name
        self.unit = f"swarmd@{name}.service" if name else "swarmd.service"
        self.config = f"/etc/swarmd/{name or 'node'}.toml"
        self.data = f"/var/lib/swarmd{'-' * bool(name)}{name}"

    def install(self, *options: str, config: str = CONFIG.format(rounds=0)) -> str:
        """`swarmd service install`, as root. Returns what it printed."""
        self.machine.put("/run/node.toml", config)
        named = ("--instance", self.name) if self.name else ()
        return self.machine.run(SWARMD, "service", "install", "--cpu", *named, "-c", "/run/node.toml", *options)

    def execute(self, program: str, *lines: str) -> None:
        """Any program in the unit's place, with further settings of [Service]."""
        text = "\n".join(("[Service]", "ExecStart=", f"ExecStart={program}", "RestartSec=100ms", *lines, ""))
        self.machine.put(f"/etc/systemd/system/{self.unit}.d/90-test.conf", text)
        self.machine.run("systemctl", "daemon-reload")

    def fake(self, *lines: str, network: str = "ok", trainer: str = "ok") -> None:
        """Scripted workers."""
        program = f"{VENV}/bin/python {TREE}/tests/daemon/run_fake.py {self.config} {self.data} {network} {trainer}"
        self.execute(program, *lines)

    def systemctl(self, verb: str, *options: str) -> None:
        self.machine.run("systemctl", verb, *options, self.unit)

    def show(self, key: str) -> str:
        """A property of the unit."""
        return self.machine.run("systemctl", "show", self.unit, "--property", key, "--value").strip()

    def journal(self) -> str:
        return self.machine.run("journalctl", "--unit", self.unit, "--output", "cat", "--no-pager")

    @property
    def paths(self) -> NodeDirectory:
        """Its data directory, seen from outside."""
        return NodeDirectory(self.machine.path(self.data))

    def events_of(self, kind: type[T]) -> list[T]:
        if not self.paths.events.is_dir():
            return []
        events: list[Event] = [event for commit in read_commits(self.paths.events) for event in commit.events]
        return [event for event in events if isinstance(event, kind)]

    def status(self) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = json.loads(send_request(self.paths.control, "status"))
        except ControlError:
            return {}
        return answer

    def until(self, condition: Callable[[], T], longest_s: float = 120.0) -> T:
        """Wait for a condition; fails with the journal."""
        try:
            return self.machine.until(condition, longest_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.unit}:\n{self.journal()[-4000:]}") from None

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

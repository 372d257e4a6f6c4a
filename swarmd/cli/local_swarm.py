"""A swarm of real nodes on this machine: set up, started, watched, and stopped with nothing left behind.

`swarmd local` and the end-to-end tests run it.

- Each node has a directory, and a configuration made from a template of configs/ or from the user's own.
- Each daemon is a child process. At the end all are asked to stop and waited for together; the rest is killed.
- A daemon that ends by itself is restarted under the same conditions as by systemd; the others go on.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import tomlkit

from swarmd.bounds import Backoff
from swarmd.cli.handed_out import overwrite_questions
from swarmd.config import Config, SwarmConfig, load_config, parse_config, read_config_text
from swarmd.daemon.directory import refuse_other_swarm, swarm_of_config
from swarmd.daemon.process import find_leftovers, kill_leftovers, node_tag
from swarmd.dht.identity.identity import create_identity, read_identity
from swarmd.dht.wire.addresses import can_listen_at
from swarmd.errors import ConfigError, ExitCode, LocalSwarmFailed, NotFoundError
from swarmd.eventlog.fold import load_state
from swarmd.observe.control import ask_status
from swarmd.observe.panel import NodeRow, TrainedRound
from swarmd.observe.status import Status
from swarmd.paths import NodeDirectory, configs_directory
from swarmd.results import history
from swarmd.results.history import TrainingHistory
from swarmd.swarms.registry import check_kind, find_kind, questions_file_of
from swarmd.swarms.truths import check_questions
from swarmd.toml_text import parse_toml, read_toml
from swarmd.training.models.source import is_directory, require_model

LOOPBACK = "127.0.0.1"
DATA = Config(SwarmConfig("any")).data
COORDINATOR, FOLLOWER = "coordinator.toml", "follower.toml"
NODES_MAX = 64  # beyond what one machine can train
ALONE: dict[str, Any] = {
    "data": ".",
    "dht.announce": [],
    "dht.members": [],
    "dht.client_mode": False,
    "dht.identity": None,
    "dht.peer": None,
    "logs.format": "text",  # daemon.log is read by people
}


class LocalNode(NodeDirectory):
    """One node's directory in a local swarm; the first node is the coordinator."""

    def __init__(self, number: int, root: Path) -> None:
        super().__init__(root)
        self.number = number
        self.name = root.name
        self.coordinates = number == 1


def local_node_directories(directory: Path, count: int) -> tuple[LocalNode, ...]:
    """The directories of `count` nodes. Raises ConfigError unless that is 1 to `NODES_MAX`."""
    if not 1 <= count <= NODES_MAX:
        raise ConfigError(f"a local swarm has 1 to {NODES_MAX} nodes, not {count}", f"Give --nodes 1 to {NODES_MAX}")
    return tuple(LocalNode(number, directory.resolve() / f"node-{number}") for number in range(1, count + 1))


def prepare_nodes(
    places: tuple[LocalNode, ...], rounds: int, settings: Mapping[str, Any] | None = None, swarm: str = ""
) -> int:
    """Make missing directories and identities, and write every node's configuration.

    Args:
        places: node directories, the coordinator's first.
        rounds: to run on top of those already run; 0 for no end.
        settings: values for every node by dotted key, e.g. {"training.steps": 5}.
        swarm: a kind, or the path of a node's configuration; empty for the digits.

    Returns:
        Total rounds, as the coordinator will count them; 0 for no end.

    Raises:
        ConfigError: a setting is unknown or wrong, or there is no configuration of this kind.
        SwarmError: there is no such kind, it has another number of stages, or its questions are missing.
        ModelError: its model is missing.
        IdentityError: an existing identity cannot be read.
        SwarmMismatch: the directories belong to another swarm; nothing was written.
        LogDamaged: a node's log cannot be read.
    """
    source = find_config_source(swarm)
    first = places[0]
    _refuse_other_swarm(places, source, dict(settings or {}))
    peers = [get_or_make_peer_id(place) for place in places]
    port = choose_port(first)
    rounds_max = count_closed_rounds(first) + rounds if rounds else 0
    address = f"/ip4/{LOOPBACK}/tcp/{port}"
    leading = {"dht.listen": [address], "coordinator.min_peers": len(places), "coordinator.rounds_max": rounds_max}
    following = {"swarm.coordinator": peers[0], "dht.bootstrap": [f"{address}/p2p/{peers[0]}"]}
    models = {}
    for place in places:
        own = {"name": place.name} | (leading if place.coordinates else following)
        config = write_config(place, source.local_settings(place.coordinates) | own | dict(settings or {}), source)
        models[config.training.model, config.training.revision] = config.training
    for training in models.values():
        require_model(training)
    return rounds_max


def _refuse_other_swarm(places: tuple[LocalNode, ...], source: "ConfigSource", settings: dict[str, Any]) -> None:
    """Raise SwarmMismatch, before anything is written, if a directory has a node of another swarm."""
    template, base = source.coordinator, source.local_settings(True)
    try:
        asked = swarm_of_config(parse_config(fill_template(template, base | settings), "--set"))
    except ConfigError as error:
        parse_config(fill_template(template, base), str(template))  # reports errors of the template itself first
        raise ConfigError(re.sub("^--set, line [0-9]+", "--set", error.message), error.fix) from None
    home, here = places[0].root.parent, Path.cwd()
    fresh = home.with_name(f"{home.name}-{asked.id}")
    fix = f"Name another directory, for example --dir {fresh.relative_to(here) if home.parent == here else fresh}"
    for place in places:
        refuse_other_swarm(place, asked, fix)


def get_or_make_peer_id(place: LocalNode) -> str:
    """The node's peer id; makes a new node's identity."""
    place.create()
    if place.identity.exists():
        return read_identity(place.identity).peer_id
    return create_identity(place.identity).peer_id


def count_closed_rounds(place: LocalNode) -> int:
    if not place.events.is_dir():
        return 0
    state, _ = load_state(place.events)
    return state.coordination.round if state.coordination else 0


def choose_port(place: LocalNode) -> int:
    """The port of the previous run if it is free, so that followers find the coordinator again; else any free one."""
    listen = ""
    if place.config.exists():
        with contextlib.suppress(ValueError):  # an invalid file is overwritten anyway
            listen = str(parse_toml(read_toml(place.config)).get("dht", {}).get("listen", ""))
    kept = re.search(r"/tcp/(\d+)", listen)
    if kept and int(kept[1]) and can_listen_at(f"/ip4/{LOOPBACK}/tcp/{kept[1]}"):
        return int(kept[1])
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


class ConfigSource(NamedTuple):
    """The templates for the nodes' configurations."""

    coordinator: Path
    follower: Path
    local: bool = False  # the template was written for a local swarm

    def local_settings(self, coordinates: bool) -> dict[str, Any]:
        """Settings that turn a template's node into one of a local swarm; None removes a key."""
        if self.local:
            return {}
        role = {"role": "coordinator", "swarm.coordinator": None, "dht.bootstrap": None}
        return (role if coordinates else {"role": "follower", "dht.listen": [f"/ip4/{LOOPBACK}/tcp/0"]}) | ALONE


def find_config_source(swarm: str) -> ConfigSource:
    """The templates of a kind, or the user's configuration. Raises ConfigError, NotFoundError, SwarmError."""
    configs = configs_directory()
    if swarm in ("", "digits"):
        return ConfigSource(configs / "local" / COORDINATOR, configs / "local" / FOLLOWER, local=True)
    if swarm.endswith(".toml"):
        if load_config(Path(swarm)).chain is not None:
            raise ConfigError(f"{swarm} has a [chain]: the nodes of a local swarm have none", "Leave it out")
        return ConfigSource(Path(swarm), Path(swarm))
    if Path(swarm).suffix or os.sep in swarm:
        raise NotFoundError(f"{swarm} is neither a kind nor a configuration", "Name a file that ends in .toml")
    kind = find_kind(swarm)
    source = ConfigSource(configs / kind.name / COORDINATOR, configs / kind.name / FOLLOWER)
    if not (source.coordinator.is_file() and source.follower.is_file()):
        raise ConfigError(
            f"swarmd has no configurations of the kind {kind.name!r} to start from",
            "Write one of a node, and name it: --kind FILE.toml. `swarmd swarm scaffold` makes one",
        )
    return source


def write_config(place: LocalNode, values: Mapping[str, Any], source: ConfigSource) -> Config:
    """Write a node's configuration, keeping comments, and check it. Raises ConfigError, SwarmError."""
    template = source.coordinator if place.coordinates else source.follower
    place.config.write_text(fill_template(template, values), encoding="utf-8")
    config = load_config(place.config)
    if is_directory(config.training.model):  # make it absolute, so that it holds in every working directory
        named = {**values, "training.model": str(Path(config.training.model).expanduser().resolve())}
        place.config.write_text(fill_template(template, named), encoding="utf-8")
        config = load_config(place.config)
    check_kind(config.swarm)
    questions = questions_file_of(config.swarm.options)
    if questions and not Path(questions).is_absolute():
        home = template.parent / parse_toml(read_config_text(template)).get("data", DATA)
        overwrite_questions(home, config.swarm.options, place.root)
        if place.coordinates:  # checked once: all nodes have the same questions
            check_questions(config.swarm, config.training, place.root)
    return config


def fill_template(template: Path, values: Mapping[str, Any]) -> str:
    """Set values by dotted key in a configuration's text, keeping comments. Raises ConfigError."""
    document = tomlkit.parse(read_config_text(template))
    for dotted, value in values.items():
        set_dotted_key(document, dotted, value)
    return tomlkit.dumps(document)


def set_dotted_key(document: Any, dotted: str, value: Any) -> None:
    """Set a dotted key in a TOML document, or remove it with None. Raises ConfigError."""
    *tables, key = dotted.split(".")
    table = document
    for name in tables:
        table = table.setdefault(name, tomlkit.table())
        if not isinstance(table, dict):
            raise ConfigError(f"the setting {dotted!r} names no key: {name} is a value, not a table")
    if value is not None:
        table[key] = value
    elif key in table:
        del table[key]


def parse_setting(text: str) -> tuple[str, Any]:
    """Parse KEY=VALUE; the value is TOML, or an unquoted string. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"the setting {text!r} is not KEY=VALUE", "Write for example training.steps=5")
    try:
        return key, parse_toml(f"value = {value}")["value"]
    except ValueError:
        return key, value


OUTPUT_BYTES_MAX = 8 * 1024 * 1024  # a longer daemon.log becomes daemon.log.1 at the next start
TAIL_BYTES = 16 * 1024
KILLED_S = 5.0  # longest wait for a killed daemon to be gone
RESTART = Backoff(1.0, 30.0)
RESTARTS_MAX = 4  # in a row
STEADY_S = 300.0  # a daemon that ran this long has all its restarts again


class DaemonProcess:
    """`swarmd run` of one node, in its own session, so that a terminal's Ctrl-C does not reach it."""

    def __init__(self, place: LocalNode) -> None:
        self.place = place
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0  # by `time.monotonic`, as is `_restart_at`
        self._restart_at: float | None = None  # None while it runs, or stays down
        self._ends = 0  # unexpected exits in a row
        self.stays_down = False  # it ended and will not be restarted

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "swarmd", "run", "--config", str(self.place.config)]

    @property
    def pid(self) -> int:
        """Process id; 0 before the start."""
        return self._process.pid if self._process else 0

    @property
    def exit_code(self) -> int | None:
        """None while it runs or was never started; negative: the signal that ended it."""
        return self._process.poll() if self._process else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the daemon; its output is appended to daemon.log."""
        output = self.place.output
        if output.exists() and output.stat().st_size > OUTPUT_BYTES_MAX:
            output.replace(output.with_suffix(".log.1"))
        self._started_at = time.monotonic()
        with output.open("ab") as stream:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )

    def restart_if_ended(self) -> str:
        """Restart the daemon, after a pause, if it has ended by itself. Returns a line about that, or ""."""
        if self.exit_code is None or self.stays_down:
            return ""
        now, name = time.monotonic(), self.place.name
        if self._restart_at is not None:
            if now >= self._restart_at:
                self._restart_at = None
                self.start()
            return ""
        # It has just ended.
        self._ends = 1 if now - self._started_at > STEADY_S else self._ends + 1
        self.stays_down = not restart_may_help(self.exit_code) or self._ends > RESTARTS_MAX
        if self.stays_down:
            after = f" after {RESTARTS_MAX} restarts" if self._ends > RESTARTS_MAX else ""
            return f"{name} {describe_exit(self.exit_code)}, and stays down{after}"
        pause_s = RESTART.after(self._ends)
        self._restart_at = now + pause_s
        return f"{name} {describe_exit(self.exit_code)}; it is started again in {pause_s:.0f} s"

    def send_signal(self, number: signal.Signals) -> None:
        if self.is_running and self._process:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def wait_for_exit(self, longest_s: float) -> bool:
        """Wait until it ends. Returns False if it still runs after `longest_s`."""
        if self._process is None:
            return True
        try:
            self._process.wait(max(0.0, longest_s))
        except subprocess.TimeoutExpired:
            return False
        return True

    def last_errors(self) -> list[str]:
        """The last errors in the daemon's output, or its last lines if there are none."""
        lines = self.last_output_lines(ERRORS_WITHIN)
        errors = [line for line in lines if re.search(r"\[(error|critical)\s*\]|\"level\":\"(error|critical)\"", line)]
        return (errors or lines)[-ERRORS_SHOWN:]

    def last_output_lines(self, count: int = 8) -> list[str]:
        try:
            with self.place.output.open("rb") as output:
                output.seek(max(0, os.fstat(output.fileno()).st_size - TAIL_BYTES))
                return output.read().decode("utf-8", "replace").splitlines()[-count:]
        except FileNotFoundError:
            return []


def restart_may_help(exit_code: int) -> bool:
    """Whether the systemd unit would restart such a daemon: not if it was stopped on request, or cannot run."""
    return exit_code not in (ExitCode.OK, -signal.SIGTERM) and (exit_code < 64 or exit_code == ExitCode.IN_USE)


def describe_exit(exit_code: int) -> str:
    """How a process ended, to follow its name in a sentence."""
    if exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"


def stop_daemons(daemons: Sequence[DaemonProcess], longest_s: float) -> None:
    """Stop all daemons, wait for them together, and kill the rest; `exit_code` then says how each ended."""
    until = time.monotonic() + longest_s
    for daemon in daemons:
        daemon.send_signal(signal.SIGTERM)
    late = [daemon for daemon in daemons if not daemon.wait_for_exit(until - time.monotonic())]
    for daemon in late:
        daemon.send_signal(signal.SIGKILL)
    for daemon in late:
        daemon.wait_for_exit(KILLED_S)


ASK_S = 1.0  # timeout of one node's status
STOP_S = 30.0  # for an orderly stop of all nodes, then they are killed
ERRORS_WITHIN, ERRORS_SHOWN = 40, 2  # last lines searched for errors, and errors shown
NOTE_AFTER_S = 30.0  # a layer unhealthy for longer is reported


class LocalSwarm:
    """Nodes in the directories node-1, node-2, ... of `directory`; the first is the coordinator."""

    def __init__(self, directory: Path, nodes: int = 3) -> None:
        self.places = local_node_directories(directory, nodes)
        self.daemons = tuple(DaemonProcess(place) for place in self.places)
        self.rounds_max = 0
        self._seen: dict[int, Status] = {}

    def prepare_nodes(self, rounds: int, settings: Mapping[str, Any] | None = None, swarm: str = "") -> int:
        """Write the configurations; arguments and errors as for the function `prepare_nodes`."""
        self.rounds_max = prepare_nodes(self.places, rounds, settings, swarm)
        return self.rounds_max

    def start(self) -> None:
        """Start every node. Raises LocalSwarmFailed if one runs already."""
        self.refuse_running()
        for daemon in self.daemons:
            daemon.start()

    def refuse_running(self) -> None:
        """Raise LocalSwarmFailed if a node runs already: its configuration must not change then."""
        for daemon in self.daemons:
            status = ask_status(daemon.place.control, ASK_S).status
            if status is not None:
                raise LocalSwarmFailed(
                    f"{daemon.place.name} runs already, as process {status.process.pid}",
                    f"End it with `kill {status.process.pid}`, or use another --dir",
                )

    def status(self, number: int) -> Status | None:
        """The status of node `number`; None if it does not answer."""
        daemon = self.daemons[number - 1]
        status = ask_status(daemon.place.control, ASK_S).status if daemon.is_running else None
        if status is not None:
            self._seen[number] = status
        return status

    def rows(self) -> tuple[NodeRow, ...]:
        """Rows of the live table, one for each node."""
        return tuple(self._row(daemon) for daemon in self.daemons)

    def _row(self, daemon: DaemonProcess) -> NodeRow:
        place = daemon.place
        if daemon.exit_code is not None:
            self._seen.pop(place.number, None)  # forget the previous run's status
            return NodeRow(place.name, "exited", note=describe_exit(daemon.exit_code))
        answered = self.status(place.number)
        known = answered or self._seen.get(place.number)
        if known is None or known.round.state == "stopped":  # a daemon may answer before its first commit
            return NodeRow(place.name, "starting")
        return make_node_row(place.name, known, "" if answered else "does not answer")

    def restart_ended_nodes(self) -> list[str]:
        """Restart nodes that have ended by themselves. Returns a line about each."""
        return [said for daemon in self.daemons if (said := daemon.restart_if_ended())]

    @property
    def ended_daemons(self) -> tuple[DaemonProcess, ...]:
        """Nodes that were started and have ended."""
        return tuple(daemon for daemon in self.daemons if daemon.exit_code is not None)

    @property
    def can_continue(self) -> bool:
        """Whether more rounds can come: the coordinator runs, or will be restarted."""
        return not self.daemons[0].stays_down

    @property
    def are_rounds_over(self) -> tuple[bool, ...]:
        """For each node that is not down for good, whether its last status says that the rounds are over."""
        seen = [self._seen.get(daemon.place.number) for daemon in self.daemons if not daemon.stays_down]
        return tuple(
            status is not None
            and status.round.state in ("waiting", "paused")
            and 0 < self.rounds_max <= status.round.round
            for status in seen
        )

    def wait_until(self, condition: Callable[[], bool], within_s: float, what: str, every_s: float = 0.1) -> None:
        """Poll until `condition` holds. Raises LocalSwarmFailed after `within_s`, naming `what`."""
        until, never = time.monotonic() + within_s, threading.Event()
        while not condition():
            if time.monotonic() > until:
                states = "; ".join(f"{row.name} {row.state} round {row.round}" for row in self.rows())
                raise LocalSwarmFailed(f"{what} did not come within {within_s:.0f} s: {states}")
            never.wait(every_s)

    def stop(self, within_s: float = STOP_S) -> dict[str, int]:
        """Stop all nodes and their children. Returns exit codes by node name, negative for a signal."""
        stop_daemons(self.daemons, within_s)
        for daemon in self.daemons:
            if daemon.exit_code is not None and daemon.exit_code < 0:
                anyio.run(kill_leftovers, self._node_tag(daemon))
        return {daemon.place.name: code for daemon in self.daemons if (code := daemon.exit_code) is not None}

    def find_leftover_pids(self) -> list[int]:
        """Pids of workers and their children that still run (Linux)."""
        return [pid for daemon in self.daemons for pid in find_leftovers(self._node_tag(daemon))]

    def _node_tag(self, daemon: DaemonProcess) -> str:
        return node_tag(get_or_make_peer_id(daemon.place), daemon.place.root)

    def histories(self) -> dict[str, tuple[TrainedRound, ...]]:
        """Each node's rounds, from its event log."""
        return {place.name: read_history(place.events) for place in self.places}


def make_node_row(name: str, status: Status, note: str = "") -> NodeRow:
    training, round_status, kept = status.training, status.round, status.submissions
    latest = [reward.held_out for reward in status.rewards if reward.held_out is not None]
    return NodeRow(
        name=name,
        state=round_status.state,
        round=round_status.round if round_status.round >= 0 else None,
        stage=round_status.stage,
        done=training.done if training.state == "busy" else 0,
        total=training.total if training.state == "busy" else 0,
        what=training.doing or _describe_pause(status),
        at_work=training.activity_text,
        stages=round_status.stages,
        rewards=tuple(reward.reward for reward in status.rewards if reward.stage == status.rewards[-1].stage),
        held_out=latest[-1] if latest else None,
        peers=status.network.peers,
        skipped=round_status.skipped,
        restarts=training.worker.restarts + status.network.worker.restarts,
        note=note or _describe_trouble(status),
        on_chain=f"{kept.confirmed} confirmed, {kept.waiting + kept.sent + kept.included} waiting" if kept else "",
    )


def _describe_pause(status: Status) -> str:
    """Why a trainer has no command to work on."""
    if status.training.state != "idle":
        return status.training.state
    return status.round.reason if status.training.healthy else status.training.reason


def _describe_trouble(status: Status) -> str:
    """The first layer that has been unhealthy for a while; a failed stage counts at once."""
    for name, layer in status.layers.items():
        failed = name == "training" and layer.state == "idle"
        if name != "process" and not layer.healthy and (failed or layer.age_s > NOTE_AFTER_S):
            return f"{name} {layer.state}: {layer.reason}"
    return ""


def read_training_history(events: Path) -> TrainingHistory:
    """A node's training history; empty if there is no log yet."""
    try:
        return history.read_history(events)
    except NotFoundError:
        return TrainingHistory("")


def read_history(events: Path) -> tuple[TrainedRound, ...]:
    """Reward and held-out accuracy of each round, from a node's log."""
    told = read_training_history(events)
    rewards: dict[int, list[tuple[int, float]]] = {}
    for each in told.stages:
        rewards.setdefault(each.round, []).append((each.stage, each.reward))
    before = iter([told.held_out_before])  # accuracy before the first round
    return tuple(
        TrainedRound(row.round, row.reward, row.held_out, next(before, None), tuple(rewards[row.round]))
        for row in told.rounds
    )

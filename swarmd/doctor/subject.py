"""What is examined: a machine, and where there are, a configuration, its data directory, and the daemon on it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.config import Config, TrainingConfig, load_config
from swarmd.core.state import State
from swarmd.daemon.control import NoDaemon, ask
from swarmd.doctor.machine.probe import ProbeAnswer, ProbeQuestion, ask_torch
from swarmd.doctor.network.dial import DialResult
from swarmd.doctor.onchain.seen import EndpointReplies, look_at
from swarmd.doctor.waiting import ChildFailed, Once, ask_child, in_thread
from swarmd.errors import ControlError, SwarmdError
from swarmd.eventlog.fold import load
from swarmd.eventlog.segment import list_segments
from swarmd.observe.status import Status
from swarmd.paths import NodeDirectory
from swarmd.training.models.source import AUTO

DIALLER = "swarmd.doctor.network.dial"


class DaemonReply(msgspec.Struct, frozen=True):
    """What the control socket says: a status; or that nobody listens; or why a daemon does not answer."""

    status: Status | None = None
    mute: str = ""

    @property
    def runs(self) -> bool:
        return self.status is not None or bool(self.mute)


class Subject:
    """Read once, used by all checks.

    Args:
        path: of the configuration, None where only the machine is looked at.
        data: data directory in place of the configuration's.
        offline: nothing but this machine is asked.
    """

    def __init__(self, path: Path | None, data: Path | None = None, offline: bool = False) -> None:
        self.path = path
        self.offline = offline
        self.config: Config | None = None
        self.fault: SwarmdError | None = None
        self._load()
        self.data = NodeDirectory(data or self._data_of_config()) if data or self.config else None
        self.life = Once(self._ask_daemon)
        self.state = Once(self._fold)
        self.probe = Once(self._ask_torch)
        self.dialled = Once(self._dial)
        self.endpoints = Once(self._look_at_endpoints)

    def _load(self) -> None:
        if self.path is None:
            return
        try:
            self.config = load_config(self.path)
        except SwarmdError as error:
            self.fault = error

    def _data_of_config(self) -> Path:
        assert self.path is not None and self.config is not None
        return self.path.parent / self.config.data

    @property
    def whole(self) -> tuple[Config, NodeDirectory]:
        """Configuration and data directory, for checks that need both."""
        assert self.config is not None and self.data is not None, "such a check is left out without them"
        return self.config, self.data

    @property
    def key(self) -> Path:
        """The identity's file."""
        config, data = self.whole
        return data.root / config.dht.identity

    @property
    def begun(self) -> bool:
        """Does the data directory hold a node's log? Its disk may hang, so ask in a thread, for `user` too."""
        return self.data is not None and self.data.events.is_dir() and bool(list_segments(self.data.events))

    @property
    def user(self) -> int:
        """Uid of the node: the owner of its data directory. Whoever examines a service may be root."""
        place = self.data.root if self.data else Path()
        return place.stat().st_uid if os.geteuid() == 0 and place.exists() else os.geteuid()

    async def _ask_daemon(self) -> DaemonReply:
        if self.data is None:
            return DaemonReply()
        try:
            answer = await in_thread(ask, self.data.control, "status")
            return DaemonReply(msgspec.json.decode(answer, type=Status))
        except NoDaemon:
            return DaemonReply()
        except ControlError as error:
            return DaemonReply(mute=error.message)
        except DECODE_ERRORS as error:
            return DaemonReply(
                mute=f"the daemon's answer is not understood, is it another version of swarmd? ({error})"
            )

    async def _fold(self) -> State | None:
        """The state that the log gives, None where there is no log. Raises LogDamaged."""

        def fold() -> State | None:
            return load(self.data.events)[0] if self.data is not None and self.begun else None

        return await in_thread(fold)

    async def _ask_torch(self) -> ProbeAnswer:
        """Devices and the model's weight, from a child process. Raises ChildFailed."""
        training = self.config.training if self.config else TrainingConfig()
        kept = await in_thread(self._kept_model) if training.model == AUTO else ""
        (answer,) = await ask_torch([ProbeQuestion(training, kept)])
        return answer

    def _kept_model(self) -> str:
        """The model that `auto` settled on, empty where it has not."""
        if self.data is None:
            return ""
        try:
            return str(msgspec.json.decode(self.data.model.read_bytes())["model"])
        except (OSError, *DECODE_ERRORS, KeyError, TypeError):
            return ""

    async def _dial(self) -> list[DialResult]:
        """What came of dialling the bootstrap nodes but this one. Raises ChildFailed."""
        dht = self.whole[0].dht
        addresses = [each for each in dht.bootstrap if not (dht.peer and each.endswith(f"/p2p/{dht.peer}"))]
        if not addresses:
            return []
        try:
            return msgspec.json.decode(await ask_child(DIALLER, msgspec.json.encode(addresses)), type=list[DialResult])
        except DECODE_ERRORS as error:
            raise ChildFailed(f"{DIALLER} answered with something else than asked for: {error}") from error

    async def _look_at_endpoints(self) -> list[EndpointReplies]:
        """What every endpoint of the chain says. Raises ConfigError."""
        config, data = self.whole
        assert config.chain is not None, "such a check is left out without a chain"
        return await look_at(config.chain, data.root)

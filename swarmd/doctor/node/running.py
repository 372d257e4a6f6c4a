"""The daemon, if it runs, and what an earlier one left behind."""

from __future__ import annotations

from swarmd import __version__
from swarmd.daemon.leftovers import find_leftovers, node_tag
from swarmd.doctor.finding import Finding, FindingKind, well
from swarmd.doctor.node.keys import read_key
from swarmd.doctor.subject import Subject
from swarmd.doctor.waiting import in_thread
from swarmd.observe.layers import Layer
from swarmd.observe.status import Status

DAEMON_DOWN = FindingKind(
    "daemon.down",
    "note",
    "The node does not run",
    "It takes part in no round.",
    "Start it: `swarmd run --config FILE`, or `systemctl start` and its unit",
)
DAEMON_MUTE = FindingKind(
    "daemon.mute",
    "error",
    "The daemon does not answer",
    "A process listens on the control socket and says nothing, or something else than a status.",
    "Restart the node; nothing is lost",
)
DAEMON_UNWELL = FindingKind(
    "daemon.unwell",
    "warning",
    "A layer of the node is not well",
    "Rounds may be missed while it stays so. The layer says what it waits for.",
    "`swarmd status` shows all layers; a layer that only starts is well in a minute",
)
DAEMON_VERSION = FindingKind(
    "daemon.version",
    "warning",
    "The daemon runs another version than is installed",
    "swarmd was changed under it: its workers, when they are started again, are of the new version.",
    "Restart the node",
)
LEFTOVERS = FindingKind(
    "leftovers.alive",
    "warning",
    "Processes of an earlier life are still there",
    "They hold memory, and maybe the accelerator or a port, which the next start could lack.",
    "The next start ends them; or end them now",
)


async def check_daemon(subject: Subject) -> list[Finding]:
    """Layer by layer, as `swarmd status`."""
    life = await subject.life()
    if life.mute:
        return [DAEMON_MUTE.found(life.mute)]
    if life.status is None:
        return [DAEMON_DOWN.found(f"nobody listens on {subject.whole[1].control}")]
    found = [
        DAEMON_UNWELL.found(f"{name}: {layer.state}: {layer.reason or 'no reason given'}")
        for name, layer in layers_of(life.status)
        if not layer.healthy
    ]
    if life.status.process.version not in ("", __version__):
        found.append(DAEMON_VERSION.found(f"it runs {life.status.process.version}, {__version__} is installed"))
    place = f"round {life.status.round.round}" if life.status.round.round >= 0 else life.status.round.state
    return found or [well("daemon", "Daemon", f"process {life.status.process.pid}, all layers are well, {place}")]


def layers_of(status: Status) -> list[tuple[str, Layer]]:
    """Every layer of a status by its name."""
    named = [(name, getattr(status, name)) for name in Status.__struct_fields__]
    return [(name, layer) for name, layer in named if isinstance(layer, Layer)]


async def check_leftovers(subject: Subject) -> list[Finding]:
    """Processes that carry the node's tag while no daemon runs."""
    if (await subject.life()).runs:
        return [well("leftovers", "Leftovers", "the node runs; what carries its mark is its own")]
    peer = await in_thread(read_key, subject)
    root = subject.whole[1].root
    pids = await in_thread(lambda: find_leftovers(node_tag(peer, root))) if peer else []
    if not pids:
        return [well("leftovers", "Leftovers", "no process of an earlier life")]
    listed = " ".join(map(str, pids))
    return [LEFTOVERS.found(f"processes {listed}", f"The next start ends them; or `kill -9 {listed}`")]

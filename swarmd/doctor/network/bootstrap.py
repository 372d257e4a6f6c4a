"""The nodes to join through: is anybody there, is it the one that is meant, and does it speak."""

from __future__ import annotations

from collections.abc import Sequence

from swarmd.doctor.finding import Finding, FindingKind, well
from swarmd.doctor.network.dial import DialResult
from swarmd.doctor.subject import Subject

BOOTSTRAP_SILENT = FindingKind(
    "bootstrap.unreachable",
    "warning",
    "A bootstrap node cannot be reached",
    "The node joins through the others. Of a node behind a firewall, or switched off, the address helps nobody.",
    "Ask whoever runs it, or take its address out of dht.bootstrap",
)
BOOTSTRAP_ALONE = FindingKind(
    "bootstrap.none",
    "error",
    "No bootstrap node can be reached",
    "The node cannot join now. It goes on trying for ever, so nothing is lost but time.",
    "See that this machine reaches the network (a firewall may forbid outgoing TCP on that port), then ask the swarm's "
    "creator for an address that works",
)
BOOTSTRAP_FOREIGN = FindingKind(
    "bootstrap.identity",
    "warning",
    "Somebody else answers at a bootstrap address",
    "There is a program at that address, but not the peer whose id the address ends in: that node has a new "
    "identity, or another program has its port.",
    "Ask the swarm's creator for the present address",
)
BOOTSTRAP_SELF = FindingKind(
    "bootstrap.self",
    "note",
    "This node is its own bootstrap node",
    "It joins through the others; alone it waits until others come.",
    "Take the address out of dht.bootstrap, or add one of another node",
)


async def check_bootstrap(subject: Subject) -> list[Finding]:
    """Dial every address of dht.bootstrap but this node's own."""
    config, _ = subject.whole
    own = [each for each in config.dht.bootstrap if config.dht.peer and each.endswith(f"/p2p/{config.dht.peer}")]
    found = [BOOTSTRAP_SELF.found(f"dht.bootstrap has {address}") for address in own]
    if len(own) == len(config.dht.bootstrap):
        return found or [well("bootstrap", "Bootstrap nodes", "none is configured; others come to this node")]
    dialled = await subject.dialled()
    return [*found, *judge(dialled)]


def judge(dialled: Sequence[DialResult]) -> list[Finding]:
    """Findings about what came of dialling."""
    good = [each for each in dialled if each.peer]
    foreign = [each for each in dialled if not each.peer and each.tcp]
    silent = [each for each in dialled if not each.peer and not each.tcp]
    found = [BOOTSTRAP_FOREIGN.found(f"{each.address}: {each.reason}") for each in foreign]
    if not good:
        told = "; ".join(f"{each.address}: {each.reason}" for each in (*silent, *foreign))
        return [*found, BOOTSTRAP_ALONE.found(told)]
    found += [BOOTSTRAP_SILENT.found(f"{each.address}: {each.reason}") for each in silent]
    quickest_ms = 1000 * min(each.rtt_s for each in good)
    evidence = f"all {len(good)} answer as peers, the nearest in {quickest_ms:.0f} ms"
    return found or [well("bootstrap", "Bootstrap nodes", evidence)]

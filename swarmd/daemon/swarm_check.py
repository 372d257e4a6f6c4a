"""Whether a data directory holds a node of the swarm that is asked for: one directory, one node, one swarm.

The log says which swarm it is of. Every verb that starts, lays out or moves a node compares before it writes anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from swarmd.config import Config
from swarmd.core.state import State
from swarmd.errors import OtherSwarm
from swarmd.eventlog.fold import load
from swarmd.eventlog.segment import list_segments
from swarmd.paths import NodeDirectory, quoted
from swarmd.settings import contract_name, settings_of

if TYPE_CHECKING:
    from swarmd.manifest.form import Manifest


class SwarmName(msgspec.Struct, frozen=True):
    """What tells swarms apart. What is not known is compared with nothing.

    Args:
        id: the swarm's id.
        kind: what it trains; empty: not known.
        contract: "CHAIN_ID:address" of the contract that keeps its rounds, "" without a chain, None: not known.
    """

    id: str
    kind: str = ""
    contract: str | None = None

    def __str__(self) -> str:
        kind = f"kind {self.kind}" if self.kind else ""
        where = {None: "", "": "no chain"}.get(self.contract, f"contract {self.contract}")
        known = ", ".join(part for part in (kind, where) if part)
        return f"{self.id} ({known})" if known else self.id

    def differs(self, other: SwarmName) -> bool:
        """Whether they are known to be two swarms."""
        kinds = self.kind and other.kind and self.kind != other.kind
        contracts = None not in (self.contract, other.contract) and self.contract != other.contract
        return self.id != other.id or bool(kinds) or contracts


def swarm_of_config(config: Config) -> SwarmName:
    """The swarm that a configuration names."""
    settings = settings_of(config, "")
    return SwarmName(settings.swarm, settings.kind, settings.contract)


def swarm_of_manifest(manifest: Manifest) -> SwarmName:
    """The swarm that a manifest is of."""
    chain = manifest.chain
    contract = "" if chain is None else contract_name(chain.chain_id, chain.contract)
    return SwarmName(manifest.id, manifest.recipe.kind, contract)


def swarm_of_state(state: State) -> SwarmName | None:
    """The swarm that the log's node was last started in; None where it never was."""
    settings, chain = state.settings, state.chain
    if settings is None:
        return None
    if settings.kind:
        return SwarmName(settings.swarm, settings.kind, settings.contract)
    followed = contract_name(chain.chain_id, chain.contract) if chain is not None and chain.contract else None
    return SwarmName(settings.swarm, "", followed)


def swarm_of_log(data: NodeDirectory) -> SwarmName | None:
    """The swarm of a data directory's log; None where there is none. Raises LogDamaged, LogForeign, OtherVersion."""
    if not data.events.is_dir() or not list_segments(data.events):
        return None
    return swarm_of_state(load(data.events)[0])


def refuse_other_swarm(data: NodeDirectory, asked: SwarmName, fix: str = "") -> None:
    """Raise OtherSwarm where the log of a data directory is of another swarm than the one that is asked for.

    Args:
        data: the directory; one without a log is nobody's.
        asked: what it is to be used for.
        fix: what to do, where that is not to join the other swarm from another directory.

    Raises:
        OtherSwarm: it is; the error names both swarms.
        LogDamaged, LogForeign, OtherVersion: the log cannot be read.
    """
    compare(data, swarm_of_log(data), asked, fix)


def compare(data: NodeDirectory, logged: SwarmName | None, asked: SwarmName, fix: str = "") -> None:
    """As `refuse_other_swarm`, for a log that was read."""
    if logged is not None and logged.differs(asked):
        raise OtherSwarm(
            f"{data.root} holds the log of a node of the swarm {logged}; what is asked for is the swarm {asked}",
            fix or advise_other_directory(data),
        )


def advise_other_directory(data: NodeDirectory) -> str:
    """How a node gets into another swarm: in a directory of its own, with the old one's identity if that is wanted."""
    return (
        "Choose another directory with --dir: a node belongs to one swarm. The identity may be used there, while no "
        f"node runs here: `swarmd join MANIFEST --dir NEW --identity {quoted(data.identity)}`"
    )

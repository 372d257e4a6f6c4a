"""A simulated swarm: its nodes, the network between them and the chain, if there is one, built from a profile."""

import math
from abc import ABC, abstractmethod

from msgspec.structs import replace

from swarmd.core.values import ChainSettings, CoordinatorSettings, Drive, Settings, Worker
from swarmd.sim.chain import ContractRules, SimChain, SimContract, SimReceipt
from swarmd.sim.dht import SimDht
from swarmd.sim.network import SimNetworkWorker
from swarmd.sim.node import SimNode
from swarmd.sim.processes import SimSupervisor, SimWorker
from swarmd.sim.profile import NONE, SimProfile
from swarmd.sim.simulation import BEGIN, Simulation, peer_id_of

RESEND_S = 60.0
GATHER_S = 6.0
HOSTILE_GATHER_S = 12.0  # enough time to give up a hostile peer's body as too slow


class SimSwarm(Simulation, ABC):
    """A simulated swarm; `swarmd.sim.world.World` runs and checks it. The first of `nodes` coordinates, unless a
    contract keeps the rounds. `newcomer` joins after the faults, if there are hostile peers."""

    def __init__(self, seed: int, profile: SimProfile) -> None:
        super().__init__(seed, profile)
        self.dht: SimDht[SimNetworkWorker] = SimDht(self)
        contract = self._make_contract() if profile.chain else None
        self.chain = None if contract is None else SimChain(self, contract, self.on_receipt)
        self.nodes: list[SimNode] = []
        for index in range(profile.nodes):
            self.nodes.append(self._make_node(index))
        self.newcomer = self.nodes[-1] if self.has_strangers and profile.nodes > 2 else None

    @abstractmethod
    def make_worker(self, supervisor: SimSupervisor, worker: Worker, pid: int) -> SimWorker:
        """Make a worker's process."""

    @abstractmethod
    def on_receipt(self, receipt: SimReceipt) -> None:
        """A transaction was mined."""

    def _make_contract(self) -> SimContract:
        profile = self.profile
        enough = max(1, math.ceil(profile.quorum * profile.nodes)) if profile.policy == "reports" else 0
        manager = "0xaccount0" if profile.policy == "manager" else ""
        rules = ContractRules(profile.stages, enough, 0 if manager else int(profile.stage_s), manager)
        return SimContract(rules, float(int(BEGIN)))

    def _make_node(self, index: int) -> SimNode:
        profile, random = self.profile, self.random
        mixed = random.choice(("finish-stage", "abandon"))
        settings = Settings(
            peer=peer_id_of(index),
            swarm="sim",
            role="follower" if index else "coordinator",
            coordinator=peer_id_of(0),
            name=f"node {index}",
            stages=profile.stages,
            behind=mixed if profile.behind == "mixed" else profile.behind,  # type: ignore[arg-type]
            gather_s=GATHER_S if profile.hostile == NONE else HOSTILE_GATHER_S,
            train_s=profile.train_max_s,
            publish_s=10.0,
            clock_s=10.0,
            ready_s=20.0,
            coordination=None if index or profile.chain else self._make_coordinator_settings(),
            chain=self._make_chain_settings(index) if profile.chain else None,
        )
        if index and profile.catch_up_rounds:
            settings = replace(settings, catch_up_rounds=profile.catch_up_rounds, catch_up_s=profile.catch_up_s)
        if profile.average_rounds:
            settings = replace(settings, average_rounds=profile.average_rounds, catch_up_s=profile.catch_up_s)
        pace_s = profile.train_mean_s * random.uniform(0.6, 1.6)
        node = SimNode(self, index, settings, pace_s, random.uniform(-1.0, 1.0) * profile.skew_s, self.make_worker)
        if profile.shared and index == 2:
            node.account = self.nodes[1].account
        return node

    def _make_chain_settings(self, index: int) -> ChainSettings:
        profile = self.profile
        drive: Drive = "policy" if profile.policy != "manager" else "never" if index else "manager"
        return ChainSettings(drive=drive, stage_s=profile.stage_s, winners=profile.winners, resend_s=RESEND_S)

    def _make_coordinator_settings(self) -> CoordinatorSettings:
        profile = self.profile
        return CoordinatorSettings(
            min_peers=profile.min_peers,
            start_s=30.0,
            stage_s=profile.stage_s,
            quorum=profile.quorum,
            rounds_max=profile.rounds_max,
            resume_s=10.0,
            when_alone=profile.when_alone,
            shard_members=profile.shard_members if profile.has_shards else 0,
        )

"""Faults in the simulated world, and when they occur."""

from collections.abc import Callable

from swarmd.core.events import StopRequested
from swarmd.sim.chain import CALL_WEI, FEE, RICH_WEI, ContractCall, Kind, SimChain, sign_call
from swarmd.sim.dht import CUT_OFF
from swarmd.sim.machine import LOW_BYTES, ROOM_BYTES, WANTED_BYTES
from swarmd.sim.network import SimNetworkWorker
from swarmd.sim.node import CRASH_POINTS, SimNode
from swarmd.sim.swarm import SimSwarm

PARTITION_S = (10.0, 180.0)
AWAY_S = (60.0, 600.0)  # duration of a follower's absence
FREEZE_S = (2.0, 120.0)
SLOW_DISK_S = (0.5, 8.0)
OPERATOR_S = 60.0  # interval at which the operator checks whether the swarm has finished its rounds
OUTAGE_S = (5.0, 240.0)
DEAR_S = (20.0, 120.0)
HALT_S = (5.0, 60.0)
BARRED_S = (10.0, 60.0)
POOR_S = (10.0, 240.0)
OWNER = "0xowner"
FULL_S = (5.0, 240.0)  # how long a disk stays full
LOOK_S = 5.0  # interval at which a node checks its disk
CLOCK_STEP_S = 3.0  # largest step of a small clock error
JUMP_S = (600.0, 3600.0)  # size of a large clock error, forward or back
WRONG_S = (5.0, 240.0)  # duration of a large clock error


class FaultInjector:
    """Injects faults at random times until the world becomes calm."""

    def __init__(self, world: SimSwarm) -> None:
        self.world = world
        self.random = world.random
        self.over = False
        faults = _DHT_FAULTS if world.chain is None else _CHAIN_FAULTS
        self._kinds = [kind for kind, _ in faults]
        self._weights = [weight for _, weight in faults]

    def start(self) -> None:
        profile = self.world.profile
        self._schedule_repeatedly(profile.faults * profile.nodes, self._inject_random_fault)
        self._schedule_repeatedly(profile.jumps * profile.nodes, self._set_clock_wrong)
        self._schedule_repeatedly(profile.churn * (profile.nodes - 1), self._switch_off_follower)
        if profile.partition:
            self.world.call_in((self.world.calm_from - self.world.now) / 3, self._split, profile.partition)
        if profile.rounds_max:
            self.world.call_in(OPERATOR_S, self._extend_finished_swarm)

    def _schedule_repeatedly(self, in_an_hour: float, act: Callable[[], None]) -> None:
        """Call `act` at random times, `in_an_hour` times per hour on average, until the world becomes calm."""
        if in_an_hour > 0:
            self.world.call_in(self.random.expovariate(in_an_hour / 3600.0), self._act_and_reschedule, in_an_hour, act)

    def _act_and_reschedule(self, in_an_hour: float, act: Callable[[], None]) -> None:
        if not self.over:
            self._schedule_repeatedly(in_an_hour, act)
            act()

    def _inject_random_fault(self) -> None:
        node = self.random.choice(self.world.nodes)
        if node.running:
            self.random.choices(self._kinds, self._weights)[0](self, node)

    def _set_clock_wrong(self) -> None:
        """Set a random node's clock wrong, and correct it later."""
        node = self.random.choice(self.world.nodes)
        if not node.jumped_s:
            self.world.counts["jumps"] += 1
            node.step_clock(self.random.choice((-1.0, 1.0)) * self.random.uniform(*JUMP_S))
            self.world.call_in(self.random.uniform(*WRONG_S), self._correct_clock, node)

    def _switch_off_follower(self) -> None:
        """Switch off a random follower's machine for some minutes."""
        node = self.random.choice(self.world.nodes[1:])
        node.crash(self.random.uniform(*AWAY_S))

    def _split(self, share: float) -> None:
        """Cut off each node with probability `share` from the others for a while."""
        dht = self.world.dht
        if not dht.split:
            self.world.counts["partitions"] += 1
            dht.split_network(share)
            self.world.call_in(self.random.uniform(*PARTITION_S), dht.heal_network)

    def _correct_clock(self, node: SimNode) -> None:
        if node.jumped_s:
            node.step_clock(-node.jumped_s)

    def stop_faults(self) -> None:
        """End all faults. Frozen workers thaw when their time has come."""
        self.over = True
        world = self.world
        world.dht.heal_network()
        if world.chain is not None:
            self._stop_chain_faults(world.chain)
        for node in world.nodes:
            node.crash_point = None
            node.supervisor.refusals = 0
            node.rpc_out_until = 0.0
            self._set_free_space(node, ROOM_BYTES)
            self._correct_clock(node)
            node.frozen_until = min(node.frozen_until, world.now)
            world.call_in(0.0, node.thaw, node.life)

    # --- kinds of faults ---

    def _crash_in_commit(self, node: SimNode) -> None:
        node.crash_point = self.random.choice(CRASH_POINTS)

    def _kill_worker(self, node: SimNode) -> None:
        if workers := node.supervisor.live_workers:
            node.supervisor.break_process(self.random.choice(workers), "killed")

    def _lose_link(self, node: SimNode) -> None:
        worker = node.supervisor.running["network"]
        if isinstance(worker, SimNetworkWorker):
            worker.lose_link()

    def _freeze_all(self, node: SimNode) -> None:
        """Freeze the daemon and its workers, like SIGSTOP."""
        until = self.world.now + self.random.uniform(*FREEZE_S)
        node.freeze(until)
        for worker in node.supervisor.live_workers:
            worker.freeze(until)

    def _freeze_daemon(self, node: SimNode) -> None:
        node.freeze(self.world.now + self.random.uniform(*FREEZE_S))

    def _freeze_worker(self, node: SimNode) -> None:
        if workers := node.supervisor.live_workers:
            self.random.choice(workers).freeze(self.world.now + self.random.uniform(*FREEZE_S))

    def _slow_down_disk(self, node: SimNode) -> None:
        node.busy_until = max(node.busy_until, self.world.now + self.random.uniform(*SLOW_DISK_S))

    def _refuse_worker_starts(self, node: SimNode) -> None:
        """Make the next starts of worker processes fail."""
        node.supervisor.refusals = self.random.randint(1, 3)
        self._kill_worker(node)

    def _break_worker_permanently(self, node: SimNode) -> None:
        """End a worker for a reason that a restart cannot fix."""
        for worker in node.supervisor.live_workers[:1]:
            node.supervisor.break_process(worker, "identity in use", permanent=True)

    def _request_stop(self, node: SimNode) -> None:
        node.receive_fact(node.life, StopRequested("operator"))

    def _drift_clock(self, node: SimNode) -> None:
        node.skew_s += self.random.uniform(-CLOCK_STEP_S, CLOCK_STEP_S)

    def _fill_disk(self, node: SimNode) -> None:
        """Fill the disk, then free too little space to continue, and then all."""
        if node.disk.is_nearly_full:
            return
        self.world.counts["full_disks"] += 1
        self._set_free_space(node, self.random.randrange(LOW_BYTES))
        until_s = self.random.uniform(*FULL_S)
        self.world.call_in(until_s / 2, self._set_free_space, node, (LOW_BYTES + WANTED_BYTES) // 2)
        self.world.call_in(until_s, self._set_free_space, node, ROOM_BYTES)

    def _restore_from_backup(self, node: SimNode) -> None:
        """Restore a follower from a backup. Not with a chain, where tests/chain covers it."""
        if node.index and len(node.disk.log.commits) > 1:
            node.restore_backup(self.random.randrange(1, len(node.disk.log.commits)))
            self.world.dht.lose_disk(node.index)

    def _set_free_space(self, node: SimNode, free_bytes: int) -> None:
        """Set a disk's free space; the node notices it at its next check, in whichever run."""
        if not self.over or free_bytes == ROOM_BYTES:
            node.disk.free_bytes = free_bytes
            self.world.call_in(self.random.uniform(0.0, LOOK_S), node.check_free_space)

    # --- kinds of faults of a chain ---

    @property
    def _chain(self) -> SimChain:
        assert self.world.chain is not None, "these faults are drawn only where there is a chain"
        return self.world.chain

    def _kill_chain_worker(self, node: SimNode) -> None:
        worker = node.supervisor.running["chain"]
        if worker is not None and worker.alive:
            node.supervisor.break_process(worker, "killed")

    def _cut_off_endpoints(self, node: SimNode) -> None:
        node.rpc_out_until = self.world.now + self.random.uniform(*OUTAGE_S)

    def _cut_off_all_endpoints(self, node: SimNode) -> None:
        until = self.world.now + self.random.uniform(*OUTAGE_S)
        for each in self.world.nodes:
            each.rpc_out_until = until

    def _reorganise_chain(self, node: SimNode) -> None:
        if self.world.profile.reorg_depth:
            self._chain.reorganise(self.random.randint(1, self.world.profile.reorg_depth))

    def _evict_transaction(self, node: SimNode) -> None:
        """Remove a random transaction from the pool."""
        if pool := self._chain.pool:
            del pool[self._chain.random.choice(list(pool))]

    def _raise_fee(self, node: SimNode) -> None:
        self._chain.set_fee_multiple(self.random.uniform(1.5, 6.0))
        self.world.call_in(self.random.uniform(*DEAR_S), self._chain.set_fee_multiple, 1.0)

    def _drain_account(self, node: SimNode) -> None:
        """Take nearly all coins from an account for a while."""
        self._chain.balances[node.account] = self.random.randrange(2 * CALL_WEI)
        self.world.call_in(self.random.uniform(*POOR_S), self._chain.balances.update, {node.account: RICH_WEI})

    def _use_up_nonce(self, node: SimNode) -> None:
        """Send a transaction of another process from the node's account: after the pending ones, or in place of one at
        a higher fee."""
        chain = self._chain
        in_place = self.random.random() < 0.5
        nonce = chain.contract.nonce_of(node.account) if in_place else chain.pending_nonce_of(node.account)
        fee = int(chain.fee * self.random.uniform(1.0, 3.0))
        chain.submit_transaction(
            sign_call(ContractCall("idle", node.account, str(self.world.now)), nonce, fee, tip=fee)
        )

    def _halt_blocks(self, node: SimNode) -> None:
        self._chain.halted_until = self.world.now + self.random.uniform(*HALT_S)

    def _ban_peer(self, node: SimNode) -> None:
        """Exclude a peer from the allow-list for a while."""
        self._send_owner_call("bar", node.peer)
        self.world.call_in(self.random.uniform(*BARRED_S), self._send_owner_call, "allow", node.peer)

    def _send_owner_call(self, kind: Kind, peer: str) -> None:
        chain = self._chain
        chain.submit_transaction(sign_call(ContractCall(kind, OWNER, peer), chain.pending_nonce_of(OWNER), 10 * FEE))

    def _stop_chain_faults(self, chain: SimChain) -> None:
        chain.stop_faults()
        for node in self.world.nodes:
            self._send_owner_call("allow", node.peer)
            if self.world.profile.day_calls:
                self._kill_chain_worker(node)  # it restarts with a configuration without a budget

    def _extend_finished_swarm(self) -> None:
        """As the operator, raise the number of rounds of a finished swarm."""
        if self.over:
            return
        self.world.call_in(OPERATOR_S, self._extend_finished_swarm)
        node = self.world.nodes[0]
        coordination = node.state.coordination
        if node.running and coordination is not None and coordination.chart == "finished":
            node.add_rounds(self.world.profile.rounds_max)
            self._request_stop(node)


_FAULTS: tuple[tuple[Callable[[FaultInjector, SimNode], None], float], ...] = (
    (lambda faults, node: node.crash(), 4.0),
    (FaultInjector._crash_in_commit, 5.0),
    (lambda faults, node: faults.world.nodes[0].crash(), 1.0),
    (FaultInjector._kill_worker, 4.0),
    (FaultInjector._lose_link, 4.0),
    (lambda faults, node: faults._split(CUT_OFF), 1.0),
    (FaultInjector._freeze_all, 2.0),
    (FaultInjector._freeze_daemon, 1.0),
    (FaultInjector._freeze_worker, 1.5),
    (FaultInjector._slow_down_disk, 2.0),
    (FaultInjector._refuse_worker_starts, 0.5),
    (FaultInjector._break_worker_permanently, 0.2),
    (FaultInjector._request_stop, 1.0),
    (lambda faults, node: faults.world.dht.lose_random_records(), 1.0),
    (FaultInjector._drift_clock, 1.0),
    (FaultInjector._fill_disk, 1.5),
)
_DHT_FAULTS = (*_FAULTS, (FaultInjector._restore_from_backup, 0.7))
_CHAIN_FAULTS: tuple[tuple[Callable[[FaultInjector, SimNode], None], float], ...] = (
    *_FAULTS,
    (FaultInjector._kill_chain_worker, 4.0),
    (FaultInjector._cut_off_endpoints, 2.0),
    (FaultInjector._cut_off_all_endpoints, 0.5),
    (FaultInjector._reorganise_chain, 4.0),
    (FaultInjector._evict_transaction, 2.0),
    (FaultInjector._raise_fee, 1.0),
    (FaultInjector._use_up_nonce, 2.0),
    (FaultInjector._halt_blocks, 0.5),
    (FaultInjector._ban_peer, 0.5),
    (FaultInjector._drain_account, 1.0),
)

"""The simulated chain worker: reads blocks, notices branches that replaced each other, and follows submissions.

It knows nothing but what it reads and what it is told, and forgets it all when it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarmd.core.commands import Broadcast, Command, Submit, WatchChain
from swarmd.core.events import ChainBlock, ChainDegraded, ChainReorged, ChainUp, Event, MembershipRead
from swarmd.core.values import BlockRef
from swarmd.sim.submitter import Submitter
from swarmd.sim.worker import SimWorker

if TYPE_CHECKING:
    from swarmd.sim.chain import Chain
    from swarmd.sim.node import Node

BATCH_BLOCKS = 16  # read at once while catching up
SPARSE_BLOCKS = 16  # every so many blocks one is reported although it holds nothing
REMEMBERED_BLOCKS = 300
RETRY_S = 3.0  # from a call that failed to the next
CALL_S_MAX = 2.0


class ChainWorker(SimWorker):
    """A node's view of the chain.

    Attributes:
        read: blocks that were read, oldest first, the last one being how far the daemon knows the chain.
        up: whether the daemon knows that everything up to the head has been read.
    """

    kind = "chain"

    def __init__(self, node: Node, pid: int) -> None:
        super().__init__(node, pid)
        self.read: list[BlockRef] = []
        self.up = False
        self.degraded = False
        self.deaf = self.random.random() < self.world.chance("slow_start")
        self.submitter = Submitter(self)
        self._looks = False

    @property
    def chain(self) -> Chain:
        """The chain that all nodes share."""
        assert self.world.chain is not None, "there is a chain wherever there is a chain worker"
        return self.world.chain

    @property
    def is_cut_off(self) -> bool:
        """Whether none of this node's endpoints answers."""
        return self.node.rpc_out_until > self.world.now

    def begin(self) -> None:
        """The first order says where to begin; a deaf worker never comes up."""

    def call_s(self) -> float:
        """How long a call takes."""
        return min(self.random.expovariate(1.0 / self.world.profile.latency_s), CALL_S_MAX)

    def tell_all(self, *facts: Event) -> None:
        """Report facts; now and then one comes twice."""
        for fact in facts:
            self.tell(fact)
            if self.random.random() < self.world.chance("duplicate"):
                self.tell(fact)

    def has_read(self, block: BlockRef) -> bool:
        """Whether the daemon knows the chain up to this block, so that it will hear of its being replaced."""
        return self.chain.has(self.read[-1]) and block.number <= self.read[-1].number

    # --- commands ---

    def perform(self, command: Command) -> None:
        if self.deaf:
            return
        if isinstance(command, WatchChain):
            self.read = list(command.recent) or [self.chain.blocks[0].ref]
            self._look_in(self.call_s())
        elif isinstance(command, Submit):
            self.submitter.take(command)
        elif isinstance(command, Broadcast):
            self.later(self.call_s(), self.submitter.release, command)

    # --- reading ---

    def notice_head(self) -> None:
        """There is a new block; a worker that is cut off finds that out at its next poll."""
        if self.read:
            self._look_in(self.call_s())

    def _look_in(self, delay_s: float) -> None:
        if not self._looks:
            self._looks = True
            self.later(delay_s, self._look)

    def _look(self) -> None:
        self._looks = False
        if self.is_cut_off:
            self._lose_chain()
        elif not self.alive:
            return
        elif self.up and self.random.random() < 0.3:  # two tasks: either may be first
            self.submitter.follow()
            self._read_on()
        else:
            self._read_on()
            self.submitter.follow()

    def _lose_chain(self) -> None:
        if not self.degraded:
            self.degraded, self.up = True, False
            self.tell_all(ChainDegraded("no endpoint answers"))
        self._look_in(RETRY_S)

    def _read_on(self) -> None:
        """Tell what replaced what, then the blocks up to the head, in several steps when there are many."""
        chain = self.chain
        if not chain.has(self.read[-1]):
            self._fork()
            self._look_in(self.call_s())
            return
        first = self.read[-1].number + 1
        for block in chain.blocks[first : first + BATCH_BLOCKS]:
            if block.logs or block.ref.number % SPARSE_BLOCKS == 0:
                self.tell_all(ChainBlock(block.ref, block.logs))
            self.read.append(block.ref)
        del self.read[:-REMEMBERED_BLOCKS]
        if self.read[-1].number < chain.head.number:
            self._look_in(self.call_s())
        elif not self.up:
            self._come_up()

    def _fork(self) -> None:
        tip = self.read[-1]
        while self.read and not self.chain.has(self.read[-1]):
            self.read.pop()
        if not self.read:
            self.read.append(self.chain.blocks[0].ref)
        self.tell_all(ChainReorged(self.read[-1], tip.number - self.read[-1].number))
        self.up = False

    def _come_up(self) -> None:
        chain, contract = self.chain, self.chain.contract
        self.up, self.degraded = True, False
        round, stage = contract.place
        up = ChainUp(
            chain_id=31337,
            contract="0xcontract",
            genesis=chain.blocks[0].ref.hash,
            head=chain.head,
            stages=contract.stages,
            round=round,
            stage=stage,
            opened_at=contract.opened_at,
            account=self.node.account,
            registered_to=contract.account_of(self.node.peer),
            extensions=0 if contract.manager else 1,
            min_submissions=contract.min_submissions,
            max_stage_s=contract.max_stage_s,
        )
        self.tell_all(up)
        if self.random.random() < 0.2:
            self.tell_all(MembershipRead(True))

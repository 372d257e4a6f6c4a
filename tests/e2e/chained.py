"""Real nodes whose rounds a contract on a real chain keeps, and what it has of them against their own logs."""

import math
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swarmd.chain.keystore import create_keystore, create_passphrase
from swarmd.cli.local_swarm import get_or_make_peer_id
from swarmd.core.events import AnyChainLog, RegistrationLog, RewardLog, StageLog, StageTrained, VoteLog
from tests.anvil import running_anvil
from tests.chain.grounds import CHAIN_ID, Ground
from tests.e2e.audit import events_of
from tests.e2e.conftest import NODES, PATIENCE_S, Swarm

FUNDS_WEI = 10**20
WORK = 1 << 12  # scrypt's n: these accounts guard nothing
STAGE_S = 400  # the policy's longest stage
LASTING = 8  # blocks on top of the policy, so that no reorganisation of a test takes it back


class ChainedSwarm(Swarm):
    """A local swarm on a chain; each node has an account of its own.

    Args:
        ground: the chain and the contract.
        nodes: how many.
        trained: numbers of the nodes with a real trainer.
    """

    def __init__(
        self,
        directory: Path,
        ground: Ground,
        nodes: int = NODES,
        trained: Collection[int] = (),
    ) -> None:
        super().__init__(directory, nodes, trained)
        self.ground = ground
        self.peers: list[str] = []
        self.accounts: list[str] = []

    def run(self, rounds: int = 0, kind: str = "", **settings: object) -> None:
        """Make the accounts, set the policy, lay out and start all nodes."""
        self.ready_accounts()
        contract = self.ground.swarm
        contract.send(contract.owner, "setRoundPolicy", len(self.places), STAGE_S)
        self.ground.mine(LASTING)
        chain = {
            "chain.rpc": [self.ground.ws, self.ground.url],
            "chain.chain_id": CHAIN_ID,
            "chain.contract": self.ground.contract,
            "chain.depth": 1,
            "chain.poll_s": 0.5,
            "chain.fees.stuck_s": 5.0,
        }
        dotted = {key.replace("__", "."): value for key, value in settings.items()}
        self.prepare(0, kind, **chain | dotted)
        self.start()

    def ready_accounts(self) -> None:
        """An encrypted key in every node's directory, with something to pay with."""
        for place in self.places:
            self.peers.append(get_or_make_peer_id(place))
            passphrase = create_passphrase(place.root / "account.pass")
            address = create_keystore(place.root / "account.json", passphrase, WORK).address
            self.accounts.append(address)
            self.ground.say("anvil_setBalance", address, hex(FUNDS_WEI))

    # --- the chain's view ---

    def said(self) -> list[AnyChainLog]:
        """All that the contract says now, in its order."""
        return [log for _, logs in sorted(self.ground.logs().items()) for log in logs]

    def rewards(self) -> list[RewardLog]:
        return [log for log in self.said() if isinstance(log, RewardLog)]

    def votes(self) -> list[VoteLog]:
        return [log for log in self.said() if isinstance(log, VoteLog)]

    def registrations(self) -> list[RegistrationLog]:
        return [log for log in self.said() if isinstance(log, RegistrationLog)]

    def round(self) -> int:
        """Where the contract is."""
        return max((log.round for log in self.said() if isinstance(log, StageLog)), default=0)

    def wait_contract(self, round: int, within_s: float = PATIENCE_S) -> None:
        """Until the contract is at `round` or later."""
        self.wait_until(lambda: self.round() >= round, within_s, f"the contract to reach round {round}", every_s=0.3)

    def wait_settled(self, round: int, within_s: float = PATIENCE_S) -> None:
        """Until all rewards and votes of the rounds up to `round` are on the chain."""

        def settled() -> bool:
            wanted = {(peer, number) for peer in self.peers for number in range(round + 1)}
            earned = {(*each, stage) for each in wanted for stage in range(self.ground.stages)}
            rewarded = {(log.peer, log.round, log.stage) for log in self.rewards()}
            return earned <= rewarded and wanted <= {(log.peer, log.round) for log in self.votes()}

        self.wait_until(settled, within_s, f"rewards and votes up to round {round}", every_s=0.3)


@contextmanager
def chained_swarm(directory: Path, stages: int = 1, **nodes: Any) -> Iterator[ChainedSwarm]:
    """A swarm on an anvil, whose contract has rounds of `stages`; not yet laid out. `nodes` as of ChainedSwarm."""
    with running_anvil("--block-time", "1") as url:
        yield ChainedSwarm(directory, Ground(url, stages), **nodes)


def assert_earned(swarm: ChainedSwarm) -> None:
    """All that is on the chain is there once, and is what the nodes' logs say."""
    assert_once(swarm)
    assert_rewards_are_the_logs(swarm)
    assert_votes_are_judged(swarm)


def assert_once(swarm: ChainedSwarm) -> None:
    """Every node is registered to its account, and no reward and no vote is there twice."""
    assert {(log.peer, log.account) for log in swarm.registrations()} == set(
        zip(swarm.peers, swarm.accounts, strict=True)
    )
    for counts in (
        Counter(log.peer for log in swarm.registrations()),
        Counter((log.peer, log.round, log.stage) for log in swarm.rewards()),
        Counter((log.peer, log.round) for log in swarm.votes()),
    ):
        assert set(counts.values()) == {1}, counts


def assert_rewards_are_the_logs(swarm: ChainedSwarm) -> None:
    """The chain has of each stage what the node's own log says it earned."""
    on_chain = {(log.peer, log.round, log.stage): int(log.reward) for log in swarm.rewards()}
    for peer, place in zip(swarm.peers, swarm.places, strict=True):
        for event in events_of(place.events):
            if isinstance(event, StageTrained) and (peer, event.round, event.stage) in on_chain:
                assert on_chain[peer, event.round, event.stage] == math.floor(event.reward * 1000 + 0.5), event


def assert_votes_are_judged(swarm: ChainedSwarm) -> None:
    """Every vote is for the highest sum of what the voter's own trainer made of each stage, whatever peers report."""
    assert swarm.votes()
    for log in swarm.votes():
        assert log.winners == (best_judged(swarm, log.peer, log.round),), log


def best_judged(swarm: ChainedSwarm, voter: str, round: int) -> str:
    """The highest sum over the stages of a round: of a peer as this node judged it, of itself as it was rewarded."""
    sums: dict[str, float] = {}
    stages = swarm.ground.stages
    for event in events_of(swarm.places[swarm.peers.index(voter)].events):
        if isinstance(event, StageTrained):
            if event.round == round:
                sums[voter] = sums.get(voter, 0.0) + event.reward
            if divmod(event.round * stages + event.stage - 1, stages)[0] == round:  # it judges the stage before
                for each in event.judged:
                    sums[each.peer] = sums.get(each.peer, 0.0) + each.worth
    return min(sums, key=lambda peer: (-sums[peer], peer))

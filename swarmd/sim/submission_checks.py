"""Checks of a node's submissions to a chain: each once, in order, nothing before it is in the log, nothing forgotten.

They count from the node's durable events and from the chain; the core's own counts are only compared with the result.
"""

from swarmd.core.applied import AppliedEvent
from swarmd.core.chart_types import SubmissionState
from swarmd.core.commands import Submit
from swarmd.core.events import StageTrained, SubmissionConfirmed, SubmissionPrepared, SubmissionRefused
from swarmd.core.ids import submission_id
from swarmd.core.state import State
from swarmd.core.submissions import REPEATABLE, SETTLED
from swarmd.sim.chain import CALL_WEI, GAS_ALLOWED, GAS_IDLE_ALLOWED, SignedTx, SimChain, SimReceipt
from swarmd.sim.machine import SimMachine
from swarmd.sim.simulation import Place

DRAIN_S = 120.0  # longest time until a submission in a calm world is settled
TWICE = ("RewardAlreadySubmitted", "WinnerAlreadyVoted", "PeerIdAlreadyRegistered")


class SubmissionChecks:
    """Checks of the submissions of one node.

    Attributes:
        trained: stages that were trained, and when that became durable.
        refused: why a submission was given up, by the log.
        charts: last chart state of every submission ever intended.
    """

    def __init__(self, node: SimMachine, chain: SimChain) -> None:
        self.world = node.world
        self.node = node
        self._chain = chain
        self.trained: dict[Place, float] = {}
        self.refused: dict[str, str] = {}
        self.charts: dict[str, SubmissionState] = {}
        self._durable: set[str] = set()  # hashes of attempts in the log
        self._sent: dict[str, list[SignedTx]] = {}  # by submission
        self._nonces: dict[str, set[int]] = {}  # nonces signed with, by submission
        self._reorgs: dict[str, int] = {}  # transaction hash → number of reorganisations when it was signed
        self._mined: dict[str, list[str]] = {}  # hashes of transactions ever mined, by submission
        self._costs: dict[int, int] = {}  # the highest cost for each nonce
        self._spent_wei = 0
        self._last: Place = (-1, -1)  # (round, stage) of the last reward on the chain

    # --- attempts ---

    def on_transaction_signed(self, tx: SignedTx) -> None:
        """Check that a second attempt replaces the first, or is made only once the first can no longer be mined."""
        chain = self._chain
        self._reorgs.setdefault(tx.hash, chain.reorgs)
        if not tx.submission:
            return
        nonces = self._nonces.setdefault(tx.submission, set())
        if tx.nonce in nonces:
            return
        nonces.add(tx.nonce)
        for other in self._sent.get(tx.submission, ()):
            if self._has_succeeded(other.hash) and not self._may_be_for_other_stage(tx):
                self.node.fail_run(f"{tx.submission} is signed again although the chain has it")
            if self._reorgs[other.hash] < chain.reorgs or (tx.nonce < other.nonce and tx.call.kind != "advance"):
                continue  # it was invalid on an earlier branch, or is still, and the contract accepts only one of both
            if other.nonce >= chain.contract.nonce_of(other.call.account):
                self.node.fail_run(
                    f"{tx.submission} is signed with nonce {tx.nonce} while its attempt {other.nonce} can be mined"
                )

    def on_transaction_sent(self, tx: SignedTx) -> None:
        """Check that a sent transaction is in the log, so that no crash can make the node forget it."""
        if tx.hash not in self._durable:
            self.node.fail_run(f"{tx.submission} is sent, but the log has no attempt {tx.hash}")
        self._sent.setdefault(tx.submission, []).append(tx)
        self._count_spending(tx)

    def _count_spending(self, tx: SignedTx) -> None:
        """Check that the possible costs never exceed the day's budget; the chain mines one transaction per nonce."""
        before_wei, cost_wei = (
            self._costs.get(tx.nonce, 0),
            tx.fee * (GAS_IDLE_ALLOWED if tx.call.kind == "idle" else GAS_ALLOWED),
        )
        self._costs[tx.nonce] = max(cost_wei, before_wei)
        self._spent_wei += self._costs[tx.nonce] - before_wei
        if 0 < daily_budget_wei(self.node) < self._spent_wei:
            self.node.fail_run(f"it may pay {self._spent_wei} wei, and {daily_budget_wei(self.node)} is a day's budget")

    def on_transaction_mined(self, receipt: SimReceipt) -> None:
        tx, chain = receipt.tx, self._chain
        undisturbed = self._reorgs[tx.hash] == chain.reorgs
        alone = len({each.nonce for each in self._sent.get(tx.submission, ())}) == 1  # else see `on_transaction_signed`
        if receipt.error in TWICE and undisturbed and alone:
            self.node.fail_run(f"{tx.submission} was sent although the chain had it: {receipt.error}")
        if receipt.error:
            return
        mined = self._mined.setdefault(tx.submission, [])
        twice = [known for known in mined if known != tx.hash and self._has_succeeded(known)]
        if twice and not self._may_be_for_other_stage(tx):
            self.node.fail_run(f"{tx.submission} is on the chain twice, as {twice[0]} and {tx.hash}")
        mined.append(tx.hash)
        if tx.call.kind == "reward":
            place = (tx.call.round, tx.call.stage)
            if chain.reorgs == 0 and place < self._last:
                self.node.fail_run(f"the reward of {place} came after that of {self._last}")
            self._last = place

    def _may_be_for_other_stage(self, tx: SignedTx) -> bool:
        """Return whether a reorganisation may have moved this step, which names no stage, to another stage."""
        return tx.call.kind == "advance" and self._chain.reorgs > 0

    def _has_succeeded(self, transaction: str) -> bool:
        receipt = self._chain.receipts.get(transaction)
        return receipt is not None and not receipt.error

    def on_submission_refused(self, command: Submit, code: str, answered: str) -> None:
        """Check that the contract's rules justify a refusal by the chain worker; no simulated log is an old copy."""
        reasons = {
            "PeerNotAllowed": answered == code,
            "moved-on": command.kind == "advance" and self._chain.furthest > (command.round, command.stage),
        }
        if not reasons.get(code, False):
            self.node.fail_run(f"{command.submission} is refused with {code}, which nothing justifies")

    # --- the node's state ---

    def check_event(self, applied: AppliedEvent) -> None:
        envelope, before, after = applied.envelope, applied.before, applied.after
        event = envelope.event
        if isinstance(event, SubmissionPrepared):
            self._durable.add(event.prepared.hash)
        elif isinstance(event, SubmissionConfirmed):
            self.world.counts["confirmed"] += 1
            # No block with this number was ever as deep as the profile requires.
            if event.block.number + self.world.profile.depth - 1 > self._chain.highest:
                self.node.fail_run(
                    f"{event.submission} counts as confirmed in block {event.block.number}, at the very head"
                )
        elif isinstance(event, SubmissionRefused):
            self.world.counts["refused"] += 1
        elif isinstance(event, StageTrained) and (event.round, event.stage) > before.done:
            self.trained[(event.round, event.stage)] = self.world.now
        if after.submissions is not before.submissions:
            self._check_transition(before, after)

    def _check_transition(self, before: State, after: State) -> None:
        """Check that submissions keep their order, and only settled ones are dropped."""
        was = {each.id: each for each in before.submissions}
        now = {each.id: each for each in after.submissions}
        for each in after.submissions:
            if each is not was.get(each.id):
                here = self.charts.get(each.id, "intended")
                again = here == "intended" or (each.kind in REPEATABLE and here in SETTLED)
                if each.chart == "intended" and not again:
                    self.node.fail_run(f"{each.id} begins again, and was {here}")
                self.charts[each.id] = each.chart
                if each.chart == "refused":
                    self.refused[each.id] = each.code
                if each.kind == "winners" and (after.clock is None or each.round >= after.clock.round):
                    self.node.fail_run(f"{each.id} is wanted before the round is over: the swarm is at {after.clock}")
        if any(each.id not in now and self.charts[each.id] not in SETTLED for each in before.submissions):
            self.node.fail_run("a submission that is not settled was forgotten")
        kept = [each.id for each in before.submissions if each.id in now and each.kind not in REPEATABLE]
        if kept != [each.id for each in after.submissions if each.id in was and each.kind not in REPEATABLE]:
            self.node.fail_run("submissions have changed their order")

    # --- at the end ---

    def check_at_end(self) -> None:
        """Check that every submission is on the chain, or its refusal is in the log."""
        settled_by = self.world.now - DRAIN_S
        contract = self._chain.contract
        if contract.account_of_peer(self.node.peer) != self.node.account:
            self.node.fail_run("it is not registered, although all faults have ceased")
        for place, at in self.trained.items():
            refused = submission_id("reward", f"{place[0]}/{place[1]}") in self.refused
            if at < settled_by and not refused and not self._is_on_chain("reward", place):
                self.node.fail_run(f"the reward of {place} is neither on the chain nor refused")
        for each in self.node.state.submissions:
            if each.chart not in SETTLED and each.intended_at < settled_by - abs(self.node.skew_s):
                self.node.fail_run(f"{each.id} is still {each.chart}: {each.reason or 'for no reason'}")
        for name, chart in self.charts.items():
            kind, *numbers = name.split("/")
            round, stage = [*[int(number) for number in numbers], 0, 0][:2]
            if chart == "confirmed" and not self._is_on_chain(kind, (round, stage)):
                self.node.fail_run(f"{name} counts as confirmed, but is not on the chain")

    def _is_on_chain(self, kind: str, place: Place) -> bool:
        contract, peer = self._chain.contract, self.node.peer
        if kind == "reward":
            return contract.block_of_submission("reward", *place, peer) is not None
        if kind == "winners":
            return contract.block_of_submission("vote", place[0], peer) is not None
        return kind == "advance" or contract.block_of_submission("registered", peer) is not None


def daily_budget_wei(node: SimMachine) -> int:
    """Return an account's budget for a day in wei, 0 for no limit; there is none in a calm world."""
    world = node.world
    return world.profile.day_calls * CALL_WEI if world.now < world.calm_from else 0

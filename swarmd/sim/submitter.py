"""How the simulated chain worker brings submissions about: it looks, signs, waits to be told, sends, and follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from swarmd.core.commands import Broadcast, Submit
from swarmd.core.events import (
    CommandFailed,
    SubmissionConfirmed,
    SubmissionIncluded,
    SubmissionLost,
    SubmissionPrepared,
    SubmissionRefused,
    SubmissionSent,
)
from swarmd.core.values import BlockRef, Prepared
from swarmd.sim.chain import Tx, sign
from swarmd.sim.contract import Call

if TYPE_CHECKING:
    from swarmd.sim.chain_worker import ChainWorker

RAISE = 1.25  # fee of a replacement
SENT_ALL_THE_SAME = 0.5  # chance that a call without an answer did what it should
PASSING = ("InvalidRoundNumber", "InvalidStageNumber", "InvalidVoterPeerId", "AdvanceNotAllowed")

_raw = msgspec.msgpack.Decoder(Tx)


class Errand:
    """One submission that the daemon wants followed.

    Attributes:
        attempts: all that are known, in their order.
        released: hashes of those that the daemon's log has.
        told: block in which the daemon knows it included.
    """

    def __init__(self, command: Submit) -> None:
        self.command = command
        self.attempts: list[Prepared] = []
        self.released: set[str] = set()
        self.told: BlockRef | None = None
        self.attended = False  # whether it was looked at since the last order
        self.touched_at = 0.0  # when its last attempt was made or sent


class Submitter:
    """The part of the chain worker that has the account's key."""

    def __init__(self, worker: ChainWorker) -> None:
        self.worker = worker
        self.node = worker.node
        self.world = worker.world
        self.errands: dict[str, Errand] = {}

    # --- orders ---

    def take(self, command: Submit) -> None:
        """Take the place of an earlier order for the same submission, with all that is known of its attempts."""
        errand = self.errands.setdefault(command.submission, Errand(command))
        errand.command, errand.told, errand.attended = command, None, False
        known = {each.hash for each in errand.attempts}
        errand.attempts += [each for each in command.prepared if each.hash not in known]
        errand.released |= {each.hash for each in command.prepared}
        self.worker.later(self.worker.call_s(), self._attend, errand, command)

    def _attend(self, errand: Errand, command: Submit) -> None:
        """Look where the submission stands before anything else."""
        if self.errands.get(command.submission) is not errand or errand.command is not command:
            return
        if self.worker.is_cut_off:
            self._fail(command.id, "no endpoint answers")
            return
        errand.attended = True
        if not self._report(errand):
            waiting = self._waiting(errand)
            if waiting:
                self._take_up(errand, waiting)
            else:
                self._begin(errand)

    def release(self, command: Broadcast) -> None:
        """The daemon's log has the attempt."""
        errand = self.errands.get(command.submission)
        if errand is not None:
            errand.released.add(command.prepared.hash)
        if not self.worker.is_cut_off:
            self._offer(command.submission, command.prepared)
            return
        if self.worker.random.random() < SENT_ALL_THE_SAME:
            self._send(command.prepared)
        self._fail(command.id, "no endpoint answers")

    # --- attempts ---

    def _waiting(self, errand: Errand) -> list[Prepared]:
        """Attempts that can still be mined, those with the lowest nonce."""
        lowest = self.worker.chain.contract.nonce_of(self.node.account)
        waiting = [each for each in errand.attempts if each.nonce >= lowest]
        first = min([each.nonce for each in waiting], default=-1)
        return [each for each in waiting if each.nonce == first]

    def _take_up(self, errand: Errand, waiting: list[Prepared]) -> None:
        newest = waiting[-1]
        if newest.hash not in errand.released:
            self._tell_prepared(errand, newest)
        elif newest.raw:
            self._offer(errand.command.submission, newest)
        else:
            self._replace(errand, newest)

    def _begin(self, errand: Errand) -> None:
        """Nothing is under way: sign a first attempt, unless the contract would refuse it."""
        command, chain = errand.command, self.worker.chain
        if self._is_refused(command):
            return
        nonce = chain.pending_nonce_of(self.node.account)
        self._sign(errand, nonce, int(chain.fee * self.worker.random.uniform(1.0, 1.5)))

    def _replace(self, errand: Errand, last: Prepared) -> None:
        self._sign(errand, last.nonce, max(int(int(last.fee_wei) * RAISE), self.worker.chain.fee))

    def _sign(self, errand: Errand, nonce: int, fee: int) -> None:
        command = errand.command
        tx = sign(self._call(command), nonce, fee, command.submission)
        self.world.note_signed(self.node, tx)
        prepared = Prepared(tx.hash, nonce, msgspec.msgpack.encode(tx), str(fee))
        errand.attempts.append(prepared)
        self._tell_prepared(errand, prepared)

    def _tell_prepared(self, errand: Errand, prepared: Prepared) -> None:
        errand.touched_at = self.world.now
        self.worker.tell_all(SubmissionPrepared(errand.command.submission, prepared))

    def _call(self, command: Submit) -> Call:
        place = (command.round, command.stage)
        return Call(command.kind, self.node.account, self.node.peer, *place, command.reward, command.winners)

    def _offer(self, submission: str, prepared: Prepared) -> None:
        errand = self.errands.get(submission)
        if errand is not None:
            errand.touched_at = self.world.now
        if self._send(prepared) in ("taken", "known"):
            self.worker.tell_all(SubmissionSent(submission, prepared.hash))

    def _send(self, prepared: Prepared) -> str:
        tx = _raw.decode(prepared.raw)
        self.world.note_sent(self.node, tx)
        return self.worker.chain.send(tx)

    # --- refusals ---

    def _is_refused(self, command: Submit) -> bool:
        """Whether nothing is to be signed for it now; the daemon is told why."""
        code, permanent = self._refusal(command), False
        if command.kind == "register" and code == "PeerIdAlreadyRegistered":
            code, permanent = "taken", True
        if not code:
            return False
        del self.errands[command.submission]
        if code in PASSING:
            self._fail(command.id, code)
        else:
            self.world.note_refused(self.node, command, code)
            self.worker.tell_all(SubmissionRefused(command.submission, code, f"the contract says {code}", permanent))
        return True

    def _refusal(self, command: Submit) -> str:
        contract = self.worker.chain.contract
        place = (command.round, command.stage)
        if command.kind == "advance" and contract.place != place:
            return "moved-on" if contract.place > place else "InvalidRoundNumber"
        if command.kind in ("reward", "winners") and place <= command.mark:
            return "below-mark"
        return contract.refusal(self._call(command), self.worker.chain.head.at)

    def _fail(self, order: str, reason: str) -> None:
        self.worker.tell_all(CommandFailed(order, reason))

    # --- following ---

    def follow(self) -> None:
        """Look at everything that is under way, after a new block."""
        for errand in list(self.errands.values()):
            if self.worker.alive and errand.attended and not self._report(errand):
                self._push(errand)

    def _push(self, errand: Errand) -> None:
        """It is not on the chain: see that it can get there."""
        waiting = self._waiting(errand)
        if not waiting:
            del self.errands[errand.command.submission]
            self.worker.tell_all(SubmissionLost(errand.command.submission, "no attempt can be mined any more"))
            return
        errand.told = None
        newest = waiting[-1]
        if newest.hash not in errand.released or not newest.raw:
            return
        stuck = self.world.now - errand.touched_at > self.world.profile.stuck_s
        if stuck and self.worker.chain.pool.get((self.node.account, newest.nonce)) is not None:
            self._fill_gap(newest.nonce)
            self._replace(errand, newest)
        else:
            self._send(newest)

    def _fill_gap(self, nonce: int) -> None:
        """A nonce before this one belongs to nobody any more: nothing after it is mined until somebody takes it."""
        chain, account = self.worker.chain, self.node.account
        missing = chain.pending_nonce_of(account)
        if missing < nonce:
            chain.send(sign(Call("idle", account), missing, chain.fee))

    def _report(self, errand: Errand) -> bool:
        """Tell how far it is, if the chain has it."""
        found = self._find(errand)
        if found is None:
            return False
        block, transaction = found
        if not self.worker.has_read(block):
            return True  # it is told once a branch that replaces the block would be told, too
        submission, chain = errand.command.submission, self.worker.chain
        if errand.told != block:
            errand.told = block
            self.worker.tell_all(SubmissionIncluded(submission, block, transaction))
        if chain.head.number - block.number + 1 >= self.world.profile.depth:
            del self.errands[submission]
            self.worker.tell_all(SubmissionConfirmed(submission, block))
        return True

    def _find(self, errand: Errand) -> tuple[BlockRef, str] | None:
        """Where the chain has it, by one of the attempts or by what the contract knows."""
        chain, command, peer = self.worker.chain, errand.command, self.node.peer
        for attempt in errand.attempts:
            receipt = chain.receipts.get(attempt.hash)
            if receipt is not None and not receipt.error:
                return receipt.block, attempt.hash
        number = None
        if command.kind == "reward":
            number = chain.contract.reward_block(command.round, command.stage, peer)
        elif command.kind == "winners":
            number = chain.contract.vote_block(command.round, peer)
        elif command.kind == "register" and chain.contract.account_of(peer) == self.node.account:
            number = chain.contract.registration_block(peer)
        return None if number is None else (chain.blocks[number].ref, "")

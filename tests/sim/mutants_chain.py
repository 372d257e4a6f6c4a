"""Small mistakes planted in the shipped watcher, submitter and wallet, which the simulator runs.

How they get into the code: `tests/sim/planting.py`.
"""

from __future__ import annotations

from swarmd.chain import blocks, senders, submitter, watcher
from tests.sim.planting import Mutant

POOR_BUDGET = (("day_calls", 8),)

SHIPPED_CHAIN_MUTANTS = (
    Mutant(
        "an attempt is sent before it is in the log",
        submitter,
        "elif (prepared := following.released()) is not None:",
        "elif (prepared := following.attempts[-1]) is not None:",
        (("nodes", 3),),
    ),
    Mutant(
        "what is in the log is never let out",
        submitter,
        "        self._in_log.add(prepared.hash)\n",
        "",
    ),
    Mutant(
        "the block that has it is never looked at again",
        submitter,
        "        there = await self._hash_at(block.number) == block.hash\n",
        "        there = True\n",
    ),
    Mutant(
        "a block counts as confirmed at once",
        submitter,
        "deep = block.number <= self._depth",
        "deep = True",
    ),
    Mutant(
        "a round that has not begun is refused for ever",
        submitter,
        "        if error.code in TOO_EARLY:\n            await self._judge_early(command, error)\n",
        "",
        (("nodes", 3),),
    ),
    Mutant(
        "every attempt takes a nonce of its own",
        senders,
        "free = [each for each in attempts if each.nonce >= mined]",
        "free: list[Prepared] = []",
    ),
    Mutant(
        "a mined withdrawal counts as the thing itself",
        senders,
        "receipt.to == self.account or self._is_withdrawal(attempt)",
        "False",
    ),
    Mutant(
        "the day's budget is not looked at",
        senders,
        "        self.budget.check(cost_wei, counted_wei, what)\n",
        "",
        POOR_BUDGET,
    ),
    Mutant(
        "a restart brings a new day's budget",
        submitter,
        "            self._budget.restore(order.spent_day, int(order.spent_wei))\n",
        "            pass\n",
        POOR_BUDGET,
    ),
    Mutant(
        "a lost submission is not forgotten",
        submitter,
        "        self._emit(SubmissionLost(following.submission, reason))\n        self._forget(following)\n",
        "        self._emit(SubmissionLost(following.submission, reason))\n",
    ),
    Mutant(
        "a reorganisation is not told",
        watcher,
        "        self._emit(ChainReorged(fork, tip.number - fork.number))\n",
        "",
    ),
    Mutant(
        "a block is taken whatever it follows",
        watcher,
        "        if blocks[0].parent != self.branch.tip.hash:\n            return False\n",
        "",
    ),
    Mutant(
        "the head counts as confirmed",
        watcher,
        "        return max(tip - self._config.depth, -1)\n",
        "        return tip\n",
    ),
    Mutant(
        "a fork is taken for one block later",
        blocks,
        "return self._blocks[low - 1] if low else None",
        "return self._blocks[min(low, len(self._blocks) - 1)] if low else None",
    ),
)

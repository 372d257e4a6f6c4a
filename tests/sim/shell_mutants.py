"""Small mistakes planted in the shipped shell, which the simulator drives: in its loop and its supervision."""

from __future__ import annotations

from swarmd.shell import loop, ports, supervision
from tests.sim.planting import Mutant

OFTEN = (("faults", 150.0),)

LOOP_MUTANTS = (
    Mutant(
        "commands leave before the commit is durable",
        loop,
        "        try:\n            self._log.append(",
        "        self._hand_out(planned.commands)\n        try:\n            self._log.append(",
    ),
    Mutant(
        "what was written last comes first out of the inbox",
        loop,
        "self._inbox.popleft()",
        "self._inbox.pop()",
    ),
    Mutant(
        "a fact for which the inbox has no room is forgotten",
        loop,
        "            return False\n        self._inbox.append(fact)",
        "            return True\n        self._inbox.append(fact)",
    ),
    Mutant(
        "a node that has stopped goes on",
        loop,
        "                self.ended = last\n",
        "                pass\n",
    ),
    Mutant(
        "the second half of a commit that is too large is lost",
        loop,
        "return first + self._write(first[-1].state, at, halves[1])",
        "return first",
        (
            ("faults", 600.0),
            ("nodes", 6),
            ("latency_s", 0.05),
        ),
    ),
    Mutant(
        "the second half of a commit that is too large forgets the first",
        loop,
        "self._write(first[-1].state, at, halves[1])",
        "self._write(state, at, halves[1])",
        (
            ("faults", 600.0),
            ("nodes", 6),
            ("latency_s", 0.05),
        ),
    ),
    Mutant(
        "of a commit that was split only the last part is adopted",
        loop,
        "for planned in written:",
        "for planned in written[-1:]:",
        (
            ("faults", 600.0),
            ("nodes", 6),
            ("latency_s", 0.05),
        ),
    ),
    Mutant(
        "the log has the digest of no commands",
        loop,
        "digest_commands(planned.commands))",
        "digest_commands(()))",
    ),
    Mutant(
        "a snapshot is taken of the state before",
        loop,
        "self.snapshots.keep_if_due(planned.state)",
        "self.snapshots.keep_if_due(state)",
    ),
    Mutant(
        "a life begins with deadlines of the last one",
        loop,
        "        if self._beginning is not None:\n",
        "        if self._beginning is not None and not self._due_timers(now):\n",
    ),
    Mutant(
        "the loop sleeps until the last deadline instead of the first",
        loop,
        "min(WAIT_S_MAX, min(waiting) - now)",
        "min(WAIT_S_MAX, max(waiting) - now)",
    ),
    Mutant(
        "a deadline is reported before it has passed",
        loop,
        "if each.due_at <= now and each not in self._fired]",
        "if each.due_at <= now + 60 and each not in self._fired]",
    ),
    Mutant(
        "commands for the trainer go to the network worker",
        ports,
        "self.trainer.perform(command)",
        "self.network.perform(command)",
    ),
)

SUPERVISION_MUTANTS = (
    Mutant(
        "an end is told once more after a kill",
        supervision,
        "if self._end_told[worker] or self.is_stopping:",
        "if self.is_stopping:",
        OFTEN,
    ),
    Mutant(
        "a program that could not be executed counts as running",
        supervision,
        "        self._processes[worker], self._end_told[worker] = None, True\n        return [Tell(WorkerStartFailed",
        "        self._end_told[worker] = True\n        return [Tell(WorkerStartFailed",
        OFTEN,
    ),
    Mutant(
        "a process that ended counts as running",
        supervision,
        "        self._processes[worker], self._end_told[worker] = None, True\n        return [Tell(exit_of",
        "        self._end_told[worker] = True\n        return [Tell(exit_of",
    ),
    Mutant(
        "nobody asks workers to end before they are ended",
        supervision,
        "                actions.append(Send(worker, Stop(grace_s=stop_s * STOP_MESSAGE_SHARE)))\n",
        "",
    ),
    Mutant(
        "workers have no time to end by themselves",
        supervision,
        "process.terminate_at = now + stop_s * STOP_MESSAGE_SHARE",
        "process.terminate_at = now",
    ),
    Mutant(
        "SIGKILL comes with SIGTERM",
        supervision,
        "process.kill_at = now + self._limits.stop_s * (STOP_TERMINATE_SHARE - STOP_MESSAGE_SHARE)",
        "process.kill_at = now",
    ),
    Mutant(
        "a worker that does not heed SIGTERM is waited for without an end",
        supervision,
        "process.kill_at = now + self._limits.stop_s * (STOP_TERMINATE_SHARE - STOP_MESSAGE_SHARE)",
        "process.kill_at = math.inf",
    ),
    Mutant(
        "the node counts as stopped while workers end",
        supervision,
        " or any(self._processes.values()):",
        ":",
    ),
    Mutant(
        "unanswered pings are never forgiven",
        supervision,
        "process.heard, process.missed = True, 0",
        "process.heard = True",
    ),
    Mutant(
        "a silent worker is never killed",
        supervision,
        "        if process.missed > PINGS_MISSED:\n",
        "        if False:\n",
    ),
    Mutant(
        "a worker is killed for one ping that it did not answer",
        supervision,
        "process.missed > PINGS_MISSED",
        "process.missed > 1",
    ),
    Mutant(
        "what others cause counts against the worker",
        supervision,
        "outside=not process.killed_for and not process.planned and is_from_outside(status),",
        "outside=False,",
    ),
    Mutant(
        "a kill of this daemon's own counts as others'",
        supervision,
        "outside=not process.killed_for and not process.planned",
        "outside=not process.planned",
    ),
    Mutant(
        "an end that the node asked for counts as others'",
        supervision,
        "outside=not process.killed_for and not process.planned",
        "outside=not process.killed_for",
        OFTEN,
    ),
    Mutant(
        "a worker that cannot work is started again and again",
        supervision,
        "permanent=fault.permanent if fault else False,",
        "permanent=False,",
        OFTEN,
    ),
    Mutant(
        "a fact does not reach the inbox",
        supervision,
        "            return [Tell(message.event)]\n",
        "",
    ),
)

SHELL_MUTANTS = (*LOOP_MUTANTS, *SUPERVISION_MUTANTS)

"""Small mistakes planted in the core, the workers and the shell, to see whether the checks notice them.

How they get into the code: `tests/sim/planting.py`.
"""

from swarmd.chain import blocks, senders, submitter, watcher
from swarmd.core import applied, turn
from swarmd.core.contract import clock, submissions, votes
from swarmd.core.coordinator import coordination, waiting
from swarmd.core.node import machine, rounds, workers
from swarmd.dht import agent as network_agent
from swarmd.dht import evidence, membership
from swarmd.dht.rounds import clock as swarm_clock
from swarmd.dht.rounds import gather, key_watch, publisher, report_collector, stages
from swarmd.shell import loop, ports, supervision
from swarmd.sim import node
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


FAILING = (("failure", 0.2),)
SHARDED = (("shard_members", 1), ("gather_peers", 32), ("nodes", 4), ("latency_s", 0.05))
STRANGERS = (("hostile", "equivocator"), ("chain", False))

NETWORK_MUTANTS = (
    Mutant(
        "a node gathers its own rollouts",
        gather,
        "peer != self._session.peer_id and _names_rollouts(record)",
        "_names_rollouts(record)",
    ),
    Mutant(
        "a body is kept whatever it is",
        gather,
        "                await bodies.check(body, content.digest, content.size_bytes)\n",
        "",
        STRANGERS,
    ),
    Mutant(
        "gathering goes on until its time is over",
        gather,
        "if self._looked and self._is_complete() and self._end_lingering():",
        "if False:",
    ),
    Mutant(
        "bodies that come with their records are passed over",
        gather,
        "            if content.body and not looks_for_members:\n                await self._try(peer, content)\n",
        "            pass\n",
    ),
    Mutant(
        "larger bodies are not fetched",
        gather,
        "            self._fetches.start(self._fetch_within, peer, content)\n",
        "            pass\n",
    ),
    Mutant(
        "a record counts as published though nobody could show it",
        publisher,
        '        raise NetworkDown(f"{who} could show {key} after it was stored")\n',
        "        return None\n",
    ),
    Mutant(
        "records are not renewed",
        publisher,
        "whole = await self._renew_all(told)",
        "whole = True",
    ),
    Mutant(
        "a restart forgets how late the records before it expire",
        publisher,
        "before = (self._floors.get(key, 0.0), *self._own_records.floors(key))",
        "before = (self._floors.get(key, 0.0), 0.0)",
        (("jumps", 20.0),),
    ),
    Mutant(
        "a renewal overtakes the record that replaces it",
        publisher,
        "if self._live.get(content.key) is content:",
        "if True:",
        (("latency_s", 1.0), ("faults", 120.0)),
    ),
    Mutant(
        "what is published is not kept in mind",
        publisher,
        "        self._kept[content.key] = Kept(content, expiration, before)\n",
        "",
    ),
    Mutant(
        "members that come are not told",
        membership,
        "        if told is not None:\n",
        "        if told is False:\n",
    ),
    Mutant(
        "a report is published without its rollouts",
        stages,
        "        await self._publish_rollouts(command, place)\n",
        "",
    ),
    Mutant(
        "reports of a stage count as changes of those of the stage before",
        report_collector,
        "        self._seen = SeenReports(self._session, command.round, command.stage)\n",
        "",
    ),
    Mutant(
        "of a stage's shards only the first is collected",
        report_collector,
        "self._turns = list(range(self._shards))",
        "self._turns = list(range(1))",
        SHARDED,
    ),
    Mutant(
        "reports that their owners bring are lost",
        report_collector,
        "        self._brought[record.owner] = record\n",
        "",
        SHARDED,
    ),
    Mutant(
        "of a stage's shards one is gathered from, however few peers it holds",
        gather,
        "len(self.sources.peers) - useless < self._wanted",
        "len(self.sources.peers) < 1",
        SHARDED,
    ),
    Mutant(
        "records lie in the first shard, whoever wrote them",
        swarm_clock,
        "return Shard(shards, shard_of(session.swarm, session.peer_id, round, stage, shards))",
        "return Shard(shards, 0)",
        SHARDED,
    ),
    Mutant(
        "a key is watched no more when it could not be read once",
        key_watch,
        '                log.debug("%s was not read: %s", self.name, error)\n',
        "                return\n",
        FAILING,
    ),
    Mutant(
        "a command that failed is never answered",
        network_agent,
        "        self._session.emit(CommandFailed(command.id, reason))\n",
        "",
        FAILING,
    ),
    Mutant(
        "a command is done once and never again",
        network_agent,
        "            self._running.discard(command.id)\n",
        "            pass\n",
        FAILING,
    ),
    Mutant(
        "announcements are not taken from gossip or look-ups",
        swarm_clock,
        "        self._latest = record\n",
        "        self._latest = known or record\n",
    ),
    Mutant(
        "a report that is published again is taken for another one",
        evidence,
        "    if before is None or before.signed == seen.signed:\n        return\n",
        "    if before is None:\n        return\n    found(pair_of(before.signed, seen.signed))\n",
        STRANGERS,
    ),
)


OFTEN = (("faults", 150.0),)

LOOP_MUTANTS = (
    Mutant(
        "commands leave before the commit is durable",
        loop,
        "        try:\n            self._log.append(",
        "        for command in planned.commands:\n            self._ports.perform(command)\n"
        "        try:\n            self._log.append(",
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


MUTANTS = (
    Mutant(
        "a pause never ends",
        machine,
        "turn.state.low_space = None",
        "pass",
    ),
    Mutant(
        "a stage is begun on a disk that is nearly full",
        machine,
        "    if chart in IDLE:",
        "    if chart == IDLE[0]:",
        (
            ("faults", 120.0),
            ("nodes", 3),
        ),
    ),
    Mutant(
        "rounds missed in a pause count as the node's own slowness",
        machine,
        "        turn.state.faulted = True\n",
        "",
    ),
    Mutant(
        "a stage trained already is trained again after a restart",
        rounds,
        "    elif work.result is not None:\n        turn.move_round",
        "    elif False:\n        turn.move_round",
    ),
    Mutant(
        "a stage that was given up is begun again at once",
        rounds,
        "(clock.round, clock.stage) > (work.round, work.stage)",
        "(clock.round, clock.stage) >= (work.round, work.stage)",
    ),
    Mutant(
        "an announcement of the past is followed",
        rounds,
        "    if place < before:\n        return\n",
        "",
    ),
    Mutant(
        "a duplicate announcement restarts the stage",
        rounds,
        "follow_clock(turn, moved=place > before)",
        "follow_clock(turn, moved=place >= before)",
    ),
    Mutant(
        "an answered command stays pending",
        turn,
        "command = self.pending.pop(command_id, None)",
        "command = self.pending.get(command_id)",
    ),
    Mutant(
        "an older answer frees a busy trainer",
        rounds,
        'turn.state.trainer.chart == "busy" and turn.state.trainer.train == train',
        'turn.state.trainer.chart == "busy"',
    ),
    Mutant(
        "a cancellation has no deadline",
        rounds,
        '        turn.arm("cancel", turn.at + CANCEL_S)\n',
        "",
    ),
    Mutant(
        "gathering has no deadline",
        rounds,
        '    turn.arm("gather", until_at)\n',
        "",
    ),
    Mutant(
        "a trainer that came back is not told what waits for it",
        workers,
        "    resend_training(turn)\n\n\ndef resend_training",
        "\n\ndef resend_training",
    ),
    Mutant(
        "a worker that ended is not started again",
        workers,
        'turn.arm(timer_about("restart", event.worker), turn.at + RESTART.after(max(1, len(life.exits))))',
        "pass",
    ),
    Mutant(
        "a stage that was given up is left while the trainer is still at it",
        rounds,
        "    return is_training(turn, train_id(work.round, work.stage))\n",
        "    return False\n",
    ),
    Mutant(
        "a coordinator closes stages before anybody could train them",
        coordination,
        "    elif awaits_trainer(turn.state):\n",
        "    elif False:\n",
        given=(("stage_s", 25.0), ("faults", 120.0)),
    ),
    Mutant(
        "a stage's time begins before its coordinator can train",
        coordination,
        "    if waits and fresh and",
        "    if False and",
    ),
    Mutant(
        "a skip is not counted",
        rounds,
        "    state.skipped_to = event.last\n",
        "",
    ),
    Mutant(
        "the round that was trained counts as skipped",
        applied,
        "first = max(after.done[0], after.skipped_to) + 1",
        "first = max(after.done[0] - 1, after.skipped_to) + 1",
    ),
    Mutant(
        "a quorum of others closes a stage that this node trains",
        waiting,
        "    return not awaits_own(turn)\n",
        "    return True\n",
        (("quorum", 0.5),),
    ),
    Mutant(
        "the quorum is one report short",
        waiting,
        "needed = max(1, math.ceil(quorum * expected))",
        "needed = max(1, math.ceil(quorum * expected) - 1)",
    ),
    Mutant(
        "members that fell silent are never waited for again",
        waiting,
        "    return waiting.number % (WIDE_EVERY if silent <= SILENT_STAGES else LONG_SILENT_EVERY) == 0",
        "    return False",
        (
            ("stages", 1),
            ("quorum", 1.0),
            ("train_mean_s", 5.0),
            ("stage_s", 25.0),
            ("nodes", 3),
            ("behind", "finish-stage"),
            ("faults", 60.0),
        ),
    ),
    Mutant(
        "a member is waited for no longer than it took",
        waiting,
        "OWN_TIMES * member.took_s + SLACK_SHARE * stage_s",
        "0.9 * member.took_s",
    ),
    Mutant(
        "a report counts twice",
        coordination,
        "or coordination.reports.get(event.peer):",
        "or False:",
        (
            ("failure", 0.2),
            ("nodes", 3),
        ),
    ),
    Mutant(
        "a stage has no deadline",
        waiting,
        '    turn.arm("stage", min(until, deadline_at) if until > turn.at else deadline_at)\n',
        "    pass\n",
    ),
    Mutant(
        "a coordinator that is cut off closes rounds alone",
        coordination,
        'if closed.chart == "open.collecting" and is_alone(turn.state):',
        "if False:",
        (("when_alone", "hold"), ("min_peers", 2)),
    ),
    Mutant(
        "the coordinator starts again at round 0",
        workers,
        "    if turn.state.coordination is None:\n        turn.state.coordination = Coordination()\n",
        "    turn.state.coordination = Coordination()\n",
    ),
    Mutant(
        "two announcements share an id",
        coordination,
        "coordination.deadline_at = deadline_at\n        coordination.openings += 1\n",
        "coordination.deadline_at = deadline_at\n",
    ),
    Mutant(
        "a lost clock is taken for a swarm without rounds",
        rounds,
        "    if turn.state.chain is None and (clock is None or clock.final):\n        turn.move_round",
        "    if True:\n        turn.move_round",
    ),
    Mutant(
        "the log is not synced",
        node,
        "        self._log.sync()\n",
        "        self._log.synced = max(self._log.synced, len(self._log.commits) - 1)\n",
    ),
)

CHAIN_MUTANTS = (
    Mutant(
        "an attempt is let out and forgotten",
        submissions,
        '"prepare", prepared=prepared, attempts=attempts',
        '"prepare", attempts=attempts',
    ),
    Mutant(
        "the worker is not told what was tried",
        submissions,
        "            prepared=submission.prepared,\n",
        "            prepared=(),\n",
    ),
    Mutant(
        "what was confirmed is safe from every reorganisation",
        submissions,
        "if each.chart in ON_CHAIN and block_of(each) > fork",
        'if each.chart == "included" and block_of(each) > fork',
    ),
    Mutant(
        "a reorganisation drops one block too few",
        submissions,
        "block_of(each) > fork",
        "block_of(each) > fork + 1",
    ),
    Mutant(
        "the last intention goes first",
        submissions,
        "for each in state.submissions:\n        if each.chart not in (*ON_CHAIN",
        "for each in reversed(state.submissions):\n        if each.chart not in (*ON_CHAIN",
    ),
    Mutant(
        "what was lost is not tried again",
        submissions,
        '"lose", reason=event.reason, block=None):\n        _retry(turn)',
        '"lose", reason=event.reason, block=None):\n        turn.disarm("submission")',
    ),
    Mutant(
        "a restart empties the outbox",
        workers,
        "    state.low_space = None\n",
        "    state.low_space, state.submissions = None, ()\n",
    ),
    Mutant(
        "the vote is cast before the round is over",
        votes,
        "tally is None or tally.round >= round",
        "tally is None or tally.round > round",
    ),
    Mutant(
        "the registration waits its turn",
        submissions,
        'intend(turn, Submission("register", "register"), first=True)',
        'intend(turn, Submission("register", "register"))',
    ),
    Mutant(
        "news put off the look at a submission",
        turn,
        "self.arm(name, due_at if standing is None else min(due_at, standing.due_at))",
        "self.arm(name, due_at)",
        (
            ("duplicate", 0.3),
            ("nodes", 3),
        ),
    ),
    Mutant(
        "what lies ahead of the contract holds up everything",
        submissions,
        "return (submission.round, submission.stage) > (chain.round, chain.stage)",
        "return False",
        (
            ("policy", "reports"),
            ("nodes", 3),
            ("restart_mean_s", 60.0),
            ("stages", 3),
            ("stage_s", 25.0),
            ("train_mean_s", 2.0),
            ("reorgs", 600.0),
            ("reorg_depth", 12),
        ),
    ),
    Mutant(
        "two attempts share an id",
        submissions,
        "attempts = submission.attempts + 1",
        "attempts = 1",
    ),
    Mutant(
        "a submission that is wanted twice begins anew",
        submissions,
        "if known is not None and not (known.kind in REPEATABLE and known.chart in SETTLED):\n        return",
        "if False:\n        return",
    ),
    Mutant(
        "nobody looks at the clock while the chain is away",
        clock,
        '    turn.arm("clock", turn.at + turn.settings.clock_s)\n',
        "",
    ),
    Mutant(
        "nobody moves the contract on when its time is over",
        clock,
        'turn.arm_sooner("drive", max(deadline_at, turn.at) + wait_s)',
        'turn.disarm("drive")',
    ),
    Mutant(
        "the clock goes back with a reorganisation",
        rounds,
        "    if place < before:\n        return\n",
        "",
    ),
    Mutant(
        "blocks of before a fork are remembered",
        clock,
        "kept = tuple([known for known in recent if known.number < block.number])",
        "kept = recent",
    ),
    Mutant(
        "a step that came too late is never looked at again",
        clock,
        '        turn.arm("drive", turn.at + max(1.0, submissions.TURNS * turn.chain_settings.stagger_s))\n',
        "",
    ),
)

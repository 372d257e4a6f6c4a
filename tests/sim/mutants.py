"""Small mistakes planted in the core, the workers and the shell, to see whether the checks notice them.

How they get into the code: `tests/sim/planting.py`.
"""

from tests.sim.planting import read_mutants

SHIPPED_CHAIN_MUTANTS = read_mutants(r"""
swarmd/chain/submitter.py
  an attempt is sent before it is in the log
    - elif (prepared := tracked.newest_released()) is not None:
    + elif (prepared := tracked.attempts[-1]) is not None:
    with nodes=3
  what is in the log is never let out
    -         self._in_log.add(prepared.hash)
  the block that has it is never looked at again
    -         there = await ports.is_on_chain(self._blocks, block)
    +         there = True
  a block counts as confirmed at once
    - deep = block.number <= self._depth
    + deep = True
  a round that has not begun is refused for ever
    -         if error.code in TOO_EARLY:
    -             await self._check_early_refusal(command, error)
    with nodes=3
  a restart brings a new day's budget
    -             self._budget.restore(order.spent_day, int(order.spent_wei))
    +             pass
    with day_calls=8
  a lost submission is not forgotten
    -         self._emit(events.SubmissionLost(tracked.submission, reason))
    -         self._stop_tracking(tracked)
    +         self._emit(events.SubmissionLost(tracked.submission, reason))
swarmd/chain/senders.py
  every attempt takes a nonce of its own
    - free = [each for each in attempts if each.nonce >= mined]
    + free: list[SubmissionAttempt] = []
  a mined withdrawal counts as the thing itself
    - receipt.to == self.account or self._is_withdrawal(attempt)
    + False
  the day's budget is not looked at
    -         self.budget.check_budget(cost_wei, counted_wei, what)
    with day_calls=8
swarmd/chain/watcher.py
  a reorganisation is not told
    -         self._emit(events.ChainReorged(fork, tip.number - fork.number))
  a block is taken whatever it follows
    -         if blocks[0].parent != self.branch.tip.hash:
    -             return False
  the head counts as confirmed
    -         return max(tip - self._config.depth, -1)
    +         return tip
swarmd/chain/blocks.py
  a fork is taken for one block later
    - return self._blocks[low - 1] if low else None
    + return self._blocks[min(low, len(self._blocks) - 1)] if low else None
""")

NETWORK_MUTANTS = read_mutants(r"""
swarmd/dht/gather.py
  a node gathers its own rollouts
    - peer != self._view.peer_id and _has_rollouts(record)
    + _has_rollouts(record)
  a body is kept whatever it is
    -                 await bodies.check(body, content.digest, content.size_bytes)
    with hostile="equivocator" chain=False
  gathering goes on until its time is over
    - if self._looked and self._is_complete() and self._should_end():
    + if False:
  bodies that come with their records are passed over
    -             if content.body and not looks_for_members:
    -                 await self._try_fetch(peer, content)
    +             pass
  larger bodies are not fetched
    -             self._fetches.start(self._fetch_with_limit, peer, content)
    +             pass
  of a stage's shards one is gathered from, however few peers it holds
    - len(self.sources.peers) - useless < self._wanted
    + len(self.sources.peers) < 1
    with shard_members=1 gather_peers=32 nodes=4 latency_s=0.05
swarmd/dht/publisher.py
  a record counts as published though nobody could show it
    -         raise NetworkDown(f"{who} could show {key} after it was stored")
    +         return None
  records are not renewed
    - whole = await self._renew_all(told)
    + whole = True
  a restart forgets how late the records before it expire
    - before = (self._floors.get(key, 0.0), *self._own_records.used_expirations(key))
    + before = (self._floors.get(key, 0.0), 0.0)
    with jumps=20.0
  a renewal overtakes the record that replaces it
    - if self._live.get(content.key) is content:
    + if True:
    with latency_s=1.0 faults=120.0
  what is published is not kept in mind
    -         self._kept[content.key] = KeptRecord(content, expiration, before)
swarmd/dht/membership.py
  members that come are not told
    -         if told is not None:
    +         if told is False:
swarmd/dht/rounds.py
  a report is published without its rollouts
    -         await self._publish_rollouts(command, place)
swarmd/dht/report_collector.py
  reports of a stage count as changes of those of the stage before
    -         self._seen = ReportEmitter(self._view, self._gossip, command.round, command.stage)
  of a stage's shards only the first is collected
    - self._turns = list(range(self._shards))
    + self._turns = list(range(1))
    with shard_members=1 gather_peers=32 nodes=4 latency_s=0.05
swarmd/dht/rounds.py
  records lie in the first shard, whoever wrote them
    - place = StageShard(shards, shard_of(view.swarm, view.peer_id, round, stage, shards))
    + place = StageShard(shards, 0)
    with shard_members=1 gather_peers=32 nodes=4 latency_s=0.05
  announcements are not taken from gossip or look-ups
    -         self._latest = record
    +         self._latest = known or record
swarmd/dht/record_store.py
  a key is watched no more when it could not be read once
    -                 log.debug("%s was not read: %s", self.name, error)
    +                 return
    with failure=0.2
swarmd/dht/agent.py
  a command that failed is never answered
    -         self._view.emit(CommandFailed(command.id, reason))
    with failure=0.2
  a command is done once and never again
    -             self._running.discard(command.id)
    +             pass
    with failure=0.2
""")

SHELL_MUTANTS = read_mutants(r"""
swarmd/shell/loop.py
  commands leave before the commit is durable
    -         try:
    -             self._log.append(
    +         for command in planned.commands:
    +             self._perform(command)
    +         try:
    +             self._log.append(
  what was written last comes first out of the inbox
    - self._inbox.popleft()
    + self._inbox.pop()
  a fact for which the inbox has no room is forgotten
    -             return False
    -         self._inbox.append(fact)
    +             return True
    +         self._inbox.append(fact)
  a node that has stopped goes on
    -                 self.ended = last
    +                 pass
  the second half of a commit that is too large is lost
    - return first + self._write_or_split(first[-1].state, at, halves[1])
    + return first
    with faults=600.0 nodes=6 latency_s=0.05
  the second half of a commit that is too large forgets the first
    - self._write_or_split(first[-1].state, at, halves[1])
    + self._write_or_split(state, at, halves[1])
    with faults=600.0 nodes=6 latency_s=0.05
  of a commit that was split only the last part is adopted
    - for planned in written:
    + for planned in written[-1:]:
    with faults=600.0 nodes=6 latency_s=0.05
  the log has the digest of no commands
    - digest_commands(planned.commands))
    + digest_commands(()))
  a snapshot is taken of the state before
    - self.snapshots.take_if_due(planned.state)
    + self.snapshots.take_if_due(state)
  a life begins with deadlines of the last one
    -         if self._beginning is not None:
    +         if self._beginning is not None and not self._take_due_timers(now):
  the loop sleeps until the last deadline instead of the first
    - min(WAIT_S_MAX, min(waiting) - now)
    + min(WAIT_S_MAX, max(waiting) - now)
  a deadline is reported before it has passed
    - if each.due_at <= now and each not in self._fired]
    + if each.due_at <= now + 60 and each not in self._fired]
swarmd/shell/supervision.py
  commands for the trainer go to the network worker
    - return "trainer" if isinstance
    + return "network" if isinstance
  a program that could not be executed counts as running
    -         self._processes[worker], self._end_told[worker] = None, True
    -         return [
    -             EmitEventAction(events.WorkerStartFailed
    +         self._end_told[worker] = True
    +         return [
    +             EmitEventAction(events.WorkerStartFailed
    with faults=150.0
  a process that ended counts as running
    -         self._processes[worker], self._end_told[worker] = None, True
    -         return [EmitEventAction(make_exit_event
    +         self._end_told[worker] = True
    +         return [EmitEventAction(make_exit_event
  a worker that does not heed SIGTERM is waited for without an end
    - process.kill_at = now + self._limits.stop_s * (STOP_TERMINATE_SHARE - STOP_MESSAGE_SHARE)
    + process.kill_at = math.inf
  what others cause counts against the worker
    - outside=not process.killed_for and not process.planned and is_ended_from_outside(status),
    + outside=False,
  a kill of this daemon's own counts as others'
    - outside=not process.killed_for and not process.planned
    + outside=not process.planned
  an end that the node asked for counts as others'
    - outside=not process.killed_for and not process.planned
    + outside=not process.killed_for
    with faults=150.0
  a worker that cannot work is started again and again
    - permanent=fault.permanent if fault else False,
    + permanent=False,
    with faults=150.0
  a fact does not reach the inbox
    -             return [EmitEventAction(message.event)]
""")

MUTANTS = read_mutants(r"""
swarmd/core/step.py
  a pause never ends
    - turn.state.low_space = None
    + pass
  a stage is begun on a disk that is nearly full
    -     if chart in IDLE:
    +     if chart == IDLE[0]:
    with faults=120.0 nodes=3
  rounds missed in a pause count as the node's own slowness
    -         turn.state.faulted = True
swarmd/core/rounds.py
  a stage trained already is trained again after a restart
    -     elif work.result is not None:
    -         turn.fire_round_trigger
    +     elif False:
    +         turn.fire_round_trigger
  a stage that was given up is begun again at once
    - (clock.round, clock.stage) > (work.round, work.stage)
    + (clock.round, clock.stage) >= (work.round, work.stage)
  an announcement of the past is followed
    -     if place < before:
    -         return
  a duplicate announcement restarts the stage
    - follow_clock(turn, moved=place > before)
    + follow_clock(turn, moved=place >= before)
  an older answer frees a busy trainer
    - turn.state.trainer.chart == "busy" and turn.state.trainer.train == train
    + turn.state.trainer.chart == "busy"
  a cancellation has no deadline
    -         turn.set_deadline("cancel", turn.at + CANCEL_S)
  gathering has no deadline
    -     turn.set_deadline("gather", until_at)
  a stage that was given up is left while the trainer is still at it
    -     return is_training(turn, train_command_id(work.round, work.stage))
    +     return False
  a skip is not counted
    -     state.skipped_to = event.last
  a lost clock is taken for a swarm without rounds
    -     if turn.state.chain is None and (clock is None or clock.final):
    -         turn.fire_round_trigger
    +     if True:
    +         turn.fire_round_trigger
swarmd/core/turn.py
  an answered command stays pending
    - command = self.pending.pop(command_id, None)
    + command = self.pending.get(command_id)
swarmd/core/workers.py
  a trainer that came back is not told what waits for it
    -     resend_training(turn)
    -
    -
    - def resend_training
    +
    +
    + def resend_training
  a worker that ended is not started again
    - turn.set_deadline(timer_name_of("restart", event.worker), turn.at + RESTART.after(max(1, len(life.exits))))
    + pass
  the coordinator starts again at round 0
    -     if turn.state.coordination is None:
    -         turn.state.coordination = Coordination()
    +     turn.state.coordination = Coordination()
swarmd/core/coordination.py
  a coordinator closes stages before anybody could train them
    -     elif should_extend_for_trainer(turn.state):
    +     elif False:
    with stage_s=25.0 faults=120.0
  a stage's time begins before its coordinator can train
    -     if waits and fresh and
    +     if False and
  a report counts twice
    - or coordination.reports.get(event.peer):
    + or False:
    with failure=0.2 nodes=3
  a coordinator that is cut off closes rounds alone
    - if closed.chart == "open.collecting" and is_alone(turn.state):
    + if False:
    with when_alone="hold" min_peers=2
  two announcements share an id
    - coordination.deadline_at = deadline_at
    -         coordination.openings += 1
    + coordination.deadline_at = deadline_at
swarmd/core/applied.py
  the round that was trained counts as skipped
    - first = max(after.done[0], after.skipped_to) + 1
    + first = max(after.done[0] - 1, after.skipped_to) + 1
swarmd/core/waiting.py
  a quorum of others closes a stage that this node trains
    -     return not is_awaiting_own_report(turn)
    +     return True
    with quorum=0.5
  the quorum is one report short
    - needed = max(1, math.ceil(quorum * expected))
    + needed = max(1, math.ceil(quorum * expected) - 1)
  members that fell silent are never waited for again
    -     return waiting.number % (WIDE_EVERY if silent <= SILENT_STAGES else LONG_SILENT_EVERY) == 0
    +     return False
    with stages=1 quorum=1.0 train_mean_s=5.0 stage_s=25.0 nodes=3 behind="finish-stage" faults=60.0
  a member is waited for no longer than it took
    - OWN_TIMES * member.took_s + SLACK_SHARE * stage_s
    + 0.9 * member.took_s
  a stage has no deadline
    -     turn.set_deadline("stage", min(until, deadline_at) if until > turn.at else deadline_at)
    +     pass
swarmd/sim/node.py
  the log is not synced
    -         self._log.sync()
    +         self._log.synced = max(self._log.synced, len(self._log.commits) - 1)
""")

CHAIN_MUTANTS = read_mutants(r"""
swarmd/core/submissions.py
  an attempt is let out and forgotten
    - "prepare", prepared=prepared, attempts=attempts
    + "prepare", attempts=attempts
  the worker is not told what was tried
    -             prepared=submission.prepared,
    +             prepared=(),
  what was confirmed is safe from every reorganisation
    - if each.chart in ON_CHAIN and block_number_of(each) > fork
    + if each.chart == "included" and block_number_of(each) > fork
  a reorganisation drops one block too few
    - block_number_of(each) > fork
    + block_number_of(each) > fork + 1
  the last intention goes first
    - for each in state.submissions:
    -         if each.chart not in (*ON_CHAIN
    + for each in reversed(state.submissions):
    +         if each.chart not in (*ON_CHAIN
  what was lost is not tried again
    - "lose", reason=event.reason, block=None):
    -         _schedule_retry(turn)
    + "lose", reason=event.reason, block=None):
    +         turn.clear_deadlines("submission")
  the registration waits its turn
    - add_submission(turn, Submission("register", "register"), first=True)
    + add_submission(turn, Submission("submit_registration", "submit_registration"))
  what lies ahead of the contract holds up everything
    - return (submission.round, submission.stage) > (chain.round, chain.stage)
    + return False
    with policy="reports" nodes=3 restart_mean_s=60.0 stages=3 stage_s=25.0 train_mean_s=2.0 reorgs=600.0 reorg_depth=12
  two attempts share an id
    - attempts = submission.attempts + 1
    + attempts = 1
  a submission that is wanted twice begins anew
    - if known is not None and not (known.kind in REPEATABLE and known.chart in SETTLED):
    -         return
    + if False:
    +         return
swarmd/core/workers.py
  a restart empties the outbox
    -     state.low_space = None
    +     state.low_space, state.submissions = None, ()
swarmd/core/votes.py
  the vote is cast before the round is over
    - tally is None or tally.round >= round
    + tally is None or tally.round > round
swarmd/core/turn.py
  news put off the look at a submission
    - self.set_deadline(name, due_at if standing is None else min(due_at, standing.due_at))
    + self.set_deadline(name, due_at)
    with duplicate=0.3 nodes=3
swarmd/core/contract_clock.py
  nobody looks at the clock while the chain is away
    -     turn.set_deadline("clock", turn.at + turn.settings.clock_s)
  nobody moves the contract on when its time is over
    - turn.set_deadline_if_sooner("drive", max(deadline_at, turn.at) + wait_s)
    + turn.clear_deadlines("drive")
  blocks of before a fork are remembered
    - kept = tuple([known for known in recent if known.number < block.number])
    + kept = recent
  a step that came too late is never looked at again
    -         turn.set_deadline("drive", turn.at + max(1.0, submissions.TURNS * turn.chain_settings.stagger_s))
swarmd/core/rounds.py
  the clock goes back with a reorganisation
    -     if place < before:
    -         return
""")

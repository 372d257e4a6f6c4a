"""Mistakes in what a node is: core, event log, network, chain, training, daemon.

Mistakes in the core that the simulator's own checks find are in `tests/sim/mutants.py`.
"""

from tests.mutation.planting import read_mutants

INSIDE = read_mutants(r"""
swarmd/core/coordination.py
  free identities may have all places of members
    - if not newcomer.worked and len(members.idle) >= IDLE_MEMBERS_MAX:
    + if False:
    tests/core/test_coordination.py
  each stage of a round counts as a round of the member
    - rounds=member.rounds + (member.last_round != coordination.round),
    + rounds=member.rounds + 1,
    tests/core/test_coordination.py
swarmd/core/rounds.py
  a restored node takes a heap of old records for rounds that open
    - turn.at - event.opened_at < heard.after_s - PACE_S
    + False
    tests/core/test_rounds.py
  the same announcement again is taken for an older one
    - event.deadline_at < clock.deadline_at
    + event.deadline_at <= clock.deadline_at
    tests/core/test_rounds.py
  an announcement of the same place is taken for one of the past
    - if place < before:
    + if place <= before:
    tests/core/test_rounds.py
  a restored node trains in the first round that it hears of
    - 0 <= state.first_heard < round
    + 0 <= state.first_heard <= round
    tests/core/test_rounds.py
  a stage that keeps failing is given up one failure later
    - if work.failures + 1 >= TRAIN_FAILURES_MAX:
    + if work.failures + 1 > TRAIN_FAILURES_MAX:
    tests/core/test_rounds.py
  skipped rounds are counted one short
    - state.rounds_skipped + event.last - event.first + 1
    + state.rounds_skipped + event.last - event.first
    tests/core/test_rounds.py
swarmd/core/votes.py
  a peer votes for itself by its own judgement
    -         if each.peer != turn.settings.peer:
    +         if each.peer:
    tests/core/test_judging.py
  the vote names the lowest rewards
    - (-score.reward, score.peer)
    + (score.reward, score.peer)
    tests/core/test_submissions.py
swarmd/core/workers.py
  a worker has one restart less than configured
    - elif len(life.exits) > turn.settings.restarts_max:
    + elif len(life.exits) >= turn.settings.restarts_max:
    tests/core/test_workers.py
  exits of long ago count against a worker
    - for time in ends if time > window_from)
    + for time in ends)
    tests/core/test_workers.py
swarmd/core/submissions.py
  a reward is cut off instead of rounded
    - scaled = value * scale + 0.5
    + scaled = value * scale
    tests/core/test_submissions.py
  a transaction that is signed again pushes other attempts out
    - if not each.hash or each.hash != event.prepared.hash)
    + if True)
    tests/core/test_submissions.py
  the outbox takes one more than its bound
    - for each in others) >= OUTBOX_MAX:
    + for each in others) > OUTBOX_MAX:
    tests/core/test_submissions.py
  a registration that is wanted again forgets what may still be mined
    - prepared = () if known.chart == "confirmed" else known.prepared
    + prepared = ()
    tests/core/test_submissions.py
  a mark of this log's own forbids what came before
    - (-1, -1) if find_submission(turn.state, submission_id("reward", f"{round}/{stage}")) else known.reward_mark
    + (round, stage)
    tests/core/test_submissions.py
swarmd/core/waiting.py
  who has left is waited for
    - if member is None or member.left or
    + if member is None or
    tests/core/test_coordination.py
  an identity that has cost nothing is waited for
    - if member is None or member.left or not member.worked or
    + if member is None or member.left or
    tests/core/test_coordination.py
swarmd/eventlog/store.py
  what a life left unsynced is built upon
    -         descriptor = os.open(path, os.O_RDWR)
    -         try:
    -             os.ftruncate
    +         descriptor = os.open(path, os.O_RDWR)
    +         try:
    +             if path.stat().st_size == offset:
    +                 return
    +             os.ftruncate
    tests/eventlog/test_durability.py
  what recovery cut off may come back
    -             os.ftruncate(descriptor, offset)
    -             os.fsync(descriptor)
    +             os.ftruncate(descriptor, offset)
    tests/eventlog/test_durability.py
  removed segments may come back
    -     sync_directory(directory)
    -     return removed
    +     return removed
    tests/eventlog/test_durability.py
  removed snapshots may come back
    -     if stale:
    -         sync_directory(snapshot_directory(directory))
    tests/eventlog/test_durability.py
  two processes write one log
    -         fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    tests/eventlog/test_store.py
  the log of another node is taken up
    - if opening.header.node != node:
    + if False:
    tests/eventlog/test_damage.py
  retention removes what no snapshot stands in for
    - if segment.first_seq_of(after) <= snapshot_seq(path)]
    + if segment.first_seq_of(old) <= snapshot_seq(path)]
    tests/eventlog/test_retention.py
  retention trusts a snapshot unread
    - if not doomed or not _is_snapshot_sound(path, node):
    + if not doomed:
    tests/eventlog/test_retention.py
swarmd/eventlog/segment.py
  a sealed segment may get its zeros back
    -             self._truncate_zeros()
    -             os.fsync(self._descriptor)
    +             self._truncate_zeros()
    tests/eventlog/test_durability.py
  an append is not synced
    -             os.fdatasync(self._descriptor)
    +             pass
    tests/eventlog/test_durability.py
    tests/eventlog/test_store.py
swarmd/files.py
  a new file has its name before its content is on disk
    -                 offset += len(part)
    -             os.fsync(descriptor)
    +                 offset += len(part)
    tests/eventlog/test_durability.py
  a new file may lose its name
    -         sync_directory(path.parent)
    tests/eventlog/test_durability.py
  a new directory may be lost
    -             sync_directory(place.parent)
    +             pass
    tests/eventlog/test_durability.py
swarmd/eventlog/snapshot.py
  a snapshot is believed under another one's name
    - if path.name != f"{snapshot.seq:020d}{SUFFIX}":
    + if False:
    tests/eventlog/test_retention.py
  a snapshot that does not read back stays
    -         remove_leftover(path)
    +         pass
    tests/eventlog/test_retention.py
  a log that ends before its snapshot is taken up
    - if snapshot_seq(path) > next_seq:
    + if False:
    tests/eventlog/test_retention.py
swarmd/eventlog/blobs.py
  a blob is given out whatever its content
    - if hashlib.sha256(content).hexdigest() != digest:
    + if False:
    tests/eventlog/test_blobs.py
  a digest that only begins as one leads out of the store
    - if not _DIGEST.fullmatch(digest):
    + if not _DIGEST.match(digest):
    tests/eventlog/test_blobs.py
swarmd/eventlog/frame.py
  a frame is believed without its checksum
    - if crc32c(payload, seed) != check or not length:
    + if not length:
    tests/eventlog/test_damage.py
swarmd/eventlog/reader.py
  a segment of another life can be slipped in
    - if header.previous != digest:
    + if False:
    tests/eventlog/test_damage.py
swarmd/dht/report_collector.py
  reports that their owners bring are lost
    -         self._stored[record.owner] = record
    tests/dht/test_report_collector.py
swarmd/shell/supervision.py
  an end is told once more after a kill
    - if self._end_told[worker] or self.is_stopping:
    + if self.is_stopping:
    tests/shell/test_supervision.py
  nobody asks workers to end before they are ended
    -                 actions.append(SendAction(worker, StopMessage(grace_s=stop_s * STOP_MESSAGE_SHARE)))
    tests/shell/test_supervision.py
  workers have no time to end by themselves
    - process.terminate_at = now + stop_s * STOP_MESSAGE_SHARE
    + process.terminate_at = now
    tests/shell/test_supervision.py
  SIGKILL comes with SIGTERM
    - process.kill_at = now + self._limits.stop_s * (STOP_TERMINATE_SHARE - STOP_MESSAGE_SHARE)
    + process.kill_at = now
    tests/shell/test_supervision.py
  the node counts as stopped while workers end
    -  or any(self._processes.values()):
    + :
    tests/shell/test_supervision.py
  unanswered pings are never forgiven
    - process.heard, process.missed = True, 0
    + process.on_message = True
    tests/shell/test_supervision.py
  a silent worker is never killed
    -         if process.missed > PINGS_MISSED:
    +         if False:
    tests/shell/test_supervision.py
  a worker is killed for one ping that it did not answer
    - process.missed > PINGS_MISSED
    + process.missed > 1
    tests/shell/test_supervision.py
swarmd/shell/loop.py
  a snapshot that cannot be kept ends the node
    -         except (LogDamaged, LogWriteFailed) as error:
    +         except LogDamaged as error:
    tests/shell/test_loop.py
  commands leave before the commit is on disk
    -         try:
    -             self._log.append(
    +         for command in planned.commands:
    +             self._perform(command)
    +         try:
    +             self._log.append(
    tests/daemon/test_engine.py
  a timer is told again while its deadline stands
    -         self._fired.update(due)
    tests/shell/test_loop.py
  timers that are due together fire in any order
    - due = sorted(due, key=lambda each: each.due_at)[:BATCH_FACTS_MAX]
    + due = due[:BATCH_FACTS_MAX]
    tests/shell/test_loop.py
swarmd/dht/store/validator.py
  a signature seen before vouches for another value
    - if known is not None and known.value == value:
    + if known is not None:
    tests/dht/store/test_validator.py
  another value of the same expiration counts as held already
    - if held == (signed.value, signed.expiration):
    + if (self.storage.held(key_id, signed.owner) or (b"", 0.0))[1] == signed.expiration:
    tests/dht/store/test_validator.py
  the bytes that one peer sends have no bound
    - if not validator.records_quota.try_charge(sender) or not validator.bytes_quota.try_charge(sender, size_bytes):
    + if not validator.records_quota.try_charge(sender):
    tests/dht/store/test_validator.py
  a known record outlives its owner's membership
    -         records.check_admitted(self.policy, known.owner)
    tests/dht/store/test_validator.py
  a known record never expires
    - check_expiration(known.expiration, self.policy.now())
    + pass
    tests/dht/store/test_validator.py
  a record without room is verified first
    -         self.storage.check_capacity(key_id, records.split_value(owner, value, expiration))
    +         pass
    tests/dht/store/test_crowded_key.py
swarmd/dht/wire/records.py
  a record counts without a genuine signature
    -     if is_signature_valid(signed, key):
    +     if signed.signature:
    tests/dht/wire/test_records.py
  anybody's clock counts
    - if isinstance(content, ClockRecord | LeaderboardRecord) and owner != policy.coordinator:
    + if isinstance(content, LeaderboardRecord) and owner != policy.coordinator:
    tests/dht/wire/test_records.py
  a record may live for ever
    - if not math.isfinite(expiration) or is_too_far_ahead(expiration, now):
    + if not math.isfinite(expiration):
    tests/dht/wire/test_records.py
  a record counts under any key
    - if names.key_id(content.key) != key:
    + if False:
    tests/dht/wire/test_records.py
swarmd/dht/p2p/limits.py
  who was called in vain is called again at once
    - return self._now() < until
    + return False
    tests/dht/p2p/test_limits.py
  who is no longer wanted stays until connections are looked over
    -             self.on_unwanted()
    tests/dht/p2p/test_memory_watch.py
swarmd/dht/store/parts.py
  who answers late is waited for as long as everybody
    - return self._late.get(peer, 0) >= LATE_MAX
    + return False
    tests/dht/store/test_asking.py
  who is waited for is looked for among all others
    -         self._open.sort(key=lambda owner: owner not in self._first)
    +         pass
    tests/dht/store/test_asking.py
    tests/dht/p2p/test_shared_lookup.py
swarmd/bounds.py
  a silent sender saves up its quota without bound
    - return min(self._burst, left + (now - at) * self._per_s)
    + return tokens_left + (now - at) * self._per_s
    tests/test_bounds.py
swarmd/dht/store/capacity.py
  one key takes any number of bytes
    - return held[True] + held[False] + size > self._bytes_max
    + return False
    tests/dht/store/test_capacity.py
  identities without work have all that is free under a key
    -         return idle_full or held
    +         return held
    tests/dht/store/test_capacity.py
swarmd/dht/store/seniority.py
  credit without work makes known
    -         return self.rounds > 0 and not self.no_proof_of_work
    +         return self.rounds > 0
    tests/dht/store/test_capacity.py
swarmd/dht/gather.py
  strangers are waited for however often they fail
    -         if strangers.difference(got, refused):
    +         if False:
    tests/dht/test_gathering.py
  who gives by turns is waited for each time
    -         return max(1, min(1 << doublings, self._gatherings))
    +         return 1
    tests/dht/test_gathering.py
swarmd/dht/store/lookup.py
  a slow peer keeps what it was asked for to itself
    - if loop.time() >= each.at + HEDGE_S]:
    + if False]:
    tests/dht/p2p/test_shared_lookup.py
swarmd/secret_files.py
  a key that its group may read is taken
    - if mode & 0o077:
    + if mode & 0o007:
    tests/dht/identity/test_identity.py
swarmd/dht/identity/identity.py
  one identity runs two nodes
    -             fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    +             pass
    tests/dht/identity/test_identity.py
swarmd/chain/submitter.py
  a transaction that is signed again leaves the one without bytes in its place
    - each.hash == hash and (each.raw or not hash)
    + each.hash == hash
    tests/chain/test_tracking.py
  bytes that are signed again may leave before they are in the log
    -             self._in_log.discard(prepared.hash)
    tests/chain/test_tracking.py
  what was found on the chain is confirmed without another look at the contract
    - if there and deep and not tracked.hash:
    + if False:
    tests/chain/test_tracking.py
  what the chain may hold already is signed again after a restore
    - or command.prepared or command.mark < (command.round, command.stage):
    + or command.prepared or command.mark <= (command.round, command.stage):
    tests/chain/test_tracking.py
  a name registered to another account counts as ours
    - if not self._account or owner.lower() == self._account.lower():
    + if owner:
    tests/chain/test_tracking.py
  one refusal too early is taken for the last word
    - if known is None or not await ports.is_on_chain(self._blocks, known):
    + if False:
    tests/chain/test_tracking.py
swarmd/chain/fees.py
  a replacement costs exactly an eighth more, which rounds to nothing
    - return price_wei * 9 // 8 + 1
    + return price_wei * 9 // 8
    tests/chain/test_senders.py::test_a_replacement_is_an_eighth_dearer_and_within_the_bound
    tests/chain/test_senders.py::test_a_replacement_without_1559_has_one_price
  a replacement may cost more than the bound
    -     if fee_wei > max_gas_price_wei(fees):
    -         return None
    tests/chain/test_senders.py::test_a_replacement_is_an_eighth_dearer_and_within_the_bound
    tests/chain/test_senders.py::test_a_replacement_without_1559_has_one_price
swarmd/chain/keystore.py
  a keystore of another account is taken for this one
    - if said and account.address.lower() != "0x" + said.removeprefix("0x").lower():
    + if False:
    tests/chain/test_keystore.py
swarmd/daemon/directory.py
  a node pauses and goes on at the same bound
    - elif self._paused and free >= bounds.wanted:
    + elif self._paused and free >= bounds.low:
    tests/daemon/test_parts.py
swarmd/training/checkpoint_files.py
  a checkpoint whose files were changed counts as whole
    -         return hash_file(path) == expected
    +         return bool(hash_file(path))
    tests/training/test_checkpoints.py::test_a_damaged_one_is_passed_over
swarmd/training/checkpoints.py
  a checkpoint gets its name before its content is on disk
    -             for path in (*temporary.iterdir(), temporary):
    -                 sync_file(path)
    tests/training/test_checkpoints.py::test_a_power_cut_takes_nothing_of_it
  a stage whose checkpoint is being written is trained again when it is asked for
    -         if self._place == (order.round, order.stage):
    -             self.wait_until_saved()
    tests/training/test_engine.py::test_a_stage_asked_for_while_it_is_written_is_answered
swarmd/training/lr_schedule.py
  weights change while they are written
    -         self.before_step()
    +         pass
    tests/training/test_engine.py::test_a_report_waits_for_no_disk_and_a_step_does
swarmd/training/models/remembered.py
  a model whose files have changed has the digest of before
    - (name, each.st_size, each.st_ino, each.st_mtime_ns)
    + (name, each.st_size)
    tests/training/models/test_remembered.py::test_changed_files_are_hashed_and_tried_out
swarmd/training/sampling.py
  what is drawn ahead follows the weights that are being trained
    - self._is_frozen = True
    + self._is_frozen = False
    tests/training/test_overlap.py::test_each_group_is_drawn_one_step_ahead_and_trained_once
swarmd/training/engine.py
  a trainer that took a checkpoint up says that it loaded the model's own weights
    - changed = self.steps or policy.precision.adapters or policy.sharding.is_sharded
    + changed = policy.precision.adapters or policy.sharding.is_sharded
    tests/training/models/test_remembered.py::test_what_a_trainer_says_that_it_loaded_is_what_it_holds
swarmd/training/masking.py
  foreign text is pushed away though only right answers should count
    - advantages.clamp(min=0)
    + advantages.clamp(max=0)
    tests/training/test_masking.py
  a peer with plain answers has all others left out
    - sorted(worth.values())[len(worth) // 2]
    + max(worth.values())
    tests/training/test_masking.py
swarmd/training/groups.py
  rollouts of the stage in training are trained on
    - if (ref.round, ref.stage) >= (order.round, order.stage):
    + if (ref.round, ref.stage) > (order.round, order.stage):
    tests/training/test_groups.py
  rollouts one round too old are taken
    - if ref.round < order.round - self.training.staleness_rounds:
    + if ref.round < order.round - self.training.staleness_rounds - 1:
    tests/training/test_groups.py
swarmd/training/schedule.py
  one peer may fill a batch
    -         admitted = not group.peer or self._batch[group.peer] < self._peer_groups_max(group.peer)
    +         admitted = True
    tests/training/test_schedule.py
swarmd/worker/messages.py
  a worker's frame may have any length
    -             if length > FRAME_BYTES_MAX:
    +             if False:
    tests/worker/test_frames.py
""")

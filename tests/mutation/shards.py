"""Mistakes in where a large swarm's records lie, and in what is read of them."""

from tests.mutation.planting import read_mutants

SHARDS = read_mutants(r"""
swarmd/dht/store/validator.py
  a report that is awaited is lost where there is no room for it
    - if stored or awaited:
    + if stored:
    tests/dht/store/test_validator.py
  whoever sends an awaited report needs no room
    - validator.awaits(key, sender) and sender == owner
    + validator.awaits(key, owner)
    tests/dht/store/test_validator.py
  an answer of forged records is read to its end
    - if forged == FORGED_MAX:
    + if forged < 0:
    tests/dht/store/test_crowded_key.py
  parts of keys are given without a bound
    -     protocol.p2p.peer_limits.check_answer_allowed(sender, size + NEARBY_BYTES)
    tests/dht/store/test_partial_finds.py
swarmd/dht/report_collector.py
  shards are not read for members whose reports are missing
    -             watches[shard].read_now()
    +             pass
    tests/dht/test_report_collector.py
  shards are read for members whose reports were brought
    - if known.here and peer not in self._seen.peers]
    + if known.here]
    tests/dht/test_report_collector.py
  a report is awaited again and again
    - or owner in self._seen.peers or owner in self._stored:
    + or owner in self._stored:
    tests/dht/test_report_collector.py
swarmd/dht/store/lookup.py
  a peer may show whatever it likes
    -     check_requested_owners(part.records, only)
    tests/dht/store/test_crowded_key.py
  a record that one keeper lacks is asked of no other
    -             shares.release_share(asked.pop(task).release(), found.records)
    +             asked.pop(task)
    tests/dht/p2p/test_shared_lookup.py
swarmd/dht/store/capacity.py
  one member's memberships lie under all keys there may be
    - MEMBERSHIPS_MAX if kind is
    + 1024 if kind is
    tests/dht/store/test_capacity.py
swarmd/dht/wire/invitations.py
  a guest fills its creator's invitation
    -         if invitation.own:  # not
    +         if not invitation.signature:  # of
    tests/dht/wire/test_invitations.py
swarmd/dht/wire/bodies.py
  bodies in records are as large however many members read them
    - room = min(room, SHOWN_AT_ONCE_BYTES_MAX // max(members, 1) ** 2)
    + room = min(room, SHOWN_AT_ONCE_BYTES_MAX // max(members, 1))
    tests/dht/p2p/test_limits.py
swarmd/dht/gather.py
  all bodies are read from all who keep them
    - if sampled or len(self._ranks) <= WHOLE_MAX:
    + if sampled or self._ranks is not None:
    tests/dht/test_gathering.py
  all shards of a stage are read where peers are missing
    - min(shards, READ_MAX))
    + shards)
    tests/dht/test_sharded_gathering.py
  whoever is away for a moment is given up, though nobody takes its place
    - return self.has_too_few_peers(useless) and not self._unread
    + return False
    tests/dht/test_sharded_gathering.py
swarmd/dht/wire/names.py
  a membership stays in one shard
    - _hash_to_shard([swarm, peer, "members", place.epoch], place.shards)
    + _hash_to_shard([swarm, peer, "members_key"], place.shards)
    tests/dht/wire/test_shards.py
  a peer stays in one shard
    - return _hash_to_shard([swarm, peer, round, stage], shards)
    + return _hash_to_shard([swarm, peer], shards)
    tests/dht/wire/test_shards.py
swarmd/dht/wire/records.py
  a membership counts in any epoch
    - abs(content.epoch - names.epoch_of(policy.round)) > 1
    + content.epoch < 0
    tests/dht/wire/test_shards.py
  a record counts in any shard
    -     if content.shard != own:
    +     if False:
    tests/dht/wire/test_shards.py
  a record counts whatever number of shards the clock announces
    - if announced is not None and content.shards != announced:
    + if announced is None and content.shards < 0:
    tests/dht/wire/test_shards.py
  memberships on a chain may lie in any epoch
    -     if fixed and (content.shards, content.epoch) != (fixed, 0):
    +     if fixed and content.shards != fixed:
    tests/dht/wire/test_shards.py
swarmd/dht/membership.py
  a follower reads all memberships
    - range(shards) if view.coordinating else (self._own_shard(),)
    + range(shards)
    tests/dht/test_membership.py
  the coordinator reads shards of memberships only as they have moved
    - self._waits[shard] < self._polls_between_reads()
    + self._waits[shard] < 1
    tests/dht/test_membership.py
  who has left is still taken for a member
    -  and not record.content.leaving
    tests/dht/test_membership.py
  a membership that has expired is not looked for again
    - self._until.get(peer, 0.0) > view.policy.now()
    + peer in self._until
    tests/dht/test_membership.py
swarmd/dht/wire/records.py
  an earlier clock changes the number of shards back
    -         if clock.round < self._round:
    -             return
    tests/dht/wire/test_shards.py
swarmd/core/coordination.py
  a coordinator that stops a swarm's shards at once
    - rests = round < since + ROUNDS_KEPT and wanted < placed
    + rests = False
    tests/core/test_coordination.py
swarmd/dht/store/storage.py
  numbers of another life are taken for a storer's own
    - return cursor.life == self.life and cursor.last <= self.last
    + return cursor.last <= self.last
    tests/dht/store/test_partial_finds.py
  a record that takes another's place keeps its number
    -         numbers.pop(owner, None)
    -         numbers[owner] = self.last
    +         numbers.setdefault(owner, self.last)
    tests/dht/store/test_partial_finds.py
swarmd/dht/store/parts.py
  what does not count yet is not asked for again
    - if continues and len(genuine) == len(part.records):
    + if continues:
    tests/dht/store/test_partial_finds.py
  what was forgotten while a look-up went on is not asked for again
    -         if continues and len
    +         if len
    tests/dht/store/test_partial_finds.py
swarmd/dht/p2p/body_streams.py
  whom an owner names is not asked
    -         if body is None:
    -             body = await _try_fetch_from_holder(run, other, digest, size_bytes, bounds)
    +         log.debug(other)
    tests/dht/p2p/test_body_streams.py
  holders of bodies are noted without end
    - FIFOCache(BODIES_MAX)
    + FIFOCache(10**9)
    tests/dht/p2p/test_body_streams.py
swarmd/chain/watcher.py
  a count of reports is not told again after blocks were replaced
    -         self._own.reset_reported_count()
    tests/chain/test_watcher.py
swarmd/core/contract_clock.py
  a count of another stage closes the open one
    -     if (event.round, event.stage) == (chain.round, chain.stage):
    -         turn.update_chain(counted
    +     if event.count:
    +         turn.update_chain(counted
    tests/core/test_contract_clock.py
""")

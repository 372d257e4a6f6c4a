"""Mistakes in what keeps a crowd from drowning others, or from spending what is everybody's."""

from tests.mutation.planting import read_mutants

CROWDS = read_mutants(r"""
swarmd/dht/store/storage.py
  whoever is met is handed what has no room in a message
    - if key_bytes > HANDED_KEY_BYTES_MAX:
    + if False:
    tests/dht/store/test_validator.py
  whoever is met has all keys looked through, however many are
    - not self._meetings.try_charge()
    + False
    tests/dht/store/test_validator.py
  what forgers say they have worked is remembered
    - self._seniority.make_rank(signed.owner, key.to_bytes(), claimed_work(signed), signed.size_bytes)
    + self._seniority.rank_of(signed, key.to_bytes())
    tests/dht/store/test_crowded_key.py
swarmd/dht/p2p/p2pd_control.py
  answers that a p2pd has not taken count when it is gone
    -                 _release_queued(self.peer_limits, self._pending_messages.get_nowait())
    +                 self._pending_messages.get_nowait()
    tests/dht/p2p/test_node.py
  answers that come when their p2pd is gone count for ever
    -             if self.over.is_set():
    +             if False:
    tests/dht/p2p/test_node.py
swarmd/dht/store/validator.py
  a dictionary takes room for whatever its arrays promise
    -         check_nesting(encoded)
    -         value = MSGPackSerializer.loads(encoded)
    +         value = MSGPackSerializer.loads(encoded)
    tests/dht/wire/test_foreign_bytes.py
  what is in a dictionary takes room for whatever its arrays promise
    -         check_nesting(encoded)
    -         depth
    +         depth
    tests/dht/wire/test_foreign_bytes.py
  nobody who is met is handed anything
    -         if handed:
    +         if False:
    tests/dht/store/test_validator.py
swarmd/dht/record_store.py
  hints without end keep a key from being read whole
    - not wanted or now >= self._whole_at + WHOLE_POLLS * self._poll_s
    + not wanted
    tests/dht/test_publishing.py
  each hint has a key read whole
    - {} if whole else wanted
    + {}
    tests/dht/test_publishing.py
swarmd/dht/p2p/limits.py
  a crowd's gossip leaves members no room
    - 0.0 if known else RESERVE
    + 0.0
    tests/dht/p2p/test_limits.py
  the limits forget whom the swarm credits
    -  or self._is_credited(peer)
    tests/dht/p2p/test_limits.py
swarmd/dht/evidence.py
  evidence about rounds to come is kept
    - charge.round > reached + records.ROUNDS_AHEAD
    + False
    tests/dht/test_evidence.py
  one message for each of a lie's pairs
    - if not is_new_evidence(told, each.charge.kind, each.charge.peer, each.charge.round):
    + if each is held:
    tests/dht/test_gossip.py
  all tell of evidence at about the same time
    - math.e * self._view.members
    + math.e
    tests/dht/test_gossip.py
swarmd/dht/gossip.py
  each renewal of a membership has all members look for it
    -         if isinstance(record.content, Membership):
    -             self._handle_own_record(record)
    -         else:
    +         if True:
    tests/sim/test_large.py
swarmd/dht/gather.py
  newcomers' bodies fill a stage
    - not credited and self._newcomers + size_bytes > NEWCOMERS_BYTES_MAX
    + False
    tests/dht/test_gathering.py
swarmd/dht/p2p/body_streams.py
  a stream's end waits for its peer for ever
    -             await _close_stream(writer)
    +             writer.close()
    tests/dht/test_publishing.py
swarmd/dht/session.py
  a membership that cost nothing makes its owner known
    - isinstance(event, MemberSeen) and event.worked
    + isinstance(event, MemberSeen)
    tests/dht/p2p/test_limits.py
swarmd/dht/wire/addresses.py
  a host where nobody answers is dialled again and again
    - return self._now() >= until
    + return True
    tests/dht/p2p/test_dialled_hosts.py
swarmd/dht/p2p/peers.py
  services of this machine are dialled for others
    -         return self._local or may_be_remote(place)
    +         return True
    tests/dht/p2p/test_dialled_hosts.py
  names are dialled that stand where an address should
    -         if not is_multiaddr(place):
    -             return False
    tests/dht/p2p/test_dialled_hosts.py
  a crowd that answers nothing holds up each round of rejoining
    - *sample_at_most(others, MISSING)
    + *others
    tests/dht/p2p/test_dialled_hosts.py
swarmd/dht/publisher.py
  who takes a record first and shows it to nobody keeps it from counting
    - for part in (took, others) for
    + for part in (took or others,) for
    tests/dht/test_publishing.py
swarmd/dht/wire/invitations.py
  a guest has all records judged anew as often as it likes
    -  and not self._changes.try_charge(host)
    +  and False
    tests/dht/wire/test_invitations.py
swarmd/dht/membership.py
  members that come back in turn have a fresh burst each time
    - RETURNS_PER_S, now, MEMBERS_MAX)
    + RETURNS_PER_S, now)
    tests/hostile/test_lockout.py
swarmd/swarms/gym_tasks.py
  a scorer makes a move as often as an answer says
    -         return _has_few_moves(answer)
    +         return True
    tests/swarms/test_reasoning_gym.py::test_answers_that_call_grow_or_go_on_and_on_are_refused
swarmd/swarms/reasoning_gym.py
  one answer is right for every question of a task
    -  or gym_tasks.is_wrong_but_paid(question.task, answer, question.entry):
    + :
    tests/swarms/test_reasoning_gym.py::test_wrong_answers_that_a_scorer_pays_in_full_are_worth_nothing
swarmd/swarms/dataset.py
  a data set is read to its end, however large it becomes
    -     for number, row in enumerate(rows, 1):
    -         line = _encode_row(row)
    +     for number, row in enumerate(list(rows), 1):
    +         line = _encode_row(row)
    tests/swarms/test_dataset.py::test_no_more_rows_are_read_than_the_file_may_have
swarmd/eventlog/frame.py
  lengths at every place of a torn frame have all behind them read for each
    - looked_at > LOOKED_AT_MAX or
    + False or
    tests/eventlog/test_reader.py::test_a_torn_frame_full_of_lengths_is_gone_through_up_to_a_bound
swarmd/swarms/rewards.py
  searches that are cut off cost nothing
    -             cut_off.charge("", max(timeout_s, time.monotonic() - begun))  # recursive patterns time out late
    +             pass
    tests/swarms/test_rewards.py
swarmd/dht/store/seniority.py
  the work of a crowd is hashed anew at each read
    - lru_cache(WORK_KEPT)(work_bits)
    + lru_cache(0)(work_bits)
    tests/dht/store/test_asking.py
swarmd/core/waiting.py
  stages that waited for newcomers in vain are not counted
    -         newcomers=waiting.vain_newcomers <= VAIN_NEWCOMERS_FREE,
    +         newcomers=True,
    tests/core/test_waiting.py::test_identities_that_never_report_cost_a_sixteenth_of_the_time
  a member that fell silent is never waited for again
    -     return waiting.number % (WIDE_EVERY if silent <= SILENT_STAGES else LONG_SILENT_EVERY) == 0
    +     return False
    tests/core/test_waiting.py::test_followers_whose_trainers_slept_are_credited_again_within_three_rounds
  members that are silent for long are waited for as often as others
    - WIDE_EVERY if silent <= SILENT_STAGES else LONG_SILENT_EVERY
    + WIDE_EVERY
    tests/core/test_waiting.py::test_members_that_are_silent_for_long_are_waited_for_rarely
  a stage goes on waiting for members that have reported
    -     missing = [member for member in expected if member.peer not in coordination.reports]
    +     missing = expected
    tests/core/test_waiting.py::test_stages_close_as_the_page_of_rules_says
swarmd/dht/p2p/memory_watch.py
  memory that was freed stays with the process
    -         if own.memory_bytes >= self._trimmed_bytes + TRIM_BYTES:
    +         if False:
    tests/dht/p2p/test_memory_watch.py
""")

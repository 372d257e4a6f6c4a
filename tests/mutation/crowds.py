"""Mistakes in what keeps a crowd from drowning others, or from spending what is everybody's."""

from __future__ import annotations

from tests.mutation.planting import Mutant

CROWDS = (
    Mutant(
        "whoever is met has all keys looked through, however many are",
        "swarmd/dht/store/handing_on.py",
        'not self._meetings.try_charge("")',
        "False",
        ("tests/dht/store/test_validator.py",),
    ),
    Mutant(
        "nobody who is met is handed anything",
        "swarmd/dht/store/validator.py",
        "        if handed:\n",
        "        if False:\n",
        ("tests/dht/store/test_validator.py",),
    ),
    Mutant(
        "hints without end keep a key from being read whole",
        "swarmd/dht/rounds/key_watch.py",
        "not wanted or now >= self._whole_at + WHOLE_POLLS * self.poll_s",
        "not wanted",
        ("tests/dht/rounds/test_key_watch.py",),
    ),
    Mutant(
        "each hint has a key read whole",
        "swarmd/dht/rounds/key_watch.py",
        "{} if whole else wanted",
        "{}",
        ("tests/dht/rounds/test_key_watch.py",),
    ),
    Mutant(
        "a crowd's gossip leaves members no room",
        "swarmd/dht/limits/gossip_limits.py",
        "0.0 if known else self._all.burst * RESERVE",
        "0.0",
        ("tests/dht/limits/test_gossip_limits.py",),
    ),
    Mutant(
        "evidence about rounds to come is kept",
        "swarmd/dht/pubsub/evidence_gossip.py",
        "charge.round > reached + ROUNDS_AHEAD",
        "False",
        ("tests/dht/pubsub/test_evidence_gossip.py",),
    ),
    Mutant(
        "newcomers' bodies fill a stage",
        "swarmd/dht/rounds/gather.py",
        "not credited and self._newcomers + size_bytes > NEWCOMERS_BYTES_MAX",
        "False",
        ("tests/dht/rounds/test_gathering.py",),
    ),
    Mutant(
        "a stream's end waits for its peer for ever",
        "swarmd/dht/rounds/fetch.py",
        "            await _close(writer)\n",
        "            writer.close()\n",
        ("tests/dht/rounds/test_fetch.py",),
    ),
    Mutant(
        "the door forgets whom the swarm credits",
        "swarmd/dht/limits/door.py",
        " or self.is_credited(peer)",
        "",
        ("tests/dht/limits/test_budget.py",),
    ),
    Mutant(
        "a membership that cost nothing makes its owner known",
        "swarmd/dht/session.py",
        "isinstance(event, MemberSeen) and event.worked",
        "isinstance(event, MemberSeen)",
        ("tests/dht/limits/test_budget.py",),
    ),
    Mutant(
        "a host where nobody answers is dialled again and again",
        "swarmd/dht/p2p/dialled_hosts.py",
        "return self._now() >= until",
        "return True",
        ("tests/dht/p2p/test_dialled_hosts.py",),
    ),
    Mutant(
        "services of this machine are dialled for others",
        "swarmd/dht/p2p/peers.py",
        "[place for place in places if self._local or is_elsewhere(place)]",
        "list(places)",
        ("tests/dht/p2p/test_dialled_hosts.py",),
    ),
    Mutant(
        "searches that are cut off cost nothing",
        "swarmd/swarms/rewards.py",
        "        self._left_s -= after_s\n",
        "        pass\n",
        ("tests/swarms/test_rewards.py",),
    ),
    Mutant(
        "the work of a crowd is hashed anew at each read",
        "swarmd/dht/store/seniority.py",
        "lru_cache(WORK_KEPT)(work_bits)",
        "lru_cache(0)(work_bits)",
        ("tests/dht/store/test_seniority.py",),
    ),
    Mutant(
        "what stages waited in vain is not remembered",
        "swarmd/core/coordinator/patience.py",
        "    return fit(vain + VAIN_STAGES, stages_max * VAIN_STAGES)",
        "    return vain",
        ("tests/core/coordinator/test_patience.py",),
    ),
    Mutant(
        "a young swarm asks more of its members than it has itself",
        "swarmd/core/coordinator/patience.py",
        "    return min((1 << steps) - 1, (member.rounds if member is not None else 0) // 2)",
        "    return (1 << steps) - 1",
        ("tests/core/coordinator/test_patience.py",),
    ),
    Mutant(
        "a stage that closed without who is not steady looks hasty",
        "swarmd/dht/rounds/credit_check.py",
        "        if not least or least > self._steady_most():",
        "        if True:",
        ("tests/core/peers/test_conduct.py",),
    ),
)

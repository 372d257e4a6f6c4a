"""Mistakes in where a large swarm's records lie, and in what is read of them."""

from __future__ import annotations

from tests.mutation.planting import Mutant

SHARDS = (
    Mutant(
        "bodies in records are as large however many members read them",
        "swarmd/dht/wire/bodies.py",
        "room = min(room, SHOWN_AT_ONCE_BYTES_MAX // max(members, 1) ** 2)",
        "room = min(room, SHOWN_AT_ONCE_BYTES_MAX // max(members, 1))",
        ("tests/dht/limits/test_answers.py",),
    ),
    Mutant(
        "all bodies are read from all who keep them",
        "swarmd/dht/rounds/gather.py",
        "if sampled or len(self._ranks) <= WHOLE_MAX:",
        "if sampled or self._ranks is not None:",
        ("tests/dht/rounds/test_gathering.py",),
    ),
    Mutant(
        "a record that one keeper lacks is asked of no other",
        "swarmd/dht/store/lookup.py",
        "    shares.give_back(share, shown)\n",
        "    shares.give_back(share, share)\n",
        ("tests/dht/p2p/test_shared_lookup.py",),
    ),
    Mutant(
        "a record counts in any shard",
        "swarmd/dht/wire/records.py",
        "    if content.shard != own:\n",
        "    if False:\n",
        ("tests/dht/wire/test_shards.py",),
    ),
    Mutant(
        "a record counts whatever number of shards the clock announces",
        "swarmd/dht/wire/records.py",
        "if announced is not None and content.shards != announced:",
        "if announced is None and content.shards < 0:",
        ("tests/dht/wire/test_shards.py",),
    ),
    Mutant(
        "a peer stays in one shard",
        "swarmd/dht/wire/shards.py",
        "msgpack.packb([swarm, peer, round, stage])",
        "msgpack.packb([swarm, peer])",
        ("tests/dht/wire/test_shards.py",),
    ),
    Mutant(
        "an earlier clock changes the number of shards back",
        "swarmd/dht/store/announced_shards.py",
        "        if clock.round < self._round:\n            return\n",
        "",
        ("tests/dht/wire/test_shards.py",),
    ),
    Mutant(
        "all shards of a stage are read where peers are missing",
        "swarmd/dht/rounds/sampled_shards.py",
        "min(shards, READ_MAX))",
        "shards)",
        ("tests/dht/rounds/test_sharded_gathering.py",),
    ),
    Mutant(
        "whoever is away for a moment is given up, though nobody takes its place",
        "swarmd/dht/rounds/sampled_shards.py",
        "return self.lacks(useless) and not self._unread",
        "return False",
        ("tests/dht/rounds/test_sharded_gathering.py",),
    ),
    Mutant(
        "a coordinator that stops a swarm's shards at once",
        "swarmd/core/coordinator/shards.py",
        "rests = round < placed.since + ROUNDS_KEPT and wanted < placed.shards",
        "rests = False",
        ("tests/core/coordinator/test_shards.py",),
    ),
    Mutant(
        "numbers of another life are taken for a storer's own",
        "swarmd/dht/store/changes.py",
        "return cursor.life == self.life and cursor.last <= self.last",
        "return cursor.last <= self.last",
        ("tests/dht/store/test_partial_finds.py",),
    ),
    Mutant(
        "what does not count yet is not asked for again",
        "swarmd/dht/store/answer_memory.py",
        "if continues and len(genuine) == len(part.records):",
        "if continues:",
        ("tests/dht/store/test_partial_finds.py",),
    ),
    Mutant(
        "what was forgotten while a look-up went on is not asked for again",
        "swarmd/dht/store/answer_memory.py",
        "        if continues and len",
        "        if len",
        ("tests/dht/store/test_partial_finds.py",),
    ),
    Mutant(
        "a record that takes another's place keeps its number",
        "swarmd/dht/store/changes.py",
        "        numbers.pop(owner, None)\n        numbers[owner] = self.last\n",
        "        numbers.setdefault(owner, self.last)\n",
        ("tests/dht/store/test_partial_finds.py",),
    ),
    Mutant(
        "parts of keys are given without a bound",
        "swarmd/dht/store/partial_answers.py",
        "    protocol.p2p.door.allow_answer(sender, size + NEARBY_BYTES)\n",
        "",
        ("tests/dht/store/test_partial_finds.py",),
    ),
    Mutant(
        "whom an owner names is not asked",
        "swarmd/dht/rounds/fetch.py",
        "        if body is None:\n            body = await _try_other(life, other, digest, size_bytes, bounds)\n",
        "        log.debug(other)\n",
        ("tests/dht/p2p/test_body_holders.py",),
    ),
    Mutant(
        "holders of bodies are noted without end",
        "swarmd/dht/rounds/body_holders.py",
        "        if len(self._holders) > BODIES_MAX:\n            self._holders.popitem(last=False)\n",
        "",
        ("tests/dht/p2p/test_body_holders.py",),
    ),
)

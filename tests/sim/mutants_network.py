"""Small mistakes planted in what the network worker decides: gathering, publishing, membership, stages, watching."""

from __future__ import annotations

from swarmd.dht import agent, evidence, membership
from swarmd.dht.rounds import (
    clock,
    gather,
    key_watch,
    publisher,
    report_collector,
    stages,
)
from tests.sim.planting import Mutant

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
        clock,
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
        agent,
        "        self._session.emit(CommandFailed(command.id, reason))\n",
        "",
        FAILING,
    ),
    Mutant(
        "a command is done once and never again",
        agent,
        "            self._running.discard(command.id)\n",
        "            pass\n",
        FAILING,
    ),
    Mutant(
        "announcements are not taken from gossip or look-ups",
        clock,
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

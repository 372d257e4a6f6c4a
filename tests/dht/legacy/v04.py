"""A node of RL Swarm v0.4's networks, as far as the DHT sees it, made from the description of the wire format alone.

It shares nothing with swarmd but `swarmd.dht.p2p.hivemind_import`, which loads hivemind without torch. It runs
hivemind's `DHTNode`, is told what to do by a line of JSON on stdin, and answers each with a line of JSON on stdout.

v0.4 runs the same node behind `hivemind.DHT`, in a forked process whose command pipe uvloop sets to non-blocking: a
command larger than the pipe's 64 KiB is read in part, fails with EAGAIN, and is never answered. That is no part of what
peers see, and it made tests hang; so the node runs in this process. `python v04.py IDENTITY [BOOTSTRAP ...]`
"""

import asyncio
import hashlib
import json
import sys
import time
from collections import defaultdict

import swarmd.dht.p2p.hivemind_import  # noqa: F401  # isort: skip  # before anything of hivemind

from hivemind.dht.node import DEFAULT_NUM_WORKERS, DHTNode
from hivemind.dht.validation import CompositeValidator

EXPIRES_S = 4 * 60 * 60
LARGEST_ORDER_BYTES = 2**24
NO_ANSWER, NO_FEEDBACK = "No answer received...", "No feedback received..."
TEXTS = ("agent_answers", "agent_opinion", "final_agent_decision")
PROMPTS = (None, "stage2_prompt", "stage3_prompt")


def md5(text):
    return hashlib.md5(text.encode()).hexdigest()


class Node:
    """Coordinator and follower in one; what it does is what it is told."""

    def __init__(self, dht):
        self.dht = dht
        self.key = str(dht.peer_id)
        self.cache = defaultdict(dict)  # (round, stage) -> question hash -> (time, outputs)
        self.reward = defaultdict(float)

    async def get(self, key, latest=False, beam=20):
        """The value, or subkey -> value."""
        found = await self.dht.get(key, latest=latest, beam_size=beam)
        if found is None:
            return None
        if isinstance(found.value, dict):
            return {subkey: held.value for subkey, held in found.value.items()}
        return found.value

    async def put(self, key, value, subkey=None):
        return await self.dht.store(key, value, time.time() + EXPIRES_S, subkey=subkey)

    async def announce(self, round, stage):
        return await self.put("rl_swarm_rs", (round, stage))

    async def clock(self):
        value = await self.get("rl_swarm_rs", latest=True)
        if not value:
            raise ValueError("cannot find the round and stage")
        round, stage = value
        return [round, stage]

    async def publish(self, round, stage, question, answer, text, reward, prompt=""):
        """What one micro-batch of training publishes."""
        outputs = {"question": question, "answer": answer}
        if PROMPTS[stage]:
            outputs[PROMPTS[stage]] = prompt
        outputs[TEXTS[stage]] = {self.key: text}
        value = (time.time(), outputs)
        stored = [await self.put(f"rl_swarm_outputs_{self.key}_{round}_{stage}", value, md5(question))]
        self.cache[round, stage][md5(question)] = value
        self.reward[round, stage] += reward
        stored.append(await self.put(f"rl_swarm_rewards_{round}_{stage}", self.reward[round, stage], self.key))
        return stored

    async def publish_leaderboard(self, round, stage):
        rewards = await self.get(f"rl_swarm_rewards_{round}_{stage}", latest=True)
        rows = sorted(rewards.items(), key=lambda row: (row[1], row[0]), reverse=True)
        return await self.put(f"rl_swarm_leaderboard_{round}_{stage}", rows)

    async def leaderboard(self, round, stage):
        """As it lies there, with the types that a JSON line cannot show."""
        rows = await self.get(f"rl_swarm_leaderboard_{round}_{stage}", latest=True)
        return {"types": [type(rows).__name__, *{type(row).__name__ for row in rows or []}], "rows": rows}

    async def rewards(self, round, stage, beam=100):
        return await self.get(f"rl_swarm_rewards_{round}_{stage}", beam=beam)

    async def outputs(self, peer, round, stage):
        """A peer's samples: question hash -> (time, outputs)."""
        own = self.cache.get((round, stage)) if peer == self.key else None
        found = own or await self.get(f"rl_swarm_outputs_{peer}_{round}_{stage}")
        if not found:
            raise ValueError(f"no outputs of {peer}")
        return {hash if len(hash) == 32 else md5(hash): sample for hash, sample in found.items()}

    async def samples(self, round, stage, limit=200, check_s=5, wait_s=10):
        """question hash -> peer -> outputs, the node's own first."""
        began, rewards = time.time(), await self.rewards(round, stage)
        while not rewards and time.time() - began < wait_s:
            await asyncio.sleep(check_s)
            rewards = await self.rewards(round, stage)
        grouped, count = defaultdict(dict), 0
        if self.cache.get((round, stage)):
            for hash, (_, outputs) in self.cache[round, stage].items():
                grouped[hash][self.key] = outputs
        for peer in rewards or {}:
            if peer == self.key:
                continue
            try:
                found = await self.outputs(peer, round, stage)
            except ValueError:
                continue
            for hash, (_, outputs) in found.items():
                grouped[hash][peer] = outputs
                count += 1
                if count > limit:
                    return grouped
        return grouped

    async def merge(self, round, stage):
        """Rows for the stage after `stage`, one for each question, every peer in each."""
        grouped = await self.samples(round, stage)
        wanted = {"question", "answer", TEXTS[stage]} | ({PROMPTS[stage]} - {None})
        filler = NO_ANSWER if stage == 0 else NO_FEEDBACK
        rows = []
        for peers in grouped.values():
            row, texts = {}, {}
            for peer, outputs in peers.items():
                if set(outputs) != wanted:
                    continue
                row = {key: value for key, value in outputs.items() if key != TEXTS[stage]}
                texts[peer] = outputs[TEXTS[stage]].get(peer, filler)
            if row:
                rows.append({**row, TEXTS[stage]: texts})
        everybody = {peer for row in rows for peer in row[TEXTS[stage]]}
        for row in rows:
            for peer in everybody:
                row[TEXTS[stage]].setdefault(peer, NO_ANSWER)
        return rows

    async def raw(self, key, value, subkey=None, ends_in_s=EXPIRES_S):
        """Store what nobody should: junk, in another's name."""
        return await self.dht.store(key, value, time.time() + ends_in_s, subkey=subkey)

    async def flood(self, peer, round, stage, count):
        """Many samples in another's name, to see where a reader stops."""
        for number in range(count):
            question = f"flood {number}"
            outputs = {"question": question, "answer": "", TEXTS[stage]: {peer: "text"}}
            await self.put(f"rl_swarm_outputs_{peer}_{round}_{stage}", (time.time(), outputs), md5(question))
        return await self.put(f"rl_swarm_rewards_{round}_{stage}", 1.0, peer)


async def orders():
    """What stdin says, line by line."""
    reader = asyncio.StreamReader(LARGEST_ORDER_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


async def main():
    dht = await DHTNode.create(
        startup_timeout=30,
        initial_peers=sys.argv[2:] or None,
        num_workers=DEFAULT_NUM_WORKERS,
        record_validator=CompositeValidator([]),
        host_maddrs=["/ip4/127.0.0.1/tcp/0"],
        identity_path=sys.argv[1],
    )
    node = Node(dht)
    addresses = [str(address) for address in await dht.get_visible_maddrs()]
    print(json.dumps({"peer": node.key, "addresses": addresses}), flush=True)
    async for order in orders():
        try:
            answer = {"ok": await getattr(node, order.pop("do"))(**order)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    await dht.shutdown()


if __name__ == "__main__":
    asyncio.run(main())

"""A chain with a swarm on it, for benchmarks: anvil, and what fills its blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from eth_abi.abi import encode

from bench.place import Unavailable
from swarmd.chain.logs import event_topic
from tests.anvil import running_anvil
from tests.chain.grounds import Ground
from tests.programs import ProgramMissing

REWARD = "RewardSubmitted(address,uint256,uint256,int256,string)"
PEER = "Qm" + 44 * "a"


@contextmanager
def swarm_on_anvil() -> Iterator[Ground]:
    """Raises Unavailable without anvil."""
    try:
        with running_anvil("--gas-limit", "1000000000", "--prune-history") as url:
            yield Ground(url)
    except ProgramMissing as error:
        raise Unavailable(str(error)) from error


def fill(ground: Ground, blocks: int, logs: int) -> None:
    """Have the contract say RewardSubmitted so many times in each of so many blocks.

    Its code is replaced for that while by a few instructions that do nothing else; nobody waits for 100,000
    transactions.
    """
    code = ground.say("eth_getCode", ground.contract, "latest")
    ground.say("anvil_setCode", ground.contract, "0x" + emitter(logs).hex())
    said = "0x" + encode(["int256", "string"], [1000, PEER]).hex()
    call = {"from": ground.swarm.alice, "to": ground.contract, "data": said, "gas": hex(500_000_000)}
    for _ in range(blocks):
        ground.say("eth_sendTransaction", call)
    ground.say("anvil_setCode", ground.contract, code)


def emitter(times: int) -> bytes:
    """Code that logs its call's data so many times: topics are REWARD, the caller, the times left, and 0."""
    loop = bytes.fromhex("5b5f8133") + b"\x7f" + bytes.fromhex(event_topic(REWARD)[2:]) + bytes.fromhex("365fa4")
    return bytes.fromhex("365f5f3761") + times.to_bytes(2, "big") + loop + bytes.fromhex("600190038060075700")

"""What each endpoint of the chain says when it is asked by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from swarmd.chain.endpoints.endpoint import Throttled, endpoint_of, name_of, read_urls
from swarmd.chain.fees import quantity
from swarmd.chain.watching.blocks import BlockHeader
from swarmd.config import ChainConfig
from swarmd.doctor.waiting import in_thread
from swarmd.errors import EndpointFailed, RpcRefused

CALL_S = 8.0  # every call of the doctor ends within this, or the configured time where that is shorter


class EndpointReplies(msgspec.Struct, frozen=True):
    """What one endpoint said."""

    url: str
    name: str
    chain_id: int = 0
    number: int = -1
    at: float = 0.0  # of its newest block, POSIX seconds
    genesis: str = ""
    failure: str = ""
    throttled: bool = False


async def look_at(chain: ChainConfig, root: Path) -> list[EndpointReplies]:
    """Ask every endpoint for its chain, its head and its first block.

    Args:
        root: the data directory, which files of URLs are relative to.

    Raises:
        ConfigError: the endpoints cannot be read.
    """
    urls = await in_thread(read_urls, chain.rpc, root)
    call_s = min(CALL_S, chain.call_s)
    return list(await asyncio.gather(*(_look_at_one(url, call_s) for url in urls)))


async def _look_at_one(url: str, call_s: float) -> EndpointReplies:
    endpoint, seen = endpoint_of(url, call_s), EndpointReplies(url, name_of(url))
    try:
        chain_id = quantity(await endpoint.ask("eth_chainId", [], str), "chain id")
        head = (await endpoint.ask("eth_getBlockByNumber", ["latest", False], BlockHeader)).ref()
        genesis = await endpoint.ask("eth_getBlockByNumber", ["0x0", False], BlockHeader)
    except Throttled as error:
        return msgspec.structs.replace(seen, failure=error.message, throttled=True)
    except (EndpointFailed, RpcRefused) as error:
        return msgspec.structs.replace(seen, failure=f"{seen.name}: {error.message}")
    finally:
        await endpoint.close()
    return EndpointReplies(url, seen.name, chain_id, head.number, head.at, genesis.hash)

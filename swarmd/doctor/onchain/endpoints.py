"""Endpoints of the chain: each by itself, and all against each other."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from swarmd.doctor.finding import Finding, FindingKind, well
from swarmd.doctor.onchain.seen import EndpointReplies
from swarmd.doctor.subject import Subject
from swarmd.errors import ConfigError
from swarmd.http_server import is_loopback

LAG_BLOCKS_MAX = 5  # behind the foremost endpoint
STALE_S = 300.0  # since the newest block; chains that make blocks on demand only are younger or local
AHEAD_S = 15.0  # of this clock; a block is never made in the future
DENIED = re.compile(r"HTTP (401|403)|unauthori[sz]ed|invalid (api )?(key|project)", re.IGNORECASE)

RPC_URL = FindingKind(
    "rpc.url",
    "error",
    "The endpoints cannot be read",
    "The chain worker ends with code 78.",
    "Correct chain.rpc, or the file that it names",
)
RPC_DOWN = FindingKind(
    "rpc.unreachable",
    "warning",
    "An endpoint does not answer",
    "The node uses the others, and asks this one again from time to time.",
    "Check its address, or name another one in chain.rpc",
)
RPC_DENIED = FindingKind(
    "rpc.denied",
    "warning",
    "An endpoint refuses to serve",
    "It wants a key, another key, or knows this one no more (HTTP 401, 403).",
    "Get a valid key from the provider, and put the URL into a private file that chain.rpc names as file:PATH",
)
RPC_THROTTLED = FindingKind(
    "rpc.throttled",
    "warning",
    "An endpoint serves too few requests",
    "It answers HTTP 429 or says that a quota is used up; the node leaves it alone for a while.",
    "Name further endpoints in chain.rpc, or raise the quota; a higher chain.poll_s asks less often",
)
RPC_NONE = FindingKind(
    "rpc.none",
    "error",
    "No endpoint can be used",
    "The node trains on by the coordinator's clock and submits nothing until an endpoint answers.",
    "Name an endpoint that works in chain.rpc, best first",
)
RPC_FOREIGN = FindingKind(
    "rpc.chain-id",
    "error",
    "An endpoint is of another chain",
    "It is not used. Where none is of the right chain, the node ends with code 80.",
    "Name endpoints of chain.chain_id, or correct chain.chain_id",
)
RPC_GENESIS = FindingKind(
    "rpc.genesis",
    "error",
    "Endpoints are of different chains with one id",
    "Their first blocks differ: one of them is a test chain, or the chain was reset.",
    "Take the wrong ones out of chain.rpc",
)
RPC_LAGS = FindingKind(
    "rpc.lag",
    "warning",
    "An endpoint is behind the others",
    "What it says is old; rounds are seen late through it.",
    "Put it last in chain.rpc, or take it out",
)
RPC_STALE = FindingKind(
    "rpc.stale",
    "warning",
    "No new blocks come",
    "The chain stands still, or all endpoints have lost it: rounds do not move on.",
    "Look at the chain's status page; name another endpoint",
)
RPC_AHEAD = FindingKind(
    "rpc.ahead",
    "warning",
    "The newest block is from the future",
    "No block is made ahead of time, so this machine's clock is behind, or the chain is a test chain with a clock "
    "of its own.",
    "Set the clock right: `timedatectl set-ntp true`",
)
RPC_PLAIN = FindingKind(
    "rpc.plain",
    "note",
    "An endpoint is spoken to in plain text",
    "Whoever is on the way can read and change what the chain seems to say.",
    "Use https:// or wss:// where the provider offers it",
)
RPC_SINGLE = FindingKind(
    "rpc.single",
    "note",
    "There is only one endpoint",
    "While it is away nothing is submitted.",
    "Name a second one in chain.rpc",
)


async def check_rpc(subject: Subject) -> list[Finding]:
    """Endpoints one by one, then against each other."""
    config = subject.whole[0]
    assert config.chain is not None
    try:
        seen = await subject.endpoints()
    except ConfigError as error:
        return [RPC_URL.found(error.message, error.fix)]
    found = judge_endpoints(seen, config.chain.chain_id, time.time())
    found += [RPC_PLAIN.found(each.name) for each in seen if _is_plain(each.url)]
    if len(seen) == 1:
        found.append(RPC_SINGLE.found(seen[0].name))
    if any(finding.severity != "note" for finding in found):
        return found
    heads = ", ".join(f"{each.name} at block {each.number}" for each in seen)
    return [well("rpc", "Endpoints", f"chain {config.chain.chain_id}: {heads}"), *found]


def _is_plain(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "ws") and not is_loopback(parts.hostname or "")


def judge_endpoints(seen: Sequence[EndpointReplies], chain_id: int, now: float) -> list[Finding]:
    """Findings from what all of them said."""
    found = [_failure_of(each) for each in seen if each.failure]
    alive = [each for each in seen if not each.failure]
    foreign = [each for each in alive if each.chain_id != chain_id]
    found += [
        RPC_FOREIGN.found(f"{each.name} is of chain {each.chain_id}, chain.chain_id is {chain_id}") for each in foreign
    ]
    good = [each for each in alive if each.chain_id == chain_id]
    if not good:
        return [*found, RPC_NONE.found("; ".join(f"{each.name}: {each.failure or 'another chain'}" for each in seen))]
    if len({each.genesis for each in good}) > 1:
        found.append(RPC_GENESIS.found(", ".join(f"{each.name}: {each.genesis}" for each in good)))
    foremost = max(good, key=lambda each: each.number)
    found += [
        RPC_LAGS.found(f"{each.name} is at block {each.number}, {foremost.name} at {foremost.number}")
        for each in good
        if foremost.number - each.number > LAG_BLOCKS_MAX
    ]
    return [*found, *_judge_age(foremost, now)]


def _failure_of(seen: EndpointReplies) -> Finding:
    if DENIED.search(seen.failure):
        return RPC_DENIED.found(seen.failure)
    return (RPC_THROTTLED if seen.throttled else RPC_DOWN).found(seen.failure)


def _judge_age(foremost: EndpointReplies, now: float) -> list[Finding]:
    age_s = now - foremost.at
    local = is_loopback(urlsplit(foremost.url).hostname or "")
    if age_s < -AHEAD_S:
        return [RPC_AHEAD.found(f"block {foremost.number} is {-age_s:.0f} s ahead of this clock")]
    if age_s > STALE_S and not local:  # a development node makes blocks on demand
        return [RPC_STALE.found(f"block {foremost.number} of {foremost.name} is {age_s:.0f} s old")]
    return []

"""`swarmd swarm status` and `check`: what a manifest and its contract say."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import msgspec
import typer

from swarmd.cli.options import PrintJson
from swarmd.cli.printing import print_json
from swarmd.cli.swarm.options import MAX_GWEI, Endpoints, ManifestFile, payer
from swarmd.errors import ConfigError
from swarmd.manifest import Manifest, read_manifest
from swarmd.paths import quoted

if TYPE_CHECKING:
    from swarmd.chain.blocks import Blocks
    from swarmd.chain.coordinator import Coordinator
    from swarmd.chain.endpoints import Rpc, RpcCaller

RANGE_BLOCKS = 20_000  # asked for at once; an endpoint that refuses is asked for fewer
SHOWN_MAX = 20  # members listed for people; --json has all


class ContractStatus(msgspec.Struct, frozen=True):
    """What the contract says now."""

    chain_id: int
    contract: str
    block: int
    round: int
    stage: int
    stages: int
    opened_at: float  # POSIX seconds
    deadline_at: float | None  # when anybody may advance by the time alone
    min_submissions: int
    max_stage_s: int
    submissions: int | None  # reports for this stage; None where the contract does not count
    can_advance: bool
    block_at: float  # time of `block`, POSIX seconds: by the chain's clock, as opened_at and deadline_at
    open: bool
    registered: int  # peer ids
    allowed: tuple[str, ...]  # the allow-list
    bootnodes: tuple[str, ...]


def status(
    manifest: Annotated[Path | None, typer.Argument(metavar="[MANIFEST]", help="The swarm's manifest.")] = None,
    rpc: Endpoints = None,
    contract: Annotated[str, typer.Option(help="The contract's address, without a manifest.")] = "",
    from_block: Annotated[int, typer.Option(min=0, help="Block that created it, without a manifest.")] = 0,
    as_json: PrintJson = False,
) -> None:
    """Say where a swarm on a chain is: round, stage, deadline, policy, peers, bootnodes, members.

    Of a swarm without a chain, what its manifest says.
    """
    from swarmd.cli.chain_access import find_target
    from swarmd.cli.inspect.standings import check_address

    urls = payer(rpc, None, None, MAX_GWEI).rpc
    if manifest is None:
        if not (urls and contract):
            raise ConfigError("which swarm?", "Name its manifest, or give --rpc URL and --contract ADDRESS")
        check_address(contract)
        found = anyio.run(_status, urls, None, contract, from_block)
        _show(found, as_json)
        return
    target = find_target(manifest)
    if not as_json:
        _show_manifest(target.manifest)
    chain = target.manifest.chain
    if chain is not None:
        found = anyio.run(_status, target.urls(urls), chain.chain_id, chain.contract, chain.from_block)
        _show(found, as_json)
    elif as_json:
        print_json(target.manifest)
    else:
        typer.echo(
            f"rounds: by {target.manifest.creator}; where they are tells `swarmd status` of any node of the swarm,"
        )
        typer.echo(f"    without a node `swarmd dashboard --manifest {quoted(manifest)}`")


def check(manifest: ManifestFile) -> None:
    """Check a manifest without any network: form, digest of the recipe, signature of the creator."""
    checked = read_manifest(manifest)
    _show_manifest(checked)
    typer.echo(f"{manifest}: valid, signed by {checked.creator}")


def _show_manifest(manifest: Manifest) -> None:
    recipe = manifest.recipe
    tasks = ", ".join(task.name for task in recipe.tasks) or "the embedded digit tasks"
    created = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(manifest.created_at))
    typer.echo(f'swarm: "{manifest.name}", {manifest.id}')
    typer.echo(f"creator: {manifest.creator}, {created}")
    typer.echo(f"recipe: {recipe.digest[:16]}, {recipe.kind}, model {recipe.model}, {tasks}")
    typer.echo(f"membership: {manifest.membership}")
    if manifest.average_weights_every:
        often = f"every {manifest.average_weights_every} rounds" if manifest.average_weights_every > 1 else "each round"
        typer.echo(f"weights: averaged in pairs {often}, by nodes that do not say otherwise")


async def _status(urls: Sequence[str], chain_id: int | None, contract: str, from_block: int) -> ContractStatus:
    from swarmd.chain.coordinator import Coordinator
    from swarmd.cli.chain_access import reach

    async with reach(urls, chain_id) as reached:
        coordinator = Coordinator(reached.rpc, contract, from_block, RANGE_BLOCKS)
        await coordinator.check()
        return await read_status(reached.rpc, coordinator, reached.chain_id, from_block)


async def read_status(rpc: Rpc, coordinator: Coordinator, chain_id: int, from_block: int) -> ContractStatus:
    """All of it, as of one block. Raises ChainError."""
    from swarmd.chain.blocks import Blocks

    blocks = Blocks(rpc, coordinator.contract, RANGE_BLOCKS)
    head = await blocks.head()
    at = hex(head.number)
    round, stage = await coordinator.place(at)
    policy = await coordinator.policy(at)
    opened_at = await coordinator.opened_at(at)
    registered, allowed = await _read_peers(blocks, from_block, head.number)
    return ContractStatus(
        chain_id=chain_id,
        contract=coordinator.contract,
        block=head.number,
        round=round,
        stage=stage,
        stages=await coordinator.stages(at),
        opened_at=opened_at,
        deadline_at=opened_at + policy.max_stage_s if policy.max_stage_s else None,
        min_submissions=policy.min_submissions,
        max_stage_s=policy.max_stage_s,
        submissions=await coordinator.submissions(at),
        can_advance=await coordinator.can_advance(),
        block_at=head.at,
        open=await coordinator.membership_open(at),
        registered=registered,
        allowed=allowed,
        bootnodes=await coordinator.bootnodes(at),
    )


async def _read_peers(blocks: Blocks, from_block: int, head: int) -> tuple[int, tuple[str, ...]]:
    """How many peers are registered, and the allow-list; the contract lists neither."""
    from swarmd.chain.logs import ALLOWED_TOPIC, DISALLOWED_TOPIC, decode_peers, topic_of

    registration = topic_of("PeerRegistered(address,string)")
    registered, allowed = 0, dict[str, None]()
    async for span in blocks.spans(from_block, head, [[[registration, ALLOWED_TOPIC, DISALLOWED_TOPIC]]]):
        for entry in span.entries:
            if entry.topics[0] == registration:
                registered += 1
            elif entry.topics[0] == ALLOWED_TOPIC:
                allowed |= dict.fromkeys(decode_peers(entry))
            else:
                gone = set(decode_peers(entry))
                allowed = {peer: None for peer in allowed if peer not in gone}
    return registered, tuple(allowed)


async def when_next(caller: RpcCaller, coordinator: Coordinator) -> str:
    """When anybody may move the swarm on, in words."""
    policy = await coordinator.policy()
    if policy == (0, 0):
        return "it has no round policy, only a stage manager moves the swarm on"
    ways = []
    if policy.min_submissions:
        ways.append(f"at {policy.min_submissions} reports, there are {await coordinator.submissions()}")
    if policy.max_stage_s:
        left_s = await coordinator.opened_at() + policy.max_stage_s - (await coordinator.blocks.head()).at
        ways.append(f"in {left_s:.0f} s by the chain's clock" if left_s > 0 else "with the next block")
    return ", or ".join(ways)


def _show(found: ContractStatus, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    open_s = max(0.0, found.block_at - found.opened_at)
    block_at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found.block_at))
    typer.echo(f"contract: {found.contract} on chain {found.chain_id}, at block {found.block} of {block_at}")
    typer.echo(f"round {found.round}, stage {found.stage} of {found.stages}, open for {open_s:.0f} s at that block")
    reports = f"{found.min_submissions} reports (there are {found.submissions})" if found.min_submissions else ""
    seconds = f"{found.max_stage_s} s" if found.max_stage_s else ""
    policy = " or ".join(part for part in (reports, seconds) if part)
    typer.echo(f"policy: anybody may advance after {policy}" if policy else "policy: none, a stage manager advances")
    typer.echo(f"can advance now: {'yes' if found.can_advance else 'no'}")
    typer.echo(f"peers registered: {found.registered}")
    typer.echo(f"membership: {'open' if found.open else 'allow-list'}, {len(found.allowed)} on the list")
    for peer in found.allowed[:SHOWN_MAX]:
        typer.echo(f"  {peer!r}"[:80])
    for address in found.bootnodes[:SHOWN_MAX]:
        typer.echo(f"bootnode: {address!r}"[:300])

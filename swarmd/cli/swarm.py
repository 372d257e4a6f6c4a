"""`swarmd swarm`: lists kinds of swarms, scaffolds new ones, and shows a swarm's manifest and contract.

swarmd.cli.new creates a swarm, swarmd.cli.swarm_changes changes one.
"""

import json
import keyword
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import anyio
import msgspec
import typer

from swarmd.cli import options
from swarmd.cli.new import new
from swarmd.cli.swarm_changes import invite, register_commands
from swarmd.errors import ConfigError, PathUnusable
from swarmd.files import advise_on_path_error
from swarmd.manifest import Manifest, read_manifest
from swarmd.paths import configs_directory, quote_for_shell
from swarmd.swarms.registry import BUILT_IN, list_kinds, questions_file_of

if TYPE_CHECKING:
    from swarmd.chain.blocks import RpcBlockReader
    from swarmd.chain.coordinator import CoordinatorContract
    from swarmd.chain.endpoints import RpcPool


def list_swarms(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON: one array, an object a kind.")] = False,
) -> None:
    """List the installed kinds of swarm."""
    kinds = list_kinds()
    if as_json:
        rows = [
            {"name": kind.name, "stages": kind.stages, "summary": kind.summary, "from": kind.origin}
            | {"usable": not kind.fault, "fault": kind.fault}
            for kind in kinds
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    width = max(len(kind.name) for kind in kinds)
    for kind in kinds:
        brought = f" (from {kind.origin})" if kind.fault or kind.origin != "swarmd" else ""
        stages = f"{kind.stages} stage{'s' if kind.stages > 1 else ' '}"
        said = f"cannot be used: {kind.fault}" if kind.fault else f"{stages}  {kind.summary}"
        typer.echo(f"{kind.name:{width}}  {said}{brought}")


TEMPLATES = Path(__file__).parent / "scaffolds"
SUFFIX = ".txt"  # keeps templates from being imported as modules of swarmd
NAME, MODULE, CLASS = "my-swarm", "my_swarm", "MySwarm"  # placeholders in the templates
QUESTIONS = "questions.jsonl"
EXAMPLES = 80  # questions in the example, alternating between two tasks
# Names that are invalid for a module, or that an existing module has.
TAKEN = sys.stdlib_module_names | {"swarmd", *keyword.kwlist}

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def scaffold(
    name: Annotated[str, typer.Argument(help="The swarm's name: a-z, 0-9 and -, such as my-swarm.")],
    kind: Annotated[
        Literal["file", "plan"],
        typer.Option(help="file: questions and named rewards, no code; plan: a Python package."),
    ] = "file",
    directory: Annotated[Path | None, typer.Option("--dir", help="To write to; ./NAME without it.")] = None,
) -> None:
    """Write an example swarm to run and change."""
    _check_name(name, kind)
    root = directory or Path(name)
    _make_directory(root)
    for template in sorted((TEMPLATES / kind).glob(f"*{SUFFIX}")):
        _write(
            root / _fill_in_names(template.name.removesuffix(SUFFIX), name),
            _fill_in_names(template.read_text("utf-8"), name),
        )
    if kind == "file":
        shipped = (configs_directory() / "file" / "data" / QUESTIONS).read_text("utf-8")
        _write(root / QUESTIONS, "".join(shipped.splitlines(keepends=True)[:EXAMPLES]))
    typer.echo(f"\nnext, as {root / 'README.md'} says:")
    if kind == "plan":
        typer.echo(f"    pip install -e {quote_for_shell(root)}")
    typer.echo(f"    swarmd local --kind {quote_for_shell(root / 'config.toml')} --rounds 4")


def _check_name(name: str, kind: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > 40:
        raise ConfigError(
            f"{name!r} is not a name for a swarm here", "Write up to 40 of a-z, 0-9 and -, such as my-swarm"
        )
    if kind == "plan" and name in BUILT_IN:
        raise ConfigError(f"swarmd has a kind {name!r} itself", "Choose another name")
    if kind == "plan" and _module(name) in TAKEN:
        raise ConfigError(
            f"the package {_module(name)!r} could not be imported: Python, or swarmd, has this name itself",
            "Choose another name",
        )


def _make_directory(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
        filled = any(root.iterdir())
    except OSError as error:
        fix = advise_on_path_error(error, root) or "Choose another --dir"
        raise PathUnusable(f"the directory {root} cannot be made: {error.strerror}", fix) from error
    if filled:
        raise PathUnusable(f"{root} has files in it, which are never written over", "Choose another --dir")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    typer.echo(f"{path}: written")


def _fill_in_names(text: str, name: str) -> str:
    title = "".join(part.capitalize() for part in name.split("-"))
    return text.replace(NAME, name).replace(MODULE, _module(name)).replace(CLASS, title)


def _module(name: str) -> str:
    return name.replace("-", "_")


RANGE_BLOCKS = 20_000  # blocks in one request; an endpoint that refuses is asked for fewer
SHOWN_MAX = 20  # members listed for people; --json has all


class ContractStatus(msgspec.Struct, frozen=True):
    chain_id: int
    contract: str
    block: int
    round: int
    stage: int
    stages: int
    opened_at: float  # POSIX seconds
    deadline_at: float | None  # from when on anyone may advance the stage
    min_submissions: int
    max_stage_s: int
    submissions: int | None  # reports for this stage; None if the contract does not count them
    can_advance: bool
    block_at: float  # POSIX seconds of `block`, by the chain's clock like opened_at and deadline_at
    open: bool
    registered: int  # number of registered peer ids
    allowed: tuple[str, ...]  # peer ids on the allow-list
    bootnodes: tuple[str, ...]


def status(
    manifest: Annotated[Path | None, typer.Argument(metavar="[MANIFEST]", help="The swarm's manifest.")] = None,
    rpc: options.Endpoints = None,
    contract: Annotated[str, typer.Option(help="The contract's address, without a manifest.")] = "",
    from_block: Annotated[int, typer.Option(min=0, help="Block that created it, without a manifest.")] = 0,
    as_json: options.PrintJson = False,
) -> None:
    """Show the state of a swarm on a chain: round, stage, deadline, policy, peers, bootnodes, members.

    For a swarm without a chain, print what its manifest says.
    """
    from swarmd.cli.contract import find_target

    urls = options.read_payer_options(rpc, None, None, options.MAX_GWEI).rpc
    if manifest is None:
        if not (urls and contract):
            raise ConfigError("which swarm?", "Name its manifest, or give --rpc URL and --contract ADDRESS")
        options.check_address(contract)
        found = anyio.run(_read_contract_status, urls, None, contract, from_block)
        _print_contract_status(found, as_json)
        return
    target = find_target(manifest)
    chain = target.manifest.chain
    if chain is None and (urls or contract):
        raise ConfigError(f"the swarm {target.manifest.id} has no chain", "Leave out --rpc and --contract")
    if not as_json:
        _show_manifest(target.manifest)
    if chain is not None:
        found = anyio.run(
            _read_contract_status, target.endpoint_urls(urls), chain.chain_id, chain.contract, chain.from_block
        )
        _print_contract_status(found, as_json)
    elif as_json:
        options.print_json(target.manifest)
    else:
        typer.echo(
            f"rounds: by {target.manifest.creator}; where they are tells `swarmd status` of any node of the swarm,"
        )
        typer.echo(f"    without a node `swarmd dashboard --manifest {quote_for_shell(manifest)}`")


def check(manifest: options.ManifestFile) -> None:
    """Check a manifest without any network: form, digest of the recipe, signature of the creator."""
    checked = read_manifest(manifest)
    _show_manifest(checked)
    typer.echo(f"{manifest}: valid, signed by {checked.creator}")


def _show_manifest(manifest: Manifest) -> None:
    recipe = manifest.recipe
    pinned = f" ({recipe.revision})" if recipe.revision else ""
    tasks = ", ".join(task.name for task in recipe.tasks) or questions_file_of(recipe.options)
    tasks = tasks or ("the embedded digit tasks" if recipe.kind == "digits" else "its kind's own questions")
    typer.echo(f'swarm: "{manifest.name}", {manifest.id}')
    typer.echo(f"creator: {manifest.creator}, {options.utc(manifest.created_at)}")
    typer.echo(f"recipe: {recipe.digest[:16]}, {recipe.kind}, model {recipe.model}{pinned}, {tasks}")
    typer.echo(f"membership: {manifest.membership}")
    if manifest.average_weights_every:
        often = f"every {manifest.average_weights_every} rounds" if manifest.average_weights_every > 1 else "each round"
        typer.echo(f"weights: averaged with other members' {often}, by nodes that do not say otherwise")


async def _read_contract_status(
    urls: Sequence[str], chain_id: int | None, contract: str, from_block: int
) -> ContractStatus:
    from swarmd.chain.coordinator import CoordinatorContract
    from swarmd.cli.contract import connect_chain

    async with connect_chain(urls, chain_id) as reached:
        coordinator = CoordinatorContract(reached.rpc, contract, from_block, RANGE_BLOCKS)
        await coordinator.check_contract()
        return await read_status_at_block(reached.rpc, coordinator, reached.chain_id, from_block)


async def read_status_at_block(
    rpc: "RpcPool", coordinator: "CoordinatorContract", chain_id: int, from_block: int
) -> ContractStatus:
    """Read a contract's status as of one block. Raises ChainError."""
    from swarmd.chain.blocks import RpcBlockReader

    blocks = RpcBlockReader(rpc, coordinator.contract, RANGE_BLOCKS)
    head = await blocks.get_head()
    at = hex(head.number)
    round, stage = await coordinator.round_and_stage(at)
    policy = await coordinator.round_policy(at)
    opened_at = await coordinator.stage_opened_at(at)
    registered, allowed = await _read_peers(blocks, from_block, head.number)
    return ContractStatus(
        chain_id=chain_id,
        contract=coordinator.contract,
        block=head.number,
        round=round,
        stage=stage,
        stages=await coordinator.stage_count(at),
        opened_at=opened_at,
        deadline_at=opened_at + policy.max_stage_s if policy.max_stage_s else None,
        min_submissions=policy.min_submissions,
        max_stage_s=policy.max_stage_s,
        submissions=await coordinator.submission_count(at),
        can_advance=await coordinator.can_advance(),
        block_at=head.at,
        open=await coordinator.is_membership_open(at),
        registered=registered,
        allowed=allowed,
        bootnodes=await coordinator.bootnodes(at),
    )


async def _read_peers(blocks: "RpcBlockReader", from_block: int, head: int) -> tuple[int, tuple[str, ...]]:
    """The number of registered peers and the allow-list, from events, since the contract cannot list them."""
    from swarmd.chain.logs import ALLOWED_TOPIC, DISALLOWED_TOPIC, decode_allow_list_change, event_topic

    registration = event_topic("PeerRegistered(address,string)")
    registered, allowed = 0, dict[str, None]()
    async for span in blocks.iter_log_ranges(from_block, head, [[[registration, ALLOWED_TOPIC, DISALLOWED_TOPIC]]]):
        for entry in span.entries:
            if entry.topics[0] == registration:
                registered += 1
            elif entry.topics[0] == ALLOWED_TOPIC:
                allowed |= dict.fromkeys(decode_allow_list_change(entry))
            else:
                gone = set(decode_allow_list_change(entry))
                allowed = {peer: None for peer in allowed if peer not in gone}
    return registered, tuple(allowed)


def _print_contract_status(found: ContractStatus, as_json: bool) -> None:
    if as_json:
        options.print_json(found)
        return
    open_s = max(0.0, found.block_at - found.opened_at)
    at = options.utc(found.block_at, "%H:%M:%S")
    typer.echo(f"contract: {found.contract} on chain {found.chain_id}, at block {found.block} of {at}")
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


app = typer.Typer(no_args_is_help=True, add_completion=False, help="Create and manage a swarm.")
app.command("list")(list_swarms)
app.command()(scaffold)
app.command("new")(new)
app.command()(invite)
app.command()(status)
app.command()(check)
register_commands(app)

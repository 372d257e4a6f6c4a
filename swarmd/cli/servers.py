"""`swarmd signer`, `reference-server` and `model serve`: HTTP servers beside nodes, which run until stopped.

- The signer holds an account's key and submits for many nodes, over RL Swarm's HTTP interface.
- The reference server computes log-probabilities of a frozen model for trainers.
- A served model answers like OpenAI's API and vLLM's.

Other machines need a bearer token for all of them.
"""

import asyncio
from collections.abc import Collection, Coroutine
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from swarmd.cli.chat import ModelDevice, ModelDtype, ModelPlace, Threads, load_decoder, name_model
from swarmd.cli.options import ConfigFile, ListenAt, RequestToken, check_address
from swarmd.config import ChainConfig, Device, Dtype, TrainingConfig, describe_invalid, load_config
from swarmd.daemon.process import disable_core_dumps
from swarmd.errors import ConfigError, ExitCode, SwarmdError
from swarmd.http_server import check_listen, load_token, parse_listen
from swarmd.observe.logs import log_fatal, set_up_logging
from swarmd.observe.redaction import find_url_secrets
from swarmd.paths import NodeDirectory
from swarmd.uvicorn_server import bind

AUDIT = "signer.audit.jsonl"


def signer(
    config: ConfigFile = None,
    rpc: Annotated[list[str] | None, typer.Option(metavar="URL", help="A node of the chain, best first.")] = None,
    chain_id: Annotated[int | None, typer.Option(min=1, help="The chain's id.")] = None,
    contract: Annotated[str | None, typer.Option(metavar="ADDRESS", help="The swarm's contract.")] = None,
    keystore: Annotated[
        str | None,
        typer.Option("--account", metavar="KEYSTORE", help="The account that submits; a file, or credential:NAME."),
    ] = None,
    passphrase_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A private file with its passphrase, or credential:NAME.")
    ] = None,
    listen: ListenAt = "127.0.0.1:3000",
    token_file: RequestToken = "",
    org: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="The orgId that nodes name; several are possible.")
    ] = None,
    peer: Annotated[
        list[str] | None, typer.Option(metavar="PEER", help="A peer id to serve; several are possible. Default: all.")
    ] = None,
    per_minute: Annotated[int, typer.Option(min=0, help="Requests a minute, 0 for any number.")] = 0,
    max_gwei: Annotated[float | None, typer.Option(min=0, help="Highest gas price.")] = None,
    day_coins_max: Annotated[
        float | None, typer.Option(min=0, help="Coins that are signed for in a day at most; 0 for no bound.")
    ] = None,
    audit: Annotated[Path | None, typer.Option(metavar="FILE", help=f"The audit log. Default: {AUDIT}")] = None,
) -> int:
    """Hold the key of an account and submit for nodes.

    With --config, the section chain of a node's configuration says how to reach the chain.
    """

    from swarmd.chain.endpoints import read_endpoint_urls
    from swarmd.chain.signer_http import TOKEN, AccessRules, SignerSetup, run_signer

    disable_core_dumps()
    base, data = _read_chain_config(config)
    chain = _apply_chain_options(base, rpc, chain_id, contract, {"max_gwei": max_gwei, "day_coins_max": day_coins_max})
    # Options' paths are relative to the working directory, those of the configuration to the data directory.
    files = {"keystore": keystore, "passphrase": passphrase_file}
    absolute: dict[str, Any] = {
        key: name if name.startswith("credential:") else str(Path.cwd() / name) for key, name in files.items() if name
    }
    chain = msgspec.structs.replace(chain, **absolute)
    orgs = frozenset(org or ([chain.proxy.org] if chain.proxy.org else []))
    _refuse_empty_names(orgs, peer or ())
    access = AccessRules(orgs, load_token(token_file, Path.cwd(), TOKEN), frozenset(peer or ()), per_minute)
    order = SignerSetup(chain, data, parse_listen(listen, 3000), access, audit or data.root / AUDIT)
    secrets = [secret for url in read_endpoint_urls(chain.rpc, data.root) for secret in find_url_secrets(url)]
    set_up_logging("info", "auto", secrets=secrets + ([access.token] if access.token else []))
    return _run_server(run_signer(order))


def _refuse_empty_names(orgs: Collection[str], peers: Collection[str]) -> None:
    """Raise ConfigError for an empty organisation or peer, as from an unset shell variable."""
    from swarmd.chain.signer_http import PEER

    if not orgs or not all(map(str.strip, orgs)):
        raise ConfigError("no organisation is named", "Give --org ID: nodes name it in each request")
    for peer in peers:
        if not PEER.fullmatch(peer):
            raise ConfigError(f"--peer {peer!r} is not a peer id", "`swarmd identity show` prints that of a node")


def _read_chain_config(config: Path | None) -> tuple[ChainConfig, NodeDirectory]:
    """A configuration's chain section and data directory; without one, defaults and the working directory."""
    if config is None:
        return ChainConfig((), 1, ""), NodeDirectory(Path.cwd())
    loaded = load_config(config)
    if loaded.chain is None:
        raise ConfigError(f"{config} has no [chain]", "Name the swarm's chain and contract there, or with options")
    return loaded.chain, NodeDirectory(config.parent / loaded.data)


def _apply_chain_options(
    chain: ChainConfig,
    rpc: list[str] | None,
    chain_id: int | None,
    contract: str | None,
    bounds: dict[str, float | None],
) -> ChainConfig:
    if contract:
        check_address(contract)
    given: dict[str, Any] = {key: value for key, value in bounds.items() if value is not None}
    fees = msgspec.structs.replace(chain.fees, **given)
    if not chain.rpc and not (rpc and chain_id and contract):
        raise ConfigError(
            "a signer needs --rpc, --chain-id and --contract, or --config with a [chain]",
            "Name a node's configuration: `swarmd signer --config DIR/config.toml`",
        )
    changed = msgspec.structs.replace(
        chain,
        rpc=tuple(rpc or chain.rpc),
        chain_id=chain_id or chain.chain_id,
        contract=contract or chain.contract,
        fees=fees,
    )
    try:  # the same checks as for a configuration file
        return msgspec.convert(msgspec.to_builtins(changed), ChainConfig)
    except msgspec.ValidationError as error:
        message, fix = describe_invalid(error, ChainConfig, "chain")
        raise ConfigError(f"an option is wrong: {message}", fix) from None


def reference_server(
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="As training.model: embedded, a directory, or a Hugging Face id.")
    ] = "embedded",
    revision: Annotated[str, typer.Option(metavar="REV", help="As training.revision.")] = "",
    listen: ListenAt = "127.0.0.1:59807",
    token_file: RequestToken = "",
    compat: Annotated[bool, typer.Option("--compat", help="Also answer simple_GRPO's /upload and /get.")] = False,
    device: Annotated[Device, typer.Option(help="As training.device.")] = "auto",
    dtype: Annotated[Dtype, typer.Option(help="As training.dtype.")] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="torch's threads; 0: automatic.")] = 0,
    jobs_max: Annotated[int, typer.Option(min=1, help="Jobs kept, waiting or not yet acknowledged.")] = 256,
    kept_mib: Annotated[int, typer.Option(min=1, help="MiB that their inputs and results take.")] = 1024,
    body_mib: Annotated[int, typer.Option(min=1, help="MiB of one request.")] = 64,
    sequences_max: Annotated[int, typer.Option(min=1, help="Sequences of one job.")] = 1024,
    tokens_max: Annotated[int, typer.Option(min=2, help="Tokens of one sequence.")] = 8192,
    age_s: Annotated[float, typer.Option(min=0.1, help="A job nobody asked for during this time is dropped.")] = 600.0,
    lease_s: Annotated[float, typer.Option(min=0.1, help="A result handed out stays at least so long.")] = 120.0,
) -> int:
    """Serve reference log-probabilities."""
    address, token = parse_listen(listen, 59807), load_token(token_file, Path.cwd())
    check_listen(address, token, "the reference server")
    bind(address).close()  # report a taken port before the slow import of torch
    set_up_logging("info", "auto", secrets=[token] if token else [])
    from swarmd.training.library_logging import silence_libraries

    silence_libraries()  # must precede the import of datasets
    from swarmd.training.reference.server import QueueLimits, ServerLimits, run_server

    training = TrainingConfig(model=model, revision=revision, device=device, dtype=dtype, threads=threads)
    limits = ServerLimits(
        body_mib << 20, sequences_max, tokens_max, QueueLimits(jobs_max, kept_mib << 20, age_s, lease_s)
    )
    return _run_server(run_server(training, address, token, compat, limits))


def serve_model(
    directory: ModelPlace,
    listen: ListenAt = "127.0.0.1:8000",
    token_file: RequestToken = "",
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="What clients call the model; else as its directory.")
    ] = "",
    device: ModelDevice = None,
    dtype: ModelDtype = None,
    threads: Threads = 0,
) -> int:
    """Serve a model, or a node's newest checkpoint, over OpenAI's and vLLM's HTTP interfaces, until told to stop.

    Answers /v1/models, /v1/chat/completions, /v1/completions and /inference/v1/generate.
    """
    address, token = parse_listen(listen, 8000), load_token(token_file, Path.cwd())
    check_listen(address, token, "the model's server")
    bind(address).close()  # report a taken port before the slow import of torch
    set_up_logging("info", "auto", secrets=[token] if token else [])
    decoder = load_decoder(directory, device, dtype, threads)
    from swarmd.training.serving.server import run_server

    return _run_server(run_server(decoder, name or name_model(directory), address, token))


def _run_server(server: Coroutine[Any, Any, None]) -> int:
    """Run a server until it is stopped. Returns the exit code."""
    try:
        asyncio.run(server)
    except SwarmdError as error:
        log_fatal(error)
        return error.exit_code
    return ExitCode.OK

"""`swarmd account`: make the account that pays for submissions, show it, or import the key of one.

A key and a passphrase are read from a file, standard input or a terminal without echo, never from the command line.
"""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from swarmd.cli.options import KeyPassphraseFile, ask_hidden, read_passphrase, refuse_existing
from swarmd.errors import KeystoreDamaged
from swarmd.gas import format_coins

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Make, show or import the account that submits.")

KEY_CHARS_MAX = 256  # read at most; a key has 66
CALL_S = 10.0

File = Annotated[Path, typer.Argument(help="The keystore, usually DATA/account.json.")]
NewPassphrase = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        metavar="FILE",
        help="Private file with the passphrase, made if missing; else asked for.",
    ),
]


@app.command()
def new(path: File, passphrase_file: NewPassphrase = None) -> None:
    """Make a new key, encrypted (mode 0600), and print its address. An existing file is never overwritten."""
    from swarmd.chain.keystore import create_keystore

    refuse_existing(path, "a keystore")
    account = create_keystore(path, _read_or_create_passphrase(passphrase_file))
    typer.echo(account.address)
    typer.echo(f"keep a copy of {path} and of its passphrase: nobody can bring them back", err=True)


@app.command("import")
def import_key(path: File, passphrase_file: NewPassphrase = None) -> None:
    """Encrypt the key of an existing account, which is read from standard input or asked for."""
    from swarmd.chain import keystore

    refuse_existing(path, "a keystore")
    key = _read_private_key()
    keystore.account_from_key(key)  # validates the key before asking for a passphrase
    typer.echo(keystore.import_key(path, key, _read_or_create_passphrase(passphrase_file)).address)


@app.command()
def show(
    path: File,
    rpc: Annotated[
        str, typer.Option(metavar="URL", help="A node of the chain, to show the balance; a file of URLs as file:PATH.")
    ] = "",
    passphrase_file: KeyPassphraseFile = None,
) -> None:
    """Print an account's address and, with --rpc, what it has; with --passphrase-file, check that its key opens."""
    from swarmd.chain.keystore import read_keystore, read_keystore_address

    if passphrase_file is None:
        address = read_keystore_address(path)
    else:
        address = read_keystore(path, read_passphrase(passphrase_file, "")).address
    typer.echo(address)
    if not rpc:
        return
    chain_id, balance_wei, count = asyncio.run(_read_account_state(address, rpc))
    typer.echo(f"chain: {chain_id}")
    typer.echo(f"balance: {format_coins(balance_wei)} ({balance_wei} wei)")
    typer.echo(f"transactions: {count}")


async def _read_account_state(address: str, rpc: str) -> tuple[int, int, int]:
    from swarmd.chain.endpoints import make_endpoint, read_endpoint_urls
    from swarmd.chain.fees import parse_quantity

    endpoint = make_endpoint(read_endpoint_urls([rpc], Path.cwd())[0], CALL_S)
    try:
        chain_id = parse_quantity(await endpoint.call("eth_chainId", [], str), "chain id")
        balance = parse_quantity(await endpoint.call("eth_getBalance", [address, "latest"], str), "balance")
        count = parse_quantity(await endpoint.call("eth_getTransactionCount", [address, "latest"], str), "nonce")
    finally:
        await endpoint.close()
    return chain_id, balance, count


def _read_or_create_passphrase(file: Path | None) -> str:
    from swarmd.chain.keystore import check_passphrase, create_passphrase

    if file is not None and not file.exists():
        passphrase = create_passphrase(file)
        typer.echo(f"{file} holds a new random passphrase (mode 0600)", err=True)
        return passphrase
    passphrase = read_passphrase(file, "Passphrase of the new keystore", twice=True)
    check_passphrase(passphrase)
    return passphrase


def _read_private_key() -> str:
    if sys.stdin.isatty():
        return ask_hidden("Private key").strip()
    key = sys.stdin.buffer.read(KEY_CHARS_MAX).decode("ascii", "replace").strip()
    if not key:
        raise KeystoreDamaged(
            "there is no key on standard input", "Give it there, or at a terminal; never as an argument"
        )
    return key

"""Creates a node's directory: identity, account and configuration, each made once and never overwritten."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import typer

from swarmd.config import Config, load_config
from swarmd.daemon.directory import SwarmIdentity, advise_other_directory, refuse_other_swarm, swarm_of_config
from swarmd.dht.identity.identity import Identity, create_identity, load_identity
from swarmd.errors import NotFoundError, PathUnusable, SwarmMismatch
from swarmd.files import advise_on_path_error, hold_directory_lock, replace_durably
from swarmd.paths import NodeDirectory, quote_for_shell

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount


class OwnAccount(NamedTuple):
    """An account whose key this node holds."""

    key: "LocalAccount"
    keystore: str  # paths as written in the configuration
    passphrase: str


def default_passphrase_path(keystore: Path) -> Path:
    return keystore.with_suffix(".pass")


def open_keystore(keystore: Path, passphrase: Path | None) -> "LocalAccount":
    """Open a keystore with its passphrase file. Raises KeystoreError."""
    from swarmd.chain.keystore import load_passphrase, read_keystore

    if not keystore.exists():
        fix = f"Make one with `swarmd account new {quote_for_shell(keystore)}`"
        raise NotFoundError(f"there is no keystore {keystore}", fix)
    secret = passphrase or default_passphrase_path(keystore)
    return read_keystore(keystore, load_passphrase(secret.name, secret.parent))


def write_private_if_absent(path: Path, text: str) -> None:
    """Write a private file atomically unless it exists. Raises PathUnusable."""
    try:
        replace_durably(path, text.encode(), mode=0o600)
    except OSError as error:
        fix = advise_on_path_error(error, path) or "Make room for it, and try again"
        raise PathUnusable(f"{path} cannot be written: {error.strerror}", fix) from error


class NodeCreator:
    """Creates the files of a node, and prints for each whether it was made or kept. `data` is relative to `root`."""

    def __init__(self, root: Path, data: str = ".") -> None:
        self.home, self.data = NodeDirectory(root), NodeDirectory(root / data)

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Make the directories, and lock out other commands meanwhile. Raises PathUnusable."""
        self.home.create()
        self.data.create()
        with hold_directory_lock(self.home.root):
            yield

    def make_identity(self, given: Path | None = None) -> Identity:
        """The given or existing identity, or else a new one."""
        path = given or self.data.identity
        if given is not None or path.exists():
            identity = load_identity(path)
            typer.echo(f"identity: {identity.peer_id}, kept from {path}")
            return identity
        fresh = create_identity(path)
        typer.echo(f"identity: {fresh.peer_id}, made: keep a copy of {path}")
        return fresh

    def make_account(self, given: Path | None, passphrase: Path | None) -> OwnAccount:
        """The given or existing account, or else a new one with a random passphrase. Raises KeystoreError."""
        from swarmd.chain.keystore import create_keystore, create_passphrase, load_passphrase

        keystore = given or self.data.keystore
        secret = passphrase or default_passphrase_path(keystore)
        names = (self.relative_name(keystore), self.relative_name(secret))
        if given is not None or keystore.exists():
            key = open_keystore(keystore, secret)
            typer.echo(f"account: {key.address}, kept from {keystore}")
            return OwnAccount(key, *names)
        words = load_passphrase(secret.name, secret.parent) if secret.exists() else create_passphrase(secret)
        key = create_keystore(keystore, words)
        typer.echo(f"account: {key.address}, made: keep a copy of {keystore} and of its passphrase, {secret}")
        return OwnAccount(key, *names)

    def relative_name(self, path: Path) -> str:
        """A path as written in the configuration: relative to the data directory if it lies there."""
        whole, data = path.resolve(), self.data.root.resolve()
        return str(whole.relative_to(data) if whole.is_relative_to(data) else whole)

    def store_endpoints(self, urls: list[str]) -> tuple[str, ...]:
        """Endpoints for the configuration. URLs that may contain a key go into a private file."""
        from swarmd.chain.endpoints import url_without_secrets

        if all(url_without_secrets(url) == url.rstrip("/") for url in urls):
            return tuple(urls)
        self.write_private_file(self.data.endpoints, "".join(f"{url}\n" for url in urls))
        return (f"file:{self.data.endpoints.name}",)

    def write_private_file(self, path: Path, text: str) -> bool:
        """Write a private file unless it exists. Returns whether it was written. Raises PathUnusable."""
        if os.path.lexists(path):
            typer.echo(f"{path}: exists, kept as it is")
            return False
        write_private_if_absent(path, text)
        typer.echo(f"{path}: written")
        return True

    def read_existing_config(self, asked: SwarmIdentity) -> Config | None:
        """The existing configuration, which stays in force; None without one. Raises SwarmMismatch if it, or the node's
        log, belongs to another swarm; LogDamaged if the log cannot be read."""
        config = load_config(self.home.config) if self.home.config.exists() else None
        data = NodeDirectory(self.home.root / config.data) if config else self.data
        if config is None:
            refuse_other_swarm(data, asked)
            return None
        named = swarm_of_config(config)
        if named.differs_from(msgspec.structs.replace(asked, kind="")):
            raise SwarmMismatch(
                f"{self.home.config} is of a node of the swarm {named}, not of {asked}", advise_other_directory(data)
            )
        refuse_other_swarm(data, named)
        return config

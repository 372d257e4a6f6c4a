"""`swarmd dashboard`: the page and the HTTP interface of a node, from its log, whether its daemon runs or not.

The same page shows an archived log (`swarmd replay --web`), or a swarm that is observed in the DHT without a node.
"""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from swarmd.cli.options import ConfigFile, NodeDir, find_log_of_node, locate_node
from swarmd.config import Config, WebConfig, load_config
from swarmd.errors import ConfigError, SwarmdError
from swarmd.http_server import PAGE_PORT, check_listen, load_token, parse_listen
from swarmd.observe.redaction import known_secrets
from swarmd.paths import NodeDirectory

if TYPE_CHECKING:
    from swarmd.web.guard import AccessRules


LISTEN = "127.0.0.1:8800"


class PageOptions(NamedTuple):
    """Where a page is served, and to whom."""

    listen: str = LISTEN
    token: str = ""
    hosts: tuple[str, ...] = ()
    open_page: bool = False
    else_any: bool = False  # if the port is taken, listen on any


def dashboard(
    directory: NodeDir = None,
    config: ConfigFile = None,
    swarm: Annotated[
        Path | None,
        typer.Option(
            "--manifest",
            metavar="MANIFEST",
            help="Observe a swarm in the DHT and on the chain instead, without a node.",
        ),
    ] = None,
    bootstrap: Annotated[
        list[str] | None,
        typer.Option("--bootnode", metavar="ADDRESS", help="With --manifest: a node to ask, beside the manifest's."),
    ] = None,
    rpc: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="With --manifest: endpoint of the chain, best first, in place of the manifest's; file:PATH for a file "
            "of them.",
        ),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help=f"Where to listen, by default {LISTEN}.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Bearer token; needed beyond this machine.")
    ] = None,
    hosts: Annotated[
        list[str] | None, typer.Option("--host", metavar="NAME", help="Another host name of the page.")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show a node and its swarm in a browser, until Ctrl-C. Reads the node's log; changes nothing.

    With --config, listen address, token and host names are by default those of its section web. With --manifest nothing
    is read from a node: the swarm's records in the DHT are followed by an observer that writes none, and so is its
    contract, if it has one.
    """
    given = str(token_file.absolute()) if token_file is not None else ""  # a path is relative to where it is given
    if swarm is not None:
        if directory is not None or config is not None:
            raise ConfigError("--manifest observes the DHT, not a node", "Give no directory and no --config with it")
        page = PageOptions(listen or LISTEN, given, tuple(hosts or ()), open_page)
        serve_observer(swarm, bootstrap or (), rpc or (), page)
        return
    if bootstrap or rpc:
        raise ConfigError("--bootnode and --rpc are for an observer", "Give --manifest MANIFEST with them")
    node = locate_node(directory, config)
    loaded = load_config(config) if config is not None else None
    web = loaded.web if loaded is not None else WebConfig()
    if not NodeDirectory(node.data).events.is_dir():
        find_log_of_node(node, directory is None and config is None)
    page = PageOptions(listen or web.listen or LISTEN, given or web.token, (*(hosts or ()), *web.hosts), open_page)
    serve_log(node.data, page, loaded or find_usable_config(node.config))


def find_usable_config(found: Path | None) -> Config | None:
    """A node's own configuration, if it can be read; without it, the page shows the log all the same."""
    try:
        return load_config(found) if found is not None else None
    except SwarmdError:
        return None


def serve_log(root: Path, page: PageOptions, config: Config | None = None, archive: Path | None = None) -> None:
    """Serve the page of a data directory's log, in this process, until stopped. `archive`: a log that does not grow,
    shown in place of the directory's own; the daemon is not asked. Raises ConfigError: the address is not one, or other
    machines could reach it without a token; AddressInUse: it cannot be listened on."""
    from swarmd.web.app import make_app
    from swarmd.web.companion import serve_page
    from swarmd.web.moments import add_covered_secrets
    from swarmd.web.node import NodeLogSource

    doors, endpoint = prepare_page_access(page, root)
    if config is not None:
        add_covered_secrets(known_secrets(config, root))
    node = NodeLogSource(NodeDirectory(root), config, archive)
    serve_page(make_app(node, doors, node), endpoint, page.open_page)


def serve_observer(manifest: Path, bootstrap: Sequence[str], rpc: Sequence[str], page: PageOptions) -> None:
    """Serve the page of a swarm as the DHT and its contract show it, in this process, until stopped. Raises
    ManifestError, ConfigError as `open_observer`, AddressInUse."""

    from swarmd.web.app import make_app
    from swarmd.web.companion import serve_page
    from swarmd.web.observer import open_observer

    with open_observer(manifest, bootstrap, rpc) as observed:
        doors, endpoint = prepare_page_access(page, Path.cwd())
        serve_page(make_app(observed, doors, background=[observed.run]), endpoint, page.open_page)


def prepare_page_access(page: PageOptions, root: Path) -> "tuple[AccessRules, socket.socket]":
    """Who is let in, and the socket that they come through. Raises ConfigError, AddressInUse."""
    from swarmd.uvicorn_server import bind
    from swarmd.web.guard import AccessRules

    address = parse_listen(page.listen, PAGE_PORT)
    secret = load_token(page.token, root)
    check_listen(address, secret, "the dashboard")
    return AccessRules(address, secret, page.hosts), bind(address, page.else_any)

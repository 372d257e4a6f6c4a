"""`swarmd dashboard`: a node's page and HTTP API, served from its log, whether or not its daemon runs.

The same page shows an archived log (`swarmd replay --web`), or a swarm observed in the DHT without a node.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from swarmd.cli.options import RULE, ConfigFile, find_log_of_node, locate_node, require_node
from swarmd.cli.status import read_status
from swarmd.config import Config, WebConfig, load_config
from swarmd.errors import ConfigError, SwarmdError
from swarmd.http_server import PAGE_PORT, check_listen, load_token, parse_listen
from swarmd.observe.redaction import known_secrets
from swarmd.paths import NodeDirectory

if TYPE_CHECKING:
    from swarmd.web.guard import AccessRules
    from swarmd.web.nodes import LocalNode, RemoteNode


LISTEN = "127.0.0.1:8800"
ADDRESS = re.compile(r"https?://\S+|[^/\s]+:\d{1,5}")


class PageOptions(NamedTuple):
    """Where a page is served, and who may see it."""

    listen: str = LISTEN
    token: str = ""
    hosts: tuple[str, ...] = ()
    open_page: bool = False
    else_any: bool = False  # use any free port if the requested one is taken


def dashboard(
    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR|HOST:PORT...]",
            help=f"{RULE} Several nodes, or the address of a page elsewhere: one page for all, each in a row.",
            show_default=False,
        ),
    ] = None,
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
    contract, if it has one. With several nodes, as in `swarmd dashboard alice bob 192.168.1.7:8800`, one page shows all
    in rows: health, earnings, what wants attention, and links to their own pages.
    """
    given = str(token_file.absolute()) if token_file is not None else ""  # relative to the working directory
    if swarm is not None:
        if places or config is not None:
            raise ConfigError("--manifest observes the DHT, not a node", "Give no directory and no --config with it")
        page = PageOptions(listen or LISTEN, given, tuple(hosts or ()), open_page)
        serve_observer(swarm, bootstrap or (), rpc or (), page)
        return
    if bootstrap or rpc:
        raise ConfigError("--bootnode and --rpc are for an observer", "Give --manifest MANIFEST with them")
    if places and (len(places) > 1 or is_address(places[0])):
        if config is not None:
            raise ConfigError("--config is one node's, and several are given", "Leave it out, or name one node")
        serve_nodes(places, PageOptions(listen or LISTEN, given, tuple(hosts or ()), open_page))
        return
    directory = Path(places[0]) if places else None
    node = locate_node(directory, config)
    loaded = load_config(config) if config is not None else None
    web = loaded.web if loaded is not None else WebConfig()
    if not NodeDirectory(node.data).events.is_dir():
        find_log_of_node(node, directory is None and config is None)
    page = PageOptions(listen or web.listen or LISTEN, given or web.token, (*(hosts or ()), *web.hosts), open_page)
    serve_log(node.data, page, loaded or find_usable_config(node.config))


def is_address(place: str) -> bool:
    """Whether `place` is HOST:PORT or a URL, and not a directory."""
    return bool(ADDRESS.fullmatch(place)) and not Path(place).exists()


def serve_nodes(places: Sequence[str], page: PageOptions) -> None:
    """Serve one page for several nodes until stopped.

    Raises:
        NotFoundError: a directory is not a node's.
        ConfigError: too many nodes, or as `prepare_page_access`.
    """
    from swarmd.web.companion import serve_page
    from swarmd.web.nodes import NODES_MAX, NodesSource, make_nodes_app

    if len(places) > NODES_MAX:
        raise ConfigError(f"{len(places)} nodes are more than one page shows", f"Name at most {NODES_MAX}")
    token = load_token(page.token, Path.cwd())
    source = NodesSource([open_node(place, token) for place in places])
    doors, endpoint = prepare_page_access(page, Path.cwd())
    serve_page(make_nodes_app(source, doors), endpoint, page.open_page)


def open_node(place: str, token: str) -> LocalNode | RemoteNode:
    """Open a node for the page of several, by its directory or its own page's address. Raises NotFoundError."""
    from swarmd.web.nodes import LocalNode, RemoteNode

    if is_address(place):
        return RemoteNode(place if "://" in place else f"http://{place}", token)
    node = locate_node(Path(place))
    if not node.data.is_dir():
        require_node(node)
    config = find_usable_config(node.config)
    url = f"http://{config.web.listen}" if config is not None and config.web.listen else ""
    paths = NodeDirectory(node.data)
    return LocalNode(paths, partial(read_status, paths, node.config), url)


def find_usable_config(found: Path | None) -> Config | None:
    """A node's configuration, or None if it is invalid: the page can show the log without it."""
    try:
        return load_config(found) if found is not None else None
    except SwarmdError:
        return None


def serve_log(root: Path, page: PageOptions, config: Config | None = None, archive: Path | None = None) -> None:
    """Serve the page of a data directory's log, in this process, until stopped. `archive`: a log that does not grow,
    shown instead; the daemon is not asked then. Raises ConfigError if the address is invalid, or other machines could
    reach it without a token; AddressInUse."""
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
    """Serve a swarm's page, from the DHT and its contract, in this process, until stopped. Raises ManifestError,
    ConfigError as `open_observer`, AddressInUse."""

    from swarmd.web.app import make_app
    from swarmd.web.companion import serve_page
    from swarmd.web.observer import open_observer

    with open_observer(manifest, bootstrap, rpc) as observed:
        doors, endpoint = prepare_page_access(page, Path.cwd())
        serve_page(make_app(observed, doors, background=[observed.run]), endpoint, page.open_page)


def prepare_page_access(page: PageOptions, root: Path) -> tuple[AccessRules, socket.socket]:
    """Make the access rules and the listening socket. Raises ConfigError, AddressInUse."""
    from swarmd.uvicorn_server import bind
    from swarmd.web.guard import AccessRules

    address = parse_listen(page.listen, PAGE_PORT)
    secret = load_token(page.token, root)
    check_listen(address, secret, "the dashboard")
    return AccessRules(address, secret, page.hosts), bind(address, page.else_any)

"""`swarmd dashboard`: the page and the HTTP interface of a node, its daemon up or down."""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarmd.config import Config, load_config
from swarmd.errors import ConfigError, NotFoundError
from swarmd.paths import DataPaths

if TYPE_CHECKING:
    from swarmd.web.node import Facts

LISTEN = "127.0.0.1:8800"
PORT = 8800
DEFAULT_DIRECTORY = Path("data")


def dashboard(
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The node's data directory; by default ./data.")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The node's configuration file.")] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help=f"Where to listen, by default {LISTEN}.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Bearer token; needed beyond this machine.")
    ] = None,
    hosts: Annotated[
        list[str] | None, typer.Option("--host", metavar="NAME", help="A further host name that it is reached by.")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show a node and its swarm in a browser, until Ctrl-C. Reads the node's log; changes nothing.

    With --config, listen address, token and host names are by default those of its [web].
    """
    from swarmd.web.node import Facts

    if directory is not None and config is not None:
        raise ConfigError("both a data directory and --config were given", "Give one of them")
    loaded = load_config(config) if config is not None else None
    root = config.parent / loaded.data if config and loaded else directory or DEFAULT_DIRECTORY
    web = loaded.web if loaded else None
    serve_log(
        DataPaths(root),
        Facts(loaded.swarm.kind, loaded.web.explorer) if loaded else Facts(),
        listen or (web.listen if web else "") or LISTEN,
        token_named(token_file, web.token if web else ""),
        tuple(hosts or ()) + (web.hosts if web else ()),
        open_page=open_page,
        config=loaded,
    )


def token_named(file: Path | None, configured: str) -> str:
    """The token's place as `load_token` takes it; a path on the command line is relative to where it is given."""
    return str(file.absolute()) if file is not None else configured


def serve_log(
    paths: DataPaths,
    facts: Facts,
    listen: str,
    token: str = "",
    hosts: tuple[str, ...] = (),
    archive: Path | None = None,
    else_any: bool = False,
    open_page: bool = False,
    config: Config | None = None,
) -> None:
    """Serve the page of one log until stopped; tells the URL.

    Args:
        paths: the node's data directory.
        facts: what the log does not know.
        listen: HOST:PORT.
        token: file or credential with the bearer token; a relative path is relative to the data directory.
        hosts: further host names.
        archive: a log that does not grow, in place of the directory's own; its daemon is not asked.
        else_any: take a free port where that one is taken.
        open_page: open a browser.
        config: the node's, for the limits in its metrics.
    """
    from swarmd.observe.metrics import Metrics, limits_of
    from swarmd.serving import check_listen, load_token, parse_listen
    from swarmd.web.app import make_app
    from swarmd.web.guard import Doors
    from swarmd.web.node import LogNode
    from swarmd.web.server import bind, serve, url_of

    if archive is None and not paths.events.is_dir():
        raise NotFoundError(
            f"there is no event log in {paths.root}", "Name a node's data directory, or its configuration with --config"
        )
    address = parse_listen(listen, PORT)
    secret = load_token(token, paths.root)
    check_listen(address, secret, "the dashboard")
    endpoint = bind(address, else_any)
    limits = limits_of(config) if config is not None else None
    node = LogNode(paths, facts, Metrics(paths, limits), archive)
    app = make_app(node, Doors(address, secret, hosts), node)
    url = url_of(endpoint)

    def tell() -> None:
        typer.echo(f"{url}/  (Ctrl-C ends it)")
        if open_page:
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    serve(app, endpoint, tell)

"""`python -m swarmd.web ORDER`: what `swarmd dashboard` becomes, without the memory that a command line takes."""

from __future__ import annotations

import os
import socket
import sys
import threading
import webbrowser
from pathlib import Path

import msgspec

from swarmd.config import load_config
from swarmd.errors import ExitCode, SwarmdError
from swarmd.http_server import Address, load_token
from swarmd.observe.metrics import Metrics, limits_of
from swarmd.observe.redaction import known_secrets
from swarmd.paths import NodeDirectory
from swarmd.uvicorn_server import serve, url_of
from swarmd.web.app import make_app
from swarmd.web.http.guard import AccessRules
from swarmd.web.views.moments import cover_also
from swarmd.web.views.node import LogNode, facts_of


class PageServerSetup(msgspec.Struct, frozen=True):
    """What to show, to whom. No secret is in it: it stands in the process list.

    Attributes:
        root: the node's data directory.
        listen: host and port that were asked for.
        descriptor: of the listening socket.
        token: file or credential with the bearer token.
        hosts: further host names.
        config: the node's configuration file, empty for none.
        archive: a log that does not grow, in place of the directory's own.
        open_page: open a browser.
    """

    root: str
    listen: tuple[str, int]
    descriptor: int
    token: str = ""
    hosts: tuple[str, ...] = ()
    config: str = ""
    archive: str = ""
    open_page: bool = False


def become(show: PageServerSetup) -> None:
    """Put the server in this process's place; does not return."""
    os.set_inheritable(show.descriptor, True)
    sys.stdout.flush()
    order = msgspec.json.encode(show).decode()
    environment = {"MALLOC_ARENA_MAX": "2"} | os.environ
    os.execve(sys.executable, [sys.executable, "-m", "swarmd.web", order], environment)


def main(order: str) -> int:
    """Serve until stopped. Returns the exit code."""
    show = msgspec.json.decode(order, type=PageServerSetup)
    try:
        _serve(show)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except SwarmdError as error:
        print(f"error: {error.message}", *([f"fix: {error.fix}"] if error.fix else []), sep="\n", file=sys.stderr)
        return error.exit_code
    return ExitCode.OK


def _serve(show: PageServerSetup) -> None:
    paths = NodeDirectory(Path(show.root))
    config = load_config(Path(show.config)) if show.config else None
    if config is not None:
        cover_also(known_secrets(config, paths.root))
    metrics = Metrics(paths, limits_of(config) if config else None)
    node = LogNode(paths, facts_of(config), metrics, Path(show.archive) if show.archive else None)
    doors = AccessRules(Address(*show.listen), load_token(show.token, paths.root), show.hosts)
    endpoint = socket.socket(fileno=show.descriptor)
    url = url_of(endpoint)

    def tell() -> None:
        print(f"{url}/  (Ctrl-C ends it)", flush=True)
        if show.open_page:
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    app = make_app(node, doors, node)
    serve(app, endpoint, tell, app.let_go)

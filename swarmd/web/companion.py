"""The web process of a node, `python -m swarmd.web`.

The daemon starts it, writes one line of JSON, `WebProcessSetup`, to its stdin and keeps stdin open; one line on stdout
says that it runs, with the URL of its page, if it has one. It serves the node's page, sends notifications of its health
and pushes its metrics. When stdin ends, the daemon has ended. Then this process ends too, but if it sends notifications
it first stays long enough to report that the daemon is gone.
"""

import asyncio
import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.config import Config, NotifyConfig, decode
from swarmd.errors import ConfigError, SwarmdError
from swarmd.http_server import PAGE_PORT, check_listen, load_token, parse_listen
from swarmd.logger import get_logger
from swarmd.observe import otlp
from swarmd.observe.redaction import known_secrets
from swarmd.paths import NodeDirectory
from swarmd.uvicorn_server import HttpServer, bind, configure_logging, serve, url_of
from swarmd.web.app import make_app, run_background_tasks
from swarmd.web.endpoints import Background
from swarmd.web.guard import AccessRules, RequestGuard
from swarmd.web.moments import add_covered_secrets
from swarmd.web.node import NodeLogSource

ORDER_BYTES_MAX = 4 * 1024 * 1024
LINGER_SLACK_S = 30.0  # beyond notify.after_s, enough to report the daemon's death
LINGER_S_MAX = 600.0

log = get_logger("swarmd.web")


class WebProcessSetup(msgspec.Struct, frozen=True):
    """What the daemon writes to the process's stdin."""

    config: bytes  # encoded by `swarmd.config.encode`
    root: str  # the data directory


def main() -> int:
    """Run until stdin ends or SIGTERM. Returns the exit code."""
    configure_logging()
    try:
        order = msgspec.json.decode(sys.stdin.buffer.readline(ORDER_BYTES_MAX), type=WebProcessSetup)
        return run(decode(order.config), Path(order.root))
    except DECODE_ERRORS as error:
        print(f"ERROR this process is started by the daemon: {error}; try `swarmd dashboard`", file=sys.stderr)
        return 64
    except SwarmdError as error:
        print(f"ERROR {error}", file=sys.stderr)
        return error.exit_code


def run(config: Config, root: Path) -> int:
    """Serve, notify, or both. Raises SwarmdError if the configuration makes that impossible."""
    add_covered_secrets(known_secrets(config, root))
    node = NodeLogSource(NodeDirectory(root), config)
    background = make_background_tasks(config, root, node)
    linger_s = min(config.notify.after_s + LINGER_SLACK_S, LINGER_S_MAX) if config.notify != NotifyConfig() else 0.0
    if not config.web.listen:
        asyncio.run(_notify_only(node, background, linger_s))
        return 0
    address = parse_listen(config.web.listen, PAGE_PORT, "web.listen")
    token = load_token(config.web.token, root)
    check_listen(address, token, "the page of [web]", "web.token, a private file's name")
    endpoint = bind(address)
    app = make_app(node, AccessRules(address, token, config.web.hosts), node, background=background)
    server = HttpServer(app, lambda: print(url_of(endpoint), flush=True), app.end_streams)

    def stop_server() -> None:
        server.should_exit = True

    call_at_end_of_input(lambda: threading.Timer(linger_s, stop_server).start() if linger_s else stop_server())
    server.run([endpoint])
    return 0


def make_background_tasks(config: Config, root: Path, node: NodeLogSource) -> tuple[Background, ...]:
    """Make the tasks that run besides the server. Raises ConfigError for notifications; a missing exporter is only
    logged."""
    if config.notify == NotifyConfig() and not otlp.is_wanted():
        return ()
    from swarmd.web.notifications import POLL_S, make_notifier  # imported only when needed: it takes memory

    tasks: list[Background] = []
    notifier = make_notifier(config.notify, root, node.metrics)
    if notifier is not None:
        tasks.append(lambda: notifier.run(lambda: node.latest_status, last=node.status))
    if otlp.is_wanted():
        try:
            exporter = otlp.make_exporter()
        except ConfigError as error:  # the environment may be meant for other programs on this host
            log.warning("WARNING metrics are not pushed: %s", error)
        else:
            tasks.append(lambda: otlp.push_metrics(exporter, node.metrics, lambda: node.latest_status))
    return (lambda: node.keep_status_fresh(POLL_S), *tasks) if tasks else ()


async def _notify_only(node: NodeLogSource, background: tuple[Background, ...], linger_s: float) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    call_at_end_of_input(lambda: loop.call_soon_threadsafe(loop.call_later, linger_s, ended.set))
    async with run_background_tasks(node, background) as tasks:
        print(flush=True)
        await asyncio.wait([*tasks, asyncio.create_task(ended.wait())], return_when=asyncio.FIRST_COMPLETED)


def call_at_end_of_input(call: Callable[[], Any]) -> None:
    """Call `call` in a thread when stdin ends, because the daemon that started this process is gone."""
    descriptor = sys.stdin.fileno()

    def wait_for_end() -> None:
        while os.read(descriptor, 4096):  # not with `sys.stdin`: Python aborts at exit while a thread waits in it
            continue
        call()

    threading.Thread(target=wait_for_end, name="stdin", daemon=True).start()


def serve_page(app: RequestGuard, endpoint: socket.socket, open_page: bool) -> None:
    """Print the URL and serve until stopped."""
    url = url_of(endpoint)

    def announce_url() -> None:
        print(f"{url}/  (Ctrl-C ends it)", flush=True)
        if open_page:
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    serve(app, endpoint, announce_url, app.end_streams)

"""Servers on loopback that answer whatever they are asked in one way."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Door(BaseHTTPRequestHandler):
    """A request, whose body was read."""

    body = b""


Answer = Callable[[Door], None]


@contextmanager
def impostor(answer: Answer) -> Iterator[str]:
    """Serve during the block. Yields the URL."""

    class Handler(Door):
        def respond(self) -> None:
            self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer(self)

        do_GET = do_HEAD = do_POST = do_DELETE = respond

        def log_message(self, *arguments: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, args=[0.05])
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def send(door: Door, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
    door.send_response(status)
    for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
        door.send_header(name, value)
    door.end_headers()
    if door.command != "HEAD":
        door.wfile.write(body)

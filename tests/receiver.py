"""An HTTP server of a test's own that keeps what is posted to it."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Post(NamedTuple):
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes


class Receiver(ThreadingHTTPServer):
    """Keeps what was posted; answers with the statuses given, the last one again and again."""

    def __init__(self, *statuses: int, silent_s: float = 0.0) -> None:
        self.statuses = list(statuses)
        self.silent_s = silent_s
        self.posted: list[Post] = []
        self.came, self.ended = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), _Answer)


class _Answer(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        self.server.ended.wait(self.server.silent_s)
        statuses = self.server.statuses
        status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
        self.server.posted.append(Post(self.path, dict(self.headers.items()), body))
        self.server.came.set()
        self.send_response(status)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()
        if status >= 400:
            self.wfile.write(f"no: {self.path} {'x' * 100_000 if status == 400 else ''}".encode())

    def log_message(self, *_: object) -> None:
        """Nothing on the test's own stderr."""


@contextmanager
def receiving(*statuses: int, silent_s: float = 0.0) -> Iterator[Receiver]:
    server = Receiver(*(statuses or (200,)), silent_s=silent_s)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()

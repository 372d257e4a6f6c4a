"""A Hub on loopback with data sets to be read, and a program that loads them as a node does.

Written from the clients' code (huggingface_hub 2: hf_api.py, hf_file_system.py, file_download.py; datasets 5: load.py):
/api/datasets/<name>, its tree and paths-info, and files below /datasets/<name>/resolve.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

COMMIT = "d" * 40
ROWS = 6


class DatasetHub:
    """Serves until closed.

    Attributes:
        files: contents by the data set's name and the file's.
        claimed: sizes that it tells of files, where they are not those of their contents; None: it tells none.
        fetched: names of files whose contents were sent.
    """

    def __init__(self, files: dict[str, dict[str, bytes]]) -> None:
        self.files = files
        self.claimed: dict[str, int | None] = {}
        self.fetched: list[str] = []
        hub = self

        class Handler(_Answers):
            double = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def describe(self, name: str, file: str) -> dict[str, Any]:
        size = self.claimed.get(f"{name}/{file}", len(self.files[name][file]))
        told = {} if size is None else {"size": size}
        return {"type": "file", "path": file, "oid": "0" * 40, **told}


class _Answers(BaseHTTPRequestHandler):
    double: DatasetHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self._answer(body)

    def _answer(self, body: bytes = b"") -> None:
        path = unquote(self.path.partition("?")[0])
        found = re.fullmatch(r"/datasets/(org/\w+)/resolve/[^/]+/(.+)", path)
        if found:
            self._send_file(found[1], found[2])
            return
        found = re.fullmatch(r"/api/datasets/(org/\w+)(?:/(\S+?))?(?:/(?:main|d{40})(?:/(.*))?)?", path)
        files = self.double.files.get(found[1]) if found else None
        if found is None or files is None:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            return
        self._send_json(self._tell(found[1], found[2] or "revision", files, body))

    def _tell(self, name: str, verb: str, files: dict[str, bytes], body: bytes) -> Any:
        if verb == "tree":
            return [self.double.describe(name, file) for file in files]
        if verb == "paths-info":
            asked = json.loads(body) if body.startswith(b"{") else parse_qs(body.decode())
            return [self.double.describe(name, file) for file in asked["paths"] if file in files]
        siblings = [{"rfilename": file} for file in files]
        return {
            "_id": "0",
            "id": name,
            "sha": COMMIT,
            "siblings": siblings,
            "private": False,
            "tags": [],
            "downloads": 0,
        }

    def _send_json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send_file(self, name: str, file: str) -> None:
        content = self.double.files[name].get(file)
        if content is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        if self.command == "GET":
            self.double.fetched.append(f"{name}/{file}")
        self._send(200, content, {"ETag": f'"{name.replace("/", "-")}-{file}"', "X-Repo-Commit": COMMIT})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def lines(rows: int = ROWS) -> bytes:
    """A file of questions."""
    return b"".join(json.dumps({"prompt": f"{n} + 1?", "answer": str(n + 1)}).encode() + b"\n" for n in range(rows))


def load_all(home: Path, bound: int, names: list[str]) -> dict[str, str]:
    """What became of each data set: the rows that were kept, or why there are none."""
    from swarmd.errors import SwarmError
    from swarmd.swarms.dataset import Source, keep_dataset

    told = {}
    for name in names:
        file = f"{name.replace('/', '-')}.jsonl"
        try:
            keep_dataset(home, file, Source(name, download_bytes=bound))
            told[name] = f"{(home / file).read_bytes().count(b'answer')} rows"
        except SwarmError as error:
            told[name] = f"{type(error).__name__}: {error.message}\n{error.fix}"
    return told


if __name__ == "__main__":
    print(json.dumps(load_all(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])))

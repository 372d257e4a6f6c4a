"""A Hugging Face Hub on loopback: models are pushed to it, and data sets read from it.

Written from the clients' code. Pushing is what `create_repo` and `create_commit` of huggingface_hub 2 call (hf_api.py,
_commit_api.py, lfs.py): POST /api/repos/create, /api/validate-yaml, /api/models/<repo>/preupload/<revision>, the
git-lfs batch, PUT of the objects, and the commit as NDJSON; all of it with a token. Reading is what datasets 5 calls
(load.py; hf_file_system.py and file_download.py of huggingface_hub): /api/datasets/<name>, its tree and paths-info, and
files below /datasets/<name>/resolve.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest

COMMIT = "c" * 40  # of models and of data sets
TOKEN = "hf_" + "t" * 34
LFS_SUFFIXES = (".safetensors", ".bin")


class HubDouble:
    """Serves until closed.

    Args:
        datasets: what there is to read: contents by the data set's name and the file's.

    Attributes:
        faults: status by a part of a path, or "hang" for an answer that never comes.
        claimed: sizes told of files of data sets, where they are not those of their contents; None: none is told.
        fetched: names of such files whose contents were sent.
    """

    def __init__(self, datasets: dict[str, dict[str, bytes]] | None = None) -> None:
        self.faults: dict[str, int | str] = {}
        self.datasets = datasets or {}
        self.claimed: dict[str, int | None] = {}
        self.fetched: list[str] = []
        self.repos: dict[str, dict[str, Any]] = {}
        self.files: dict[str, dict[str, bytes]] = {}  # committed ones, by repository and name
        self.objects: dict[str, bytes] = {}  # large ones, by their SHA-256
        self.calls: list[str] = []
        self.commits: list[str] = []  # their summaries
        self.released = threading.Event()
        hub = self

        class Handler(Answers):
            double = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def describe(self, name: str, file: str) -> dict[str, Any]:
        """A file of a data set, as the Hub tells of it."""
        size = self.claimed.get(f"{name}/{file}", len(self.datasets[name][file]))
        told = {} if size is None else {"size": size}
        return {"type": "file", "path": file, "oid": "0" * 40, **told}


class Answers(BaseHTTPRequestHandler):
    double: HubDouble
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def answer(self) -> None:
        body = self._read_body()
        path = self.path.partition("?")[0]
        self.double.calls.append(f"{self.command} {path}")
        for part, fault in self.double.faults.items():
            if part in path:
                if fault == "hang":
                    self.double.released.wait(60)
                    return
                self._reply(int(fault), {"error": "a fault of the double"})
                return
        if path.startswith(("/datasets/", "/api/datasets/")):
            self._read_dataset(unquote(path), body)
            return
        if not path.startswith("/objects/") and self.headers.get("authorization") != f"Bearer {TOKEN}":
            self._reply(401, {"error": "Invalid username or password."})
            return
        self._reply(200, self._serve(path, body))

    do_GET = do_HEAD = do_POST = do_PUT = answer

    def _read_body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _serve(self, path: str, body: bytes) -> dict[str, Any]:
        hub = self.double
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            hub.repos.setdefault(name, asked)
            hub.files.setdefault(name, {})
            return {"url": f"{hub.url}/{name}"}
        if path == "/api/validate-yaml":
            assert json.loads(body)["content"].startswith("---\n")
            return {"errors": [], "warnings": []}
        if path.startswith("/objects/"):
            digest = path.rpartition("/")[2]
            assert hashlib.sha256(body).hexdigest() == digest
            hub.objects[digest] = body
            return {}
        if match := re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", path):
            return self._batch(json.loads(body))
        if match := re.fullmatch(r"/api/models/(.+)/preupload/main", path):
            files = [self._mode(file) for file in json.loads(body)["files"]]
            return {"files": files}
        match = re.fullmatch(r"/api/models/(.+)/commit/main", path)
        assert match, path
        return self._commit(match[1], [json.loads(line) for line in body.splitlines()])

    def _mode(self, file: dict[str, Any]) -> dict[str, Any]:
        large = file["path"].endswith(LFS_SUFFIXES)
        return {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False, "oid": None}

    def _batch(self, asked: dict[str, Any]) -> dict[str, Any]:
        objects = []
        for each in asked["objects"]:
            upload = {"href": f"{self.double.url}/objects/{each['oid']}"}
            known = each["oid"] in self.double.objects
            objects.append({**each, **({} if known else {"actions": {"upload": upload}})})
        return {"transfer": "basic", "objects": objects}

    def _commit(self, repo: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
        hub = self.double
        files = hub.files[repo]
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                hub.commits.append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = hub.objects[value["oid"]]
        return {"commitUrl": f"{hub.url}/{repo}/commit/{COMMIT}", "commitOid": COMMIT}

    # --- data sets ---

    def _read_dataset(self, path: str, body: bytes) -> None:
        if found := re.fullmatch(r"/datasets/(org/\w+)/resolve/[^/]+/(.+)", path):
            self._send_file(found[1], found[2])
            return
        found = re.fullmatch(r"/api/datasets/(org/\w+)(?:/(\S+?))?(?:/(?:main|c{40})(?:/(.*))?)?", path)
        files = self.double.datasets.get(found[1]) if found else None
        if found is None or files is None:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            return
        self._reply(200, self._tell_of(found[1], found[2] or "revision", files, body))

    def _tell_of(self, name: str, verb: str, files: dict[str, bytes], body: bytes) -> Any:
        if verb == "tree":
            return [self.double.describe(name, file) for file in files]
        if verb == "paths-info":
            asked = json.loads(body) if body.startswith(b"{") else parse_qs(body.decode())
            return [self.double.describe(name, file) for file in asked["paths"] if file in files]
        siblings = [{"rfilename": file} for file in files]
        repo = {"_id": "0", "id": name, "sha": COMMIT, "siblings": siblings}
        return {**repo, "private": False, "tags": [], "downloads": 0}

    def _send_file(self, name: str, file: str) -> None:
        content = self.double.datasets[name].get(file)
        if content is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        if self.command == "GET":
            self.double.fetched.append(f"{name}/{file}")
        self._send(200, content, {"ETag": f'"{name.replace("/", "-")}-{file}"', "X-Repo-Commit": COMMIT})

    # --- answers ---

    def _reply(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def serve_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubDouble]:
    """For a fixture: a double that huggingface_hub talks to in this process's children."""
    double = HubDouble()
    monkeypatch.setenv("HF_ENDPOINT", double.url)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")  # else the weights go to another service, by its own protocol
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    yield double
    double.close()

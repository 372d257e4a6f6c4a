"""A double of `vllm serve` with its development endpoints: what TRL 1.16's client calls, over HTTP on loopback."""

from __future__ import annotations

import json
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from safetensors.torch import load
from transformers import AutoModelForCausalLM
from vllm import Weights, draw


class Server:
    """Serves one model; weights arrive over a TCP connection of their own."""

    def __init__(self, model: str) -> None:
        self.weights = Weights(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32))
        self.name = model
        self.calls: list[str] = []
        self.fault = ""  # "error", "short" or "foreign": how completions are answered
        self.hold = threading.Event()  # completions wait for it
        self.hold.set()
        self._listener: socket.socket | None = None
        self._sender: Any = None
        double = self

        class Requests(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(*double.get(self.path.split("?")[0]))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self._answer(*double.post(self.path, json.loads(body or b"{}")))

            def _answer(self, status: int, answer: Any) -> None:
                encoded = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(encoded)))
                self.end_headers()
                self.wfile.write(encoded)

            def log_message(self, *args: Any) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def get(self, path: str) -> tuple[int, Any]:
        answers = {
            "/health": {},
            "/v1/models": {"data": [{"id": self.name}]},
            "/server_info": {"vllm_config": {"weight_transfer_config": {"backend": "nccl"}}},
            "/get_world_size": {"world_size": 1},
        }
        return (200, answers[path]) if path in answers else (404, {})

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        self.calls.append(path)
        if path == "/init_weight_transfer_engine":
            self._listener = socket.create_server(("127.0.0.1", body["init_info"]["master_port"]))
            self._listener.settimeout(20)
            self._sender, _ = self._listener.accept()
            self._sender.settimeout(20)
        elif path == "/update_weights":
            self._receive(body["update_info"]["names"])
        elif path == "/reset_prefix_cache":
            return 200, {"success": True}
        elif path == "/v1/completions":
            return self._complete(body)
        return 200, {}

    def _receive(self, names: list[str]) -> None:
        size = struct.unpack(">Q", self._read(8))[0]
        tensors = load(self._read(size))
        assert sorted(tensors) == sorted(names)
        self.weights.load_weights(tensors.items())

    def _read(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            parts += self._sender.recv(size - len(parts))
        return parts

    def _complete(self, body: Any) -> tuple[int, Any]:
        self.hold.wait(30)
        if self.fault == "error":
            return 400, {"error": "no such thing"}
        choices = []
        for prompt in body["prompt"]:
            for row in draw(self.weights.model, prompt, body):
                row = [10**9] if self.fault == "foreign" else row
                logprobs = {
                    "tokens": [f"token_id:{token}" for token in row],
                    "token_logprobs": [-1.0] * len(row),
                    "top_logprobs": [None] * len(row),
                }
                choices.append({"prompt_token_ids": prompt, "token_ids": row, "logprobs": logprobs})
        return 200, {"choices": choices[:-1] if self.fault == "short" else choices}

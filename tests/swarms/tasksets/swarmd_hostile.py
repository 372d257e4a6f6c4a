"""A taskset whose reward does what the model's turn says, as somebody would who wants out."""

import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import verifiers.v1 as vf


def do(what: str) -> object:
    """Returns if it could be done."""
    name, _, detail = what.partition(" ")
    if name == "network":
        return socket.create_connection(("127.0.0.1", int(detail)), timeout=2)
    if name == "read":
        return Path(detail).read_text()
    if name == "list":
        return list(Path(detail).iterdir())
    if name == "write":
        return Path(detail).write_text("x")
    if name == "fork":
        return os.fork()
    if name == "run":
        return subprocess.run(["/bin/true"], check=True)
    if name == "kill":
        return os.kill(int(detail), 9)
    if name == "spin":
        while True:
            pass
    if name == "memory":
        return bytearray(int(detail))
    if name == "threads":
        while True:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    return None


class HostileTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def escaped(self, trace: vf.Trace) -> float:
        do(trace.last_reply)
        return 1.0


class Hostile(vf.Taskset[HostileTask]):
    def load(self) -> list[HostileTask]:
        return [HostileTask(vf.TaskData(prompt=f"Attack {number}.")) for number in range(20)]


__all__ = ["Hostile"]

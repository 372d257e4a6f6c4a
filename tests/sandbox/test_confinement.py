"""What a confined worker can and cannot do, tried from inside."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from swarmd.config import encode, parse_config
from swarmd.dht.identity.identity import create_identity
from swarmd.sandbox import confinement

CONFIG = """
role = "coordinator"
[swarm]
id = "x"
[chain]
rpc = ["file:rpc"]
chain_id = 1
contract = "0x00000000000000000000000000000000000000a1"
"""
TRIES = """
import ctypes, json, os, pathlib, socket, subprocess, sys, threading
from swarmd.worker.messages import StartMessage
from {worker} import confine_process
from swarmd.worker.child import log_lines_to_stderr
root = pathlib.Path(sys.argv[1])
confine_process(StartMessage(bytes.fromhex(sys.argv[2]), str(root), sys.argv[3]))
def tried(what, *arguments):
    try:
        what(*arguments)
    except OSError as error:
        return error.strerror
    return "done"
def program(path, *words):
    return tried(lambda: subprocess.run([path, *words], check=False, capture_output=True))
print(json.dumps({{
    "read keystore": tried((root / "account.json").read_bytes),
    "read log": tried((root / "events/1.seg").read_bytes),
    "change log": tried((root / "events/1.seg").write_bytes, b"x"),
    "remove log": tried((root / "events/1.seg").unlink),
    "read identity": tried((root / "identity.key").read_bytes),
    "change identity": tried((root / "identity.key").write_bytes, b"x"),
    "write network": tried((root / "network/peers.json").write_bytes, b"x"),
    "write beside": tried((root / "new").write_bytes, b"x"),
    "write elsewhere": tried(pathlib.Path("/var/tmp/swarmd-confined").write_bytes, b"x"),
    "read elsewhere": tried(pathlib.Path("/etc/shadow").read_bytes),
    "run": program("/bin/true"),
    "run p2pd": program({p2pd!r}, "-h"),
    "mount": "done" if ctypes.CDLL(None).unshare(0x10000000) == 0 else "refused",
    "socket": tried(lambda: socket.create_server(("127.0.0.1", 0)).close()),
    "resolve": tried(lambda: socket.getaddrinfo("localhost", 80)),
    "thread": tried(lambda: threading.Thread(target=print, kwargs={{"end": ""}}).start()),
    "temporary": tried(pathlib.Path("/dev/null").write_bytes, b"x"),
}}))
"""
DENIED = "Permission denied"


def supported() -> bool:
    try:
        return confinement.check_libc_result(confinement.libc.syscall(444, None, 0, 1), "landlock") > 0
    except OSError:
        return False


needs_landlock = pytest.mark.skipif(not supported(), reason="this kernel has no Landlock")


def tries(worker: str, root: Path) -> tuple[dict[str, str], str]:
    """What came of each, and what the worker logged."""
    from swarmd.dht.p2p.p2pd import find_p2pd

    (root / "events").mkdir()
    for name in ("account.json", "account.pass", "events/1.seg", "rpc"):
        (root / name).write_text("a secret")
    identity = create_identity(root / "identity.key")
    program = TRIES.format(worker=worker, p2pd=str(find_p2pd()))
    argv = [sys.executable, "-c", program, str(root), encode(parse_config(CONFIG, "x")).hex(), identity.peer_id]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    outcome: dict[str, str] = json.loads(ended.stdout)
    return outcome, ended.stderr


@needs_landlock
def test_the_network_worker_has_its_part_of_the_directory_and_p2pd(tmp_path: Path) -> None:
    outcome, said = tries("swarmd.dht.worker", tmp_path)
    allowed = {"read identity", "write network", "run p2pd", "socket", "resolve", "thread", "temporary"}
    assert {what for what, came in outcome.items() if came == "done"} == allowed
    assert {came for what, came in outcome.items() if what not in allowed} == {DENIED, "refused"}
    assert "not confined" not in said


@needs_landlock
def test_the_chain_worker_reads_its_keystore_and_changes_nothing(tmp_path: Path) -> None:
    outcome, said = tries("swarmd.chain.worker", tmp_path)
    allowed = {"read keystore", "socket", "resolve", "thread", "temporary"}
    assert {what for what, came in outcome.items() if came == "done"} == allowed
    assert "not confined" not in said


def test_what_a_kernel_has_not_is_told_and_the_process_runs_on(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path\n"
        "from swarmd.sandbox import confinement\n"
        "confinement.CREATE_RULESET = 1000\n"  # a call that no kernel has
        "confinement.syscalls.ARCHITECTURES.clear()\n"
        "print(confinement.confine(confinement.AllowedAccess(), Path('/')))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "no Landlock (landlock: Function not implemented)" in ended.stdout and "system calls:" in ended.stdout


@pytest.mark.parametrize("worker", ["swarmd.dht.worker", "swarmd.chain.worker"])
def test_a_worker_has_one_thread_before_it_is_confined(worker: str) -> None:
    """Threads that libraries start when they are imported, as numpy's, would not be confined."""
    program = f"import os, {worker}; assert os.listdir('/proc/self/task') == [str(os.getpid())]"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr

"""The doctor's child processes: one loads torch, the other dials peers.

`python -m swarmd.doctor.children torch|dial` reads a question from standard input and answers on standard output.

- torch takes seconds and hundreds of megabytes to load, and a broken driver may crash the process that loads it.
- The dialler is a p2pd with a throw-away identity that does not listen: nothing is registered, no record is written,
  and the node's own identity is not used. It sends hivemind's ping, whose answer has the peer's clock.
"""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.config import TrainingConfig
from swarmd.dht.wire.addresses import split_address, tcp_endpoint
from swarmd.errors import SwarmdError

T = TypeVar("T")
MODULE = "swarmd.doctor.children"
CONNECT_S = 4.0  # timeout of a TCP connection
DIAL_S = 8.0  # timeout of libp2p's handshake and the ping together
PINGS = 3  # pings sent; the one with the shortest round trip counts
ADDRESSES_MAX = 16
REASON_LENGTH_MAX = 300


class ChildFailed(SwarmdError):
    """A child process of the doctor ended without an answer; the message has its last output."""


class ProbeQuestion(msgspec.Struct, frozen=True):
    training: TrainingConfig
    kept: str = ""  # the model that `auto` chose earlier


class ModelFit(msgspec.Struct, frozen=True):
    """A model's memory need, and whether it fits. Sizes in bytes."""

    model: str
    need: int
    checkpoint: int  # size on disk: weights and optimiser
    fits: bool
    why: str = ""


class ProbeAnswer(msgspec.Struct, frozen=True):
    torch: str
    cuda: str  # version that torch was built for; empty if none
    device: str = ""  # the chosen device; empty if the configured one is missing
    fault: str = ""  # why it is missing
    fix: str = ""
    names: tuple[str, ...] = ()  # names of the accelerators
    numbers: str = ""
    free: int = 0
    total: int = 0
    limit: str = ""
    weighed: tuple[ModelFit, ...] = ()  # the configured model, or each of `auto`'s pool
    unknown: str = ""  # why the model's size is unknown


class DialResult(msgspec.Struct, frozen=True):
    """Result of dialling one address. Times in seconds."""

    address: str
    tcp: bool | None = None  # whether TCP connects; None if the address is not plain TCP
    peer: bool = False  # whether the peer with that id answered
    rtt_s: float = 0.0
    skew_s: float | None = None  # peer's clock minus ours, within half the round trip; None if it did not say
    reason: str = ""


async def ask_torch(questions: Sequence[ProbeQuestion]) -> list[ProbeAnswer]:
    """Query torch about this machine and models; answers in order. Raises ChildFailed."""
    return await _ask("torch", questions, list[ProbeAnswer])


async def ask_dialler(addresses: list[str]) -> list[DialResult]:
    """Dial each address. Raises ChildFailed."""
    return await _ask("dial", addresses, list[DialResult])


async def _ask(what: str, questions: Sequence[object], kind: type[T]) -> T:
    """Run this module as a child process and return its answer; cancelling kills it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", MODULE, what, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
    )
    try:
        answer, words = await process.communicate(msgspec.json.encode(questions))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with anyio.CancelScope(shield=True):
            await process.wait()
    if process.returncode != 0:
        said = words.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
        raise ChildFailed(f"the process that asks {what} ended with {process.returncode}: {said[-1]}")
    try:
        return msgspec.json.decode(answer, type=kind)
    except DECODE_ERRORS as error:
        raise ChildFailed(f"the process that asks {what} answered with something else: {error}") from error


# --- inside the child ---


def main(what: str) -> None:
    """Answer a question; nothing else may be printed on standard output."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    question = sys.stdin.buffer.read()
    answers: Sequence[msgspec.Struct]
    if what == "torch":
        answers = [probe_model(each) for each in msgspec.json.decode(question, type=list[ProbeQuestion])]
    else:
        answers = asyncio.run(dial_all(msgspec.json.decode(question, type=list[str])[:ADDRESSES_MAX]))
    with out:
        out.write(msgspec.json.encode(answers))


def probe_model(question: ProbeQuestion) -> ProbeAnswer:
    """Choose a device, then estimate the model's memory."""
    import torch

    from swarmd.training.library_logging import silence_libraries
    from swarmd.training.models.device import choose_device, choose_precision
    from swarmd.training.models.memory import measure_device_memory

    silence_libraries()
    training = question.training
    cuda = str(getattr(torch.version, "cuda", None) or "")
    names = tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    try:
        device = choose_device(training.device)
        numbers, room = choose_precision(training, device), measure_device_memory(device)
    except (SwarmdError, RuntimeError) as error:
        fix = error.fix if isinstance(error, SwarmdError) else ""
        return ProbeAnswer(
            str(torch.__version__), cuda, fault=str(getattr(error, "message", error)), fix=fix, names=names
        )
    found = ProbeAnswer(
        torch=str(torch.__version__),
        cuda=cuda,
        device=device,
        names=names,
        numbers=numbers.description,
        free=room.free,
        total=room.total,
        limit=room.limit,
    )
    try:
        return msgspec.structs.replace(found, weighed=_estimate_fits(question, numbers, room))
    except SwarmdError as error:
        return msgspec.structs.replace(found, unknown=error.message, fix=error.fix)


def _estimate_fits(question: ProbeQuestion, numbers: Any, room: Any) -> tuple[ModelFit, ...]:
    from swarmd.training.models.model import read_model_shape
    from swarmd.training.models.pool import estimate_fit, list_pool
    from swarmd.training.models.source import AUTO

    training = question.training
    if training.model != AUTO or question.kept:
        training = msgspec.structs.replace(training, pool=(question.kept or training.model,))
    rows = list_pool(training, lambda source: read_model_shape(source, source))
    fits = [estimate_fit(row, training, numbers, room) for row in rows]
    return tuple(
        ModelFit(fit.model.name, fit.need.total, fit.need.weights + fit.need.optimizer, fit.fits_memory, fit.why)
        for fit in fits
    )


async def dial_all(addresses: list[str]) -> list[DialResult]:
    """Dial each address: first by TCP, whose errors are more specific, then as a peer."""
    reached = await asyncio.gather(*(_try_tcp(address) for address in addresses))
    if all(each.reason for each in reached):
        return list(reached)
    with tempfile.TemporaryDirectory(prefix="swarmd-doctor-") as place:
        return await _dial_peers(list(reached), Path(place))


async def _try_tcp(address: str) -> DialResult:
    place = tcp_endpoint(split_address(address)[0])
    if place is None:
        return DialResult(address)
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(*place)
    except TimeoutError:
        return DialResult(
            address, tcp=False, reason=f"no answer from {place[0]} port {place[1]} within {CONNECT_S:g} s"
        )
    except OSError as error:
        return DialResult(address, tcp=False, reason=error.strerror or str(error)[:REASON_LENGTH_MAX])
    except UnicodeError:
        return DialResult(address, tcp=False, reason="no host can have such a name")
    writer.close()
    return DialResult(address, tcp=True)


async def _dial_peers(reached: list[DialResult], place: Path) -> list[DialResult]:
    from swarmd.dht.p2p.p2pd import START_S, SocketDirectory

    sockets = SocketDirectory(place)
    sockets.open()
    kind = sockets.daemon_class()
    p2p = await kind.create(
        host_maddrs=[], dht_mode="client", no_listen=True, check_if_identity_free=False, startup_timeout=START_S
    )
    try:
        return list(await asyncio.gather(*(_connect_peer(p2p, each) for each in reached)))
    finally:
        await p2p.shutdown()
        sockets.close()


async def _connect_peer(p2p: Any, reached: DialResult) -> DialResult:
    """Connect as a peer and ask for its time."""
    from swarmd.dht.p2p.hivemind_api import Multiaddr, P2PDaemonError, PeerID

    if reached.reason:
        return reached
    place, peer = split_address(reached.address)
    try:
        async with asyncio.timeout(DIAL_S):
            await p2p._client.connect(PeerID.from_base58(peer), [Multiaddr(place)])
            rtt_s, skew_s = await _measure_peer_clock(p2p, PeerID.from_base58(peer))
    except TimeoutError:
        return msgspec.structs.replace(reached, reason=f"it does not answer as a peer within {DIAL_S:g} s")
    except (P2PDaemonError, OSError, EOFError, ValueError) as error:
        return msgspec.structs.replace(reached, reason=str(error)[:REASON_LENGTH_MAX] or type(error).__name__)
    return msgspec.structs.replace(reached, peer=True, rtt_s=rtt_s, skew_s=skew_s)


async def _measure_peer_clock(p2p: Any, peer: Any) -> tuple[float, float | None]:
    """(round trip, peer's clock minus ours) of the fastest ping; None as clock if it answers none."""
    from swarmd.dht.p2p.hivemind_api import P2PDaemonError, P2PHandlerError, dht_pb2, protocol_module

    best: tuple[float, float | None] = (float("inf"), None)
    kind = protocol_module.DHTProtocol
    for _ in range(PINGS):
        asked_at = time.time()
        try:
            stub = super(kind, kind).get_stub(p2p, peer)  # the subclass's method needs a whole node
            answer = await stub.rpc_ping(dht_pb2.PingRequest(peer=dht_pb2.NodeInfo()), timeout=DIAL_S)
        except (P2PDaemonError, P2PHandlerError):
            return (0.0, None) if best[1] is None else best
        rtt_s = time.time() - asked_at
        if rtt_s < best[0]:
            best = (rtt_s, answer.dht_time - (asked_at + rtt_s / 2) if answer.dht_time else None)
    return best


if __name__ == "__main__":
    main(sys.argv[1])

"""Messages between the daemon and a worker process, one per frame.

The daemon writes to the worker's stdin, the worker to its stdout; what it prints goes to stderr, which the daemon logs
line by line.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.core.commands import Command
from swarmd.core.events import Event
from swarmd.errors import FrameError

# Takes events for the log; events of one caller keep their order. Raises BrokenPipeError if the daemon is gone, and
# FrameError if the event does not fit into a frame.
EventSink = Callable[[Event], None]

FRAME_BYTES_MAX = 4 * 1024 * 1024  # a larger frame breaks the connection with FrameError


class WorkerMessage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type"):
    """Base of all messages."""


# --- daemon to worker ---


class StartMessage(WorkerMessage, frozen=True, tag="start"):
    """The first frame: the node's configuration, encoded by `swarmd.config.encode`, and directory."""

    config: bytes
    data_dir: str
    peer: str = ""  # this node's peer id, read by the daemon from the identity


class PerformMessage(WorkerMessage, frozen=True, tag="perform"):
    command: Command


class PingMessage(WorkerMessage, frozen=True, tag="ping"):
    number: int


class StopMessage(WorkerMessage, frozen=True, tag="stop"):
    """Asks the worker to exit within `grace_s`; then the daemon kills it."""

    grace_s: float


ToWorker = StartMessage | PerformMessage | PingMessage | StopMessage


# --- worker to daemon ---


class ObservedMessage(WorkerMessage, frozen=True, tag="observed"):
    """A fact for the event log."""

    event: Event


STAGE_FAILED = "failed"  # `ProgressMessage.what` of a trainer whose stage has failed; the reason is in `note`


class ProgressMessage(WorkerMessage, frozen=True, tag="progress"):
    """Progress of a running command, for status and metrics only; never logged as an event."""

    what: str  # e.g. "training", "connecting"
    done: int = 0
    total: int = 0  # 0 if unknown
    note: str = ""
    figures: dict[str, float] = {}  # e.g. tokens_per_s, eta_s, peers


class PongMessage(WorkerMessage, frozen=True, tag="pong"):
    number: int


class FaultMessage(WorkerMessage, frozen=True, tag="fault"):
    """The worker is about to exit for this reason; `permanent`: a restart cannot help."""

    reason: str
    permanent: bool = False
    exit_code: int = 0
    planned: bool = False  # a fresh process should follow, and no failure is counted


FromWorker = ObservedMessage | ProgressMessage | PongMessage | FaultMessage


_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder(order="deterministic")
M = TypeVar("M")


def encode_frame(message: ToWorker | FromWorker) -> bytes:
    """Encode one frame. Raises FrameError if the message is larger than `FRAME_BYTES_MAX`."""
    body = _encoder.encode(message)
    if len(body) > FRAME_BYTES_MAX:
        raise FrameError(f"a {type(message).__name__} frame has {len(body)} bytes, the limit is {FRAME_BYTES_MAX}")
    return _LENGTH.pack(len(body)) + body


class FrameReader(Generic[M]):
    """Decodes a byte stream into messages of a union, `ToWorker` or `FromWorker`."""

    def __init__(self, kind: type[M]) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def read_messages(self, chunk: bytes) -> Iterator[M]:
        """Yield the messages that `chunk` completes. Raises FrameError for a length beyond `FRAME_BYTES_MAX`, or an
        invalid body."""
        self._buffer += chunk
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > FRAME_BYTES_MAX:
                raise FrameError(f"a frame of {length} bytes was announced, the limit is {FRAME_BYTES_MAX}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            try:
                yield self._decoder.decode(body)
            except DECODE_ERRORS as error:  # also RecursionError, which msgspec raises for deep nesting
                raise FrameError(f"a frame of {length} bytes is not a message: {error}") from error

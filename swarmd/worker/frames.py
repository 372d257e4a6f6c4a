"""Length-prefixed msgpack frames: u32 little-endian length, then the message.

The reader takes bytes as they come and hands out whole messages, so a writer that stalls in the middle of a frame
stalls nobody else and loses nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import FrameError
from swarmd.worker.messages import FromWorker, ToWorker

FRAME_BYTES_MAX = 4 * 1024 * 1024  # a larger frame ends the connection with FrameError

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder(order="deterministic")
M = TypeVar("M")


def encode_frame(message: ToWorker | FromWorker) -> bytes:
    """One frame, ready to be written.

    Raises:
        FrameError: the encoded message is larger than `FRAME_BYTES_MAX`.
    """
    body = _encoder.encode(message)
    if len(body) > FRAME_BYTES_MAX:
        raise FrameError(f"a {type(message).__name__} frame has {len(body)} bytes, the limit is {FRAME_BYTES_MAX}")
    return _LENGTH.pack(len(body)) + body


class FrameReader(Generic[M]):
    """Turns a byte stream into messages.

    Args:
        kind: the union to decode, `ToWorker` or `FromWorker`.
    """

    def __init__(self, kind: type[M]) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[M]:
        """Whole messages that `chunk` completes.

        Raises:
            FrameError: a length beyond `FRAME_BYTES_MAX` or a body that is no message.
        """
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
            except DECODE_ERRORS as error:  # msgspec lets the latter through
                raise FrameError(f"a frame of {length} bytes is no message: {error}") from error

    @property
    def pending(self) -> int:
        """Bytes of an unfinished frame."""
        return len(self._buffer)

"""What travels between a trainer and a reference server, as bytes. docs/REFERENCE-SERVER.md is its description.

The own frame is a fixed prefix, a msgpack header and raw little-endian arrays. simple_GRPO's frame is a list of byte
strings, each after its length. Nothing here is unpickled.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import FrameError

MAGIC = b"SWRF"
VERSION = 1
PREFIX = struct.Struct("<4sHHI")  # magic, version, kind, length of the header in bytes
HEADER_BYTES_MAX = 4096
ID_PATTERN = r"[A-Za-z0-9._-]{1,128}"
SIZE_MAX = 2**31 - 1  # rows, width, keep
TEMPERATURE_MIN, TEMPERATURE_MAX = 1e-3, 1e3

Width = Literal["int32", "int64"]
WIDTHS: dict[Width, str] = {"int32": "<i4", "int64": "<i8"}

COUNT = struct.Struct(">I")  # simple_GRPO's numbers
ITEMS_MAX = 16

Size = Annotated[int, msgspec.Meta(ge=1, le=SIZE_MAX)]
Id = Annotated[str, msgspec.Meta(pattern=f"^{ID_PATTERN}$")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Mask = NDArray[np.uint8]
Ids = NDArray[np.int64]
Logs = NDArray[np.float32]


class JobHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """In front of token ids (rows x width) of `dtype`, then a mask (rows x width) of one byte each."""

    NUMBER: ClassVar[int] = 1

    id: Id
    rows: Size
    width: Size  # of a padded prompt and a padded completion together
    keep: Size  # of these, so many last columns are completion
    dtype: Width
    temperature: Annotated[float, msgspec.Meta(ge=TEMPERATURE_MIN, le=TEMPERATURE_MAX)] = 1.0
    model: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")] = (
        ""  # the model that is meant; empty: whichever it is
    )


class ResultHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """In front of float32 log-probabilities (rows x keep)."""

    NUMBER: ClassVar[int] = 2

    id: Id
    job: Digest  # SHA-256 of the job's frame
    model: Digest  # of the weights that computed this
    rows: Size
    keep: Size


H = TypeVar("H", JobHeader, ResultHeader)


class ScoringBatch(NamedTuple):
    """Sequences whose last `keep` columns are to be scored: prompts padded on the left, completions on the right."""

    ids: Ids
    mask: Mask
    keep: int
    temperature: float = 1.0


class FrameLimits(NamedTuple):
    """What is taken. Bodies are bounded before they get here."""

    sequences: int
    tokens: int  # of one sequence, padding included


def encode_job(header: JobHeader, batch: ScoringBatch) -> bytes:
    """The frame of a job."""
    return _encode(header, batch.ids.astype(WIDTHS[header.dtype]), batch.mask.astype(np.uint8))


def encode_result(header: ResultHeader, logs: Logs) -> bytes:
    """The frame of a result."""
    return _encode(header, logs.astype("<f4"))


def _encode(header: Any, *arrays: NDArray[Any]) -> bytes:
    head = msgspec.msgpack.encode(header)
    prefix = PREFIX.pack(MAGIC, VERSION, header.NUMBER, len(head))
    return b"".join([prefix, head, *(np.ascontiguousarray(array).tobytes() for array in arrays)])


def decode_job(body: bytes, limits: FrameLimits) -> tuple[JobHeader, ScoringBatch]:
    """A job from outside.

    Raises:
        FrameError: another magic or version, lengths that do not agree, numbers out of range, or a mask that is not
            padding on the left of the prompt and on the right of the completion.
    """
    header, payload = _split(body, JobHeader)
    if header.rows > limits.sequences:
        raise FrameError(f"{header.rows} sequences, at most {limits.sequences} are taken")
    if header.width > limits.tokens:
        raise FrameError(f"sequences of {header.width} tokens, at most {limits.tokens} are taken")
    if header.keep >= header.width:
        raise FrameError(f"{header.keep} of {header.width} columns are completion: no prompt is left")
    cells = header.rows * header.width
    item = np.dtype(WIDTHS[header.dtype]).itemsize
    _check_length(payload, cells * (item + 1))
    shape = (header.rows, header.width)
    ids = np.frombuffer(payload, WIDTHS[header.dtype], cells).reshape(shape).astype(np.int64)
    mask = np.frombuffer(payload, np.uint8, cells, cells * item).reshape(shape)
    check_mask(mask, header.keep)
    if int(ids.min()) < 0:
        raise FrameError("a token id is negative")
    return header, ScoringBatch(ids, mask, header.keep, header.temperature)


def check_mask(mask: Mask, keep: int) -> None:
    """Raise FrameError where a row's ones are not one run over the prompt's last and the completion's first tokens."""
    if int(mask.max()) > 1:
        raise FrameError("a mask holds something else than 0 and 1")
    steps = np.diff(mask.astype(np.int8), axis=1)
    prompt = mask.shape[1] - keep
    rises = (steps[:, : prompt - 1] < 0).any() or (steps[:, prompt - 1 :] > 0).any()
    if rises or not mask[:, prompt - 1].all():
        raise FrameError("a mask is not padding on the left of a prompt and on the right of its completion")


def decode_result(body: bytes) -> tuple[ResultHeader, Logs]:
    """A result from a server. Raises FrameError as `decode_job` does; log-probabilities are finite and at most 0."""
    header, payload = _split(body, ResultHeader)
    cells = header.rows * header.keep
    _check_length(payload, cells * 4)
    logs = np.frombuffer(payload, "<f4", cells).reshape(header.rows, header.keep).astype(np.float32)
    if not np.isfinite(logs).all() or float(logs.max()) > 1e-3:
        raise FrameError("a log-probability is no number, or above 0")
    return header, logs


def _split(body: bytes, kind: type[H]) -> tuple[H, memoryview]:
    if len(body) < PREFIX.size:
        raise FrameError(f"{len(body)} bytes are no frame")
    magic, version, number, length = PREFIX.unpack_from(body)
    if magic != MAGIC:
        raise FrameError("this is no frame of a reference server")
    if version != VERSION:
        raise FrameError(f"the frame's version is {version}, this end speaks {VERSION}")
    if number != kind.NUMBER:
        raise FrameError(f"the frame is of kind {number}")
    if length > min(HEADER_BYTES_MAX, len(body) - PREFIX.size):
        raise FrameError(f"a header of {length} bytes does not fit")
    end = PREFIX.size + length
    try:
        header = msgspec.msgpack.decode(body[PREFIX.size : end], type=kind)
    except (*DECODE_ERRORS, ValueError) as error:
        raise FrameError(f"the header is malformed: {str(error)[:200]}") from None
    return header, memoryview(body)[end:]


def _check_length(payload: memoryview, wanted: int) -> None:
    if len(payload) != wanted:
        raise FrameError(f"{len(payload)} bytes follow the header, {wanted} belong there")


def pack_items(items: Sequence[bytes]) -> bytes:
    """simple_GRPO's frame: a big-endian count, then each item after its length."""
    return COUNT.pack(len(items)) + b"".join(COUNT.pack(len(item)) + item for item in items)


def unpack_items(body: bytes) -> list[bytes]:
    """The items of a frame of simple_GRPO. Raises FrameError when the lengths do not add up to the whole body."""
    if len(body) < COUNT.size:
        raise FrameError(f"{len(body)} bytes are no frame")
    (count,) = COUNT.unpack_from(body)
    if not 1 <= count <= ITEMS_MAX:
        raise FrameError(f"a frame of {count} items")
    place, items = COUNT.size, []
    for _ in range(count):
        if len(body) - place < COUNT.size:
            raise FrameError("the frame ends within an item's length")
        (length,) = COUNT.unpack_from(body, place)
        place += COUNT.size
        if length > len(body) - place:
            raise FrameError(f"an item of {length} bytes does not fit")
        items.append(body[place : place + length])
        place += length
    if place != len(body):
        raise FrameError(f"{len(body) - place} bytes follow the last item")
    return items

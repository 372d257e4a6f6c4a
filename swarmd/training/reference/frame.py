"""Wire formats between a trainer and a reference server; docs/REFERENCE-SERVER.md describes them.

- swarmd's own frame is a fixed prefix, a msgpack header and raw little-endian arrays.
- simple_GRPO's frame is a list of byte strings, each after its length. Its tensors come from `torch.save`: only
  archives of one uncompressed plain tensor are read, so that no code runs and nothing unpacks to more than was sent.
"""

import io
import struct
import zipfile
from collections.abc import Sequence
from pickletools import genops
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
import torch
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

COUNT = struct.Struct(">I")  # of simple_GRPO
ITEMS_MAX = 16

Size = Annotated[int, msgspec.Meta(ge=1, le=SIZE_MAX)]
Id = Annotated[str, msgspec.Meta(pattern=f"^{ID_PATTERN}$")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Mask = NDArray[np.uint8]
Ids = NDArray[np.int64]
Logs = NDArray[np.float32]


class JobHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Header of a job, followed by token ids (rows x width) of `dtype`, then a mask (rows x width) of one byte each."""

    NUMBER: ClassVar[int] = 1

    id: Id
    rows: Size
    width: Size  # columns of padded prompt and padded completion together
    keep: Size  # number of last columns that hold the completion
    dtype: Width
    temperature: Annotated[float, msgspec.Meta(ge=TEMPERATURE_MIN, le=TEMPERATURE_MAX)] = 1.0
    model: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")] = ""  # digest of the model; empty: any


class ResultHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Header of a result, followed by float32 log-probabilities (rows x keep)."""

    NUMBER: ClassVar[int] = 2

    id: Id
    job: Digest  # SHA-256 of the job's frame
    model: Digest  # of the weights
    rows: Size
    keep: Size


H = TypeVar("H", JobHeader, ResultHeader)


class ScoringBatch(NamedTuple):
    """Sequences whose last `keep` columns are scored: prompts padded on the left, completions on the right."""

    ids: Ids
    mask: Mask
    keep: int
    temperature: float = 1.0


class FrameLimits(NamedTuple):
    """Limits of a batch. Bodies are limited before they get here."""

    sequences: int
    tokens: int  # per sequence, padding included


def encode_job(header: JobHeader, batch: ScoringBatch) -> bytes:
    """Encode a job as a frame."""
    return _encode_frame(header, batch.ids.astype(WIDTHS[header.dtype]), batch.mask.astype(np.uint8))


def encode_result(header: ResultHeader, logs: Logs) -> bytes:
    """Encode a result as a frame."""
    return _encode_frame(header, logs.astype("<f4"))


def _encode_frame(header: Any, *arrays: NDArray[Any]) -> bytes:
    head = msgspec.msgpack.encode(header)
    prefix = PREFIX.pack(MAGIC, VERSION, header.NUMBER, len(head))
    return b"".join([prefix, head, *(np.ascontiguousarray(array).tobytes() for array in arrays)])


def decode_job(body: bytes, limits: FrameLimits) -> tuple[JobHeader, ScoringBatch]:
    """Decode a job. Raises FrameError: another magic or version, inconsistent lengths, numbers out of range, or a mask
    that is not padding on the left of the prompt and on the right of the completion."""
    header, payload = _split_frame(body, JobHeader)
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
    """Raise FrameError unless each row's ones are one run that spans the boundary of prompt and completion."""
    if int(mask.max()) > 1:
        raise FrameError("a mask holds something else than 0 and 1")
    steps = np.diff(mask.astype(np.int8), axis=1)
    prompt = mask.shape[1] - keep
    rises = (steps[:, : prompt - 1] < 0).any() or (steps[:, prompt - 1 :] > 0).any()
    if rises or not mask[:, prompt - 1].all():
        raise FrameError("a mask is not padding on the left of a prompt and on the right of its completion")


def decode_result(body: bytes) -> tuple[ResultHeader, Logs]:
    """Decode a result. Raises FrameError: as `decode_job`, or a log-probability is not finite or above 0."""
    header, payload = _split_frame(body, ResultHeader)
    cells = header.rows * header.keep
    _check_length(payload, cells * 4)
    logs = np.frombuffer(payload, "<f4", cells).reshape(header.rows, header.keep).astype(np.float32)
    if not np.isfinite(logs).all() or float(logs.max()) > 1e-3:
        raise FrameError("a log-probability is not a number, or above 0")
    return header, logs


def _split_frame(body: bytes, kind: type[H]) -> tuple[H, memoryview]:
    if len(body) < PREFIX.size:
        raise FrameError(f"{len(body)} bytes are not a frame")
    magic, version, number, length = PREFIX.unpack_from(body)
    if magic != MAGIC:
        raise FrameError("this is not a frame of a reference server")
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
    """Encode simple_GRPO's frame: a big-endian count, then each item after its length."""
    return COUNT.pack(len(items)) + b"".join(COUNT.pack(len(item)) + item for item in items)


def unpack_items(body: bytes) -> list[bytes]:
    """Decode a frame of simple_GRPO. Raises FrameError if the lengths do not add up to the whole body."""
    if len(body) < COUNT.size:
        raise FrameError(f"{len(body)} bytes are not a frame")
    (count,) = COUNT.unpack_from(body)
    if not 1 <= count <= ITEMS_MAX:
        raise FrameError(f"a frame of {count} items")
    left, items = body[COUNT.size :], []
    for _ in range(count):
        if len(left) < COUNT.size:
            raise FrameError("the frame ends within an item's length")
        (length,) = COUNT.unpack_from(left)
        if length > len(left) - COUNT.size:
            raise FrameError(f"an item of {length} bytes does not fit")
        items.append(left[COUNT.size : COUNT.size + length])
        left = left[COUNT.size + length :]
    if left:
        raise FrameError(f"{len(left)} bytes follow the last item")
    return items


TOKENS_MAX = 2200  # per sequence; simple_GRPO itself does not train on longer ones
UPLOAD_ITEMS = (3, 4, 6)  # JSON, inputs, rewards; then the generation's log-probabilities; then two kinds of scores
EMPTY = b"empty"
ACCEPTED = b"tensor"
REGROUP = (
    "the regroup dialect (Q and As with raw rewards, where the server makes the groups) is not served: it leaves open "
    "how texts become tokens and which template they were sampled under; send whole groups as tensors, with plen and "
    "advantages"
)
ARCHIVE_FILES_MAX = 16
PICKLE_BYTES_MAX = 4096  # of one tensor
SAVED_NAMES = frozenset(
    {"torch._utils _rebuild_tensor_v2", "collections OrderedDict"}
    | {f"torch {kind}Storage" for kind in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char")}
)


class _UploadHeader(msgspec.Struct, frozen=True):
    plen: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class Upload(NamedTuple):
    """One upload of simple_GRPO's generation worker."""

    head: bytes  # JSON, as it came
    inputs: torch.Tensor  # (B, prompt + completion)
    batch: ScoringBatch
    others: tuple[torch.Tensor, ...]  # rewards, then the other items


class SequencesTooLong(Exception):
    """Sequences have more tokens than are accepted."""


def read_upload(body: bytes, limits: FrameLimits) -> Upload:
    """Decode the body of a request to /upload. Raises FrameError: it is malformed, or of the dialect in which the
    server makes the groups; SequencesTooLong."""
    items = unpack_items(body)
    head = _read_head(items[0])
    if len(items) not in UPLOAD_ITEMS:
        raise FrameError(f"an upload of {len(items)} items; 3, 4 or 6 are understood")
    inputs = _read_tensor(items[1], "inputs")
    if inputs.ndim != 2 or inputs.dtype not in (torch.int32, torch.int64) or 0 in inputs.shape:
        raise FrameError("the inputs are not a table of token ids")
    rows, width = inputs.shape
    keep = width - head.plen
    if keep < 1:
        raise FrameError(f"plen is {head.plen}, the sequences have {width} tokens: no completion is left")
    if width > limits.tokens:
        raise SequencesTooLong(f"sequences of {width} tokens, at most {limits.tokens} are taken")
    if rows > limits.sequences:
        raise FrameError(f"{rows} sequences, at most {limits.sequences} are taken")
    others = tuple(_decode_score_tensor(place, item, rows, keep) for place, item in enumerate(items[2:]))
    ids = inputs.to(torch.int64).numpy()
    if int(ids.min()) < 0:
        raise FrameError("a token id is negative")
    return Upload(items[0], inputs, ScoringBatch(ids, np.ones(ids.shape, np.uint8), keep), others)


def _read_head(item: bytes) -> _UploadHeader:
    try:
        table = msgspec.json.decode(item, type=dict[str, Any])
        if {"Q", "As"} & set(table):
            raise FrameError(REGROUP)
        return msgspec.convert(table, _UploadHeader)
    except (*DECODE_ERRORS, ValueError) as error:
        raise FrameError(f"the first item is not JSON with plen: {str(error)[:200]}") from None


def _decode_score_tensor(place: int, item: bytes, rows: int, keep: int) -> torch.Tensor:
    """Read item 2 + `place`: log-probabilities of the generation have a number for each token, others for each row."""
    shape = (rows, keep) if place == 1 else (rows,)
    tensor = _read_tensor(item, f"item {place + 2}")
    if tuple(tensor.shape) != shape:
        raise FrameError(f"item {place + 2} has the shape {tuple(tensor.shape)}, not {shape}")
    return tensor


def _read_tensor(item: bytes, name: str) -> torch.Tensor:
    _check_archive(item, name)
    try:
        tensor = torch.load(io.BytesIO(item), map_location="cpu", weights_only=True)
    except Exception as error:  # it may raise anything on malformed input
        raise FrameError(f"{name} cannot be read: {type(error).__name__}") from None
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        raise FrameError(f"{name} is not a tensor")
    if tensor.numel() * tensor.element_size() > len(item):
        raise FrameError(f"{name} claims to be larger than what was sent")
    return tensor.contiguous()


def _check_archive(item: bytes, name: str) -> None:
    """Raise FrameError if the archive unpacks to more than its own size, or its pickle is not that of one plain
    tensor."""
    try:
        with zipfile.ZipFile(io.BytesIO(item)) as archive:
            files = archive.infolist()
            stored = all(file.compress_type == zipfile.ZIP_STORED for file in files)
            if len(files) > ARCHIVE_FILES_MAX or not stored or sum(file.file_size for file in files) > len(item):
                raise FrameError(f"{name} is not an archive of torch.save")
            pickles = [archive.read(file) for file in files if file.filename.endswith("data.pkl")]
        names = {f"{argument}" for each in pickles for opcode, argument, _ in genops(each) if opcode.name == "GLOBAL"}
    except FrameError:
        raise
    except Exception as error:  # zipfile and pickletools may raise anything
        raise FrameError(f"{name} is not an archive of torch.save: {type(error).__name__}") from None
    # torch's own unpickler names what it calls only by GLOBAL.
    if len(pickles) != 1 or len(pickles[0]) > PICKLE_BYTES_MAX or not names <= SAVED_NAMES:
        raise FrameError(f"{name} holds something else than one tensor")


def write_answer(upload: Upload, logs: Logs) -> bytes:
    """Encode the answer of /get: the upload with the reference's log-probabilities after its rewards."""
    rewards, *others = upload.others
    return pack_items([upload.head, *map(_write_tensor, [upload.inputs, rewards, torch.from_numpy(logs), *others])])


def _write_tensor(tensor: torch.Tensor) -> bytes:
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getvalue()

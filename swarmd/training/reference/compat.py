"""simple_GRPO's tensors: which of its uploads make sense, and what is answered.

An item is JSON or what `torch.save` writes: a ZIP archive around a pickle. Before torch reads one, the archive is
checked for what `torch.save` puts there and nothing else, so that neither its pickle nor its sizes can do harm.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import torch

from swarmd.bounds import DECODE_ERRORS
from swarmd.errors import FrameError
from swarmd.training.reference.frame import FrameLimits, Logs, ScoringBatch, pack_items, unpack_items

TOKENS_MAX = 2200  # of a sequence; what simple_GRPO itself does not train on
UPLOAD_ITEMS = (3, 4, 6)  # JSON, inputs, rewards; then log-probabilities of the generation; then two kinds of scores
EMPTY = b"empty"
ACCEPTED = b"tensor"
REGROUP = (
    "the regroup dialect (Q and As with raw rewards, where the server makes the groups) is not served: it leaves open "
    "how texts become tokens and which template they were sampled under; send whole groups as tensors, with plen and "
    "advantages"
)
ARCHIVE_FILES_MAX = 16
OPCODES_MAX = 256  # of the pickle of one tensor
SAVED_NAMES = frozenset(
    {"torch._utils _rebuild_tensor_v2", "collections OrderedDict"}
    | {f"torch {kind}Storage" for kind in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char")}
)


class _Head(msgspec.Struct, frozen=True):
    plen: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class Upload(NamedTuple):
    """One upload of simple_GRPO's generation worker."""

    head: bytes  # JSON, as it came
    inputs: torch.Tensor  # (B, prompt + completion)
    batch: ScoringBatch
    others: tuple[torch.Tensor, ...]  # rewards, then whatever else came


class TooLong(Exception):
    """Sequences of more tokens than are taken."""


def read_upload(body: bytes, limits: FrameLimits) -> Upload:
    """Decode the body of a request to /upload.

    Raises:
        FrameError: it is malformed, or of the dialect in which the server makes the groups.
        TooLong: its sequences are.
    """
    items = unpack_items(body)
    head = _read_head(items[0])
    if len(items) not in UPLOAD_ITEMS:
        raise FrameError(f"an upload of {len(items)} items; 3, 4 or 6 are understood")
    inputs = _read_tensor(items[1], "inputs")
    if inputs.ndim != 2 or inputs.dtype not in (torch.int32, torch.int64) or 0 in inputs.shape:
        raise FrameError("the inputs are no table of token ids")
    rows, width = inputs.shape
    keep = width - head.plen
    if keep < 1:
        raise FrameError(f"plen is {head.plen}, the sequences have {width} tokens: no completion is left")
    if width > limits.tokens:
        raise TooLong(f"sequences of {width} tokens, at most {limits.tokens} are taken")
    if rows > limits.sequences:
        raise FrameError(f"{rows} sequences, at most {limits.sequences} are taken")
    others = tuple(_read_other(place, item, rows, keep) for place, item in enumerate(items[2:]))
    ids = inputs.to(torch.int64).numpy()
    if int(ids.min()) < 0:
        raise FrameError("a token id is negative")
    return Upload(items[0], inputs, ScoringBatch(ids, np.ones(ids.shape, np.uint8), keep), others)


def _read_head(item: bytes) -> _Head:
    try:
        table = msgspec.json.decode(item, type=dict[str, Any])
        if {"Q", "As"} & set(table):
            raise FrameError(REGROUP)
        return msgspec.convert(table, _Head)
    except (*DECODE_ERRORS, ValueError) as error:
        raise FrameError(f"the first item is no JSON with plen: {str(error)[:200]}") from None


def _read_other(place: int, item: bytes, rows: int, keep: int) -> torch.Tensor:
    """Item 2 + `place`: all have a number for each sequence but the generation's, one for each token."""
    shape = (rows, keep) if place == 1 else (rows,)
    tensor = _read_tensor(item, f"item {place + 2}")
    if tuple(tensor.shape) != shape:
        raise FrameError(f"item {place + 2} has the shape {tuple(tensor.shape)}, not {shape}")
    return tensor


def _read_tensor(item: bytes, name: str) -> torch.Tensor:
    _check_archive(item, name)
    try:
        tensor = torch.load(io.BytesIO(item), map_location="cpu", weights_only=True)
    except Exception as error:  # it may raise anything at all on what is not its own
        raise FrameError(f"{name} cannot be read: {type(error).__name__}") from None
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        raise FrameError(f"{name} is no tensor")
    if tensor.numel() * tensor.element_size() > len(item):
        raise FrameError(f"{name} claims to be larger than what was sent")
    return tensor.contiguous()


def _check_archive(item: bytes, name: str) -> None:
    """Raise FrameError where the archive unpacks to more than it is, or its pickle is not that of one tensor."""
    try:
        with zipfile.ZipFile(io.BytesIO(item)) as archive:
            files = archive.infolist()
            stored = all(file.compress_type == zipfile.ZIP_STORED for file in files)
            if len(files) > ARCHIVE_FILES_MAX or not stored or sum(file.file_size for file in files) > len(item):
                raise FrameError(f"{name} is no archive of torch.save")
            pickles = [archive.read(file) for file in files if file.filename.endswith("data.pkl")]
    except (zipfile.BadZipFile, OSError, RuntimeError, ValueError, KeyError, EOFError) as error:
        raise FrameError(f"{name} is no archive of torch.save: {type(error).__name__}") from None
    if len(pickles) != 1 or not _is_tensor(pickles[0]):
        raise FrameError(f"{name} holds something else than one tensor")


def _is_tensor(pickled: bytes) -> bool:
    """Whether a pickle names nothing but what a plain tensor is made of."""
    try:
        opcodes = []
        for opcode, argument, _ in pickletools.genops(pickled):
            opcodes.append((opcode.name, argument))
            if len(opcodes) > OPCODES_MAX:
                return False
    except Exception:  # pickletools raises whatever comes, too
        return False
    named = {str(argument) for name, argument in opcodes if name == "GLOBAL"}
    indirect = {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "BUILD"}
    return named <= SAVED_NAMES and not indirect & {name for name, _ in opcodes}


def write_answer(upload: Upload, logs: Logs) -> bytes:
    """What /get gives: the upload with the reference's log-probabilities after its rewards."""
    rewards, *others = upload.others
    return pack_items([upload.head, *map(_write_tensor, [upload.inputs, rewards, torch.from_numpy(logs), *others])])


def _write_tensor(tensor: torch.Tensor) -> bytes:
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getvalue()


def count_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes that the tensors take in memory."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

"""Checkpoints, each complete or absent, and the training state that they save and restore.

- A checkpoint is a directory `r<round>-s<stage>` with the weights, the model's configuration and tokenizer
  (transformers loads it like any other model), the optimiser, the published rollouts and `meta.json`. The optimiser's
  file also holds the state of the random generator, the plan's memory, and the records of skills.
- It is written under a temporary name, every file and directory is synced, and one rename gives it its name. Its digest
  is the SHA-256 of `meta.json`, which holds the SHA-256 of every other file.
- A thread writes it while the work after the stage goes on, without copying weights and moments first, since these do
  not change until the next optimiser step. Any code that changes them first calls `TrainingState.wait_until_saved`,
  which waits for the disk. So a kill costs at most one stage.
"""

import hashlib
import io
import os
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file

from swarmd.bounds import DECODE_ERRORS
from swarmd.core.commands import Train
from swarmd.core.events import StageTrained
from swarmd.errors import CheckpointDamaged, CheckpointFailed, SwarmError
from swarmd.files import hash_file, sync_file
from swarmd.logger import get_logger
from swarmd.swarms.plan import Plan
from swarmd.training.checkpoint_files import FORMAT, META, TEMPORARY, list_checkpoints, verify_checkpoint
from swarmd.training.evaluation import SkillGuard
from swarmd.training.lr_schedule import StepCallback
from swarmd.training.models.model import Policy, read_base_weights

FULL_BYTES = 1024 * 1024  # if a save fails with less than this free, the disk is full
WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.pt"
ROLLOUTS = "rollouts.msgpack"
PIECE_BYTES = 4 * 1024 * 1024  # hashed and written at once, so that other threads get to run
DTYPES = {  # in safetensors' names
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

log = get_logger(__name__)
Place = tuple[int, int]  # round and stage


class CheckpointMeta(msgspec.Struct, frozen=True):
    """`meta.json`."""

    format: int
    model: str  # digest of the node's initial weights
    steps: int  # optimiser steps since the node began
    event: StageTrained  # the report of the stage
    files: dict[str, str]  # name → sha256
    optimizer: str  # as the configuration names it


class Checkpoint(msgspec.Struct, frozen=True):
    """A verified checkpoint on disk."""

    directory: Path
    meta: CheckpointMeta
    digest: str

    def read_weights(self) -> dict[str, torch.Tensor]:
        return dict(load_file(self.directory / WEIGHTS))

    def read_optimizer(self) -> dict[str, Any]:
        """Read the `optimizer` that `CheckpointStore.save` was given."""
        return dict(torch.load(self.directory / OPTIMIZER, map_location="cpu", weights_only=True))

    def read_rollouts(self) -> bytes:
        return (self.directory / ROLLOUTS).read_bytes()


class CheckpointStore:
    """The checkpoints of one node. `directory`: made if missing; remains of interrupted saves are removed. `kept`:
    number of newest checkpoints kept."""

    def __init__(self, directory: Path, kept: int) -> None:
        self.directory = directory
        self._kept = kept
        directory.mkdir(parents=True, exist_ok=True)
        for leftover in directory.glob(f"{TEMPORARY}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def save(
        self,
        weights: Mapping[str, torch.Tensor],
        optimizer: Mapping[str, Any],
        rollouts: bytes,
        event: StageTrained,
        steps: int,
        model: str,
        describe: Callable[[Path], None] = lambda directory: None,
        optimizer_name: str = "",
    ) -> Checkpoint:
        """Write the checkpoint of a finished stage, and remove the oldest ones. `describe`: writes the model's
        configuration and tokenizer into a directory. Raises CheckpointFailed: no space is left, or another I/O error;
        earlier checkpoints are untouched."""
        temporary = self.directory / f"{TEMPORARY}{os.getpid()}-{event.round}-{event.stage}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            describe(temporary)
            (temporary / ROLLOUTS).write_bytes(rollouts)
            files = {file.name: hash_file(file) for file in sorted(temporary.iterdir())}
            with HashingFile(temporary / WEIGHTS) as file:
                write_weights(weights, file)
            files[WEIGHTS] = file.digest
            with HashingFile(temporary / OPTIMIZER) as file:
                torch.save(dict(optimizer), file)
            files[OPTIMIZER] = file.digest
            meta = CheckpointMeta(FORMAT, model, steps, event, files, optimizer_name)
            (temporary / META).write_bytes(msgspec.json.format(msgspec.json.encode(meta), indent=1))
            for path in (*temporary.iterdir(), temporary):
                sync_file(path)
            final = self.checkpoint_directory(event.round, event.stage)
            self._rename_into_place(temporary, final)
        except Exception as error:  # torch and safetensors report a full disk in error types of their own
            free = shutil.disk_usage(self.directory).free
            shutil.rmtree(temporary, ignore_errors=True)
            if not isinstance(error, OSError) and free >= FULL_BYTES:
                raise
            reason = error.strerror if isinstance(error, OSError) else "no space left on device"
            raise CheckpointFailed(
                f"the checkpoint cannot be written to {self.directory}: {reason or error}, {free} bytes free",
                "Free space there; nothing is lost as long as this process lives, and it will be written then",
            ) from error
        others = [directory for directory in list_checkpoints(self.directory) if directory != final]
        for directory in others[self._kept - 1 :]:
            shutil.rmtree(directory, ignore_errors=True)
        return Checkpoint(final, meta, hashlib.sha256((final / META).read_bytes()).hexdigest())

    def _rename_into_place(self, temporary: Path, final: Path) -> None:
        """Rename; an existing checkpoint of the same stage is moved out of the way first."""
        if final.exists():
            old = self.directory / f"{TEMPORARY}old-{final.name}"
            shutil.rmtree(old, ignore_errors=True)
            final.rename(old)
        temporary.rename(final)
        sync_file(self.directory)
        shutil.rmtree(self.directory / f"{TEMPORARY}old-{final.name}", ignore_errors=True)

    def checkpoint_directory(self, round: int, stage: int) -> Path:
        """Path of a stage's checkpoint, whether it exists or not."""
        return self.directory / f"r{round:09d}-s{stage:04d}"

    def complete_checkpoints(self) -> Iterator[Checkpoint]:
        """Verified checkpoints, newest first; a damaged one is skipped with a warning. Raises CheckpointUnreadable."""
        yield from self._read_undamaged(list_checkpoints(self.directory))

    def _read_undamaged(self, directories: Iterable[Path]) -> Iterator[Checkpoint]:
        for directory in directories:
            try:
                yield read_checkpoint(directory)
            except CheckpointDamaged as error:
                log.warning("checkpoint damaged, passed over", path=str(directory), reason=str(error))

    def find(self, round: int, stage: int) -> Checkpoint | None:
        """The checkpoint of a stage, if it exists and is complete. Raises CheckpointUnreadable."""
        directory = self.checkpoint_directory(round, stage)
        return next(self._read_undamaged([directory]), None) if directory.exists() else None


def read_checkpoint(directory: Path) -> Checkpoint:
    """Verify a checkpoint. Raises CheckpointDamaged, which names the file, or CheckpointUnreadable."""
    encoded = verify_checkpoint(directory)
    try:
        meta = msgspec.json.decode(encoded, type=CheckpointMeta)
    except DECODE_ERRORS as error:
        raise CheckpointDamaged(f"{directory / META} cannot be read: {error}") from error
    return Checkpoint(directory, meta, hashlib.sha256(encoded).hexdigest())


class HashingFile(io.FileIO):
    """A new file that is hashed while it is written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w")
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        """SHA-256 of the content, in hexadecimal."""
        return self._hash.hexdigest()

    def write(self, content: Any, /) -> int:
        octets = memoryview(content).cast("B")
        for start in range(0, len(octets), PIECE_BYTES):
            piece = octets[start : start + PIECE_BYTES]
            self._hash.update(piece)
            while piece:  # the system may write only part of it
                piece = piece[super().write(piece) :]
        return len(octets)


def write_weights(weights: Mapping[str, torch.Tensor], file: HashingFile) -> None:
    """Write tensors as a safetensors file, copying one tensor at a time to the machine's memory.

    Tensors with the largest elements come first, so that all are aligned. Format:
    https://github.com/huggingface/safetensors.
    """
    tensors = sorted(_remove_aliases(weights).items(), key=lambda item: -item[1].element_size())
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-len(encoded) % 8)
    file.write(len(encoded).to_bytes(8, "little") + encoded)
    for _, tensor in tensors:
        file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _remove_aliases(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Drop aliases of a tensor, such as tied embeddings. Other views of the same memory stay."""
    kept: dict[str, torch.Tensor] = {}
    seen: set[tuple[Any, ...]] = set()
    for name, tensor in weights.items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() == 0 or place not in seen:
            kept[name] = tensor
        seen.add(place)
    return kept


OnWritten = Callable[[Checkpoint], None]


@dataclass(eq=False)
class TrainingState:
    """Saves and restores the state of one node's training.

    Create it with a freshly loaded policy and an optimiser that has taken no step. Between `save` and the next
    `wait_until_saved` a thread reads the weights and the optimiser's moments.
    """

    policy: Policy
    plan: Plan
    step_callback: StepCallback
    checkpoints: CheckpointStore
    optimizer: Callable[[], Any]
    optimizer_name: str
    skills: SkillGuard

    def __post_init__(self) -> None:
        self._fresh_optimizer = self.policy.sharding.read_optimizer_state(self.optimizer())
        self._fresh_memory = self.plan.read_memory()
        self._base = self.policy.copy_weights() if self.policy.is_small else None
        self._writer = ThreadPoolExecutor(1, "checkpoint")  # the process waits for it before it ends
        self._write: Callable[[], None] = lambda: None
        self._writing: Future[None] | None = None
        self._place: Place | None = None  # of the stage being written, or last written
        self.restored: Place | None = None  # the stage whose checkpoint was loaded last
        self.drawn = 0  # tokens that the node had drawn for training up to `restored`
        self.step_callback.before_step = self.wait_until_saved

    def find_checkpoint(self, order: Train) -> Checkpoint | None:
        """The checkpoint of this stage, if it began from the same model. Raises CheckpointFailed."""
        if self._place == (order.round, order.stage):
            self.wait_until_saved()
        checkpoint = self.checkpoints.find(order.round, order.stage)
        return checkpoint if checkpoint is not None and self._has_same_model(checkpoint) else None

    def _has_same_model(self, checkpoint: Checkpoint) -> bool:
        return checkpoint.meta.model == self.policy.digest

    def assist_save(self) -> None:
        """Take this rank's part in the `save` of the first rank."""
        if self.policy.sharding.is_sharded:
            for _ in self.policy.walk_weights():
                pass
            self.policy.sharding.read_optimizer_state(self.optimizer())

    def save(self, event: StageTrained, body: bytes, written: OnWritten = lambda checkpoint: None) -> None:
        """Start writing a stage's checkpoint in a thread; small values that soon change are copied first. `written`:
        called in that thread with the checkpoint, before another replaces it. Raises SwarmError: the plan's memory
        cannot be saved."""
        policy, weights = self.policy, self.policy.saved_weights()
        optimizer = {
            "optimizer": policy.sharding.read_optimizer_state(self.optimizer()),
            "rng": torch.get_rng_state(),
            "memory": copy_as_plain_values(self.plan.read_memory()),
            "skills": self.skills.dump_records(),
            "fresh_from": self.step_callback.fresh_from,
        }
        report = (event, self.step_callback.steps, policy.digest, policy.write_model_files, self.optimizer_name)

        def write_checkpoint() -> None:
            written(self.checkpoints.save(weights, optimizer, body, *report))

        self._write, self._place = write_checkpoint, (event.round, event.stage)
        self._writing = self._writer.submit(write_checkpoint)

    def wait_until_saved(self) -> None:
        """Wait until the last stage is on disk; call it before weights or moments change. If writing failed, each call
        tries once more. Raises CheckpointFailed: the stage is not on disk, so weights and moments must not change."""
        if self._writing is None:
            return
        if self._writing.exception() is not None:
            self._writing = self._writer.submit(self._write)
        self._writing.result()
        self._write, self._writing = lambda: None, None  # they hold weights and moments

    def restore(self, touched: bool) -> None:
        """Restore the newest complete checkpoint, or the initial state if there is none. `touched`: whether the weights
        may differ from the initial ones. Raises CheckpointFailed: the newest could not be written; nothing was
        restored."""
        self.wait_until_saved()
        checkpoint = next(
            (each for each in self.checkpoints.complete_checkpoints() if self._has_same_model(each)), None
        )
        if checkpoint is None:
            if touched:
                self.policy.load_weights(self._base if self._base is not None else read_base_weights(self.policy))
            self.policy.sharding.load_optimizer_state(self.optimizer(), self._fresh_optimizer)
            self.plan.load_memory(self._fresh_memory)
            self.skills.load_records({})
            self.step_callback.steps = self.step_callback.fresh_from = 0
            return
        self.policy.load_weights(checkpoint.read_weights())
        event = checkpoint.meta.event
        self.restored = (event.round, event.stage)
        self.drawn = event.ledger.drawn if event.ledger is not None else 0
        state = checkpoint.read_optimizer()
        self.step_callback.steps = checkpoint.meta.steps
        self.step_callback.fresh_from = state["fresh_from"]
        self._load_optimizer(checkpoint, state["optimizer"])
        torch.set_rng_state(state["rng"])
        self.plan.load_memory(state["memory"])
        self.skills.load_records(state["skills"])
        log.info(
            "checkpoint loaded",
            path=str(checkpoint.directory),
            digest=checkpoint.digest,
            steps=self.step_callback.steps,
        )

    def reset_optimizer(self) -> None:
        """Reset the optimiser's moments because they belong to other weights, and warm the learning rate up again."""
        self.policy.sharding.load_optimizer_state(self.optimizer(), self._fresh_optimizer)
        self.step_callback.fresh_from = self.step_callback.steps

    def _load_optimizer(self, checkpoint: Checkpoint, state: dict[str, Any]) -> None:
        """Load the optimiser's state, or reset it if another optimiser wrote it: loading that would fail only at the
        next step."""
        written = checkpoint.meta.optimizer
        if written == self.optimizer_name:
            self.policy.sharding.load_optimizer_state(self.optimizer(), state)
            return
        self.reset_optimizer()
        log.warning(
            "the checkpoint was written with another optimiser: its moments are reset, the weights are kept",
            path=str(checkpoint.directory),
            written=written,
            now=self.optimizer_name,
        )


def copy_as_plain_values(memory: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a plan's memory as loading a checkpoint would. Raises SwarmError: it holds more than plain values, which a
    checkpoint, read without running code, cannot restore."""
    written = io.BytesIO()
    try:
        torch.save(dict(memory), written)
        written.seek(0)
        return dict(torch.load(written, weights_only=True))
    except (pickle.PickleError, TypeError, AttributeError, RecursionError) as error:
        raise SwarmError(
            "what the plan remembers cannot be kept in a checkpoint",
            "Plan.read_memory gives texts, numbers, truth values, and lists and dictionaries of them",
        ) from error

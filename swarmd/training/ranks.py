"""Several processes of one node that train one model together, one on each accelerator.

- The trainer worker is rank 0: it talks to the daemon, writes the checkpoints, and tells the others which stage to
  train.
- All ranks load the same checkpoint and draw the same questions, of which each takes its share. TRL and accelerate
  average their gradients.
- If one of them fails, all are replaced, and restart from what is on disk.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from swarmd.config import TrainingConfig
from swarmd.core.commands import Train
from swarmd.errors import FOREIGN_ERRORS, ConfigError, SwarmdError
from swarmd.installed import import_optional
from swarmd.training.models.parallelism import WRITE_IT, find_parallelism, locate_file
from swarmd.worker.messages import PerformMessage, StartMessage, encode_frame

RANK = "rank"  # command-line argument that makes the process a rank other than the first
HOST = "127.0.0.1"
ZERO = {  # accelerate's variables; "auto" means the trainer's settings
    "ACCELERATE_USE_DEEPSPEED": "true",
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "none",
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": "false",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "auto",
    "ACCELERATE_GRADIENT_CLIPPING": "auto",
}
END_S = 10.0  # time for the other ranks to end by themselves before they are killed


Part = TypeVar("Part")


class RankInfo(msgspec.Struct, frozen=True):
    """This process's rank, and the number of ranks."""

    rank: int = 0
    size: int = 1

    def gather(self, part: Part) -> list[Part]:
        """Collect an object from every rank, in the order of ranks; waits for all of them."""
        if self.size == 1:
            return [part]
        import torch.distributed

        parts: list[Part | None] = [None] * self.size
        torch.distributed.all_gather_object(parts, part)
        return [each for each in parts if each is not None]

    def rank_config(self, training: TrainingConfig) -> TrainingConfig:
        """The settings with this rank's share of a step's groups. Peers' groups are divided in each stage."""
        shared = ("own_questions", "own_questions_max", "replay_questions")
        shares = {name: -(-getattr(training, name) // self.size) for name in shared}
        return msgspec.structs.replace(training, questions=training.questions // self.size, **shares)


ALONE = RankInfo()


class RankGroup:
    """The other ranks, which rank 0 starts and ends.

    Args:
        start: the message that started this worker; it is sent to them, too.
        training: says how many there are, and how accelerate is configured.
        failed: called from a thread with the reason if one of them ends by itself.

    Raises:
        ConfigError: accelerate refuses its configuration file.
    """

    def __init__(self, start: StartMessage, training: TrainingConfig, failed: Callable[[str], None]) -> None:
        self._failed = failed
        self._ending = False
        shared = make_rank_environment(training)
        os.environ.update(shared, RANK="0", LOCAL_RANK="0")
        self.ranks = RankInfo(0, training.processes)
        self._processes = [self._spawn(rank, start, shared) for rank in range(1, training.processes)]

    def _spawn(self, rank: int, start: StartMessage, shared: Mapping[str, str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "swarmd.training.worker", RANK],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        threading.Thread(target=self._watch, args=(rank, process), name=f"rank-{rank}", daemon=True).start()
        self._send(process, encode_frame(start))
        return process

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if not self._ending:
            self._failed(f"rank {rank} of {self.ranks.size} ended with exit code {code}")

    def _send(self, process: subprocess.Popen[bytes], frame: bytes) -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the thread that watches it reports its end
            process.stdin.write(frame)
            process.stdin.flush()

    def start_stage(self, order: Train) -> None:
        """Tell the other ranks to train this stage."""
        for process in self._processes:
            self._send(process, encode_frame(PerformMessage(order)))

    def stop(self) -> None:
        """End the other ranks: they exit at the end of their input, or are killed."""
        self._ending = True
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def make_rank_environment(training: TrainingConfig) -> dict[str, str]:
    """Environment variables through which torch and accelerate find the ranks. Raises ConfigError."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    size = str(training.processes)
    where = {"MASTER_ADDR": HOST, "MASTER_PORT": str(port), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    parallelism = find_parallelism(training)
    if parallelism.kind == "zero":
        import_optional("deepspeed", "deepspeed", f"training.accelerate = {training.accelerate!r}")
    asked = read_accelerate_environment(locate_file(training.accelerate)) if training.accelerate else {}
    if parallelism.kind == "fsdp":  # `shard_model` shards the model; accelerate must not do it again
        asked = {name: value for name, value in asked.items() if not name.startswith(("FSDP_", "ACCELERATE_USE_FSDP"))}
    if parallelism.kind == "zero":
        asked |= {**ZERO, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3" if parallelism.weights > 1 else "2"}
        asked |= {"DS_ACCELERATOR": "cpu"} if training.device == "cpu" else {}
    environment = {**asked, **where}
    if "OMP_NUM_THREADS" not in os.environ:  # else accelerate gives every rank as many threads as there are cores
        environment["OMP_NUM_THREADS"] = str(training.threads or max((os.cpu_count() or 1) // training.processes, 1))
    return environment


def read_accelerate_environment(path: Path) -> dict[str, str]:
    """Environment variables that `accelerate launch` would set for a configuration file. Raises ConfigError."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    try:
        arguments = launch_command_parser().parse_args(["--config_file", str(path), "none.py"])
        arguments, _, _ = _validate_launch_command(arguments)
        environment = prepare_multi_gpu_env(arguments)
    except FOREIGN_ERRORS as error:
        raise ConfigError(
            f"training.accelerate: {path} is not a configuration of accelerate: {error}", WRITE_IT
        ) from error
    before = os.environ
    return {name: value for name, value in environment.items() if before.get(name) != value}


def check_equal_weights(digests: list[str]) -> None:
    """Raise SwarmdError if the ranks' weights differ after a stage: their gradients were not averaged."""
    if len(set(digests)) > 1:
        raise SwarmdError(
            f"the weights of {len(digests)} ranks differ after a stage",
            "Check training.accelerate: all ranks must train one model",
        )


def check_equal_rows(rows: list[int]) -> None:
    """Raise SwarmError if the ranks' passes have different numbers of rows, so that they would not match."""
    if len(set(rows)) > 1:
        raise SwarmdError(
            f"the ranks would take {', '.join(map(str, rows))} completions in a pass",
            "They read it when they start: they start again. If it comes again, remove checkpoints/passes.json",
        )

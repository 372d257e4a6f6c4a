"""The memory that this process takes, and whether a fresh process should replace it."""

import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

STATUS = Path("/proc/self/status")
KIBIBYTE = 1024
VRAM_SHARE_MAX = 0.95  # share of the accelerator's memory above which the trainer process is replaced
# Words in a plain RuntimeError by torch on the CPU, by mps, by CUDA's own calls and by cuBLAS.
SHORT_OF_MEMORY = ("out of memory", "can't allocate memory", "ALLOC_FAILED")


def measure_anonymous_bytes(status: Path = STATUS) -> int:
    """Bytes that only the end of the process frees: anonymous resident pages and swap. Mapped files do not count, since
    the kernel drops them by itself. Without /proc, all resident memory counts. `status`: file of another process in
    /proc."""
    sizes = _read_proc_sizes(status)
    if not sizes:
        return int(psutil.Process().memory_info().rss)
    return sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0) + sizes.get("VmSwap", 0)


def measure_peak_bytes() -> int:
    """Peak of this process's resident memory in bytes; its present value if the system does not record the peak."""
    return _read_proc_sizes(STATUS).get("VmHWM", 0) or int(psutil.Process().memory_info().rss)


def _read_proc_sizes(status: Path) -> dict[str, int]:
    """Sizes in bytes in a file of /proc, by the names there; empty if there is no such file."""
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    rows = (line.partition(":") for line in lines)
    return {name: int(rest.split()[0]) * KIBIBYTE for name, _, rest in rows if "kB" in rest}


def measure_vram_share(device: str) -> float:
    """Share of the accelerator's memory that torch holds in this process; 0 on the CPU."""
    if device != "cuda":
        return 0.0
    import torch

    return float(torch.cuda.memory_reserved() / torch.cuda.get_device_properties(0).total_memory)


def find_replacement_reason(bytes_max: int, device: str) -> str:
    """Why this process should be replaced by a fresh one; empty if it should not."""
    used = measure_anonymous_bytes()
    if bytes_max and used > bytes_max:
        return f"it holds {used / 2**30:.2f} GiB, training.memory_bytes_max is {bytes_max / 2**30:.2f} GiB"
    share = measure_vram_share(device)
    if share > VRAM_SHARE_MAX:
        return f"it holds {share:.0%} of the {device} memory, at most {VRAM_SHARE_MAX:.0%} is allowed"
    return ""


@contextlib.contextmanager
def pause_gc_and_freeze() -> Iterator[None]:
    """Disable garbage collection within the block, and exclude what exists at its end from later collections.

    Modules stay until the end of the process. Collections during the import of torch, transformers and TRL would walk
    through more and more of them, and take a quarter of the import's processor time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def freeze_loaded_objects() -> None:
    """Exclude all existing objects from later collections, which `release_memory` and TRL run at every stage. Such an
    object is not collected before `gc.unfreeze`."""
    gc.collect()
    gc.freeze()


def release_memory() -> None:
    """Return freed memory to the system and to the accelerator, if they support it."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the machine's or the accelerator's memory ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in SHORT_OF_MEMORY)


def is_device_lost(error: BaseException) -> bool:
    """Whether an accelerator has failed in a way that stays with the process, such as an illegal memory access."""
    return type(error).__name__ == "AcceleratorError"

"""How much memory this process takes, and whether it is time for a fresh one."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

STATUS = Path("/proc/self/status")
KIBIBYTE = 1024
VRAM_SHARE_MAX = 0.95  # of the accelerator's memory; above it the trainer process is replaced
# How libraries say it in a plain RuntimeError: torch on the CPU, mps, CUDA's own calls, cuBLAS.
SHORT_OF_MEMORY = ("out of memory", "can't allocate memory", "ALLOC_FAILED")


def measure_bytes(status: Path = STATUS) -> int:
    """Memory that only the process's end gives back: anonymous resident pages and swap.

    Files mapped into memory are not counted: the kernel drops them by itself. Where the system does not tell them
    apart, all resident memory of this process counts.

    Args:
        status: of another process, its file of that name in /proc.
    """
    sizes = _read_sizes(status)
    if not sizes:
        return int(psutil.Process().memory_info().rss)
    return sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0) + sizes.get("VmSwap", 0)


def measure_peak_bytes() -> int:
    """The most resident memory that this process has had; where the system does not tell, what it has now."""
    return _read_sizes(STATUS).get("VmHWM", 0) or int(psutil.Process().memory_info().rss)


def _read_sizes(status: Path) -> dict[str, int]:
    """Sizes in a file of /proc, in bytes, by their names there; nothing where there is no such file."""
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


def find_excess(bytes_max: int, device: str) -> str:
    """Why this process should make room for a fresh one; empty while it need not."""
    used = measure_bytes()
    if bytes_max and used > bytes_max:
        return f"it holds {used / 2**30:.2f} GiB, training.memory_bytes_max is {bytes_max / 2**30:.2f} GiB"
    share = measure_vram_share(device)
    if share > VRAM_SHARE_MAX:
        return f"it holds {share:.0%} of the {device} memory, at most {VRAM_SHARE_MAX:.0%} is allowed"
    return ""


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Look for no garbage meanwhile, and later not among what is there now.

    Modules stay to the end of the process, and collections as they come would walk through more and more of them: a
    quarter of the processor time of an import of torch, transformers and TRL.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def set_aside_loaded() -> None:
    """Spare later collections, `release_memory` and TRL's own at every stage, the walk through all that is loaded now.

    It lives as long as the process; what does not needs `gc.unfreeze` before it can be collected.
    """
    gc.collect()
    gc.freeze()


def release_memory() -> None:
    """Give freed memory back to the system and to the accelerator, where they take it."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, the machine's or the accelerator's."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in SHORT_OF_MEMORY)


def is_device_lost(error: BaseException) -> bool:
    """Whether an accelerator has failed in a way that stays with the process, such as an illegal memory access."""
    return type(error).__name__ == "AcceleratorError"

"""Counts the tokens that this node draws for training, as they are drawn.

The count is in a mapped file, so it survives any end of the process at no cost; a power cut may lose its last moments.
Tokens of held-out questions and of the warm-up do not count, nor those that the swarm adds to a completion.
`swarmd.core.token_ledger` says what the count is for.
"""

import contextlib
import mmap
from collections.abc import Iterator
from pathlib import Path

import msgspec

from swarmd.bounds import INTEGER_MAX

NUMBER_BYTES = 8


class TokenClasses(msgspec.Struct):
    """What became of the tokens that this process drew in a stage; see `swarmd.core.values.TokenLedger`."""

    generated: int = 0
    cancelled: int = 0
    trained: int = 0
    flat: int = 0
    spare: int = 0  # in informative groups that did not fit into the batch

    def merge(self, other: "TokenClasses") -> None:
        """Add another rank's counts."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class TokenCounter:
    """The count in a file of `directory`, which is made if it is missing or damaged; each rank has its own. `stage`:
    the counts of the stage being trained; without one, drawn tokens are not for training."""

    def __init__(self, directory: Path, rank: int = 0) -> None:
        path = directory / (f"drawn-{rank}.count" if rank else "drawn.count")
        if not path.is_file() or path.stat().st_size != NUMBER_BYTES:
            path.write_bytes(bytes(NUMBER_BYTES))
        with path.open("r+b") as file:
            self._file = mmap.mmap(file.fileno(), NUMBER_BYTES)
        self.stage: TokenClasses | None = None
        if self.drawn > INTEGER_MAX:  # damaged
            self._write(0)

    @property
    def drawn(self) -> int:
        """Tokens drawn since the node began."""
        return int.from_bytes(self._file[:], "little")

    @contextlib.contextmanager
    def counting(self, stage: TokenClasses) -> Iterator[None]:
        """Count tokens drawn within the block as generated in a stage."""
        self.stage = stage
        try:
            yield
        finally:
            self.stage = None

    def add(self, tokens: int) -> None:
        """Count tokens just drawn, if they are for training."""
        if self.stage is not None:
            self._write(self.drawn + tokens)
            self.stage.generated += tokens

    def discard(self, tokens: int) -> None:
        """Count as cancelled tokens that were counted but are drawn again."""
        if self.stage is not None:
            self.stage.cancelled += tokens

    def raise_to(self, drawn: int) -> None:
        """Raise the count to at least `drawn`, the count in a checkpoint."""
        self._write(max(self.drawn, drawn))

    def _write(self, drawn: int) -> None:
        self._file[:] = drawn.to_bytes(NUMBER_BYTES, "little")

"""Structs by the hundred thousand, kept by columns.

A node may have a million trained stages behind it. As an object each takes some 350 bytes, as a row here 40 to 50; only
those rows are objects that somebody looks at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import eq
from typing import Any, Generic, TypeVar, overload

import msgspec

BLOCK_ROWS = 1024  # that are packed, and unpacked, together

Packed = memoryview  # into what was read, where rows were kept
Row = TypeVar("Row", bound=msgspec.Struct)


class Rows(Sequence[Row], Generic[Row]):
    """Structs of one kind, in the order in which they were appended.

    Args:
        kind: their class; msgpack can hold its fields.
        rows: the first ones.
    """

    __hash__ = None  # type: ignore[assignment]  # rows are appended

    def __init__(self, kind: type[Row], rows: Iterable[Row] = ()) -> None:
        columns = tuple(list.__class_getitem__(field.type) for field in msgspec.structs.fields(kind))
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(tuple.__class_getitem__(columns))
        self._kind = kind
        self._blocks: list[Packed] = []  # of `BLOCK_ROWS` each
        self._last: list[Row] = []  # fewer than that
        for row in rows:
            self.append(row)

    def append(self, row: Row) -> None:
        """Add it behind the others. Raises OverflowError at a number that msgpack cannot hold."""
        self._last.append(row)
        if len(self._last) == BLOCK_ROWS:
            self._blocks.append(_pack(self._last))
            self._last = []

    def keep(self) -> list[Packed]:
        """All of them, packed."""
        return [*self._blocks, *([_pack(self._last)] if self._last else [])]

    def resume(self, kept: Sequence[Packed]) -> None:
        """Take what was kept in place of one's own. Raises msgspec.DecodeError where these are no rows of this kind."""
        self._blocks, self._last = [], []
        for block in kept:
            rows = self._unpack(block)
            if self._last or not 0 < len(rows) <= BLOCK_ROWS:
                raise msgspec.ValidationError("a block of rows that is not full before others, or overfull")
            if len(rows) == BLOCK_ROWS:
                self._blocks.append(block)
            else:
                self._last = rows

    def __len__(self) -> int:
        return len(self._blocks) * BLOCK_ROWS + len(self._last)

    def __iter__(self) -> Iterator[Row]:
        for block in self._blocks:
            yield from self._unpack(block)
        yield from self._last

    def __reversed__(self) -> Iterator[Row]:
        yield from reversed(self._last)
        for block in reversed(self._blocks):
            yield from reversed(self._unpack(block))

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        block, place = divmod(range(len(self))[index], BLOCK_ROWS)
        return (self._unpack(self._blocks[block]) if block < len(self._blocks) else self._last)[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    def _unpack(self, block: Packed) -> list[Row]:
        """Raises msgspec.DecodeError."""
        columns = self._decoder.decode(block)
        if len(set(map(len, columns))) != 1:
            raise msgspec.ValidationError("columns of several lengths")
        return list(map(self._kind, *columns))


def _pack(rows: Sequence[msgspec.Struct]) -> Packed:
    return memoryview(msgspec.msgpack.encode(list(zip(*map(msgspec.structs.astuple, rows), strict=True))))

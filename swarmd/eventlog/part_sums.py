"""CRC32C of any part of a buffer, in a time that does not grow with the part: out of those of the buffer's beginnings.

A CRC is linear. With `crc` for that of a beginning and `part` for what follows it up to `end`, crc(end) is crc(begin)
taken on by as many zero bytes as `part` has, and to that, by XOR, the CRC of `part`. What so many zero bytes make of a
CRC is a matrix of bits, and that of twice as many its square, as in zlib's `crc32_combine`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from crc32c import crc32c

BLOCK_BYTES = 4096  # zeros up to these are gone through
ZEROS = memoryview(bytes(BLOCK_BYTES))
BITS = 32

Table = tuple[list[int], list[int], list[int], list[int]]  # a matrix: what it makes of each byte, the lowest first


class PartSums:
    """CRCs of parts of one buffer.

    Args:
        buffer: gone through once, byte by byte; it takes four times as much memory besides.
    """

    def __init__(self, buffer: bytes) -> None:
        self._sums = array("I", [0])  # of the first 0, 1, 2 ... bytes
        crc = 0
        for at in range(len(buffer)):
            crc = crc32c(buffer[at : at + 1], crc)
            self._sums.append(crc)
        self._zeros = [crc32c(ZEROS[:count], 0) for count in range(BLOCK_BYTES)]
        self._tables = _make_tables(len(buffer) // BLOCK_BYTES)

    def crc(self, begin: int, end: int, seed: int) -> int:
        """`crc32c(buffer[begin:end], seed)`."""
        return self._sums[end] ^ self._take_on(self._sums[begin] ^ seed, end - begin)

    def _take_on(self, crc: int, count: int) -> int:
        """What so many zero bytes make of a CRC."""
        blocks, rest = divmod(count, BLOCK_BYTES)
        crc = crc32c(ZEROS[:rest], crc) ^ self._zeros[rest]
        for table in self._tables:
            if not blocks:
                break
            if blocks & 1:
                crc = _multiply(table, crc)
            blocks >>= 1
        return crc


def _make_tables(blocks: int) -> list[Table]:
    """Matrices of 1, 2, 4 ... blocks of zeros, up to as many as there are."""
    nothing = crc32c(ZEROS, 0)
    columns = [crc32c(ZEROS, 1 << bit) ^ nothing for bit in range(BITS)]
    tables = []
    for _ in range(blocks.bit_length()):
        table = _table_of(columns)
        tables.append(table)
        columns = [_multiply(table, column) for column in columns]
    return tables


def _table_of(columns: Sequence[int]) -> Table:
    """A matrix by bytes.

    Args:
        columns: what it makes of each bit, the lowest first.
    """
    parts = []
    for first in range(0, BITS, 8):
        part = [0]
        for column in columns[first : first + 8]:
            part += [column ^ before for before in part]
        parts.append(part)
    return (parts[0], parts[1], parts[2], parts[3])


def _multiply(table: Table, crc: int) -> int:
    low, second, third, high = table
    return low[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ high[crc >> 24]

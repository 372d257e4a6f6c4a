"""Reading a tar archive that anybody may have made: what stands before a member is bounded, too.

`tarfile` reads the long names and extended headers that come before a member whole, whatever size they give, and keeps
every member's header. A file of some hundred KiB could so take gigabytes of memory.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import Any

HEADER_BYTES_MAX = 64 * 1024
MTIME_MAX = 253_402_300_799  # the last second of the year 9999; file systems and clocks take no more

_EXTENDED = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_REFUSED = (tarfile.XGLTYPE, tarfile.GNUTYPE_SPARSE)  # swarmd writes none; they would add up, or be read without end


class BoundedTarHeader(tarfile.TarInfo):
    """A header that is refused, with `tarfile.ReadError`, where reading what belongs to it could take much memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        """What `tarfile` calls for every header, and lets subclasses override (Python 3.11 to 3.13)."""
        if self.size < 0 or (self.type in _EXTENDED and self.size > HEADER_BYTES_MAX):
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        if self.type in _REFUSED:
            raise tarfile.ReadError(f"a header of type {self.type!r}")
        try:
            return _sane(super()._proc_member(archive))  # type: ignore[misc]
        except (ValueError, OverflowError, RecursionError) as error:
            raise tarfile.ReadError(f"a header that makes no sense: {error}") from error

    def _proc_gnusparse_10(self, *_: object) -> None:
        """A map of holes, which would be read from the contents without end."""
        raise tarfile.ReadError("a member with holes")


def _sane(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The member, with all that its extended header says. Raises ReadError for a time that no file can have."""
    if not 0 <= member.mtime <= MTIME_MAX:  # nor is it a number, then
        raise tarfile.ReadError(f"a modification time of {member.mtime:g}")
    return member


def each_member(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members in their order, none of them kept. Raises as `tarfile` does."""
    while (member := archive.next()) is not None:
        archive.members.clear()  # type: ignore[attr-defined]
        yield member

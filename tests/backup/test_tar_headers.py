"""Archives that anybody may have made: what stands before a member takes no memory, and is one clear error."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from swarmd.backup.bundle import MANIFEST, open_bundle
from swarmd.backup.restore import check_backup, restore_backup
from swarmd.backup.tar_headers import HEADER_BYTES_MAX, BoundedTarHeader, each_member
from swarmd.errors import BackupError, BundleError

MIB = 2**20
PEAK = 24 * MIB  # bytes that reading may take; the bombs hold more


def header(kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def long_header(kind: bytes) -> bytes:
    return header(kind, 48 * MIB) + b"a" * (48 * MIB) + header(tarfile.REGTYPE, 0)


def negative() -> bytes:
    """A size that has `read` take all that follows."""
    return header(tarfile.GNUTYPE_LONGNAME, -512) + b"a" * (48 * MIB)


def chained() -> bytes:
    """One long name after another: each is read by the one before."""
    return (header(tarfile.GNUTYPE_LONGNAME, 512) + b"a" * 512) * 3000 + header(tarfile.REGTYPE, 0)


def with_holes() -> bytes:
    """An old GNU header with a list of holes that goes on and on."""
    start = bytearray(header(tarfile.GNUTYPE_SPARSE, 0))
    start[482] = 1
    start[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(start))[0]
    block = (b"%011o\0" % 1) * 42 + b"\1" + b"\0" * 7
    return bytes(start) + block * 20_000


def with_a_map() -> bytes:
    """The same as a PAX archive has it, within a small header."""
    records = b"".join(
        b"%d %s" % (len(record) + 3, record)
        for record in (b"GNU.sparse.major=1\n", b"GNU.sparse.minor=0\n", b"GNU.sparse.name=abc\n")
    )
    pax = header(tarfile.XHDTYPE, len(records)) + records.ljust(512, b"\0")
    return pax + header(tarfile.REGTYPE, 8 * MIB) + b"9999999\n" + b"1\n" * (4 * MIB)


def global_header() -> bytes:
    record = b"12 abc=defg\n"
    return header(tarfile.XGLTYPE, len(record)) + record.ljust(512, b"\0") + header(tarfile.REGTYPE, 0)


BOMBS: dict[str, Callable[[], bytes]] = {
    "long name": lambda: long_header(tarfile.GNUTYPE_LONGNAME),
    "long link": lambda: long_header(tarfile.GNUTYPE_LONGLINK),
    "pax": lambda: long_header(tarfile.XHDTYPE),
    "solaris": lambda: long_header(tarfile.SOLARIS_XHDTYPE),
    "negative": negative,
    "chained": chained,
    "holes": with_holes,
    "map of holes": with_a_map,
    "global": global_header,
}


@pytest.fixture(params=BOMBS)
def bomb(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "bomb.tar.gz"
    path.write_bytes(gzip.compress(BOMBS[request.param]() + b"\0" * 1024, 1))
    assert path.stat().st_size < MIB
    return path


def test_no_header_takes_memory(bomb: Path, tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        for work in (check_backup, lambda path: restore_backup(path, tmp_path / "new", None)):
            with pytest.raises(BackupError):
                work(bomb)
        with pytest.raises(BundleError):
            open_bundle(bomb, tmp_path / "opened")
        assert tracemalloc.get_traced_memory()[1] < PEAK
    finally:
        tracemalloc.stop()
    assert not (tmp_path / "new").exists() and not (tmp_path / "opened").exists()


def test_only_what_swarmd_writes_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "other.tar.xz"
    path.write_bytes(lzma.compress(b"\0" * 10_240))
    with pytest.raises(BackupError, match="cannot be read"):
        check_backup(path)


def test_ordinary_long_names_and_odd_times_are_read(tmp_path: Path) -> None:
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        with tarfile.open(tmp_path / "ours.tar", "w", format=form) as tar:
            info = tarfile.TarInfo("checkpoints/" + "x" * 200)
            info.size, info.mtime = 1, 1.5  # type: ignore[assignment]
            tar.addfile(info, io.BytesIO(b"x"))
        with tarfile.open(tmp_path / "ours.tar", tarinfo=BoundedTarHeader) as tar:
            assert [member.name for member in each_member(tar)] == [info.name]
    assert os.pathconf("/", "PC_PATH_MAX") <= HEADER_BYTES_MAX


def test_members_are_not_kept(tmp_path: Path) -> None:
    """Each may bring a header of some size."""
    with tarfile.open(tmp_path / "many.tar", "w") as tar:
        for number in range(50):
            tar.addfile(tarfile.TarInfo(str(number)))
    for mode in ("r:", "r|"):
        with tarfile.open(tmp_path / "many.tar", mode, tarinfo=BoundedTarHeader) as tar:  # type: ignore[call-overload]
            assert [int(member.name) for member in each_member(tar) if not tar.members] == list(range(50))


# --- a bundle that does not open leaves nothing ---


def no_bundle(path: Path) -> Path:
    path.write_bytes(b"no archive")
    return path


def late(path: Path) -> Path:
    """One that is found out after it was unpacked."""
    with tarfile.open(path, "w:gz") as tar:
        for name in ("a/file", MANIFEST):
            info = tarfile.TarInfo(name)
            info.size = 2
            tar.addfile(info, io.BytesIO(b"{}"))
    return path


@pytest.mark.parametrize("make", [no_bundle, late])
@pytest.mark.parametrize("there", [False, True])
def test_a_bundle_that_does_not_open_leaves_nothing(make: Callable[[Path], Path], there: bool, tmp_path: Path) -> None:
    into = tmp_path / "opened"
    if there:
        into.mkdir()
    for _ in range(2):
        with pytest.raises(BundleError) as told:
            open_bundle(make(tmp_path / "b.tar.gz"), into)
        assert "not an empty directory" not in str(told.value)
    assert into.exists() == there and not (there and list(into.iterdir()))


# --- numbers that no file has ---


@pytest.mark.parametrize("mtime", ["-1e300", "1e300", "nan", "inf", "-1", "1e18", "253402300800"])
def test_a_time_that_no_file_has_is_refused_as_a_damaged_archive(mtime: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("manifest.json")
        info.size, info.pax_headers = 1, {"mtime": mtime}
        tar.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(BundleError, match="modification time"):
        open_bundle(path, tmp_path / "opened")
    assert not (tmp_path / "opened").exists()
    with pytest.raises(BackupError):
        check_backup(path)


@pytest.mark.parametrize("field", ["mode", "uid", "gid"])
def test_owners_and_modes_beyond_all_numbers_raise_nothing_else(field: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.GNU_FORMAT) as tar:
        info = tarfile.TarInfo("manifest.json")
        info.size = 1
        setattr(info, field, 2**50)
        tar.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(BundleError):
        open_bundle(path, tmp_path / "opened")

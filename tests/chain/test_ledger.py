"""The signer's audit log and what is known from it: nothing is lost by a crash or by a new file."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.chain import signer as audit
from swarmd.chain.signer import FILES_KEPT, AuditLine, AuditLog, SignerLedger, current_timestamp
from swarmd.errors import LogDamaged, LogInUse, NoSpaceLeft

AT = "2026-01-02T03:04:05.678+00:00"


def signed(peer: str = "p", nonce: int = 0, **more: Any) -> AuditLine:
    fields = {"hash": f"0x{nonce:064x}", "raw": "0x02ff", "fee_wei": "7"} | more
    return AuditLine(AT, "signed", f"reward/0/0/{peer}", "reward", peer=peer, nonce=nonce, **fields)


def said(what: str, peer: str = "p", **more: Any) -> AuditLine:
    return AuditLine(AT, what, f"reward/0/0/{peer}", "reward", peer=peer, **more)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def reopened(path: Path) -> list[AuditLine]:
    log = AuditLog(path)
    log.close()
    return log.lines


def test_lines_come_back_as_they_were_written(path: Path) -> None:
    lines = [
        signed(reward=-3, org="o", remote="::1"),
        said("sent", hash="0x1"),
        AuditLine(current_timestamp(), "stopped"),
    ]
    log = AuditLog(path)
    for line in lines:
        log.append(line)
    log.close()
    assert reopened(path) == lines
    mode = stat.S_IMODE(path.stat().st_mode)
    assert mode == 0o600
    assert [json.loads(line)["what"] for line in path.read_text(encoding="utf-8").splitlines()] == [
        "signed",
        "sent",
        "stopped",
    ]
    assert lines[0].posix_time == pytest.approx(1767323045.678)


@given(st.integers(min_value=1, max_value=60))
def test_a_line_that_a_crash_cut_short_is_cut_off(tmp_path_factory, cut: int) -> None:
    path = tmp_path_factory.mktemp("torn") / "audit.jsonl"
    log = AuditLog(path)
    log.append(signed(nonce=1))
    log.append(signed(nonce=2))
    log.close()
    path.write_bytes(path.read_bytes()[:-cut])
    assert reopened(path) == [signed(nonce=1)]
    log = AuditLog(path)
    log.append(signed(nonce=3))
    log.close()
    assert reopened(path) == [signed(nonce=1), signed(nonce=3)]


OPENED = f'{{"at": "{AT}", "what": '
DAMAGED = {
    "empty": "",
    "unknown": OPENED + '"dreamt"}',
    "deep": "[" * 50_000,
    "no text": "\udcff",
    "no time": '{"at": "x", "what": "signed"}',
    "no transaction": OPENED + '"signed", "raw": "0xg0"}',
    "no fee": OPENED + '"signed", "fee_wei": "-"}',
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_line_before_the_end_is_refused(path: Path, what: str) -> None:
    path.write_bytes(f'{DAMAGED[what]}\n{OPENED}"started"}}\n'.encode("utf-8", "surrogateescape"))
    with pytest.raises(LogDamaged, match="line 1 of the audit log"):
        AuditLog(path)
    with pytest.raises(LogDamaged):  # and the lock was let go of
        AuditLog(path)


def test_one_process_writes(path: Path) -> None:
    log = AuditLog(path)
    with pytest.raises(LogInUse):
        AuditLog(path)
    log.close()
    assert reopened(path) == []


def test_a_full_disk_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(path)

    def fail(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(audit.os, "fdatasync", fail)
    with pytest.raises(NoSpaceLeft):
        log.append(signed())
    log.close()


def test_new_files_begin_with_what_is_open_and_old_ones_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "FILE_BYTES_MAX", 2000)
    known = SignerLedger()
    log = AuditLog(path, known.lines_for_new_file)

    def write(line: AuditLine) -> None:
        known.apply_line(line)
        log.append(line)

    write(signed("open", nonce=0))
    for number in range(1, 400):
        write(signed(f"p{number}", nonce=number))
        write(said("mined", f"p{number}", hash="0x1", block=number, block_hash="0x2"))
        write(said("confirmed", f"p{number}"))
    log.close()
    files = sorted(each.name for each in path.parent.iterdir() if each.name != "audit.jsonl.lock")
    assert files == ["audit.jsonl", *(f"audit.jsonl.{number}" for number in range(1, FILES_KEPT))]
    assert all(each.stat().st_size < 3000 for each in path.parent.iterdir())
    again = SignerLedger(reopened(path))
    assert [entry.submission for entry in again.open_submissions()] == ["reward/0/0/open"]
    assert again.reserved_nonces() == {0}


STEPS = ("signed", "sent", "unsure", "refused", "failed", "mined", "reorganised", "confirmed", "ended", "started")


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from("abc")), max_size=40), st.integers(0, 40))
def test_a_file_begun_anew_tells_the_same_of_what_is_open(steps: list[tuple[str, str]], place: int) -> None:
    lines = [
        signed(peer, nonce, reward=nonce)
        if what == "signed"
        else said(what, peer, **({"hash": f"0x{nonce}", "block": nonce} if what == "mined" else {}))
        for nonce, (what, peer) in enumerate(steps)
    ]
    whole = SignerLedger(lines)
    cut = SignerLedger([*SignerLedger(lines[:place]).lines_for_new_file(), *lines[place:]])

    def told(known: SignerLedger) -> Any:
        return [(each.submission, each.attempts, each.block, each.asked) for each in known.open_submissions()]

    reorganised_later = {peer for what, peer in steps[place:] if what == "reorganised"}
    if not reorganised_later:  # a confirmed one that comes back was told of in the older file alone
        assert told(cut) == told(whole)
        assert cut.reserved_nonces() == whole.reserved_nonces()


def test_attempts_gather_until_one_is_mined() -> None:
    known = SignerLedger([signed(nonce=4), signed(nonce=4, hash="0xdearer", fee_wei="9"), signed("q", nonce=3)])
    entry = known.entries.get("reward/0/0/p")
    assert entry is not None
    assert ([attempt.fee_wei for attempt in entry.attempts], entry.newest) == (["7", "9"], "0xdearer")
    assert [each.asked.peer for each in known.open_submissions()] == ["q", "p"]
    known.apply_line(said("mined", hash=f"0x{4:064x}", block=9))
    assert entry.newest == f"0x{4:064x}"
    known.apply_line(said("confirmed"))
    assert (known.reserved_nonces(), known.entries.get("reward/0/0/p")) == ({3}, entry)
    known.apply_line(said("reorganised"))
    assert (known.reserved_nonces(), entry.newest) == ({3, 4}, "0xdearer")
    known.apply_line(said("ended", code="lost"))
    assert known.entries.get("reward/0/0/p") is None

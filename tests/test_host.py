"""Where no node can run, a start says so at once, and the doctor too."""

from __future__ import annotations

import multiprocessing
import resource
from types import SimpleNamespace
from typing import Any

import pytest

from swarmd.doctor.machine import check_limits
from swarmd.errors import ConfigError
from swarmd.host import check_host


def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))


def no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(multiprocessing, "Lock", refuse)


@pytest.mark.parametrize(
    ("lacking", "words", "fix"),
    [(few_files, "64 files open", "LimitNOFILE="), (no_shared_memory, "Read-only file system, of /dev/shm", "tmpfs")],
)
def test_a_machine_that_allows_too_little_is_named(
    monkeypatch: pytest.MonkeyPatch, lacking: Any, words: str, fix: str
) -> None:
    check_host()
    lacking(monkeypatch)
    with pytest.raises(ConfigError, match=words) as refused:
        check_host()
    assert fix in refused.value.fix
    (finding,) = check_limits(SimpleNamespace())  # type: ignore[arg-type]
    assert finding.severity == "error" and words in finding.evidence and fix in finding.fix

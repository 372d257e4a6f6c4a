"""What a user names to be read is a regular file: a pipe or device would keep the command waiting for ever."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Protocol

import pytest

from swarmd.backup.backup import check_backup
from swarmd.backup.bundle import open_bundle
from swarmd.chain.endpoints import read_urls
from swarmd.config import load_config
from swarmd.dht.identity.backup import read_backup
from swarmd.errors import SwarmdError
from swarmd.manifest import read_manifest
from swarmd.swarms.jsonl import read_rows
from swarmd.training.models.source import locate_model

PATIENCE_S = 20.0


class Reader(Protocol):
    """Reads a path that a user gave."""

    def __call__(self, path: Path) -> object: ...


def read_model(path: Path) -> object:
    """A model directory with the path as one of its files."""
    model = path.parent / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").symlink_to(path)
    return locate_model(str(model))


READERS: dict[str, Reader] = {
    "configuration": load_config,
    "manifest": read_manifest,
    "questions": lambda path: list(read_rows(path)),
    "backup": check_backup,
    "bundle": lambda path: open_bundle(path, path.parent / "opened"),
    "identity's backup": read_backup,
    "endpoints": lambda path: read_urls([f"file:{path}"], path.parent),
    "model": read_model,
}


def ending(read: Reader, path: Path) -> BaseException | None:
    """What a reader raises; fails where it waits for somebody to write."""
    raised: list[BaseException] = []

    def attempt() -> None:
        try:
            read(path)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if thread.is_alive():
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # so that it ends
        pytest.fail("it waits")
    return raised[0] if raised else None


@pytest.mark.parametrize("what", READERS)
def test_a_named_pipe_is_refused_and_not_waited_for(what: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    error = ending(READERS[what], pipe)
    assert isinstance(error, SwarmdError) and "named pipe" in str(error) and str(pipe.parent) in str(error)
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("what", READERS)
def test_a_device_is_refused(what: str, tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.symlink_to("/dev/zero")
    error = ending(READERS[what], device)
    assert isinstance(error, SwarmdError) and "it is a device" in str(error) and str(device.parent) in str(error)

"""What tests of the command line share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.anvil import running_anvil
from tests.cli.owning import OwnChain, Shell


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    return Shell(capsys, tmp_path)


@pytest.fixture(scope="module")
def chain() -> Iterator[OwnChain]:
    with running_anvil() as url:
        yield OwnChain(url)

"""What tests of the command line share."""

from pathlib import Path

import pytest

from tests.cli.owning import Shell


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    return Shell(capsys, tmp_path)

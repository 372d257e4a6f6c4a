"""One private systemd for all tests of this folder."""

import os
from collections.abc import Iterator

import pytest

from tests.programs import path_of
from tests.units.private_systemd import CannotBoot, PrivateSystemd


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateSystemd]:
    """What the machine refuses skips the test: no program that is installed would change it."""
    path_of("systemd")
    if os.geteuid() != 0:
        pytest.skip("only root can boot a private systemd")
    try:
        with PrivateSystemd(tmp_path_factory.mktemp("systemd")) as machine:
            yield machine
    except CannotBoot as error:
        pytest.skip(f"this machine boots no private systemd: {error}")

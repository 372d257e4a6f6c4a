"""One private systemd for all tests of this folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.units.private_systemd import SYSTEMD, PrivateSystemd

NEEDED = ("unshare", "nsenter", "setpriv", "systemd-analyze")


def require_systemd() -> None:
    """Skip where that was asked for, fail where something is missing."""
    if os.environ.get("SWARMD_SKIP_SYSTEMD") == "1":
        pytest.skip("SWARMD_SKIP_SYSTEMD=1")
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing or not (SYSTEMD / "systemd").exists():
        pytest.fail(f"systemd's tests need systemd and util-linux ({missing}): install them, or SWARMD_SKIP_SYSTEMD=1")
    if os.geteuid() != 0:
        pytest.fail("systemd's tests need root, to make namespaces; without it set SWARMD_SKIP_SYSTEMD=1")


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateSystemd]:
    require_systemd()
    with PrivateSystemd(tmp_path_factory.mktemp("systemd")) as booted:
        yield booted

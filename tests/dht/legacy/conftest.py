"""Shared by the tests of legacy networks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.dht.legacy.network import Network


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[Network]:
    made = Network(tmp_path)
    yield made
    await made.clean()

"""A fresh chain for each test, for the tests turn chains upside down."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.anvil import AnvilMissing, running_anvil
from tests.chain.grounds import Ground


@pytest.fixture
def anyio_backend() -> str:
    """aiohttp needs asyncio."""
    return "asyncio"


@pytest.fixture
def ground() -> Iterator[Ground]:
    """Without anvil the tests fail; they are never skipped."""
    try:
        with running_anvil() as url:
            yield Ground(url)
    except AnvilMissing as error:
        pytest.fail(str(error), pytrace=False)

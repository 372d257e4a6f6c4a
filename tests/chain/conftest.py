"""A fresh chain for each test, for the tests turn chains upside down."""

from collections.abc import Iterator

import pytest

from tests.anvil import running_anvil
from tests.chain.grounds import Ground


@pytest.fixture
def anyio_backend() -> str:
    """aiohttp needs asyncio."""
    return "asyncio"


@pytest.fixture
def ground() -> Iterator[Ground]:
    with running_anvil() as url:
        yield Ground(url)

"""A fresh chain for each test, for the tests turn chains upside down."""

from collections.abc import AsyncIterator, Iterator

import pytest

from swarmd.chain.endpoints import RpcPool
from tests.anvil import running_anvil
from tests.chain.faults import stop_all
from tests.chain.grounds import Ground, calls_to


@pytest.fixture
def ground() -> Iterator[Ground]:
    with running_anvil() as url:
        yield Ground(url)


@pytest.fixture
async def calls(ground: Ground) -> AsyncIterator[RpcPool]:
    async with calls_to(ground.url) as calls:
        yield calls


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A chain for tests that leave it as it is, or add to it."""
    with running_anvil() as url:
        yield url


@pytest.fixture
async def endings() -> AsyncIterator[None]:
    """No worker outlives its test."""
    yield
    await stop_all()

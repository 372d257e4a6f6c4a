"""Shared by the network's tests."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """hivemind needs asyncio."""
    return "asyncio"

"""Shared by the network's tests."""

import pytest

from swarmd.bounds import Backoff
from swarmd.dht import weights


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gives no weights is asked again at once, and not waited for."""
    monkeypatch.setattr(weights, "AGAIN", Backoff(0.001, 0.001))
    monkeypatch.setattr(weights, "GIVE_UP_S", 0.0)

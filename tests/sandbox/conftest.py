"""A sandbox of each kind."""

import pytest

from swarmd.sandbox import Isolation, Limits, Sandbox
from tests.programs import path_of

MIB = 1024 * 1024
# One CPU second and short waits: what is contained by a limit is contained by a small one.
LIMITS = Limits(wall_s=20.0, cpu_s=1, memory_bytes=256 * MIB, output_bytes=10_000)


@pytest.fixture(scope="session", params=["bubblewrap", "namespaces"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    way: Isolation = request.param
    if way == "bubblewrap":
        path_of("bubblewrap")
    return Sandbox(LIMITS, way)

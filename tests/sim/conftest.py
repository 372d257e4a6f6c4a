"""How many seeds the simulator's tests play.

CI plays a short slice. `SWARMD_SIM_SEEDS=500 pytest tests/sim` plays that many seeds in `sim/test_world.py`;
`swarmd sim --seeds 500`, which `make soak` runs, does the same from the command line.
"""

import os

import pytest

SEEDS = int(os.environ.get("SWARMD_SIM_SEEDS", "8"))


@pytest.fixture(scope="session")
def seeds() -> range:
    """The seeds to play."""
    return range(SEEDS)

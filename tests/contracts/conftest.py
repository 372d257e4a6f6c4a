"""One anvil for the session; a swarm of its own for each test, in a build with three stages and in one with one."""

from collections.abc import Iterator
from functools import cache

import pytest
from web3 import Web3
from web3.contract import Contract

from tests.anvil import running_anvil
from tests.contracts.chain import Swarm, connect, deploy, deploy_swarm


@pytest.fixture(scope="session")
def w3() -> Iterator[Web3]:
    with running_anvil("--prune-history") as url:  # of each block anvil would keep a copy of all swarms
        yield connect(url)


@pytest.fixture(scope="session")
def implementation(w3: Web3):
    """Gives the implementation that is put behind proxies, by its number of stages."""

    @cache
    def deployed(stages: int) -> Contract:
        return deploy(w3, f"LockedSwarmCoordinator-{stages}")

    return deployed


@pytest.fixture(params=[3, 1], ids=["3-stages", "1-stage"])
def swarm(request: pytest.FixtureRequest, w3: Web3, implementation) -> Swarm:
    return deploy_swarm(w3, request.param, implementation(request.param))


@pytest.fixture
def three_stages(w3: Web3, implementation) -> Swarm:
    return deploy_swarm(w3, 3, implementation(3))


@pytest.fixture
def one_stage(w3: Web3, implementation) -> Swarm:
    return deploy_swarm(w3, 1, implementation(1))


@pytest.fixture
def joined(swarm: Swarm) -> Swarm:
    """A swarm in which alice has p and q, and bob has r."""
    swarm.register(swarm.alice, "p", "q")
    swarm.register(swarm.bob, "r")
    return swarm

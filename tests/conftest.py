"""What all tests share: a quiet, offline environment with one thread a process."""

import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

from swarmd import secret_files
from swarmd.core.chart import GAPS
from tests.forked import share_servers
from tests.programs import path_of

pytest_plugins = ["tests.schedule"]

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("COLUMNS", "120")

# By default an example that takes 200 ms fails its test, which on a busy machine is nobody's fault.
settings.register_profile("unhurried", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# A trigger in a state whose chart says nothing of it; a node would leave its state alone and log it.
GAPS.raises = True

# A shell that starts a test run in the background has it ignore SIGINT, and what it starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import and collect without looking for garbage, a quarter of that time: all of it stays to the end."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


STRONG_COST = secret_files.SCRYPT_COST
LIGHT_COST = 10


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the long forms of tests too (marked soak)")


def pytest_configure() -> None:
    share_servers()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long forms of tests run only when asked for."""
    if not config.getoption("--soak"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("soak")])
        items[:] = [item for item in items if not item.get_closest_marker("soak")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose program is missing, or fail it with STRICT=1."""
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            path_of(name)


@pytest.fixture(scope="module")
def without_sync() -> Iterator[None]:
    """No waiting for the disk, in modules whose tests are not about durability."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(os, "fdatasync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """hivemind and aiohttp need asyncio."""
    return "asyncio"


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is found out about models stays within a run, for all its processes."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="session")
def light_passphrases() -> None:
    """Files that tests encrypt in this process open in milliseconds; `strong_passphrases` undoes it for one test."""
    secret_files.SCRYPT_COST = LIGHT_COST


@pytest.fixture
def strong_passphrases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_files, "SCRYPT_COST", STRONG_COST)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command run in the test's own process sets logging up for good, on a stream that ends with the test."""
    before = list(logging.getLogger().handlers)
    yield
    for target in list(logging.getLogger().handlers):
        if target not in before and not type(target).__module__.startswith("_pytest"):
            logging.getLogger().removeHandler(target)
    structlog.reset_defaults()

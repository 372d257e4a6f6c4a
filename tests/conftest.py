"""What all tests share: a quiet, offline environment with one thread a process."""

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

pytest_plugins = ["tests.again"]

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("COLUMNS", "120")

# A shell that starts a test run in the background has it ignore SIGINT, and what it starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command run in the test's own process sets logging up for good, on a stream that ends with the test."""
    before = list(logging.getLogger().handlers)
    yield
    for target in list(logging.getLogger().handlers):
        if target not in before and not type(target).__module__.startswith("_pytest"):
            logging.getLogger().removeHandler(target)
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def plain_installation(request: pytest.FixtureRequest) -> None:
    """Whole nodes run without the optional packages that the development environment has."""
    if request.node.get_closest_marker("e2e"):
        paths = [str(Path(__file__).parent / "plain"), os.environ.get("PYTHONPATH", "")]
        request.getfixturevalue("monkeypatch").setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))

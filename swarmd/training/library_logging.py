"""Keeps progress bars and advice of the libraries out of the log; warnings that matter come as errors anyway."""

from __future__ import annotations

import os
import warnings
from typing import Any


def quieten() -> None:
    """For a process whose stderr is a log. Sets offline defaults for telemetry; imports transformers and datasets."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", category=FutureWarning)
    from importlib import import_module

    datasets: Any = import_module("datasets")
    logging: Any = import_module("transformers.utils.logging")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    datasets.disable_progress_bars()

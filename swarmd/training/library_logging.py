"""Keeps progress bars and advice of the libraries out of the log, and what they report to their makers on the machine.

Warnings that matter come as errors anyway.
"""

from __future__ import annotations

import logging as stdlib_logging
import os
import sys
import warnings
from importlib import import_module
from typing import Any

HUB_TELEMETRY = "HF_HUB_DISABLE_TELEMETRY"  # the variable, and huggingface_hub's constant


def quieten() -> None:
    """For a process whose stderr is a log. Imports transformers; to be called before datasets is imported.

    TRL and the hub's library report what is trained only if the environment says so.
    """
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
    refused = os.environ.setdefault(HUB_TELEMETRY, "1") == "1"
    if refused and (constants := sys.modules.get("huggingface_hub.constants")):  # it has read the variable already
        setattr(constants, HUB_TELEMETRY, True)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings("ignore", category=FutureWarning)
    # That a faster kernel is not installed, at its import.
    stdlib_logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel("ERROR")
    logging: Any = import_module("transformers.utils.logging")
    logging.set_verbosity_error()
    logging.disable_progress_bar()

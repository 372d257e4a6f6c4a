"""Keeps libraries' progress bars and advice out of the log, and their telemetry on this machine.

Warnings that matter come as errors anyway.
"""

import logging as stdlib_logging
import os
import sys
import warnings
from importlib import import_module
from typing import Any

HUB_TELEMETRY = "HF_HUB_DISABLE_TELEMETRY"  # the variable, and huggingface_hub's constant


def silence_libraries() -> None:
    """Silence libraries in a process whose stderr is a log. Call it before datasets is imported; imports transformers.

    TRL and the Hub's library then report what is trained only if the environment says so.
    """
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
    refused = os.environ.setdefault(HUB_TELEMETRY, "1") == "1"
    if refused and (constants := sys.modules.get("huggingface_hub.constants")):  # it has read the variable already
        setattr(constants, HUB_TELEMETRY, True)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings("ignore", category=FutureWarning)
    # says at its import that a faster kernel is not installed
    stdlib_logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel("ERROR")
    logging: Any = import_module("transformers.utils.logging")
    logging.set_verbosity_error()
    logging.disable_progress_bar()

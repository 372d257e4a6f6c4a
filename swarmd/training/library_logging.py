"""Keeps libraries' progress bars and advice out of the log, and disables their telemetry.

Problems that matter reach swarmd as exceptions anyway.
"""

import logging as stdlib_logging
import os
import sys
import warnings
from importlib import import_module
from typing import Any

HUB_TELEMETRY = "HF_HUB_DISABLE_TELEMETRY"  # the environment variable, and huggingface_hub's constant


def silence_libraries() -> None:
    """Silence libraries in a process whose stderr is a log. Call it before datasets is imported; imports transformers.
    TRL and the Hub's library then send telemetry only if the environment asks for it."""
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
    refused = os.environ.setdefault(HUB_TELEMETRY, "1") == "1"
    if refused and (constants := sys.modules.get("huggingface_hub.constants")):  # it has already read the variable
        setattr(constants, HUB_TELEMETRY, True)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings("ignore", category=FutureWarning)
    # logs on import that a faster kernel is not installed
    stdlib_logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel("ERROR")
    logging: Any = import_module("transformers.utils.logging")
    logging.set_verbosity_error()
    logging.disable_progress_bar()

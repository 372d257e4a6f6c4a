"""The daemon's loggers. A node may run inside a program that has not set up structlog: there it says warnings alone."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, MutableMapping
from typing import Any

import structlog
from structlog.typing import Processor


def get_logger(name: str) -> Any:
    """As structlog's own, by the program's configuration; without one, warnings and worse go to stderr.

    structlog prints everything there, debug lines too, on stdout. Its configuration is the program's, and left alone.
    """
    return structlog.wrap_logger(None, wrapper_class=_bind, logger_factory_args=(name,))  # type: ignore[arg-type]


def _bind(logger: Any, processors: Iterable[Processor], context: MutableMapping[str, Any]) -> Any:
    """What structlog takes for the class of a bound logger, and calls for each line."""
    if structlog.is_configured():
        return structlog.get_config()["wrapper_class"](logger, processors=processors, context=context)
    quiet: Any = structlog.make_filtering_bound_logger(logging.WARNING)
    return quiet(structlog.PrintLogger(sys.stderr), processors=processors, context=context)

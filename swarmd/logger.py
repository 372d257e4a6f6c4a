"""The one way to get a logger: `log = get_logger(__name__)`.

If swarmd has configured logging, a line goes through structlog with its fields. Inside another program, which has not,
it goes to the standard library's logger of that name.
"""

import logging
from collections.abc import Iterable, MutableMapping
from functools import partial
from typing import Any

import structlog
from structlog.typing import Processor


def get_logger(name: str) -> Any:
    """A logger with structlog's methods: a message with %-arguments, and fields by name."""
    return structlog.wrap_logger(None, wrapper_class=partial(_bind_logger, name), logger_factory_args=(name,))  # type: ignore[arg-type]


def _bind_logger(name: str, logger: Any, processors: Iterable[Processor], context: MutableMapping[str, Any]) -> Any:
    """Bind a logger when a line is logged; structlog calls this in place of a bound logger's class."""
    if structlog.is_configured():
        return structlog.get_config()["wrapper_class"](logger, processors=processors, context=context)
    return structlog.stdlib.BoundLogger(logging.getLogger(name), _PLAIN, dict(context))


def _as_record(logger: Any, method: str, fields: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """Format message and fields as one text for the standard library."""
    exc_info = fields.pop("exc_info", None)
    message = str(fields.pop("event", ""))
    return (" ".join([message, *(f"{name}={value}" for name, value in fields.items())]),), {"exc_info": exc_info}


_PLAIN: list[Processor] = [structlog.stdlib.PositionalArgumentsFormatter(), _as_record]

"""The reference server as a process: its parts put together, and its orderly end."""

from __future__ import annotations

import asyncio
import logging
from importlib import import_module
from typing import Any, NamedTuple

from swarmd.config import TrainingConfig
from swarmd.http_server import Address, check_listen, on_signals
from swarmd.training.library_logging import refuse_telemetry
from swarmd.training.reference.scoring import ReferenceScorer, load_frozen
from swarmd.training.reference.server import ReferenceApp, ServerLimits
from swarmd.uvicorn_server import listening

STOP_S = 20.0  # requests under way may take so long once the last job is computed

log = logging.getLogger(__name__)


class ReferenceServerSetup(NamedTuple):
    """What a reference server is to do."""

    training: TrainingConfig  # of which the model, device, dtype and threads count
    listen: Address
    token: str = ""
    compat: bool = False
    limits: ServerLimits = ServerLimits()


def quieten() -> None:
    """Keep progress bars and advice of transformers out of the log, and what the hub's library would report."""
    refuse_telemetry()
    library: Any = import_module("transformers.utils.logging")
    library.set_verbosity_error()
    library.disable_progress_bar()


async def run_server(order: ReferenceServerSetup) -> None:
    """Serve until SIGTERM or SIGINT; what is being computed then is finished and handed out.

    Raises:
        ConfigError: strangers could reach it, or there is no such device.
        ModelError: the model cannot be loaded.
        AddressInUse: the address cannot be listened on.
    """
    check_listen(order.listen, order.token, "the reference server")
    quieten()
    reference = ReferenceScorer(load_frozen(order.training))
    desk = ReferenceApp(reference, order.limits, order.token, order.compat)
    stopped = on_signals()
    computing = asyncio.create_task(desk.compute())
    async with listening(desk.app(), order.listen, STOP_S) as url:
        log.info(
            "listening on %s with %s (%s) on %s", url, order.training.model, reference.digest, reference.frozen.device
        )
        await asyncio.wait({computing, stopped}, return_when=asyncio.FIRST_COMPLETED)
        log.info("stopping")
        desk.close()
        await computing

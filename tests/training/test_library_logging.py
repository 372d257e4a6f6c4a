"""The libraries' telemetry stays on the machine."""

from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _telemetry, send_telemetry

from swarmd.training.library_logging import HUB_TELEMETRY, silence_libraries


@pytest.mark.parametrize("wanted", [False, True], ids=["as shipped", "asked for"])
def test_nothing_is_reported_though_the_library_was_imported_first(wanted: bool, monkeypatch: Any) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv(HUB_TELEMETRY, raising=False)
    if wanted:
        monkeypatch.setenv(HUB_TELEMETRY, "0")
    monkeypatch.setattr(constants, HUB_TELEMETRY, False)  # as an import before `silence_libraries` leaves it
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    sent: list[bool] = []
    monkeypatch.setattr(_telemetry, "_TELEMETRY_QUEUE", type("Sent", (), {"put": lambda _, what: sent.append(True)})())
    monkeypatch.setattr(_telemetry, "_start_telemetry_thread", lambda: None)
    silence_libraries()
    send_telemetry("trl/GRPOTrainer")
    assert bool(sent) is wanted

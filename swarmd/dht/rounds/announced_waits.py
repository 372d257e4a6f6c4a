"""For whom stages wait, as the clock announces it. No hivemind in it."""

from __future__ import annotations

from swarmd.dht.wire.records import ClockRecord

STAGES_KEPT = 256  # of which it is remembered


class AnnouncedWaits:
    """What is known of the latest stages."""

    def __init__(self) -> None:
        self._steady_min: dict[tuple[int, int], int] = {}

    def note(self, clock: ClockRecord) -> None:
        """Take over what a clock record says."""
        self._steady_min[clock.round, clock.stage] = clock.steady_min
        if len(self._steady_min) > STAGES_KEPT:
            del self._steady_min[next(iter(self._steady_min))]

    def steady_min(self, round: int, stage: int) -> int | None:
        """Rounds in a row, up to the one before, that a credited member has been credited in for whom the stage waits
        in any case; None where its announcement was not heard."""
        return self._steady_min.get((round, stage))

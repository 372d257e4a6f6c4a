"""What became of a peer's weights, for people."""

from __future__ import annotations

from swarmd.core.events import WeightsAdopted, WeightsFetched, WeightsRefused
from swarmd.core.values import WeightsCause, WeightsDamage

CALM: tuple[WeightsCause, ...] = ("none-offered", "no-better", "worse")  # as it goes; the rest is worth a look

_DAMAGED: dict[WeightsDamage, str] = {
    "": "",
    "base": "; all of them, for the earlier ones here were damaged",
    "file": "; anew, for they were here and damaged",
    "delta": "; all of them, for the delta makes others than were announced",
}


def weights_words(event: WeightsAdopted | WeightsFetched | WeightsRefused) -> str:
    """A sentence without its full stop."""
    match event:
        case WeightsFetched():
            mib = event.received_bytes / 2**20
            return (
                f"the weights of {event.weights.peer} after round {event.weights.round} were fetched, {mib:.1f} MiB in "
                f"{event.seconds:.1f} s{_DAMAGED[event.damaged]}"
            )
        case WeightsAdopted():
            mean = "a mean of its own weights and " if event.weights.averaged else ""
            return (
                f"it began from {mean}the weights of {event.weights.peer}: held-out accuracy {event.held_out:.2f} "
                f"here, its own had {event.held_out_before:.2f}"
            )
        case WeightsRefused():
            whose = f"the weights of {event.peer}" if event.peer else "a peer's weights"
            return f"it did not begin from {whose} ({event.cause}): {event.reason}"


def weights_level(event: WeightsAdopted | WeightsFetched | WeightsRefused) -> str:
    """Of the line in the log."""
    damaged = isinstance(event, WeightsFetched) and event.damaged != ""
    return "warning" if damaged or (isinstance(event, WeightsRefused) and event.cause not in CALM) else "info"


def weights_round(event: WeightsAdopted | WeightsFetched | WeightsRefused) -> int | None:
    """The round that it is about, which stands in the command's name; None where that is none of this node's."""
    number = event.command.split("/")[1:2]
    return int(number[0]) if number and number[0].isdecimal() else None

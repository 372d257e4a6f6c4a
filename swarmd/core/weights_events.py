"""What becomes of weights beside training, a peer's or one's own, as recorded facts; see `swarmd.core.events`."""

from __future__ import annotations

from swarmd.core.event_base import EventBase
from swarmd.core.values import PeerWeights, WeightsCause, WeightsDamage


class WeightsFetched(EventBase, frozen=True, tag="weights_fetched"):
    """A peer's weights are here, whole and as its manifest says; nothing has measured them. Answers `FetchWeights`."""

    command: str
    weights: PeerWeights
    received_bytes: int = 0  # in this attempt: less than the file where some of it was here, or a delta was enough
    seconds: float = 0.0
    damaged: WeightsDamage = ""  # what was, so that all was fetched


class WeightsRefused(EventBase, frozen=True, tag="weights_refused"):
    """A peer's weights are not to be had, or not begun from; answers `FetchWeights`, or comes amid a `Train`."""

    command: str
    cause: WeightsCause
    reason: str = ""  # for people
    peer: str = ""  # whose they are, where there were any
    held_out_before: float | None = None  # accuracy of the own weights, where it was measured
    held_out: float | None = None  # that of the peer's, or of the mean with them


class WeightsAdopted(EventBase, frozen=True, tag="weights_adopted"):
    """The trainer begins a stage from a peer's weights, since they are better here than its own; or from a mean of both
    that is no worse (`PeerWeights.averaged`).

    It counts when the stage is trained: one that is given up leaves the own weights, and the next measures again.
    """

    command: str  # the `Train`
    round: int
    stage: int
    weights: PeerWeights
    held_out_before: float  # accuracy of the own weights on the held-out questions here
    held_out: float  # that of the weights it begins from, on the same


class ModelPushed(EventBase, frozen=True, tag="model_pushed"):
    """What became of an attempt to put the model on the Hugging Face Hub. The core only takes note of it."""

    round: int  # the last one that the pushed model was trained in
    repo: str
    revision: str = ""  # commit on the Hub; empty where it failed
    url: str = ""
    error: str = ""  # why it failed; empty where it did not
    seconds: float = 0.0

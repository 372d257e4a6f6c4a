"""When a change of a node's health is worth a message: (statuses over time) to notes. Pure.

A layer that becomes unwell is told once that lasted `after_s`, with its reason; that it is well again once that lasted
as long. A layer that is not well for `after_s` on end in between counts as unwell on, so one that flaps is told once;
when it went ill again after that, it counts as well only after `quiet_s`. Of one layer there is at most one note in
`quiet_s`; what came and went meanwhile is summed up in the next.
"""

from __future__ import annotations

import msgspec

from swarmd.observe.layers import Layer, LayerName, first_line
from swarmd.observe.onchain import account_layer
from swarmd.observe.redaction import redact_text
from swarmd.observe.status import STALE_S, ProcessStatus, Status

START_S = 180.0  # of a daemon's life in which its other layers are not judged: a model loads, peers are found
REASON_CHARACTERS_MAX = 400


class HealthMessage(msgspec.Struct, frozen=True):
    """One message about one layer."""

    node: str  # its name, else the end of its peer id
    peer: str
    swarm: str
    layer: str
    well: bool
    reason: str  # why it is not well, or was not
    lasted_s: float  # since it became unwell
    changes: int  # how often it was well and ill again that no note tells of
    at: float  # POSIX seconds
    text: str  # all of it in one line


def span(seconds: float) -> str:
    """A time in whole units: "40 s", "5 min", "3 h"."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


class HealthChanges:
    """Turns one node's statuses over time into messages about changes.

    Args:
        after_s: a change must last so long before it is told.
        quiet_s: of one layer, at most one note in so long.
        past: what an earlier process knew, for going on where it was.
    """

    def __init__(self, after_s: float, quiet_s: float, past: NodeState | None = None) -> None:
        self._after_s = after_s
        self._quiet_s = quiet_s
        self.past = past or NodeState()

    def look(self, status: Status, now: float) -> list[HealthMessage]:
        """What is to be told now. Call it more often than `after_s`.

        Args:
            status: the node's.
            now: POSIX seconds.
        """
        notes: list[HealthMessage] = []
        run = self.past.run
        if run and status.process.run != run and status.source == "daemon":
            notes += self._update_layer(status, "process", False, "the daemon ended, and was started anew", now)
        self.past.run = status.process.run or run
        for name, layer in judged(status, now):
            notes += self._update_layer(status, name, layer.healthy, reason_of(layer), now)
        return notes

    def farewell(self, status: Status, now: float) -> list[HealthMessage]:
        """What is to be told before this process ends: that its daemon has stopped, where it has. Nobody else will."""
        process = status.process
        return [] if process.healthy else self._update_layer(status, "process", False, reason_of(process), now, 0.0)

    def _update_layer(
        self, status: Status, name: LayerName, well: bool, reason: str, now: float, after_s: float | None = None
    ) -> list[HealthMessage]:
        track = self.past.tracks.setdefault(name, LayerState(since=now))
        told = track.update(well, reason, now, self._after_s if after_s is None else after_s, self._quiet_s)
        if told is None:
            return []
        return [_note(status, name, told)]


def _note(status: Status, layer: LayerName, told: _Told) -> HealthMessage:
    node = status.name or status.peer[-12:] or "node"
    return HealthMessage(
        node=node,
        peer=status.peer,
        swarm=status.swarm,
        layer=layer,
        well=told.well,
        reason=told.reason,
        lasted_s=told.lasted_s,
        changes=told.changes,
        at=status.at,
        text=f"{node}: {_words(layer, told)}",
    )


def _words(layer: LayerName, told: _Told) -> str:
    what = "the node" if layer == "process" else layer
    flapped = f" (it came and went {told.changes} times meanwhile)" if told.changes else ""
    if told.well:
        return f"{what} is well again after {span(told.lasted_s)}{flapped}; it was: {told.reason}"
    if layer == "process" and told.lasted_s < 1:
        return f"{what} ends{flapped}: {told.reason}"
    verb = "has not run well" if layer == "process" else "has not been well"
    return f"{what} {verb} for {span(told.lasted_s)}{flapped}: {told.reason}"


def judged(status: Status, now: float) -> list[tuple[LayerName, Layer]]:
    """The layers that say something now: of a daemon that is down or has just started, only that; of a status so old
    that nothing is known any more, as on a disk that cannot be read, that there is no newer one."""
    if now - status.at > STALE_S:
        reason = f"neither its daemon nor its log says anything, for {span(now - status.at)} so far"
        return [("process", Layer(state="mute", healthy=False, age_s=now - status.at, reason=reason))]
    layers: list[tuple[LayerName, Layer | None]] = [("process", status.process)]
    starts = 0 <= status.process.age_s < START_S  # below 0, the clock was set back since it started
    if status.source == "daemon" and status.process.healthy and not starts:
        layers += [("network", status.network), ("training", status.training), ("round", status.round)]
        layers += [
            ("chain", status.chain),
            ("submissions", status.submissions),
            ("account", account_layer(status.chain)),
        ]
    return [(name, layer) for name, layer in layers if layer is not None]


def reason_of(layer: Layer) -> str:
    """Why it is not well, in one line without secrets; of a daemon that ended, with its exit code."""
    reason = redact_text(first_line(layer.reason) or layer.state)
    if isinstance(layer, ProcessStatus) and layer.exit_code is not None:
        reason = f"stopped in order, exit code {layer.exit_code}: {reason}"
    return reason if len(reason) <= REASON_CHARACTERS_MAX else reason[:REASON_CHARACTERS_MAX] + " ..."


class _Told(msgspec.Struct, frozen=True):
    well: bool
    reason: str
    lasted_s: float
    changes: int


class LayerState(msgspec.Struct):
    """One layer: how it is, and what was told of it last. Times are POSIX seconds."""

    since: float  # that it is as it is
    well: bool = True
    told_well: bool = True
    told_at: float | None = None
    ill_from: float | None = None  # since it was last well for long enough
    due: bool = False  # that it is ill is worth telling
    relapses: int = 0  # times it became ill since the last note
    missed_s: float = 0.0  # how long the last illness took that came and went untold
    reason: str = ""

    def update(self, well: bool, reason: str, now: float, after_s: float, quiet_s: float) -> _Told | None:
        """Update the layer's state; return the message to send, if any."""
        self._mind_clock(now)
        if well != self.well:
            self.well, self.since = well, now
            self.relapses += not well
        if not well:
            self.reason = reason
            self.ill_from = now if self.ill_from is None else self.ill_from
        quiet = self.told_at is not None and now - self.told_at < quiet_s
        if self.told_well:
            self._settle(now, after_s)
            return None if quiet else self._ill_news(now)
        patience_s = quiet_s if self.relapses else after_s
        over = self.well and now - self.since >= patience_s
        return self._tell(True, now, self.ill_from, self.since) if over and not quiet else None

    def _settle(self, now: float, after_s: float) -> None:
        """While others think it well: is an illness over, or has one lasted?"""
        if self.ill_from is None:
            return
        if self.well and now - self.since >= after_s:
            self.missed_s = self.since - self.ill_from if self.due else self.missed_s
            self.ill_from, self.due = None, False
        elif not self.well and now - self.ill_from >= after_s:
            self.due = True

    def _ill_news(self, now: float) -> _Told | None:
        if self.due and not self.well:
            return self._tell(False, now, self.ill_from, now)
        if self.missed_s and self.ill_from is None:
            return self._tell(True, now, now - self.missed_s, now)
        return None

    def _tell(self, well: bool, now: float, ill_from: float | None, until: float) -> _Told:
        changes = max(0, self.relapses - (1 if self.told_well else 0))
        told = _Told(well, self.reason, max(0.0, until - (now if ill_from is None else ill_from)), changes)
        self.told_well, self.told_at, self.relapses, self.missed_s, self.due = well, now, 0, 0.0, False
        if well:
            self.ill_from = None
        return told

    def _mind_clock(self, now: float) -> None:
        """A clock that was set back: what lies ahead of it now counts as of now."""
        self.since = min(self.since, now)
        self.told_at = None if self.told_at is None else min(self.told_at, now)
        self.ill_from = None if self.ill_from is None else min(self.ill_from, now)


class NodeState(msgspec.Struct):
    """What is remembered of a node from look to look, and from process to process."""

    run: str = ""  # of the daemon's life
    tracks: dict[str, LayerState] = {}

"""What all events are made of."""

from __future__ import annotations

import msgspec


class EventBase(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type"):
    """Base of all events; the ``type`` tag selects the class when a log is read."""

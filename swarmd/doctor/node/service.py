"""The unit of systemd that runs this node: is it what this version of swarmd would write?"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from swarmd.doctor.finding import Finding, FindingKind, well
from swarmd.doctor.subject import Subject
from swarmd.doctor.waiting import in_thread
from swarmd.errors import SwarmdError, UnitError
from swarmd.units.plan import INSTANCE, ServicePaths, find_place
from swarmd.units.reading import UnitDifference, drift

SHOWN_MAX = 6  # differences in one finding
VALUE_LENGTH_MAX = 80

UNIT_DRIFTED = FindingKind(
    "unit.drift",
    "warning",
    "The service is not what this swarmd would install",
    "The unit was changed, or is of another version: limits, hardening, or what is restarted may not be as documented.",
    "Compare with `swarmd service show`; changes of your own belong into a drop-in of another name",
)
UNIT_UNREAD = FindingKind(
    "unit.unread",
    "note",
    "The service could not be compared",
    "Its files cannot be read, or its configuration is wrong.",
    "Try again as root, after the configuration is mended",
)


async def check_unit(subject: Subject) -> list[Finding]:
    """Every place of a service whose configuration this is."""
    assert subject.path is not None
    places = [place for place in places_of(subject.path) if (place.units / place.template).exists()]
    if not places:
        return [well("unit", "Service", "no unit of systemd runs this configuration")]
    found = [finding for place in places for finding in await in_thread(_compare, place)]
    return found or [well("unit", "Service", f"{', '.join(place.unit for place in places)}: as this swarmd writes it")]


def places_of(config: Path) -> Iterator[ServicePaths]:
    """Where a service of this configuration would lie: the system's and the user's, the one node's or an instance's."""
    for user in (False, True):
        names = ["", config.stem] if INSTANCE.fullmatch(config.stem) else [""]
        for name in names:
            with contextlib.suppress(UnitError):  # this user has no home
                place = find_place(name, user)
                if place.config.absolute() == config.absolute():
                    yield place


def _compare(place: ServicePaths) -> list[Finding]:
    try:
        differences = drift(place)
    except (SwarmdError, OSError) as error:
        return [UNIT_UNREAD.found(f"{place.unit}: {getattr(error, 'message', error)}")]
    if not differences:
        return []
    told = "; ".join(_told(each) for each in differences[:SHOWN_MAX])
    more = f"; and {len(differences) - SHOWN_MAX} more" if len(differences) > SHOWN_MAX else ""
    return [UNIT_DRIFTED.found(f"{place.unit}: {told}{more}", differences[0].fix)]


def _told(difference: UnitDifference) -> str:
    if not difference.setting:
        return f"{difference.file} is missing"
    here, wanted = _short(difference.installed), _short(difference.expected)
    return f"{difference.setting} is {here or 'not set'}, expected {wanted or 'nothing'}"


def _short(value: str) -> str:
    return re.sub(r"\s+", " ", value)[:VALUE_LENGTH_MAX]

"""The unit of systemd that runs this node: is it what this version of swarmd would write?"""

from __future__ import annotations

from swarmd.doctor.finding import Finding, FindingKind, well
from swarmd.doctor.subject import Subject
from swarmd.doctor.waiting import in_thread
from swarmd.errors import SwarmdError
from swarmd.units import ServicePaths, outdated_files, places_of

UNIT_DRIFTED = FindingKind(
    "unit.drift",
    "warning",
    "The service is not what this swarmd would install",
    "The unit was changed, or is of another version: limits, hardening, or what is restarted may not be as documented.",
    "`swarmd service install --dry-run` prints the difference; changes of your own belong into a drop-in",
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
    places = list(places_of(subject.path))
    if not places:
        return [well("unit", "Service", "no unit of systemd runs this configuration")]
    found = [finding for place in places for finding in await in_thread(_compare, place, subject)]
    return found or [well("unit", "Service", f"{', '.join(place.unit for place in places)}: as this swarmd writes it")]


def _compare(place: ServicePaths, subject: Subject) -> list[Finding]:
    try:
        files = outdated_files(place, subject.config)
    except (SwarmdError, OSError) as error:
        return [UNIT_UNREAD.found(f"{place.unit}: {getattr(error, 'message', error)}")]
    return [UNIT_DRIFTED.found(f"{place.unit}: {', '.join(map(str, files))}")] if files else []

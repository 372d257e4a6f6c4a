"""systemd units for nodes: written, explained, installed, removed, and compared with what they should be."""

from swarmd.units.plan import ServicePaths, find_place
from swarmd.units.reading import UnitDifference, drift

__all__ = ["ServicePaths", "UnitDifference", "drift", "find_place"]

"""systemd units for nodes: written, explained, installed, removed, and compared with what they should be."""

from swarmd.units.plan import Place, find_place
from swarmd.units.reading import Difference, drift

__all__ = ["Difference", "Place", "drift", "find_place"]

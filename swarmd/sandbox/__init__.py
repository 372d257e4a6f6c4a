"""Runs programs that nobody vouches for: a model's, or a peer's. `Sandbox(Limits()).run(program)` gives a `Verdict`."""

from swarmd.sandbox.limits import Isolation, Limits, Status, Verdict
from swarmd.sandbox.sandbox import Sandbox

__all__ = ["Isolation", "Limits", "Sandbox", "Status", "Verdict"]

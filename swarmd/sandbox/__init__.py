"""Runs untrusted programs: a model's, or a peer's. `Sandbox(Limits()).run(program)` gives a `Verdict`."""

from swarmd.sandbox.sandbox import Isolation, Limits, Sandbox, Status, Verdict

__all__ = ["Isolation", "Limits", "Sandbox", "Status", "Verdict"]

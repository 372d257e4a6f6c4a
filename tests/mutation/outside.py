"""Mistakes in what members' programs, authors of files, endpoints and visitors may cost."""

from __future__ import annotations

from tests.mutation.planting import Mutant

OUTSIDE = (
    Mutant(
        "one peer's slow programs spend all peers' seconds",
        "swarmd/swarms/code/execution.py",
        '        return peer if peer in self._peers else ""\n',
        '        return ""\n',
        ("tests/swarms/code/test_plan.py::test_a_peers_slow_programs_spend_no_other_peers_seconds",),
    ),
    Mutant(
        "a program that ended with its peer's share counts as one that takes too long",
        "swarmd/swarms/code/execution.py",
        'if verdict.status == "stopped" or cut_short:',
        'if verdict.status == "stopped":',
        ("tests/swarms/code/test_plan.py::test_what_ended_with_a_peers_share_is_not_remembered_as_too_slow",),
    ),
)

"""Mistakes in what members' programs, authors of files, endpoints and visitors may cost."""

from __future__ import annotations

from tests.mutation.planting import Mutant

OUTSIDE = (
    Mutant(
        "a name of any number of parts is read",
        "swarmd/toml_text.py",
        "    check_names(text)\n    try:\n        tables",
        "    try:\n        tables",
        ("tests/test_toml_text.py::test_a_name_of_thousands_of_parts_is_refused_before_it_is_read",),
    ),
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

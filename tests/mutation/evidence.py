"""Mistakes in finding out who signs two different records for one place, and in what it costs."""

from tests.mutation.planting import Mutant

EVIDENCE = (
    Mutant(
        "two reports of one stage are not compared",
        "swarmd/dht/evidence.py",
        "        _compare(before, seen, self._found)\n",
        "",
        ("tests/dht/wire/test_evidence.py",),
    ),
    Mutant(
        "an invitation makes a report another one",
        "swarmd/dht/wire/evidence.py",
        "return (report.reward, report.digest, report.size_bytes, report.groups)",
        "return (report.reward, report.digest, report.size_bytes, report.groups, report.invitation)",
        ("tests/dht/wire/test_evidence.py",),
    ),
    Mutant(
        "evidence needs no signatures",
        "swarmd/dht/wire/evidence.py",
        "        if not check_signature(signed, names.key_id(content.key)):",
        "        if False:",
        ("tests/dht/wire/test_evidence.py",),
    ),
    Mutant(
        "evidence against free identities is kept without end",
        "swarmd/dht/evidence.py",
        "self._newcomers.try_charge()",
        "True",
        ("tests/dht/test_evidence.py",),
    ),
    Mutant(
        "reports of a barred peer count",
        "swarmd/core/coordinator/coordination.py",
        "    if event.peer in coordination.barred:",
        "    if False:",
        ("tests/core/test_evidence.py",),
    ),
    Mutant(
        "a stage waits for a barred peer",
        "swarmd/core/coordinator/waiting.py",
        "not member.worked or member.peer in coordination.barred:",
        "not member.worked:",
        ("tests/core/test_evidence.py",),
    ),
    Mutant(
        "two clocks bar the coordinator",
        "swarmd/core/evidence.py",
        'known.kind == "report" and ',
        "",
        ("tests/core/test_evidence.py",),
    ),
)

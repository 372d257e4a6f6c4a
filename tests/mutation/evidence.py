"""Mistakes in finding out who signs two different records for one place, and in what it costs."""

from tests.mutation.planting import read_mutants

EVIDENCE = read_mutants(r"""
swarmd/dht/evidence.py
  a report that is published again is taken for another one
    -     if before is None or before.signed == seen.signed:
    -         return
    +     if before is None:
    +         return
    +     found(make_evidence(before.signed, seen.signed))
    tests/dht/wire/test_evidence.py
  two reports of one stage are not compared
    -         _compare_records(before, seen, self._found)
    tests/dht/wire/test_evidence.py
  evidence against free identities is kept without end
    - self._newcomers.try_charge()
    + True
    tests/dht/test_evidence.py
swarmd/dht/wire/evidence.py
  an invitation makes a report another one
    - return (report.reward, report.digest, report.size_bytes, report.groups)
    + return (report.reward, report.digest, report.size_bytes, report.groups, report.invitation)
    tests/dht/wire/test_evidence.py
  evidence needs no signatures
    -         if not check_signature(signed, names.key_id(content.key)):
    +         if False:
    tests/dht/wire/test_evidence.py
swarmd/core/coordination.py
  reports of a barred peer count
    -     if event.peer in coordination.barred:
    +     if False:
    tests/core/test_evidence.py
swarmd/core/waiting.py
  a stage waits for a barred peer
    - not member.worked or member.peer in coordination.barred:
    + not member.worked:
    tests/core/test_evidence.py
swarmd/core/evidence.py
  two clocks bar the coordinator
    - known.kind == "report" and known.round <= round < known.round + BARRED_ROUNDS
    + known.round <= round < known.round + BARRED_ROUNDS
    tests/core/test_evidence.py
""")

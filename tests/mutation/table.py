"""All mutants: one for each rule whose loss would hurt the people who run nodes."""

from tests.mutation.around import AROUND
from tests.mutation.crowds import CROWDS
from tests.mutation.evidence import EVIDENCE
from tests.mutation.inside import INSIDE
from tests.mutation.outside import OUTSIDE
from tests.mutation.shards import SHARDS
from tests.mutation.weights import WEIGHTS

MUTANTS = (*INSIDE, *SHARDS, *WEIGHTS, *EVIDENCE, *CROWDS, *AROUND, *OUTSIDE)

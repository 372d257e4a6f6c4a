"""What authors of a kind of swarm may import, for the kind and its tests.

A kind is a subclass of `Plan` that an installed distribution names in the entry-point group `swarmd.swarms`.
docs/swarms/writing.md has the rules for its methods and a line for each name here; `swarmd swarm scaffold NAME --kind
plan` writes a package to start from. These names are stable; everything else in `swarmd` is private and may change with
any version.

Importing this loads neither torch nor hivemind nor `datasets`: the daemon imports plug-ins, too, to read their
`stages`.
"""

from swarmd.config import Section, SwarmConfig, TaskConfig, TrainingConfig
from swarmd.errors import RecordRejected, SandboxUnavailable, SwarmdError, SwarmError
from swarmd.sandbox import Isolation, Limits, Sandbox, Verdict
from swarmd.swarms.conversation import ConversationPlan, Environment
from swarmd.swarms.jsonl import Row, check_digest, digest_rows, load_rows, read_rows
from swarmd.swarms.options import NoOptions, TurnLimits, decode_options
from swarmd.swarms.plan import (
    NO_MATERIAL,
    Material,
    Message,
    Outcome,
    Plan,
    Question,
    Score,
    Split,
    StageId,
    hash_number,
    split_of,
)
from swarmd.swarms.registry import make_plan
from swarmd.swarms.rollouts import COMPLETIONS_MAX, INDEX_MAX, SEED_MAX, Reference, Source
from swarmd.swarms.text import (
    AnswerPlace,
    escape_markers,
    extract_answer,
    find_answer,
    is_well_formed,
    read_number,
    span_answer,
)

__all__ = [
    "COMPLETIONS_MAX",
    "INDEX_MAX",
    "NO_MATERIAL",
    "SEED_MAX",
    "AnswerPlace",
    "ConversationPlan",
    "Environment",
    "Isolation",
    "Limits",
    "Material",
    "Message",
    "NoOptions",
    "Outcome",
    "Plan",
    "Question",
    "RecordRejected",
    "Reference",
    "Row",
    "Sandbox",
    "SandboxUnavailable",
    "Score",
    "Section",
    "Source",
    "Split",
    "StageId",
    "SwarmConfig",
    "SwarmError",
    "SwarmdError",
    "TaskConfig",
    "TrainingConfig",
    "TurnLimits",
    "Verdict",
    "check_digest",
    "decode_options",
    "digest_rows",
    "escape_markers",
    "extract_answer",
    "find_answer",
    "hash_number",
    "is_well_formed",
    "load_rows",
    "make_plan",
    "read_number",
    "read_rows",
    "span_answer",
    "split_of",
]

"""`swarm.options`: the settings of each of swarmd's own kinds, checked as strictly as the rest of the configuration.

They are separate from the kinds and import little, so that options can be checked without making a plan.
"""

import difflib
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from swarmd.config import Section, describe_invalid, find_unknown_key
from swarmd.errors import SwarmError
from swarmd.logger import get_logger
from swarmd.sandbox import Isolation, Limits, Sandbox
from swarmd.sandbox.sandbox import MIB, Bytes, Seconds
from swarmd.sandbox.service import ServiceIsolation
from swarmd.swarms.openenv import OpenEnvOptions, make_endpoint
from swarmd.swarms.packages import Package
from swarmd.swarms.rewards import FUNCTIONS_MAX, Inputs, RewardOption
from swarmd.swarms.rollouts import COMPLETION_CHARACTERS_MAX, TURNS_MAX
from swarmd.swarms.text import AnswerPlace

WHERE = "swarm.options"

RowsDigest = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")]  # of a question file; empty: any
Options = TypeVar("Options", bound=msgspec.Struct)
log = get_logger(__name__)


class NoOptions(Section, frozen=True):
    """Options of a kind that has none, because its tasks are in `swarm.tasks`."""


def decode_options(options: Mapping[str, Any], kind: type[Options]) -> Options:
    """Decode options into a kind's struct.

    Bounds are in the struct's annotations; a ValueError from its `__post_init__` counts as a wrong value. Raises
    SwarmError, naming the key, if a key is unknown or missing, or a value has a wrong type or is out of range.
    """
    if unknown := find_unknown_key(options, kind, f"{WHERE}."):
        key, fix = unknown
        raise SwarmError(
            f"unknown key {key!r}",
            fix if kind.__struct_fields__ else "This kind takes no options: leave it out, or set another swarm.kind",
        )
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as error:
        message, fix = describe_invalid(error, kind, WHERE)
        fault, _, advice = str(error.__cause__ or "").rpartition(": ")
        if fault and not fix:  # a `__post_init__` gives both
            message, fix = message.removesuffix(f": {advice}"), advice[:1].upper() + advice[1:]
        raise SwarmError(message, fix or f"It takes: {', '.join(sorted(kind.__struct_fields__))}") from error


class OwnLimits(Limits, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`swarm.options.own_limits`: bounds on a single run, as in `Limits`, and on a stage."""

    wall_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 30.0
    cpu_s: Seconds = 10
    memory_bytes: Annotated[int, msgspec.Meta(ge=64 * MIB, le=2**40)] = 1024 * MIB
    scratch_bytes: Bytes = 64 * MIB
    file_bytes: Bytes = 64 * MIB
    files_open: Annotated[int, msgspec.Meta(ge=8, le=1024)] = 64
    program_bytes: Bytes = 256 * 1024
    input_bytes: Bytes = 4 * MIB
    output_bytes: Bytes = MIB
    stage_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 300.0  # bounds each time budget of a stage


class ProgramOptions(Section, frozen=True):
    limits: Limits = Limits()
    sandbox: Isolation = "auto"
    own_limits: OwnLimits = OwnLimits()  # this node's upper bounds on the swarm's limits

    STAGE_SECONDS: ClassVar[tuple[str, ...]] = ()  # keys of time budgets for programs in a stage

    @property
    def effective_limits(self) -> Limits:
        """The smaller of the swarm's and the node's limit, for each setting."""
        names = Limits.__struct_fields__
        return Limits(**{name: min(getattr(self.limits, name), getattr(self.own_limits, name)) for name in names})

    @property
    def describe_reduced_limits(self) -> list[str]:
        """A line for each limit of the swarm that this node reduces, with the key to change."""
        asked = [(f"limits.{name}", getattr(self.limits, name), name) for name in Limits.__struct_fields__]
        asked += [(name, getattr(self, name), "stage_s") for name in self.STAGE_SECONDS]
        return [
            f"the swarm asks for {key} = {wanted:g}, this node gives programs {given:g} "
            f"(swarm.options.own_limits.{name})"
            for key, wanted, name in asked
            if wanted > (given := getattr(self.own_limits, name))
        ]

    def open_sandbox(self) -> Sandbox:
        """Open a sandbox with the effective limits; logs those that were reduced. Raises SandboxUnavailable."""
        sandbox = Sandbox(self.effective_limits, self.sandbox)
        for line in self.describe_reduced_limits:
            log.warning("%s; programs that need more fail here", line)
        return sandbox


# RL Swarm's nine tasks, without propositional_logic, whose questions lack reference answers, so that it never paid, and
# without binary_matrix, whose scorer runs answers as code, so that nodes refuse it from each other.
MIXTURE = (  # default of the kind "reasoning-gym"
    *("arc_1d", "basic_arithmetic", "base_conversion", "bf"),
    *("calendar_arithmetic", "decimal_arithmetic", "fraction_simplification"),
)

STUDENTS_MAX = 15  # as upstream before v0.4.1
POOL_MAX = 256  # what one rollouts body can hold


class MathOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of gsm8k and math-hard. All but `persona`, `brief` and `shown_bytes` must be equal on all nodes."""

    rewards: Literal["fixed", "compat"] = "fixed"  # compat: upstream's rewards, quirks included
    data: Annotated[str, msgspec.Meta(min_length=1)] = "generated"  # "generated", "hub", or a path
    digest: RowsDigest = ""  # of a JSONL file's rows; empty: any
    persona: str = ""  # PIRATE, KNIGHT, MOBSTER, ANNOUNCER, FOUNDER, RANDOM, or none
    students: Annotated[int, msgspec.Meta(ge=1, le=STUDENTS_MAX)] = 5  # peers, and critics, shown in a question
    questions: Annotated[int, msgspec.Meta(ge=1, le=POOL_MAX)] = 16  # in a round, the same on every node
    question_characters: Annotated[int, msgspec.Meta(ge=16, le=4000)] = 4000  # longer ones are skipped
    shown_bytes: Annotated[int, msgspec.Meta(ge=8, le=3000)] = 2000  # of each peer's text, in `fixed` mode
    brief: bool = False  # one-line system prompts, for models with a short context

    def __post_init__(self) -> None:
        known = (*PERSONAS, RANDOM)
        if self.persona and self.persona.upper() not in known:
            near = difflib.get_close_matches(self.persona.upper(), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise ValueError(f"no persona {self.persona!r}; {hint}")


PERSONAS = {
    "PIRATE": "Ahoy! You sail under the black flag some three hundred years ago; talk and reckon as a buccaneer would.",
    "KNIGHT": "You are a knight of a medieval court; talk and reckon in the courtly manner of that age.",
    "MOBSTER": "You run a speakeasy in Chicago of the nineteen-twenties; talk as its boss would to the crew.",
    "ANNOUNCER": "You call a big match live on the radio; let every step of your answer sound like a decisive play.",
    "FOUNDER": "You are pitching your young company to investors; answer as confidently as you would on that stage.",
}
RANDOM = "RANDOM"


Weight = Annotated[float, msgspec.Meta(ge=0, le=100)]
StageSeconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
Prompt = Literal["zero-shot", "one-shot", "alternate", "none"]
EXECUTIONS_MAX = 6  # programs in a completion
OUTPUT_CHARACTERS_MAX = 8192  # upper bound on shown output, whatever the settings


class CodeOptions(ProgramOptions, frozen=True):
    data: Annotated[str, msgspec.Meta(max_length=255)] = ""  # JSONL of prompt and answer; empty: swarm.tasks
    digest: RowsDigest = ""  # of the file's rows; empty: any
    compare: Literal["numeric", "exact"] = "numeric"  # how answers to questions of the file are compared
    prompt: Prompt = "zero-shot"
    rewards: Literal["fixed", "compat"] = "fixed"
    program_reward: Weight = 0.1  # for each program that ran and printed, with `rewards = "fixed"`
    programs_rewarded: Annotated[int, msgspec.Meta(ge=0, le=EXECUTIONS_MAX)] = 1  # programs rewarded at most
    compat_weights: Literal["first", "later"] = "first"  # upstream's weights before or after 16 weight updates
    output_characters: Annotated[int, msgspec.Meta(ge=16, le=OUTPUT_CHARACTERS_MAX)] = 1000
    rerun_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 30.0  # per stage, to rerun peers' programs

    STAGE_SECONDS = ("rerun_s",)


LEVELS = 5
PROGRAM_LIMITS = Limits(wall_s=5.0, cpu_s=1, memory_bytes=256 * MIB, scratch_bytes=MIB, file_bytes=MIB)


class ProposerOptions(ProgramOptions, frozen=True):
    """Settings of proposer-solver. Those of the first block must be equal on all nodes."""

    rewards: Literal["fixed", "compat"] = "fixed"  # compat: CodeZero's rewards
    problem_bytes: Annotated[int, msgspec.Meta(ge=32, le=8000)] = 2000  # of a problem's text; a longer one is invalid
    test_bytes: Annotated[int, msgspec.Meta(ge=32, le=1000)] = 200  # of one test
    solution_bytes: Annotated[int, msgspec.Meta(ge=32, le=16_000)] = 4000  # of a program
    limits: Limits = PROGRAM_LIMITS  # of one run

    level: Annotated[int, msgspec.Meta(ge=1, le=LEVELS)] = 2  # initial difficulty
    valid_reward: Weight = 0.5  # for a proposal that passes its checks, with `rewards = "fixed"`
    difficulty_reward: Weight = 0.5  # at most, for a valid proposal that few solved
    own_s: StageSeconds = 300.0  # per stage, to run this node's programs
    peer_s: StageSeconds = 30.0  # per stage, to run one peer's programs
    judge: Annotated[str, msgspec.Meta(max_length=1000)] = ""  # an OpenAI-compatible endpoint, up to /v1; empty: none
    judge_model: Annotated[str, msgspec.Meta(max_length=200)] = ""  # model name at the endpoint
    judge_reward: Weight = 0.2  # for a program that the judge accepts
    judge_s: StageSeconds = 20.0  # timeout of one answer

    STAGE_SECONDS = ("own_s", "peer_s")

    def __post_init__(self) -> None:
        parts = urlsplit(self.judge)
        plain = parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment)
        if self.judge and (not plain or parts.username or parts.port == 0):
            raise ValueError(f"`judge` is not an HTTP address, {self.judge!r}: write http://127.0.0.1:11434/v1 or such")


DOWNLOAD_BYTES_MAX = 1024**3  # default of `download_bytes`
COLUMNS_MAX = 64  # columns of a data set that are kept
REWARDS_MAX = 16
PROMPT_CHARACTERS_MAX = 32768

Text = Annotated[str, msgspec.Meta(max_length=255)]


class DatasetColumns(Section, frozen=True):
    """The data set's columns for the question, the right answer and the task."""

    prompt: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] = "prompt"
    answer: Text = "answer"  # empty: none, for rewards that need no answer
    task: Text = ""

    def __post_init__(self) -> None:
        if self.prompt == self.answer:
            raise ValueError(f"prompt and answer are the same column, {self.prompt!r}")

    def add_their_names(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row of the question file, with its columns also under their names in the data set."""
        renamed = {self.prompt: "prompt", self.answer: "answer", self.task: "task"}
        return {**row, **{theirs: row[ours] for theirs, ours in renamed.items() if theirs and ours in row}}


class DatasetSource(Section, frozen=True):
    """The data set from which a missing question file is made."""

    dataset: Text = ""  # a Hub id, or a path relative to the data directory; empty: none
    subset: Text = ""  # the data set's configuration
    split: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] = "train"  # as in "train[:1000]"
    revision: Text = ""  # branch, tag or commit on the Hub
    columns: DatasetColumns = DatasetColumns()
    keep: Annotated[tuple[str, ...], msgspec.Meta(max_length=COLUMNS_MAX)] | None = None  # further columns; absent: all
    download_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**50)] = DOWNLOAD_BYTES_MAX  # largest download


class TurnLimits(Section, frozen=True):
    """`swarm.options.turns`: bounds on one rollout. They must be equal on all nodes, except for `peer_s`.

    Tokens, including those of answers, are bounded by `training.completion_tokens`.
    """

    turns: Annotated[int, msgspec.Meta(ge=1, le=TURNS_MAX)] = 8  # of the model
    seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 30.0  # total time of the environment's calls
    answer_bytes: Annotated[int, msgspec.Meta(ge=16, le=COMPLETION_CHARACTERS_MAX)] = 8192  # all its answers together
    peer_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 60.0  # per stage, to rerun peers' rollouts


class FileOptions(DatasetSource, frozen=True, kw_only=True):
    """Settings of the kind "file"; `DatasetSource` says from what to make a missing file."""

    data: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]  # JSONL file, relative to the data directory
    digest: RowsDigest = ""  # of the file's rows; empty: any
    system: Annotated[str, msgspec.Meta(max_length=PROMPT_CHARACTERS_MAX)] | None = None  # system prompt; empty: none
    answer: AnswerPlace = "tags"  # where a completion has its answer
    rewards: Annotated[tuple[RewardOption, ...], msgspec.Meta(max_length=REWARDS_MAX)] = ()
    reward_funcs: Annotated[tuple[str, ...], msgspec.Meta(max_length=FUNCTIONS_MAX)] = ()  # as TRL's
    reward_weights: tuple[float, ...] = ()  # of reward_funcs, as in TRL
    reward_inputs: Inputs = "text"  # form in which reward_funcs get prompts and completions
    tools: Annotated[tuple[str, ...], msgspec.Meta(max_length=FUNCTIONS_MAX)] = ()  # import paths, as TRL's tools
    environment_factory: Text = ""  # import path of a class, as in TRL; empty: none
    openenv: OpenEnvOptions | None = None  # use an OpenEnv server as environment
    openenv_url: Annotated[str, msgspec.Meta(max_length=1000)] = ""  # the server's URL, each node's own choice
    turns: TurnLimits = TurnLimits()
    sandbox: Isolation = "auto"  # for tools and environment, each node's own choice
    packages: Annotated[tuple[Package, ...], msgspec.Meta(max_length=FUNCTIONS_MAX)] = ()  # origin of functions

    def __post_init__(self) -> None:
        self._check_turns()
        names = {path.rpartition(":")[2] for path in self.reward_funcs}
        if len(names) < len(self.reward_funcs):
            raise ValueError("two of `reward_funcs` have one name: rename one of them")
        if self.reward_weights and len(self.reward_weights) != len(self.reward_funcs):
            raise ValueError(
                f"`reward_weights` has {len(self.reward_weights)} values for {len(self.reward_funcs)} of "
                "`reward_funcs`: give one for each, or none"
            )
        if not all(map(math.isfinite, self.reward_weights)):
            raise ValueError("`reward_weights` has a value that is not a finite number")
        of_source = set(DatasetSource.__struct_fields__) - {"dataset", "download_bytes"}
        given = [key for key in sorted(of_source) if getattr(self, key) != getattr(_NO_SOURCE, key)]
        if given and not self.dataset:
            raise ValueError(
                f"`{given[0]}` is for a data set, and `dataset` does not name one: name it, or leave `{given[0]}` "
                "out; the columns of the file in `data` are called prompt, answer and task"
            )

    @property
    def has_turns(self) -> bool:
        return bool(self.tools or self.environment_factory or self.openenv is not None)

    def _check_turns(self) -> None:
        if self.openenv_url:
            make_endpoint(self.openenv_url)
        if self.openenv is not None and (self.tools or self.environment_factory or self.reward_funcs):
            raise ValueError(
                "`openenv` has actions and rewards of its own: leave `tools`, `environment_factory` and `reward_funcs` "
                "out, or write a class that calls the server, as in TRL"
            )
        if self.has_turns and self.rewards:
            raise ValueError("`rewards` look at one completion: with tools or an environment, name `reward_funcs`")


_NO_SOURCE = DatasetSource()


class VerifiersOptions(Section, frozen=True, kw_only=True):
    """Settings of the kind "verifiers". All but `environment`, `memory_bytes` and `sandbox` are equal on all nodes."""

    taskset: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,99}\Z")]  # its package's name
    version: Text = ""  # of that package; empty: any
    config: Mapping[str, Any] = {}  # the taskset's own settings
    tasks: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 2000  # the first tasks of the taskset, at most
    turns: TurnLimits = TurnLimits()
    environment: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] = "verifiers"  # a virtual environment
    memory_bytes: Annotated[int, msgspec.Meta(ge=512 * MIB, le=2**40)] = 4096 * MIB  # of address space
    sandbox: ServiceIsolation = "namespaces"

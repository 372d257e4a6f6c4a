"""Programs held against tests, in the sandbox: in batches, each once, and within what its author may cost."""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from swarmd.bounds import DECODE_ERRORS
from swarmd.logger import get_logger
from swarmd.plugin import Sandbox, SandboxUnavailable, Score, Verdict
from swarmd.swarms.proposer.proposals import FUNCTION, RESULT_CHARACTERS_MAX, SHOWN, Test, fits, passes
from swarmd.swarms.proposer.settings import ProposerOptions

REMEMBERED_MAX = 16_384  # outcomes; beyond it the oldest is forgotten, and its program would be run again
AUTHORS_MAX = 4096  # whose seconds are counted in one stage; others' programs are not run

# What stands around a program in the sandbox. The program is a text there, so that it cannot run into what follows, and
# its last line of output is what its calls returned. It may write that line itself: it does not know what is expected.
HARNESS = """
import json, os, sys
def hold(source, calls, write=os.write, dumps=json.dumps, leave=os._exit):
    scope = {{"__name__": "solution"}}
    exec(compile(source, "solution.py", "exec"), scope)
    returned = []
    for arguments in calls:
        try:
            text = repr(scope[{function!r}](*arguments))
            returned.append(text if len(text) <= {characters} else None)
        except Exception:
            returned.append(None)
    sys.stdout.flush()
    line = ("\\n" + dumps(returned)).encode()
    while line:
        line = line[write(1, line):]
    leave(0)
hold({source}, {calls})
"""

State = Literal["ran", "unaffordable", "broken"]

log = get_logger(__name__)


class ProgramJob(msgspec.Struct, frozen=True):
    """A program and the tests that it is held against."""

    program: str
    tests: tuple[Test, ...]
    copy: int = 0  # another number is another run of the same


class TestResults(msgspec.Struct, frozen=True):
    """What came of a job: one mark for each test where all of them ran, else none."""

    state: State
    passed: tuple[bool, ...] = ()

    @property
    def all_passed(self) -> bool:
        return bool(self.passed) and all(self.passed)


UNAFFORDABLE = TestResults("unaffordable")
BROKEN = TestResults("broken")
FAILED = TestResults("ran")


class Runner:
    """Runs jobs, and remembers what came of them.

    Args:
        sandbox: where they run.
        own_s: seconds that this node's own jobs may take in one stage.
        peer_s: seconds that those of one peer may take.
    """

    def __init__(self, sandbox: Sandbox, own_s: float, peer_s: float) -> None:
        self._sandbox = sandbox
        self._own_s = own_s
        self._peer_s = peer_s
        self._spent_s: defaultdict[str, float] = defaultdict(float)
        self._known: OrderedDict[bytes, TestResults] = OrderedDict()
        self.runs = 0  # programs run, in all

    def begin_stage(self, is_cancelled: Callable[[], bool]) -> None:
        """Give everybody's seconds anew, and run programs until this says otherwise."""
        self._sandbox.heed(is_cancelled)
        self._spent_s.clear()

    def mark(self, jobs: Sequence[ProgramJob], author: str) -> list[TestResults]:
        """Marks of one author's jobs, in their order; those not known yet are run side by side.

        Args:
            author: a peer; empty for this node.
        """
        keys = [_key_of(job) for job in jobs]
        found = {key: self._known[key] for key in keys if key in self._known}
        unknown = {key: job for key, job in zip(keys, jobs, strict=True) if key not in found}
        found |= dict(zip(unknown, self._run(list(unknown.values()), author), strict=True))
        for key in unknown:
            if found[key].state == "ran":
                self._remember(key, found[key])
        return [found[key] for key in keys]

    def _run(self, jobs: list[ProgramJob], author: str) -> list[TestResults]:
        bound_s = self._peer_s if author else self._own_s
        crowded = author not in self._spent_s and len(self._spent_s) >= AUTHORS_MAX
        if jobs and (crowded or self._spent_s[author] >= bound_s):
            return [UNAFFORDABLE] * len(jobs)
        begun = time.monotonic()
        try:
            verdicts = self._sandbox.run_all([make_program(job) for job in jobs]) if jobs else []
        except SandboxUnavailable as error:
            log.warning("programs could not be run: %s", error)
            return [BROKEN] * len(jobs)
        self._spent_s[author] += time.monotonic() - begun
        self.runs += len(jobs)
        return [read_marks(job, verdict) for job, verdict in zip(jobs, verdicts, strict=True)]

    def _remember(self, key: bytes, marks: TestResults) -> None:
        self._known[key] = marks
        if len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)


def make_program(job: ProgramJob) -> str:
    """The job as the sandbox runs it; what the tests expect is not in it."""
    calls = f"[{', '.join(test.arguments for test in job.tests)}]"
    return HARNESS.format(function=FUNCTION, characters=RESULT_CHARACTERS_MAX, source=repr(job.program), calls=calls)


def read_marks(job: ProgramJob, verdict: Verdict) -> TestResults:
    """Marks by the last line that a program printed; none unless it ended well and answered every call."""
    if verdict.status == "stopped":
        return BROKEN
    line = verdict.stdout.rpartition("\n")[2]
    if verdict.status != "ok":
        return FAILED
    try:
        returned = msgspec.json.decode(line, type=list[str | None])
    except DECODE_ERRORS:
        return FAILED
    if len(returned) != len(job.tests):
        return FAILED
    pairs = zip(job.tests, returned, strict=True)
    return TestResults("ran", tuple(text is not None and passes(test, text) for test, text in pairs))


def _key_of(job: ProgramJob) -> bytes:
    named = json.dumps([job.program, [[test.arguments, test.expected] for test in job.tests], job.copy])
    return hashlib.sha256(named.encode()).digest()


SECTIONS_FORM = 0.5  # of the form, for a proposal with its three sections and a fault in one of them
COMPAT_LENGTH = 0.2


class Rewards:
    """Scores by the options of the kind.

    Args:
        format_reward: weight of the form, by `rewards = "fixed"`.
    """

    def __init__(self, options: ProposerOptions, format_reward: float) -> None:
        self._options = options
        self._compat = options.rewards == "compat"
        self._format_reward = format_reward

    def score_proposal(self, form: float, valid: bool, worth: float, failed: bool) -> Score:
        """
        Args:
            form: 1 where it can be read, `SECTIONS_FORM` where its sections stand there, 0 else.
            valid: it passed its checks here.
            worth: of its difficulty, in [0, 1].
            failed: the sandbox did not work.
        """
        difficulty = worth * valid
        if self._compat:
            parts = {"difficulty": difficulty}
        else:
            parts = {
                "valid": self._options.valid_reward * valid,
                "difficulty": self._options.difficulty_reward * difficulty,
                "format": self._format_reward * form,
            }
        return Score(sum(parts.values()), float(valid), form, parts, failed)

    def score_program(
        self, completion: str, blocks: list[str], marks: TestResults | None, judged: bool | None
    ) -> Score:
        """
        Args:
            blocks: fenced blocks of Python in the completion.
            marks: of the last of them; None where there is none that could be run.
            judged: what the judge said of it; None where it was not asked.
        """
        brief = fits(completion, self._options.solution_bytes)
        well_formed = float(len(blocks) == 1 and f"def {FUNCTION}" in blocks[0] and brief)
        failed = marks is not None and marks.state == "broken"
        if self._compat:
            correct = float(marks is not None and marks.all_passed)
            parts = compat_parts(completion, bool(blocks), correct, brief)
        else:
            correct = share_of(marks)
            parts = {"tests": correct, "format": self._format_reward * well_formed}
        if judged is not None:
            parts["judge"] = self._options.judge_reward * judged
        return Score(sum(parts.values()), correct, well_formed, parts, failed)


def share_of(marks: TestResults | None) -> float:
    """The share of the hidden tests that were passed."""
    hidden = marks.passed[SHOWN:] if marks is not None else ()
    return sum(hidden) / len(hidden) if hidden else 0.0


def compat_parts(completion: str, fenced: bool, correct: float, brief: bool) -> dict[str, float]:
    """-1 without a block, else 1 or 0; +-0.2 for the length. An empty completion, upstream's non-string, has -1.2."""
    if not completion.strip():
        return {"correct": -1.0, "length": -COMPAT_LENGTH}
    return {"correct": correct if fenced else -1.0, "length": COMPAT_LENGTH if brief else -COMPAT_LENGTH}

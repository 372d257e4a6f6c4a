"""The kind `code`: questions of reasoning-gym or of a file, answered with the help of programs that run in a sandbox.

- Generation pauses where a program closes. The program runs, and its output is appended.
- Correctness depends on the answer alone. Outputs in a peer's completions count only if the same programs print the
  same here.
- `compat` gives the numbers of simple_GRPO's `Auto_Program` (commit 4ab94c6), quirks included, but with the task's own
  scorer instead of math_verify.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from swarmd.config import SwarmConfig, TaskConfig, TrainingConfig
from swarmd.errors import SwarmError
from swarmd.logger import get_logger
from swarmd.sandbox import Verdict
from swarmd.sandbox.sandbox import Status
from swarmd.swarms.file import FilePlan
from swarmd.swarms.options import EXECUTIONS_MAX, OUTPUT_CHARACTERS_MAX, CodeOptions, Prompt, decode_options
from swarmd.swarms.plan import CORRECT, Material, Message, Question, Score, Split, SplitPlan, StageId, hash_number
from swarmd.swarms.programs import OWN, ProgramRunner
from swarmd.swarms.reasoning_gym import ReasoningGymPlan
from swarmd.swarms.rollouts import Reference
from swarmd.swarms.text import CLOSING, OPENING, TAGS, escape_markers, find_answer, is_well_formed, normalize_unicode

PROGRAM_OPENING, PROGRAM_CLOSING = "<program>", "</program>"
OUTPUT_OPENING, OUTPUT_CLOSING = "<output>", "</output>"
MARKERS = (*TAGS, PROGRAM_OPENING, PROGRAM_CLOSING, OUTPUT_OPENING, OUTPUT_CLOSING)
STOPS = tuple(PROGRAM_CLOSING + behind for behind in ("", "\n", "\n\n", " "))  # many tokenizers have tokens like ">\n"
CUT = " ... (cut)"
ERROR = "Error: "
ERROR_COMPAT = "Error! "

_TAG = "|".join(re.escape(marker) for marker in MARKERS)
_BLOCK = re.compile(
    rf"{PROGRAM_CLOSING}(?:\n\n|\n| |)"
    rf"(?P<block>\n{OUTPUT_OPENING}\n(?P<output>(?:(?!{_TAG}).){{0,{OUTPUT_CHARACTERS_MAX}}})\n{OUTPUT_CLOSING}\n)",
    re.DOTALL,
)
_FENCE = re.compile(r"```(?:python3?|py)?[ \t]*\r?\n(.*?)```", re.DOTALL)
log = get_logger(__name__)


class ExecutedProgram(msgspec.Struct, frozen=True):
    """A program in a completion, with the output that follows it."""

    program: str | None  # None if the tags held no program
    output: str
    span: tuple[int, int]  # character span of the output block


def find_executed_programs(text: str) -> list[ExecutedProgram]:
    """Programs with an output block after them, in order, at most one more than allowed."""
    found: list[ExecutedProgram] = []
    for match in _BLOCK.finditer(text):
        if len(found) > EXECUTIONS_MAX:  # the extra one may be the refusal
            break
        before = text[found[-1].span[1] if found else 0 : match.start()]
        found.append(ExecutedProgram(extract_program(before), match["output"], match.span("block")))
    return found


def extract_program(text: str) -> str | None:
    """The last fenced block after the last opening tag, in a text that ends at its closing tag."""
    _, opening, inside = text.rpartition(PROGRAM_OPENING)
    blocks = _FENCE.findall(inside) if opening else []
    return str(blocks[-1]) if blocks else None


def extract_just_closed_program(text: str) -> str | None:
    executions = find_executed_programs(text)
    start = executions[-1].span[1] if executions else 0
    return extract_program(text[start : text.rindex(PROGRAM_CLOSING)]) if PROGRAM_CLOSING in text[start:] else None


def remove_outputs(text: str) -> str:
    """A completion without its output blocks: what the model wrote itself."""
    parts, start = [], 0
    for execution in find_executed_programs(text):
        parts.append(text[start : execution.span[0]])
        start = execution.span[1]
    return "\n".join([*parts, text[start:]])


def frame_output(output: str, characters_max: int) -> str:
    """The output block that is appended after a program."""
    return f"\n{OUTPUT_OPENING}\n{clean_output(output, characters_max)}\n{OUTPUT_CLOSING}\n"


def clean_output(output: str, characters_max: int) -> str:
    """Program output as shown: cut, without tags or control characters, in NFC."""
    clean = "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in output.rstrip())
    clean = escape_markers(normalize_unicode(clean), MARKERS)
    if len(clean) > characters_max:
        clean = clean[: characters_max - len(CUT)] + CUT
    return clean


def describe_verdict(verdict: Verdict | None, error: str = ERROR) -> str:
    """The output shown to the model: what the program printed, or one line that begins with `error`."""
    if verdict is None:
        return f"{error}the program could not be run"
    if verdict.status == "ok":
        return verdict.stdout if verdict.stdout.strip() else f"{error}the program printed nothing"
    lines = verdict.stderr.strip().splitlines()
    failed = lines[-1] if lines else f"the program ended with code {verdict.exit_code}"
    reasons: dict[Status, str] = {
        "timeout": "the program took too long",
        "memory": "the program used too much memory",
        "output-limit": "the program printed too much",
        "processes": "a program cannot start processes or threads",
        "refused": "the program is too long",
    }
    return f"{error}{reasons.get(verdict.status, failed)}"


def is_same_output(one: str, other: str) -> bool:
    """Whether two outputs are equal except for white space; of a cut one, only what is left is compared."""
    texts = [" ".join(text.split()) for text in (one, other)]
    if texts[0] == texts[1]:
        return True
    cut = CUT.strip()
    stems = [(text.removesuffix(cut).rstrip(), text.endswith(cut)) for text in texts]
    return any(
        cut_here and stem != "" and other_stem.startswith(stem)
        for (stem, cut_here), (other_stem, _) in (stems, stems[::-1])
    )


KEPT_CHARACTERS = OUTPUT_CHARACTERS_MAX + 1  # of an output: one more than shown, to know that it was cut

RULES = (
    "You solve problems step by step and may use Python for calculations.\n"
    "To run a program, write it between <program> and </program>, inside a fenced block that begins with ```python. "
    "Each program starts afresh, has the standard library only, and must print what you want to know. What it prints "
    "appears right behind it between <output> and </output>; an output that begins with 'Error:' says what went wrong. "
    "Never write an output yourself. At most six programs are run.\n"
    "When you know the result, give it alone between <answer> and </answer> and end there."
)
EXAMPLE = (
    "An example.\n"
    "Problem: How many numbers from 1 to 500 are multiples of 4 or of 6?\n"
    "Solution: I could subtract the multiples of 12 that are counted twice, but counting directly is safer.\n"
    "<program>\n```python\nprint(sum(n % 4 == 0 or n % 6 == 0 for n in range(1, 501)))\n```\n</program>\n"
    "<output>\n167\n</output>\n"
    "That agrees with 125 + 83 - 41.\n"
    "<answer>167</answer>"
)
BOXED = "\nInside the answer tags, put the result into \\boxed{}. Put your reasoning between <think> and </think>."


def make_system_messages(prompt: Prompt, number: int, boxed: bool) -> tuple[Message, ...]:
    """The messages before a question. `number`: of the question, the same on every node; `alternate` shows the example
    with even ones. `boxed`: ask for the form that `rewards = "compat"` pays for."""
    if prompt == "none":
        return ()
    example = prompt == "one-shot" or (prompt == "alternate" and number % 2 == 0)
    text = RULES + (BOXED if boxed else "") + (f"\n\n{EXAMPLE}" if example else "")
    return (Message("system", text, trusted=True),)


_COMPAT_SEAMS = ("</think>\n<answer>", "</think> <answer>")
_PYTHON_FENCE = "```python"
FIRST_WEIGHTS = (1.0, 2.0, 2.0)  # weights of answer, form and programs in the first 16 weight updates
LATER_WEIGHTS = (2.0, 1.0, 1.0)


def has_required_form(text: str) -> bool:
    """Whether there is one pair of answer tags, at the end, and every opened program is closed."""
    own = remove_outputs(text)
    return is_well_formed(own) and own.count(PROGRAM_OPENING) == own.count(PROGRAM_CLOSING)


def count_working_programs(executions: list[ExecutedProgram], verdicts: Mapping[str, Verdict | None]) -> int:
    """Count distinct programs that ran without error, printed something, and really print the output shown."""
    counted = set()
    for execution in executions:
        verdict = verdicts.get(execution.program) if execution.program is not None else None
        if verdict is None or verdict.status != "ok" or not verdict.stdout.strip():
            continue
        if is_same_output(execution.output, clean_output(verdict.stdout, OUTPUT_CHARACTERS_MAX)):
            counted.add(execution.program)
    return len(counted)


def compat_reward_parts(text: str, correct: bool) -> dict[str, float]:
    """Upstream's three rewards: ±1 for the answer, ±1 for the form, +0.1 for each fence and -0.1 for each error."""
    formed = _has_compat_form(text)
    calls = text.count(_PYTHON_FENCE) - text.count(ERROR_COMPAT.strip())
    return {"correct": 1.0 if correct else -1.0, "format": 1.0 if formed else -1.0, "programs": 0.1 * calls}


def _has_compat_form(text: str) -> bool:
    r"""Whether upstream's `^<think>.*?</think>[\n ]<answer>.*?</answer>$` matches and each tag occurs once.

    Looks up tag by tag, in time linear in the text; the pattern would try every pair of tags.
    """
    ends = text.startswith("<think>") and text.removesuffix("\n").endswith("</answer>")  # as `$`
    return ends and all(text.count(tag) == 1 for tag in TAGS) and any(seam in text for seam in _COMPAT_SEAMS)


MIXTURE = (
    *("chain_sum", "products", "gcd", "lcm", "prime_factorization"),
    *("base_conversion", "decimal_arithmetic", "count_primes", "number_sequence"),
)
AUTHOR = "swarmd-author"  # key in a question's entry: the peer whose completions are scored


class CodePlan(SplitPlan):
    """Problems solved with programs that run in a sandbox while the model writes.

    Args:
        training: gives the weight of the form in the reward.

    Raises:
        SwarmError: the options, a task or the file are wrong.
        SandboxUnavailable: programs cannot be confined on this machine.
    """

    stops = STOPS

    def __init__(self, swarm: SwarmConfig, training: TrainingConfig | None = None, home: Path | None = None) -> None:
        self._options = decode_options(swarm.options, CodeOptions)
        self._format_reward = (training or TrainingConfig()).format_reward
        self._questions = make_question_plan(swarm, self._options, training, home)
        stage_s = self._options.own_limits.stage_s
        self._rerun_s = min(self._options.rerun_s, stage_s)
        sandbox = self._options.open_sandbox()
        self._runner = ProgramRunner(sandbox, stage_s, self._rerun_s, lambda printed: printed[:KEPT_CHARACTERS])

    @property
    def tasks(self) -> tuple[str, ...]:
        return self._questions.tasks

    def begin(self, is_cancelled: Callable[[], bool]) -> None:
        self._runner.begin_stage(is_cancelled)

    def expect(self, peers: Collection[str]) -> None:
        """See `Plan.expect`: the peers share the time for running peers' programs."""
        self._runner.share_seconds(self._rerun_s, peers)

    def draw(self, place: StageId, material: Material) -> Iterator[Question]:
        return (self._with_system_prompt(question, place.peer) for question in self._questions.draw(place, material))

    def select_questions(self, task: str, side: Split, count: int) -> list[Question]:
        return [self._with_system_prompt(question) for question in self._questions.select_questions(task, side, count)]

    def regenerate(self, reference: Reference, place: StageId, material: Material) -> Question:
        """See `Plan.regenerate`; RecordRejected with the same reasons as the plan that gives the questions."""
        return self._with_system_prompt(self._questions.regenerate(reference, place, material), place.peer)

    def react(self, question: Question, text: str) -> str | None:
        """Run the program that has just closed. The first one over the limit gets an error; the next ends the
        completion."""
        executions = find_executed_programs(text)
        if len(executions) > EXECUTIONS_MAX:
            return None
        error = ERROR_COMPAT if self._options.rewards == "compat" else ERROR
        if len(executions) == EXECUTIONS_MAX:
            return self._frame_output(f"{error}no more than {EXECUTIONS_MAX} programs are run")
        program = extract_just_closed_program(text)
        if program is None:
            return self._frame_output(f"{error}no fenced block of Python between the program tags")
        return self._frame_output(describe_verdict(self._runner.run_all([program]).get(program), error))

    def _frame_output(self, output: str) -> str:
        return frame_output(output, self._options.output_characters)

    def foreign_spans(self, text: str) -> Sequence[tuple[int, int]]:
        """See `Plan.foreign_spans`: output blocks, recognised by position and exact form."""
        return [execution.span for execution in find_executed_programs(text)]

    def score(self, question: Question, completions: Sequence[str]) -> list[Score]:
        """Score answer, form and programs. Programs that were not run here yet are run, within bounds."""
        executions = [find_executed_programs(text) for text in completions]
        wanted = [each.program for found in executions for each in found[:EXECUTIONS_MAX]]
        verdicts: dict[str, Verdict | None] = {}
        if self._options.rewards == "fixed" and self._options.program_reward and self._options.programs_rewarded:
            programs = [program for program in wanted if program is not None]
            verdicts = self._runner.run_all(programs, question.entry.get(AUTHOR, OWN))
        scores = []
        for text, found in zip(completions, executions, strict=True):
            broken = any(each.program in verdicts and verdicts[each.program] is None for each in found)
            scores.append(self._score_completion(question, text, count_working_programs(found, verdicts), broken))
        return scores

    def _score_completion(self, question: Question, text: str, programs: int, broken: bool) -> Score:
        own = remove_outputs(text)
        compat = self._options.rewards == "compat"
        if compat:
            own = f"{OPENING}{find_answer(own, 'boxed') or ''}{CLOSING}"
        answered = self._questions.score(question, [own])[0]
        if compat:
            return self._make_compat_score(answered, compat_reward_parts(text, answered.accuracy >= CORRECT))
        shape = float(has_required_form(text))
        counted = min(programs, self._options.programs_rewarded)
        parts = {
            "correct": answered.accuracy,
            "format": self._format_reward * shape,
            "programs": self._options.program_reward * counted,
        }
        failed = answered.failed or broken
        return Score(sum(parts.values()), answered.accuracy, shape, parts, failed, answered=answered.answered)

    def _make_compat_score(self, answered: Score, parts: Mapping[str, float]) -> Score:
        weights = FIRST_WEIGHTS if self._options.compat_weights == "first" else LATER_WEIGHTS
        weighed = {name: weight * value for (name, value), weight in zip(parts.items(), weights, strict=True)}
        shape = float(parts["format"] > 0)
        reward, found = sum(weighed.values()), answered.answered
        return Score(reward, answered.accuracy, shape, weighed, answered.failed, answered=found)

    def make_true_completion(self, question: Question) -> str | None:
        if not isinstance(self._questions, FilePlan):
            return None
        truth = str(question.entry["answer"])
        boxed = f"\\boxed{{{truth}}}" if self._options.rewards == "compat" else truth
        return f"{OPENING}{boxed}{CLOSING}"

    def explain_answer_reading(self, question: Question, completion: str) -> tuple[str, str]:
        return self._questions.explain_answer_reading(question, completion)

    def learn(self, question: Question, scores: Sequence[Score]) -> None:
        """See `Plan.learn`: for tasks with a curriculum."""
        self._questions.learn(question, scores)

    def read_memory(self) -> Mapping[str, Any]:
        return self._questions.read_memory()

    def load_memory(self, memory: Mapping[str, Any]) -> None:
        self._questions.load_memory(memory)

    def _with_system_prompt(self, question: Question, author: str = "") -> Question:
        """The question with this swarm's own system prompt; records the peer whose completions are scored."""
        reference = question.reference
        number = hash_number("prompt", reference.task, reference.config_digest, reference.seed, reference.index)
        system = make_system_messages(self._options.prompt, number, self._options.rewards == "compat")
        entry = {**question.entry, AUTHOR: author}
        return msgspec.structs.replace(question, messages=(*system, question.messages[-1]), entry=entry)


def make_question_plan(
    swarm: SwarmConfig, options: CodeOptions, training: TrainingConfig | None, home: Path | None
) -> ReasoningGymPlan | FilePlan:
    """The plan that supplies questions and scores answers. Raises SwarmError."""
    if not options.data:
        tasks = swarm.tasks or tuple(TaskConfig(name) for name in MIXTURE)
        return ReasoningGymPlan(msgspec.structs.replace(swarm, tasks=tasks, options={}), training, home)
    if swarm.tasks:
        raise SwarmError(
            "swarm.tasks and swarm.options.data both say where questions come from", "Leave one of them out"
        )
    file = {"data": options.data, "digest": options.digest, "system": "", "rewards": [{"name": options.compare}]}
    return FilePlan(msgspec.structs.replace(swarm, tasks=(), options=file), training, home)

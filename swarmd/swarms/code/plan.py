"""The code swarm: questions of reasoning-gym or of a file, answered with the help of programs.

Generation pauses where a program closes; it runs in the sandbox, and what it printed is put behind it. Correctness
depends on the answer alone, which is scored here; the outputs in a peer's completions are taken for nothing until the
same programs have printed the same here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from swarmd.plugin import (
    Material,
    Plan,
    Question,
    Reference,
    Sandbox,
    Score,
    Split,
    StageId,
    SwarmConfig,
    SwarmError,
    TaskConfig,
    TrainingConfig,
    decode_options,
    find_answer,
    hash_number,
)
from swarmd.swarms.code.programs import (
    ERROR,
    ERROR_COMPAT,
    EXECUTIONS_MAX,
    STOPS,
    Executions,
    find_executions,
    frame_output,
    latest_program,
    leave_out_outputs,
    tell_verdict,
)
from swarmd.swarms.code.prompts import make_system
from swarmd.swarms.code.rewards import FIRST_WEIGHTS, LATER_WEIGHTS, compat_parts, count_programs, is_in_form
from swarmd.swarms.code.settings import CodeOptions
from swarmd.swarms.data.file import FilePlan
from swarmd.swarms.gym.reasoning_gym import ReasoningGymPlan
from swarmd.swarms.options import narrow, tell_cuts
from swarmd.swarms.text import CLOSING, OPENING

MIXTURE = (
    *("chain_sum", "products", "gcd", "lcm", "prime_factorization"),
    *("base_conversion", "decimal_arithmetic", "count_primes", "number_sequence"),
)
AUTHOR = "swarmd-author"  # in a question's entry: who answers it
CORRECT = 0.99  # accuracy from which an answer counts as right


class CodePlan(Plan):
    """Problems solved with programs that run in a sandbox while the model writes.

    Args:
        swarm: with `CodeOptions` as its options, and the mixture in `tasks` where there is no file; `MIXTURE` without.
        training: gives the weight of the form in the reward.
        home: the node's data directory, which the file lies in.

    Raises:
        SwarmError: the options, a task or the file are wrong.
        SandboxUnavailable: programs cannot be kept in on this machine.
    """

    stops = STOPS

    def __init__(self, swarm: SwarmConfig, training: TrainingConfig | None = None, home: Path | None = None) -> None:
        self._options = decode_options(swarm.options, CodeOptions)
        self._format_reward = (training or TrainingConfig()).format_reward
        self._questions = make_questions(swarm, self._options, training, home)
        own = self._options.own_limits
        sandbox = Sandbox(narrow(self._options.limits, own), self._options.sandbox)
        self._executions = Executions(sandbox, own.stage_s, min(self._options.rerun_s, own.stage_s))
        tell_cuts(self._options.cuts)

    @property
    def tasks(self) -> tuple[str, ...]:
        return self._questions.tasks

    def begin(self, is_cancelled: Callable[[], bool]) -> None:
        """See `Plan.begin`."""
        self._executions.begin_stage(is_cancelled)

    def expect(self, peers: Collection[str]) -> None:
        """See `Plan.expect`: they share the seconds for peers' programs."""
        self._executions.share(peers)

    def draw(self, place: StageId, material: Material) -> Iterator[Question]:
        """See `Plan.draw`."""
        return (self._dress(question, place.peer) for question in self._questions.draw(place, material))

    def hold_out(self, task: str, count: int) -> list[Question]:
        """See `Plan.hold_out`."""
        return self.select(task, "held-out", count)

    def select(self, task: str, side: Split, count: int) -> list[Question]:
        """Up to `count` distinct questions of one side of the split, the same on every node."""
        return [self._dress(question) for question in self._questions.select(task, side, count)]

    def regenerate(self, reference: Reference, place: StageId, material: Material) -> Question:
        """See `Plan.regenerate`; RecordRejected for the reasons of reasoning-gym's or of a file's questions."""
        return self._dress(self._questions.regenerate(reference, place, material), place.peer)

    def react(self, question: Question, text: str) -> str | None:
        """Run the program that has just closed; the first one too many is told so, and the next ends the completion."""
        executions = find_executions(text)
        if len(executions) > EXECUTIONS_MAX:
            return None
        error = ERROR_COMPAT if self._options.rewards == "compat" else ERROR
        if len(executions) == EXECUTIONS_MAX:
            return self._frame(f"{error}no more than {EXECUTIONS_MAX} programs are run")
        program = latest_program(text)
        if program is None:
            return self._frame(f"{error}no fenced block of Python between the program tags")
        return self._frame(tell_verdict(self._executions.run(program), error))

    def _frame(self, output: str) -> str:
        return frame_output(output, self._options.output_characters)

    def foreign_spans(self, text: str) -> Sequence[tuple[int, int]]:
        """See `Plan.foreign_spans`: blocks of output, by their place and exact form."""
        return [execution.span for execution in find_executions(text)]

    def score(self, question: Question, completions: Sequence[str]) -> list[Score]:
        """Answer, form and programs; programs whose outcome is not known here are run again, within bounds."""
        executions = [find_executions(text) for text in completions]
        wanted = [each.program for found in executions for each in found[:EXECUTIONS_MAX]]
        verdicts = {}
        if self._options.rewards == "fixed" and self._options.program_reward and self._options.programs_rewarded:
            programs = [program for program in wanted if program is not None]
            verdicts = self._executions.verify(programs, question.entry.get(AUTHOR, ""))
        scores = []
        for text, found in zip(completions, executions, strict=True):
            broken = any(each.program in verdicts and verdicts[each.program] is None for each in found)
            scores.append(self._score(question, text, count_programs(found, verdicts), broken))
        return scores

    def _score(self, question: Question, text: str, programs: int, broken: bool) -> Score:
        own = leave_out_outputs(text)
        compat = self._options.rewards == "compat"
        if compat:
            own = f"{OPENING}{find_answer(own, 'boxed') or ''}{CLOSING}"
        answered = self._questions.score(question, [own])[0]
        if compat:
            return self._weigh_compat(answered, compat_parts(text, answered.accuracy >= CORRECT))
        shape = float(is_in_form(text))
        counted = min(programs, self._options.programs_rewarded)
        parts = {
            "correct": answered.accuracy,
            "format": self._format_reward * shape,
            "programs": self._options.program_reward * counted,
        }
        return Score(sum(parts.values()), answered.accuracy, shape, parts, answered.failed or broken)

    def _weigh_compat(self, answered: Score, parts: Mapping[str, float]) -> Score:
        weights = FIRST_WEIGHTS if self._options.compat_weights == "first" else LATER_WEIGHTS
        weighed = {name: weight * value for (name, value), weight in zip(parts.items(), weights, strict=True)}
        shape = float(parts["format"] > 0)
        return Score(sum(weighed.values()), answered.accuracy, shape, weighed, answered.failed)

    def learn(self, question: Question, scores: Sequence[Score]) -> None:
        """See `Plan.learn`: for tasks with a curriculum."""
        self._questions.learn(question, scores)

    def read_memory(self) -> Mapping[str, Any]:
        """See `Plan.read_memory`."""
        return self._questions.read_memory()

    def load_memory(self, memory: Mapping[str, Any]) -> None:
        """See `Plan.load_memory`."""
        self._questions.load_memory(memory)

    def _dress(self, question: Question, author: str = "") -> Question:
        """The question under this swarm's own system prompt, with whose answers to it are scored."""
        reference = question.reference
        number = hash_number("prompt", reference.task, reference.config_digest, reference.seed, reference.index)
        system = make_system(self._options.prompt, number, self._options.rewards == "compat")
        entry = {**question.entry, AUTHOR: author}
        return msgspec.structs.replace(question, messages=(*system, question.messages[-1]), entry=entry)


def make_questions(
    swarm: SwarmConfig, options: CodeOptions, training: TrainingConfig | None, home: Path | None
) -> ReasoningGymPlan | FilePlan:
    """Where the questions, and the scores of answers, come from. Raises SwarmError."""
    if not options.data:
        tasks = swarm.tasks or tuple(TaskConfig(name) for name in MIXTURE)
        return ReasoningGymPlan(msgspec.structs.replace(swarm, tasks=tasks, options={}), training, home)
    if swarm.tasks:
        raise SwarmError(
            "swarm.tasks and swarm.options.data both say where questions come from", "Leave one of them out"
        )
    file = {"data": options.data, "digest": options.digest, "system": "", "rewards": [{"name": options.compare}]}
    return FilePlan(msgspec.structs.replace(swarm, tasks=(), options=file), training, home)

"""The kinds `gsm8k` and `math-hard`: three stages on the same questions.

- Stage 0 answers a question. Stage 1 sees several students' answers and says who is right. Stage 2 also sees these
  opinions, names the student favoured by most, and answers the question again.
- All nodes of a round answer the same questions in the same order, so that each gets several answers. A node without
  any results of the stage before continues with stage 0's questions.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import msgspec

from swarmd.config import SwarmConfig, TaskConfig, TrainingConfig
from swarmd.errors import RecordRejected, SwarmError
from swarmd.swarms.math import questions
from swarmd.swarms.math.compat import ABSENT, CompatMode
from swarmd.swarms.math.fixed import FixedMode
from swarmd.swarms.math.texts import NO_ANSWER, extract_tag, persona_sentence, system_prompt
from swarmd.swarms.options import MathOptions, decode_options
from swarmd.swarms.plan import Material, Message, Outcome, Question, Score, Split, SplitPlan, StageId, hash_number
from swarmd.swarms.rollouts import Reference, Source
from swarmd.swarms.text import span_answer


class MathPlan(SplitPlan):
    """Base of both kinds. `swarm`: its `options` are read as `MathOptions`; its `tasks` replace the default tasks.
    Raises SwarmError, naming the option, if an option or task is wrong or the data cannot be loaded."""

    stages: ClassVar[int] = 3
    name: ClassVar[str]
    shape: ClassVar[questions.DatasetSchema]
    generated: ClassVar[tuple[TaskConfig, ...]]

    def __init__(self, swarm: SwarmConfig, training: TrainingConfig | None = None, home: Path | None = None) -> None:
        self._options = decode_options(swarm.options, MathOptions)
        self._bank = self._open_bank(swarm, home or Path())
        options = self._options
        kind = CompatMode if options.rewards == "compat" else FixedMode
        self._mode: questions.MathMode = kind(options.students, options.shown_bytes)

    def _open_bank(self, swarm: SwarmConfig, home: Path) -> questions.QuestionBank:
        options = self._options
        size, characters = options.questions, options.question_characters
        if options.data == "generated":
            return questions.GeneratedBank(swarm.id, size, characters, swarm.tasks or self.generated)
        if swarm.tasks:
            raise SwarmError(
                f"swarm.tasks are generated questions, swarm.options.data is {options.data!r}",
                'Leave swarm.tasks out, or set swarm.options.data = "generated"',
            )
        rows = questions.load_question_rows(self.shape, options.data, home, options.rewards, options.digest)
        return questions.RowBank(swarm.id, size, characters, self.name, rows)

    @property
    def tasks(self) -> tuple[str, ...]:
        return self._bank.tasks

    def draw(self, place: StageId, material: Material) -> Iterator[Question]:
        """See `Plan.draw`: the round's questions in order, at this stage if there is material for it, repeatedly."""
        while True:
            posed = False
            for question in self._make_later_questions(place, material) if place.stage else ():
                posed = True
                yield question
            if not posed:
                yield from (self._make_first_question(item, place) for item in self._bank.pool(place.round))

    def select_questions(self, task: str, side: Split, count: int) -> list[Question]:
        """Up to `count` distinct questions of stage 0 of one side of the split, the same on every node."""
        return [
            self._make_first_question(item, StageId("", 0, 0)) for item in self._bank.select_items(task, side, count)
        ]

    def regenerate(self, reference: Reference, place: StageId, material: Material) -> Question:
        """See `Plan.regenerate`. Raises RecordRejected: `unknown-task`, `config-digest`, `seed` (not one of the round's
        questions), `source` (unknown here, or impossible for this question)."""
        item = self._find_item(reference, place)
        if not reference.sources:
            return self._make_first_question(item, place)
        stages = {source.stage for source in reference.sources}
        if stages != set(range(place.stage)):
            raise RecordRejected("source", f"{place.peer} sent a question of another stage than {place.stage}")
        self._check_sources(reference.sources, place)
        return self._make_later_question(item, reference.sources, place, material)

    def score(self, question: Question, completions: Sequence[str]) -> Sequence[Score]:
        """See `Plan.score`. If a scorer raises or returns no number, the score is 0."""
        try:
            scored = self._mode.score(question.stage, question.entry, question.messages[-1].content, completions)
        except Exception:
            return [Score(0.0, failed=True) for _ in completions]
        return [_make_score(*each) for each in scored]

    def true_spans(self, question: Question, text: str) -> Sequence[tuple[int, int]]:
        """See `Plan.true_spans`: the last pair of answer tags, if the true answer is between them on its own line. None
        at stage 1, where several students may be right."""
        answer = question.entry.get("answer")
        if question.stage == 1 or not isinstance(answer, str):
            return ()
        return span_answer(text, answer, "\n") if answer and answer == answer.strip() else ()

    def make_true_completion(self, question: Question) -> str | None:
        if not isinstance(self._bank, questions.RowBank):
            return None
        return f"<think>\n</think>\n<answer>\n{question.entry['answer']}\n</answer>\n"

    def explain_answer_reading(self, question: Question, completion: str) -> tuple[str, str]:
        found = extract_tag(completion, "answer")
        return f"{found!r} is found in it", f"Let the column {self.shape.answer!r} have one answer, without tags"

    def shorten(self, question: Question) -> Question | None:
        """See `Plan.shorten`: halve each peer's text. Not in `compat` mode, which scores by the prompt."""
        posed = self._mode.shorten(question.entry)
        if posed is None:
            return None
        messages = (*question.messages[:-1], Message("user", posed.prompt))
        return msgspec.structs.replace(question, messages=messages, entry=posed.entry)

    def _task_digest(self, task: str) -> str:
        """Covers everything that determines questions and scores: nodes with different digests refuse each other's
        groups."""
        options = self._options
        parts = (options.rewards, options.students, options.questions, options.question_characters)
        return f"{hash_number('math', self._bank.task_digest(task), *parts, bits=63):016x}"

    def _find_item(self, reference: Reference, place: StageId) -> questions.QuestionItem:
        if reference.task not in self.tasks:
            raise RecordRejected("unknown-task", f"{place.peer} sent the task {reference.task!r}, not trained here")
        if reference.config_digest != self._task_digest(reference.task):
            raise RecordRejected("config-digest", f"{place.peer} has other options or data of {reference.task}")
        for item in self._bank.pool(place.round):
            if (item.task, item.seed, item.index) == (reference.task, reference.seed, reference.index):
                return item
        raise RecordRejected("seed", f"{place.peer} sent a question that is not one of round {place.round}")

    def _check_sources(self, sources: Sequence[Source], place: StageId) -> None:
        """Raise RecordRejected unless sources are in order, with each peer once in a stage, and not too many."""
        keys = [(source.stage, source.peer) for source in sources]
        crowded = any(sum(key[0] == stage for key in keys) > self._options.students for stage in range(2))
        if crowded or any(second <= first for first, second in itertools.pairwise(keys)):
            raise RecordRejected("source", f"{place.peer} sent sources that are too many or out of order")

    def _base_reference(self, item: questions.QuestionItem) -> Reference:
        return Reference(item.task, self._task_digest(item.task), item.seed, item.index)

    def _make_first_question(self, item: questions.QuestionItem, place: StageId) -> Question:
        return self._make_question(item, (), 0, questions.PosedQuestion(item.text, questions.make_entry(item)), place)

    def _make_question(
        self,
        item: questions.QuestionItem,
        sources: tuple[Source, ...],
        stage: int,
        posed: questions.PosedQuestion,
        place: StageId,
    ) -> Question:
        persona = persona_sentence(self._options.persona, place)
        system = system_prompt(stage, self._options.brief, persona)
        messages = (Message("system", system, trusted=True), Message("user", posed.prompt))
        reference = Reference(item.task, self._task_digest(item.task), item.seed, item.index, sources)
        return Question(reference, messages, posed.entry, stage)

    def _make_later_questions(self, place: StageId, material: Material) -> Iterator[Question]:
        """This stage's question for each question that somebody answered at the stage before, in the round's order."""
        answers, opinions = (
            _group_outcomes_by_question(material, place.round, 0),
            _group_outcomes_by_question(material, place.round, 1),
        )
        groups = answers if place.stage == 1 else opinions
        authors = {outcome.place.peer for group in groups.values() for outcome in group}
        for item in self._bank.pool(place.round):
            base = self._base_reference(item)
            if base not in groups:
                continue
            absent = sorted(authors - {outcome.place.peer for outcome in groups[base]})
            if place.stage == 1:
                sources = self._mode.choose_answers(item, groups[base], absent)
            else:
                sources = self._mode.choose_opinions(item, answers[base], groups[base], absent)
            if sources:
                with suppress(RecordRejected):  # peers' texts contradict each other: skip this question
                    yield self._make_later_question(item, sources, place, material)

    def _make_later_question(
        self, item: questions.QuestionItem, sources: tuple[Source, ...], place: StageId, material: Material
    ) -> Question:
        """The later-stage question that shows these sources. Raises RecordRejected(`source`)."""
        base = self._base_reference(item)
        answers, opinions = (
            [_find_completion(s, place, base, material) for s in sources if s.stage == stage] for stage in (0, 1)
        )
        if place.stage == 1:
            return self._make_question(item, sources, 1, self._mode.pose_comparison(item, answers), place)
        return self._make_question(item, sources, 2, self._mode.pose_agreement(item, answers, opinions), place)


class Gsm8kPlan(MathPlan):
    """Grade-school mathematics in three stages."""

    name = "gsm8k"
    shape = questions.GSM8K
    generated = (TaskConfig("gsm_symbolic"),)


class MathHardPlan(MathPlan):
    """Competition mathematics in three stages."""

    name = "math-hard"
    shape = questions.DAPO
    generated = (
        TaskConfig("count_primes"),
        TaskConfig("dice", config={"num_dice": 3, "max_dice_size": 12}),
        TaskConfig("lcm", config={"min_numbers": 3, "max_numbers": 4, "min_value": 10, "max_value": 120}),
        TaskConfig("simple_equations", config={"min_terms": 4, "max_terms": 6}),
        TaskConfig("basic_arithmetic", config={"min_terms": 5, "max_terms": 7, "min_digits": 1, "max_digits": 2}),
    )


def _make_score(parts: Mapping[str, float], accuracy: float, form: float) -> Score:
    reward = float(sum(parts.values()))
    if not math.isfinite(reward):
        return Score(0.0, failed=True)
    return Score(reward, accuracy, form, dict(parts), answered=form > 0)


def _group_outcomes_by_question(material: Material, round: int, stage: int) -> dict[Reference, list[Outcome]]:
    """A stage's outcomes by question, except those of late nodes, which answered stage 0's questions."""
    groups: dict[Reference, list[Outcome]] = defaultdict(list)
    for outcome in material.at(round, stage):
        if outcome.question.stage == stage:
            groups[outcome.question.reference.base].append(outcome)
    return groups


def _find_completion(source: Source, place: StageId, base: Reference, material: Material) -> questions.PeerCompletion:
    """The completion that a source refers to. Raises RecordRejected(`source`) if it is unknown here or of another
    stage."""
    outcome = material.find(StageId(source.peer, place.round, source.stage), base)
    authors = (each.place.peer for each in material.at(place.round, source.stage))
    if outcome is None and source.choice == ABSENT and source.peer in authors:
        return questions.PeerCompletion(source, NO_ANSWER)
    if outcome is None or outcome.question.stage != source.stage or source.choice >= len(outcome.completions):
        raise RecordRejected("source", f"what {source.peer} wrote at stage {source.stage} is not known here")
    return questions.PeerCompletion(source, outcome.completions[source.choice], outcome)

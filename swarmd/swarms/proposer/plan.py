"""The kind `proposer-solver`: stage 0 proposes programming problems with tests, stage 1 solves the valid ones.

- Each node runs a proposal's solution against its tests itself, so no peer has to be trusted.
- A question of stage 1 names the peer and completion that it comes from. A node that has not seen this proposal, or
  finds it invalid, refuses the question.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from swarmd.config import SwarmConfig, TrainingConfig
from swarmd.errors import RecordRejected, SwarmError
from swarmd.swarms import plan
from swarmd.swarms.options import LEVELS, ProposerOptions, decode_options
from swarmd.swarms.programs import ProgramRunner
from swarmd.swarms.proposer import problems
from swarmd.swarms.proposer.running import (
    FAILED,
    SECTIONS_FORM,
    JudgeClient,
    ProgramJob,
    ProposerRewards,
    TestResults,
    extract_last_line,
    run_jobs,
)
from swarmd.swarms.rollouts import COMPLETIONS_MAX, INDEX_MAX, Reference, Source

PROPOSE, SOLVE = "propose", "solve"
NUMBERS_MAX = INDEX_MAX // (LEVELS * COMPLETIONS_MAX)  # questions of one node in one stage
REPEATS_MAX = 64  # already drawn built-in problems in a row, after which one is repeated
SELECT_TRIES = 80  # problems generated for each one on the wanted side of the split
SELECT_MAX = 4096
WORDING = 3  # version of prompts, built-in problems and validity checks; part of the digest


class ProposerSolverPlan(plan.SplitPlan):
    """Models set each other programming problems with tests, and solve them.

    Args:
        swarm: with `ProposerOptions` as its options; it takes no tasks.

    Raises:
        SwarmError: an option is wrong, or there are tasks.
        SandboxUnavailable: programs cannot be confined on this machine.
    """

    stages: ClassVar[int] = 2

    def __init__(self, swarm: SwarmConfig, training: TrainingConfig | None = None, home: Path | None = None) -> None:
        if swarm.tasks:
            raise SwarmError(
                "swarm.tasks: proposer-solver takes none", "Leave them out; its models propose the problems"
            )
        self._options = options = decode_options(swarm.options, ProposerOptions)
        self._swarm = swarm.id
        self._digest = _options_digest(options)
        self._level = problems.DifficultyLevel(options.level)
        self._rewards = ProposerRewards(options, (training or TrainingConfig()).format_reward)
        self._judge = JudgeClient(options.judge, options.judge_model, options.judge_s) if options.judge else None
        stage_s = options.own_limits.stage_s
        self._runner = ProgramRunner(
            options.open_sandbox(), min(options.own_s, stage_s), min(options.peer_s, stage_s), extract_last_line
        )
        self._is_cancelled: Callable[[], bool] = lambda: False

    @property
    def tasks(self) -> tuple[str, ...]:
        return PROPOSE, SOLVE

    @property
    def level(self) -> int:
        """The difficulty that this node asks for, from 1 to 5."""
        return self._level.level

    def begin(self, is_cancelled: Callable[[], bool]) -> None:
        self._is_cancelled = is_cancelled
        self._runner.begin_stage(is_cancelled)
        if self._judge is not None:
            self._judge.begin_stage()

    def draw(self, place: plan.StageId, material: plan.Material) -> Iterator[plan.Question]:
        """See `Plan.draw`. At stage 1, each valid proposal once, then built-in problems at this node's level."""
        self._level.enter_round(place.round)
        return (
            self._draw_proposal_questions(place, material)
            if place.stage == 0
            else self._draw_solving_questions(place, material)
        )

    def select_questions(self, task: str, side: plan.Split, count: int) -> list[plan.Question]:
        """Distinct built-in problems of one side of the split, from all levels in turn; none for the proposing task."""
        if task != SOLVE:
            return []
        seed = plan.hash_number("held-out", SOLVE)
        found: dict[str, plan.Question] = {}
        for number in range(min(count * SELECT_TRIES, SELECT_MAX)):
            if len(found) == count:
                break
            made = problems.make_built_in_problem(seed, number, number % LEVELS + 1)
            if plan.split_of(SOLVE, made.canonical) == side and made.canonical not in found:
                index = number * LEVELS + number % LEVELS
                found[made.canonical] = self._make_solving_question(
                    seed, index, (), made.problem, plan.StageId("", 0, 1)
                )
        return list(found.values())

    def regenerate(self, reference: Reference, place: plan.StageId, material: plan.Material) -> plan.Question:
        """See `Plan.regenerate`. Raises RecordRejected: `unknown-task`, `config-digest`, `seed`, `held-out`, or
        `source` (an invalid proposal, or a question of another stage)."""
        self._check_reference(reference, place)
        if reference.task == PROPOSE:
            return self._make_proposal_question(reference.seed, reference.index, place, place.peer)
        if reference.sources:
            return self._regenerate_peer_problem(reference, place, material)
        return self._regenerate_built_in_problem(reference, place)

    def score(self, question: plan.Question, completions: Sequence[str]) -> Sequence[plan.Score]:
        """See `Plan.score`. A scorer that raises counts as 0."""
        score = self._score_proposals if question.task == PROPOSE else self._score_programs
        try:
            return score(question, completions)
        except Exception:
            return [plan.Score(0.0, failed=True) for _ in completions]

    def learn(self, question: plan.Question, scores: Sequence[plan.Score]) -> None:
        """See `Plan.learn`: rewards for solving adjust the level."""
        rewards = [score.reward for score in scores]
        if question.task == SOLVE and rewards and all(map(math.isfinite, rewards)):
            self._level.record_reward(question.entry["round"], sum(rewards) / len(rewards))

    def read_memory(self) -> Mapping[str, Any]:
        memory: dict[str, Any] = msgspec.to_builtins(self._level)
        return memory

    def load_memory(self, memory: Mapping[str, Any]) -> None:
        """See `Plan.load_memory`. An empty memory, from a node that trained another kind, is ignored."""
        if memory:
            self._level = problems.read_level(memory)

    def _stage_seed(self, task: str, place: plan.StageId) -> int:
        return plan.hash_number("proposer-solver", task, self._swarm, place.peer, place.round)

    def _check_reference(self, reference: Reference, place: plan.StageId) -> None:
        """Checks common to both stages. Raises RecordRejected."""
        if reference.task not in self.tasks:
            raise RecordRejected("unknown-task", f"{place.peer} sent the task {reference.task!r}, not trained here")
        if reference.config_digest != self._digest:
            raise RecordRejected("config-digest", f"{place.peer} has other options of proposer-solver")
        if place.stage != (0 if reference.task == PROPOSE else 1):
            raise RecordRejected("source", f"{place.peer} sent a question of another stage than {place.stage}")
        if reference.task == PROPOSE and reference.sources:
            raise RecordRejected("source", f"{place.peer} sent sources with a question that has none")
        foreign = not reference.sources and reference.seed != self._stage_seed(reference.task, place)
        number = reference.index // LEVELS // (COMPLETIONS_MAX if reference.sources else 1)
        if foreign or number >= NUMBERS_MAX:
            raise RecordRejected("seed", f"{place.peer} sent a question that is not its own in round {place.round}")

    def _draw_proposal_questions(self, place: plan.StageId, material: plan.Material) -> Iterator[plan.Question]:
        """Yield questions of stage 0, each at this node's current level."""
        rates = problems.measure_pass_rates(material.at(place.round - 1, 1))
        seed = self._stage_seed(PROPOSE, place)
        for number in itertools.cycle(range(NUMBERS_MAX)):
            index = number * LEVELS + self.level - 1
            yield self._make_proposal_question(seed, index, place, "", rates)

    def _make_proposal_question(
        self, seed: int, index: int, place: plan.StageId, author: str, rates: problems.PassRates = problems.NO_RATES
    ) -> plan.Question:
        """Make a question of stage 0. For peers' proposals `rates` is left out, since other nodes may not know it."""
        topic, level = problems.topic_of(seed, index // LEVELS), index % LEVELS + 1
        entry = {"topic": topic, "level": level, "round": place.round, "author": author, "rates": rates}
        reference = Reference(PROPOSE, self._digest, seed, index)
        return plan.Question(reference, problems.make_proposal_messages(topic, level), entry, 0)

    def _draw_solving_questions(self, place: plan.StageId, material: plan.Material) -> Iterator[plan.Question]:
        yield from self._draw_peer_problems(place, material)
        seed, seen, repeats = self._stage_seed(SOLVE, place), set[str](), 0
        for number in itertools.cycle(range(NUMBERS_MAX)):
            made, index = problems.make_built_in_problem(seed, number, self.level), number * LEVELS + self.level - 1
            repeats = repeats + 1 if made.canonical in seen else 0
            seen.add(made.canonical)
            if plan.split_of(SOLVE, made.canonical) == "train" and (not repeats or repeats > REPEATS_MAX):
                yield self._make_solving_question(seed, index, (), made.problem, place)

    def _draw_peer_problems(self, place: plan.StageId, material: plan.Material) -> Iterator[plan.Question]:
        """Valid proposals of the round, without duplicates, one from each peer in turn."""
        by_peer: dict[str, list[tuple[plan.Outcome, int]]] = defaultdict(list)
        for outcome in material.at(place.round, 0):
            valid = [choice for choice, score in enumerate(outcome.scores) if score.accuracy >= plan.CORRECT]
            by_peer[outcome.place.peer] += [(outcome, choice) for choice in valid]
        seed = self._stage_seed("order", place)

        def candidate_order(candidate: tuple[plan.Outcome, int]) -> int:
            outcome, choice = candidate
            return plan.hash_number(seed, outcome.place.peer, outcome.question.reference.index, choice, bits=63)

        seen = set()
        for turn in itertools.zip_longest(*(sorted(offers, key=candidate_order) for offers in by_peer.values())):
            for outcome, choice in sorted(filter(None, turn), key=candidate_order):
                question = self._question_from_proposal(outcome, choice, place)
                if question is not None and question.entry["proposal"] not in seen:
                    seen.add(question.entry["proposal"])
                    yield question

    def _question_from_proposal(
        self, outcome: plan.Outcome, choice: int, place: plan.StageId, author: str = ""
    ) -> plan.Question | None:
        """The question made from a proposal; None if the proposal is invalid here."""
        proposal = (
            self._read_proposal(outcome.completions[choice])
            if outcome.scores[choice].accuracy >= plan.CORRECT
            else None
        )
        if proposal is None:
            return None
        base, asked = outcome.question.reference, outcome.question.entry
        index = base.index * COMPLETIONS_MAX + choice
        sources = (Source(0, outcome.place.peer, choice),)
        more = {"proposal": proposal.problem.digest, "topic": asked["topic"], "level": asked["level"]}
        return self._make_solving_question(base.seed, index, sources, proposal.problem, place, author, more)

    def _regenerate_peer_problem(
        self, reference: Reference, place: plan.StageId, material: plan.Material
    ) -> plan.Question:
        source, *others = reference.sources
        base = Reference(PROPOSE, self._digest, reference.seed, reference.index // COMPLETIONS_MAX)
        outcome = material.find(plan.StageId(source.peer, place.round, 0), base)
        fault = others or source.stage or source.choice != reference.index % COMPLETIONS_MAX
        if fault or outcome is None or source.choice >= len(outcome.completions):
            raise RecordRejected("source", f"{place.peer} solved a proposal of {source.peer} that is not known here")
        question = self._question_from_proposal(outcome, source.choice, place, place.peer)
        if question is None:
            raise RecordRejected("source", f"{place.peer} solved a proposal of {source.peer} that is not valid here")
        return question

    def _regenerate_built_in_problem(self, reference: Reference, place: plan.StageId) -> plan.Question:
        number, level = divmod(reference.index, LEVELS)
        made = problems.make_built_in_problem(reference.seed, number, level + 1)
        if plan.split_of(SOLVE, made.canonical) != "train":
            raise RecordRejected("held-out", f"{place.peer} sent a built-in problem that is not trained on")
        return self._make_solving_question(reference.seed, reference.index, (), made.problem, place, place.peer)

    def _make_solving_question(
        self,
        seed: int,
        index: int,
        sources: tuple[Source, ...],
        problem: problems.Problem,
        place: plan.StageId,
        author: str = "",
        more: Mapping[str, Any] | None = None,
    ) -> plan.Question:
        """Make a question of stage 1. `author`: the peer whose completions are scored, empty for this node."""
        entry = {"problem": problem, "round": place.round, "author": author, **(more or {})}
        return plan.Question(
            Reference(SOLVE, self._digest, seed, index, sources), problems.make_solution_messages(problem), entry, 1
        )

    def _read_proposal(self, completion: str) -> problems.Proposal | None:
        sections = problems.find_sections(completion)
        return problems.read_proposal(sections, self._options) if sections is not None else None

    def _score_proposals(self, question: plan.Question, completions: Sequence[str]) -> list[plan.Score]:
        entry = question.entry
        sections = [problems.find_sections(text) for text in completions]
        proposals = [problems.read_proposal(each, self._options) if each is not None else None for each in sections]
        marks = iter(self._check_solutions([each for each in proposals if each is not None], entry["author"]))
        scores = []
        for found, proposal in zip(sections, proposals, strict=True):
            if proposal is None:
                form = SECTIONS_FORM if found is not None else 0.0
                scores.append(self._rewards.score_proposal(form, False, 0.0, False))
                continue
            mark = next(marks)
            valid = mark.all_passed and not is_held_out_problem(proposal.problem)
            worth = entry["rates"].difficulty_reward(proposal.problem.digest, entry["topic"], entry["level"])
            scores.append(self._rewards.score_proposal(1.0, valid, worth, mark.state == "broken"))
        return scores

    def _check_solutions(self, proposals: Sequence[problems.Proposal], author: str) -> list[TestResults]:
        """Run the solutions. Those that pass run a second time: a result that varies between runs proves nothing."""
        marks = run_jobs(self._runner, [ProgramJob(each.solution, each.problem.tests) for each in proposals], author)
        again = [place for place, mark in enumerate(marks) if mark.all_passed]
        jobs = [ProgramJob(proposals[place].solution, proposals[place].problem.tests, copy=1) for place in again]
        for place, mark in zip(again, run_jobs(self._runner, jobs, author), strict=True):
            marks[place] = mark
        return marks

    def _score_programs(self, question: plan.Question, completions: Sequence[str]) -> list[plan.Score]:
        problem: problems.Problem = question.entry["problem"]
        blocks = [problems.find_fenced_programs(text) for text in completions]
        programs = [
            found[-1] if found and problems.is_within_bytes(found[-1], self._options.solution_bytes) else None
            for found in blocks
        ]
        jobs = {text: ProgramJob(text, problem.tests) for text in programs if text is not None}
        marks = dict(zip(jobs, run_jobs(self._runner, list(jobs.values()), question.entry["author"]), strict=True))
        if any(mark.state == "unaffordable" for mark in marks.values()):
            marks = dict.fromkeys(jobs, FAILED)  # all fail, so that completions of a group are treated alike
        judged = self._ask_judge(problem, list(jobs))
        return [
            self._rewards.score_program(text, found, marks.get(program or ""), judged.get(program or ""))
            for text, found, program in zip(completions, blocks, programs, strict=True)
        ]

    def _ask_judge(self, problem: problems.Problem, programs: list[str]) -> dict[str, bool]:
        """The judge's verdict on each program of a group; empty unless it judges all of them."""
        judged: dict[str, bool] = {}
        for program in programs:
            if self._judge is None or self._is_cancelled():
                return {}
            verdict = self._judge.judge_program(problem.text, program)
            if verdict is None:
                return {}
            judged[program] = verdict
        return judged


def is_held_out_problem(problem: problems.Problem) -> bool:
    """Whether a proposal is worded like a held-out built-in problem."""
    found = problems.parse_steps(problem.text)
    return found is not None and plan.split_of(SOLVE, problems.canonical_form_of_steps(*found)) == "held-out"


def _options_digest(options: ProposerOptions) -> str:
    """Covers everything that determines questions and scores: nodes with different digests refuse each other's
    groups."""
    limits = msgspec.json.encode(options.limits).decode()
    parts = (options.rewards, options.problem_bytes, options.test_bytes, options.solution_bytes, limits)
    return f"{plan.hash_number('proposer-solver', WORDING, *parts, bits=63):016x}"

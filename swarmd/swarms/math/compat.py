"""The mode `compat`: exactly the rewards of RL Swarm v0.4, with peers' text in prompts unescaped.

Quirks kept: patterns do not match line breaks inside a tag; the tag reward becomes negative for long texts without a
closing line; "None" pays most if all answers are right, and only as many answers are checked as there are completions;
an answer must match character by character. `swarmd.swarms.math.fixed` avoids them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from swarmd.swarms.math import texts
from swarmd.swarms.math.questions import (
    MathMode,
    Parts,
    PeerCompletion,
    PosedQuestion,
    QuestionItem,
    make_entry,
    make_sources,
    select_best_peers,
)
from swarmd.swarms.plan import Outcome
from swarmd.swarms.rollouts import COMPLETIONS_MAX, Source

RESTATED_CHARACTERS_MAX = 4096  # longer questions are not compared: cost is the product of the lengths
STEPS_MAX = 1_000_000  # of comparing, some 0.1 s; for 4,000 letters of prose each common part costs 60,000


def tag_reward(text: str, stage: int) -> float:
    """1/8 for each line with one of the stage's tags that occurs once, minus 0.001 for each character after the last
    closing tag, or for each character of the whole text if that tag is missing."""
    *tags, last = texts.TAGS[stage]
    count = 0.0
    for tag in tags:
        count += 0.125 * (text.count(f"<{tag}>\n") == 1)
        count += 0.125 * (text.count(f"\n</{tag}>\n") == 1)
    if text.count(f"\n<{last}>\n") == 1:
        count += 0.125
        count -= len(text.split(f"\n</{last}>\n")[-1]) * 0.001
    if text.count(f"\n</{last}>") == 1:
        count += 0.125
        count -= (len(text.split(f"\n</{last}>")[-1]) - 1) * 0.001
    return count


def score_answers(prompt: str, truth: str, completions: Sequence[str]) -> list[Parts]:
    """Stage 0: parts of the reward of each completion."""
    return [
        {
            "correctness": 2.0 * (texts.extract_tag(text, "answer") == truth),
            "int": 0.5 * texts.extract_tag(text, "answer").isdigit(),
            **_form_parts(text, 0),
        }
        for text in completions
    ]


def score_choices(prompt: str, truth: str, completions: Sequence[str]) -> list[Parts]:
    """Stage 1: parts of the reward of each completion; the ids come from the prompt."""
    students, answers = texts.extract_students(prompt), texts.extract_answers(prompt, 1)
    return [
        {
            "proper_id": 2.0 * (choice in students),
            "correctness": 2.0 * _choice_reward(choice, answers, truth, len(completions)),
            **_form_parts(text, 1),
        }
        for text, choice in ((text, texts.extract_tag(text, "identify")) for text in completions)
    ]


def score_agreements(prompt: str, truth: str, completions: Sequence[str]) -> list[Parts]:
    """Stage 2: parts of the reward of each completion; ids and votes come from the prompt."""
    answers, leaders = texts.extract_answers(prompt, 2), texts.most_voted(texts.extract_votes(prompt))
    question = texts.extract_question(prompt).strip()
    return [
        {
            "consensus": 2.0 * (choice in leaders),
            "concensus_correctness": 2.0 * _choice_reward(choice, answers, truth, len(completions)),
            "question_recreation": text_similarity(texts.extract_tag(text, "question"), question),
            "final_correctness": 2.0 * (texts.extract_tag(text, "answer") == truth),
            **_form_parts(text, 2),
        }
        for text, choice in ((text, texts.extract_tag(text, "majority")) for text in completions)
    ]


SCORERS: tuple[Callable[[str, str, Sequence[str]], list[Parts]], ...] = (score_answers, score_choices, score_agreements)


def text_similarity(restated: str, question: str) -> float:
    """difflib's SequenceMatcher ratio; 0 if computing it would take too long."""
    if max(len(restated), len(question)) > RESTATED_CHARACTERS_MAX:
        return 0.0
    return texts.bounded_similarity(STEPS_MAX, restated, question)


def _choice_reward(choice: str, answers: Mapping[str, str], truth: str, compared: int) -> float:
    """The reward for naming a student. For naming none, at most `compared` answers are checked against the truth."""
    if choice in answers:
        shown = answers[choice]
        value = texts.extract_tag(shown, "answer")
        worth = 1.0 * (value == truth) + 0.5 * value.isdigit()
        return sum(_form_parts(shown, 0).values(), worth)
    values = [texts.extract_tag(shown, "answer") for shown in answers.values()][:compared]
    return 10.0 * (choice in texts.NONE_WORDS and all(value == truth for value in values))


def _form_parts(text: str, stage: int) -> Parts:
    """The format rewards, which every stage has."""
    return {
        "strict_format": 0.5 * texts.has_tags_in_lines(text, texts.TAGS[stage]),
        "soft_format": 0.5 * texts.has_tags_in_order(text, texts.TAGS[stage]),
        "xmlcount": tag_reward(text, stage),
    }


ABSENT = COMPLETIONS_MAX - 1  # index used for a peer that answered only other questions
SHOWN_CHARACTERS_MAX = 28_000  # of all answers together, and of all opinions together


class CompatMode(MathMode):
    """Peers are numbered by position in the prompt; the last critic decides which answers a question shows."""

    def choose_answers(
        self, item: QuestionItem, answers: Sequence[Outcome], absent: Sequence[str]
    ) -> tuple[Source, ...]:
        return self._choose_best(0, item, answers, absent)

    def choose_opinions(
        self, item: QuestionItem, answers: Sequence[Outcome], opinions: Sequence[Outcome], absent: Sequence[str]
    ) -> tuple[Source, ...]:
        known = {outcome.place.peer: len(outcome.completions) for outcome in answers}
        critics = self._choose_best(1, item, opinions, absent)
        for last in reversed(opinions):
            shown = last.question.reference.sources
            if all(source.choice < known.get(source.peer, COMPLETIONS_MAX) for source in shown):
                return (*shown, *critics)
        return ()

    def pose_comparison(self, item: QuestionItem, answers: Sequence[PeerCompletion]) -> PosedQuestion:
        shown = [(f"Student #{number}", self._cut_text(voice)) for number, voice in enumerate(answers)]
        return PosedQuestion(texts.comparison_prompt(item.text, shown), make_entry(item))

    def pose_agreement(
        self, item: QuestionItem, answers: Sequence[PeerCompletion], opinions: Sequence[PeerCompletion]
    ) -> PosedQuestion:
        comparison = self.pose_comparison(item, answers).prompt
        shown = [(f"Criticism #{number}", self._cut_text(voice)) for number, voice in enumerate(opinions)]
        return PosedQuestion(texts.agreement_prompt(comparison, shown), make_entry(item))

    def score(
        self, stage: int, entry: Mapping[str, Any], prompt: str, completions: Sequence[str]
    ) -> Sequence[tuple[Parts, float, float]]:
        truth = str(entry["answer"])
        scored = SCORERS[stage](prompt, truth, completions)
        right = [_is_right_completion(stage, prompt, truth, text) for text in completions]
        return [
            (parts, float(correct), float(parts["strict_format"] + parts["soft_format"] > 0))
            for parts, correct in zip(scored, right, strict=True)
        ]

    def _choose_best(
        self, stage: int, item: QuestionItem, outcomes: Sequence[Outcome], absent: Sequence[str]
    ) -> tuple[Source, ...]:
        """The best peers by the rewards of the stage before, scored with the bare question as prompt: there "None" pays
        most."""
        completions = {outcome.place.peer: outcome.completions[outcome.best] for outcome in outcomes}
        completions |= {peer: texts.NO_ANSWER for peer in absent if peer not in completions}
        scored = SCORERS[stage](item.text, item.answer, list(completions.values()))
        rewards = {peer: sum(parts.values()) for peer, parts in zip(completions, scored, strict=True)}
        choices = dict.fromkeys(absent, ABSENT) | {outcome.place.peer: outcome.best for outcome in outcomes}
        return make_sources(stage, {peer: choices[peer] for peer in select_best_peers(rewards, stage, self._students)})

    def _cut_text(self, voice: PeerCompletion) -> str:
        return voice.text[: SHOWN_CHARACTERS_MAX // self._students]


def _is_right_completion(stage: int, prompt: str, truth: str, text: str) -> bool:
    """Whether a completion is correct, without the rewards' quirks."""
    if stage != 1:
        return texts.extract_tag(text, "answer") == truth
    answers = {
        name: texts.extract_tag(shown, "answer") == truth
        for name, shown in texts.extract_answers(prompt, stage).items()
    }
    choice = texts.extract_tag(text, "identify")
    return answers[choice] if choice in answers else choice in texts.NONE_WORDS and not any(answers.values())

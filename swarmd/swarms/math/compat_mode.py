"""Choosing, showing and scoring as RL Swarm v0.4 does: peers' text stands in prompts as it is and is parsed back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from swarmd.plugin import COMPLETIONS_MAX, Outcome, Source
from swarmd.swarms.math import compat
from swarmd.swarms.math.modes import Mode, Parts, PeerCompletion, PosedQuestion, best_of, entry_of, sources_of
from swarmd.swarms.math.prompts import NO_ANSWER, agreement_prompt, comparison_prompt
from swarmd.swarms.math.questions import Item
from swarmd.swarms.math.reading import NONE_WORDS, extract_answers, extract_tag

ABSENT = COMPLETIONS_MAX - 1  # choice of a source whose peer answered other questions only, and is shown so
SHOWN_CHARACTERS_MAX = 28_000  # of all answers together, and of all opinions


class CompatMode(Mode):
    """Numbered by place in the prompt; the peer with the last word decides which answers critics are shown with."""

    def choose_answers(self, item: Item, answers: Sequence[Outcome], absent: Sequence[str]) -> tuple[Source, ...]:
        return self._choose(0, item, answers, absent)

    def choose_opinions(
        self, item: Item, answers: Sequence[Outcome], opinions: Sequence[Outcome], absent: Sequence[str]
    ) -> tuple[Source, ...]:
        known = {outcome.place.peer: len(outcome.completions) for outcome in answers}
        critics = self._choose(1, item, opinions, absent)
        for last in reversed(opinions):
            shown = last.question.reference.sources
            if all(source.choice < known.get(source.peer, COMPLETIONS_MAX) for source in shown):
                return (*shown, *critics)
        return ()

    def compare(self, item: Item, answers: Sequence[PeerCompletion]) -> PosedQuestion:
        shown = [(f"Student #{number}", self._cut(voice)) for number, voice in enumerate(answers)]
        return PosedQuestion(comparison_prompt(item.text, shown), entry_of(item))

    def agree(self, item: Item, answers: Sequence[PeerCompletion], opinions: Sequence[PeerCompletion]) -> PosedQuestion:
        comparison = self.compare(item, answers).prompt
        shown = [(f"Criticism #{number}", self._cut(voice)) for number, voice in enumerate(opinions)]
        return PosedQuestion(agreement_prompt(comparison, shown), entry_of(item))

    def score(
        self, stage: int, entry: Mapping[str, Any], prompt: str, texts: Sequence[str]
    ) -> Sequence[tuple[Parts, float, float]]:
        truth = str(entry["answer"])
        scored = compat.SCORERS[stage](prompt, truth, texts)
        right = [_is_right(stage, prompt, truth, text) for text in texts]
        return [
            (parts, float(correct), float(parts["strict_format"] + parts["soft_format"] > 0))
            for parts, correct in zip(scored, right, strict=True)
        ]

    def _choose(self, stage: int, item: Item, outcomes: Sequence[Outcome], absent: Sequence[str]) -> tuple[Source, ...]:
        """The best by the rewards of the stage before with the bare question for a prompt: there "None" pays most."""
        texts = {outcome.place.peer: outcome.completions[outcome.best] for outcome in outcomes}
        texts |= {peer: NO_ANSWER for peer in absent if peer not in texts}
        scored = compat.SCORERS[stage](item.text, item.answer, list(texts.values()))
        rewards = {peer: compat.total(parts) for peer, parts in zip(texts, scored, strict=True)}
        choices = dict.fromkeys(absent, ABSENT) | {outcome.place.peer: outcome.best for outcome in outcomes}
        return sources_of(stage, {peer: choices[peer] for peer in best_of(rewards, stage, self._students)})

    def _cut(self, voice: PeerCompletion) -> str:
        return voice.text[: SHOWN_CHARACTERS_MAX // self._students]


def _is_right(stage: int, prompt: str, truth: str, text: str) -> bool:
    """Whether a completion is right, without the quirks of the rewards."""
    if stage != 1:
        return extract_tag(text, "answer") == truth
    answers = {name: extract_tag(shown, "answer") == truth for name, shown in extract_answers(prompt, stage).items()}
    choice = extract_tag(text, "identify")
    return answers[choice] if choice in answers else choice in NONE_WORDS and not any(answers.values())

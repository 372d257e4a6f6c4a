"""Choosing, showing and scoring as swarmd does by default: ids that stay, and nothing read back from a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from swarmd.plugin import Outcome, RecordRejected, Source
from swarmd.swarms.math import fixed
from swarmd.swarms.math.modes import Mode, Parts, PeerCompletion, PosedQuestion, best_of, entry_of, sources_of
from swarmd.swarms.math.questions import Item
from swarmd.swarms.math.reading import most_voted, read_last, same_answer
from swarmd.swarms.math.shown import Shown, number_peers


class FixedMode(Mode):
    """A student has the same number in every prompt, and a vote counts for the peer whom the critic was shown."""

    def choose_answers(self, item: Item, answers: Sequence[Outcome], absent: Sequence[str]) -> tuple[Source, ...]:
        best = {outcome.place.peer: outcome.best for outcome in answers}
        return sources_of(0, {peer: best[peer] for peer in best_of(_rewards(answers), 0, self._students)})

    def choose_opinions(
        self, item: Item, answers: Sequence[Outcome], opinions: Sequence[Outcome], absent: Sequence[str]
    ) -> tuple[Source, ...]:
        """Students that got a vote first, then the best of those that were compared: at most one for each critic."""
        critics = best_of(_rewards(opinions), 1, self._students)
        shown = [outcome for outcome in opinions if outcome.place.peer in critics]
        compared = {peer for outcome in shown for peer in _peers(outcome)}
        known = {outcome.place.peer: outcome for outcome in answers if outcome.place.peer in compared}
        voted = {peer for outcome in shown if (peer := _vote(outcome, outcome.completions[outcome.best])) in known}
        others = best_of({peer: r for peer, r in _rewards(list(known.values())).items() if peer not in voted}, 0, 99)
        wanted = [*sorted(voted), *reversed(others)][: self._students]
        if not wanted:
            return ()
        best = {outcome.place.peer: outcome.best for outcome in shown}
        return (*sources_of(0, {peer: known[peer].best for peer in wanted}), *sources_of(1, best))

    def compare(self, item: Item, answers: Sequence[PeerCompletion]) -> PosedQuestion:
        numbers = number_peers(voice.source.peer for voice in answers)
        names = {voice.source.peer: f"Student #{numbers[voice.source.peer]}" for voice in answers}
        said = tuple((names[voice.source.peer], voice.text) for voice in answers)
        students = {
            names[voice.source.peer]: {
                "peer": voice.source.peer,
                "right": same_answer(read_last(voice.text, "answer") or "", item.answer),
            }
            for voice in answers
        }
        return _pose(Shown(item.text, self._shown_bytes, said), entry_of(item, students=students))

    def agree(self, item: Item, answers: Sequence[PeerCompletion], opinions: Sequence[PeerCompletion]) -> PosedQuestion:
        comparison = self.compare(item, answers)
        students = comparison.entry["students"]
        names = {student["peer"]: name for name, student in students.items()}
        compared = {peer for voice in opinions if voice.outcome is not None for peer in _peers(voice.outcome)}
        if not names.keys() <= compared:
            raise RecordRejected("source", "a question shows the answer of a student whom no critic was shown")
        numbers = number_peers(voice.source.peer for voice in opinions)
        votes, shown = [], []
        for voice in opinions:
            choice = self._read_vote(voice, names)
            votes += [choice] if choice is not None else []
            shown.append((f"Criticism #{numbers[voice.source.peer]}", voice.text, choice))
        both = msgspec.structs.replace(comparison.entry["shown"], opinions=tuple(shown))
        return _pose(both, entry_of(item, students=students, votes=votes))

    def shorten(self, entry: Mapping[str, Any]) -> PosedQuestion | None:
        shown: Shown | None = entry.get("shown")
        shorter = shown.shorten() if shown is not None else None
        return _pose(shorter, entry) if shorter is not None else None

    def _read_vote(self, voice: PeerCompletion, names: Mapping[str, str]) -> str | None:
        """The id, in this prompt, that a critic names. Raises RecordRejected where a student named is not shown."""
        peer = _vote(voice.outcome, voice.text) if voice.outcome is not None else None
        if peer is None or peer == fixed.NONE:
            return peer
        if peer not in names:
            raise RecordRejected("source", f"a question leaves out {peer}, whom {voice.source.peer} names")
        return names[peer]

    def score(
        self, stage: int, entry: Mapping[str, Any], prompt: str, texts: Sequence[str]
    ) -> Sequence[tuple[Parts, float, float]]:
        right = {name: bool(student["right"]) for name, student in entry.get("students", {}).items()}
        leaders = most_voted(list(entry.get("votes", ())))
        facts = fixed.ScoringFacts(str(entry["answer"]), str(entry["question"]), right, leaders)
        correct = "final_correctness" if stage == 2 else "correctness"
        return [
            (parts, parts[correct] / 2, 2 * (parts["strict_format"] + parts["soft_format"]))
            for parts in fixed.SCORERS[stage](facts, texts)
        ]


def _pose(shown: Shown, entry: Mapping[str, Any]) -> PosedQuestion:
    return PosedQuestion(shown.prompt, {**entry, "shown": shown})


def _rewards(outcomes: Sequence[Outcome]) -> dict[str, float]:
    return {outcome.place.peer: outcome.scores[outcome.best].reward for outcome in outcomes}


def _peers(opinion: Outcome) -> set[str]:
    """The students that a critic was shown."""
    return {str(student["peer"]) for student in opinion.question.entry["students"].values() if student["peer"]}


def _vote(opinion: Outcome, text: str) -> str | None:
    """The peer whom a critic names, by the prompt that the critic was shown; NONE for no one, None for no vote."""
    students = opinion.question.entry["students"]
    choice = fixed.read_choice(read_last(text, "identify"), students)
    return choice if choice is None or choice == fixed.NONE else str(students[choice]["peer"]) or None

"""The default mode `fixed`: v0.4's rewards without those that are free or pay for the wrong thing.

- Completions are scored against this node's own facts about the question (`ScoringFacts`), never the prompt's text, so
  nothing that a peer wrote can pass for an id, a vote or an answer.
- A student's id is the same in every prompt, and peers' texts are escaped and cut to a number of bytes.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from swarmd.errors import RecordRejected
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
from swarmd.swarms.plan import Outcome, hash_number
from swarmd.swarms.rollouts import Source
from swarmd.swarms.text import read_number

CUT = " [...] "  # replaces the middle of a long text
NUMBER_BYTES_MAX = 120  # of an answer in a prompt
NUMBER_DIGITS = 3  # digits of a student's number
LONG_DIGITS = 9  # digits if two students' short numbers collide

_TAG = re.compile(r"<(?=[/\\|!?A-Za-z])")
_SENTENCE = re.compile(
    "|".join(re.escape(s.removesuffix(":")).replace(r"\ ", r"\s+") + ":" for s in texts.SENTENCES), re.I
)
_BLANK_LINES = re.compile(r"\n\s+")
_OWN_TAG = re.compile(r"</?(?:think|answer|compare|explain|identify)>")


def escape_tags(text: str) -> str:
    """Break every tag with a blank, and remove the colon of sentences that delimit a prompt's parts."""
    return _SENTENCE.sub(lambda found: f"{found[0][:-1]};", _TAG.sub("< ", text))


def cut_middle(text: str, bytes_max: int) -> str:
    """The text; if longer than `bytes_max` of UTF-8, only its start and end, where answers stand."""
    body = text.encode(errors="replace")
    if len(body) <= bytes_max:
        return text
    half = max(0, bytes_max - len(CUT)) // 2
    return body[:half].decode(errors="ignore") + CUT + body[len(body) - half :].decode(errors="ignore")


def format_answer(completion: str, bytes_max: int) -> str:
    """A student's text in fresh tags, escaped so that nothing in it passes for a tag."""
    answer = texts.read_last_tag(completion, "answer")
    reasoning = _clean_text(completion.rpartition("<answer>")[0] if answer is not None else completion, bytes_max)
    if answer is None:
        return reasoning
    value = cut_middle(escape_tags(answer), min(bytes_max, NUMBER_BYTES_MAX))
    thought = f"<think>\n{reasoning}\n</think>\n" if reasoning else ""
    return f"{thought}<answer>\n{value}\n</answer>"


def format_opinion(completion: str, choice: str | None, bytes_max: int) -> str:
    """A critic's text and vote. `choice`: the id it votes for; None if it votes for nobody."""
    if choice is None:
        return _clean_text(completion, bytes_max)
    reasons = _clean_text(completion.rpartition("<identify>")[0], bytes_max)
    explained = f"<explain>\n{reasons}\n</explain>\n" if reasons else ""
    return f"{explained}<identify>\n{choice}\n</identify>"


def number_peers(peers: Iterable[str]) -> dict[str, str]:
    """A number for each peer, the same in every prompt; longer if the short numbers of two of these peers collide."""
    ordered = sorted(set(peers))
    short = {peer: _peer_digits(peer, NUMBER_DIGITS) for peer in ordered}
    numbers: dict[str, str] = {}
    for peer in ordered:
        shared = list(short.values()).count(short[peer]) > 1
        number = _peer_digits(peer, LONG_DIGITS) if shared else short[peer]
        taken = list(numbers.values()).count(number)
        numbers[peer] = f"{number}-{peer}" if taken else number
    return numbers


def _peer_digits(peer: str, count: int) -> str:
    return f"{hash_number('student', peer, bits=63) % 10**count:0{count}}"


def _clean_text(text: str, bytes_max: int) -> str:
    return cut_middle(escape_tags(_BLANK_LINES.sub("\n", _OWN_TAG.sub("", text)).strip()), bytes_max)


SHOWN_BYTES_MIN = 8  # texts are never cut below this


class ShownTexts(msgspec.Struct, frozen=True):
    """A question and peers' texts, each cut to `bytes_max`."""

    question: str
    bytes_max: int
    answers: tuple[tuple[str, str], ...]  # (id, student's text)
    opinions: tuple[tuple[str, str, str | None], ...] = ()  # (id, critic's text, id it votes for)

    @property
    def prompt(self) -> str:
        """The user's message: for stage 2 if there are opinions, else for stage 1."""
        comparison = texts.comparison_prompt(
            self.question, [(name, format_answer(text, self.bytes_max)) for name, text in self.answers]
        )
        opinions = [(name, format_opinion(text, choice, self.bytes_max)) for name, text, choice in self.opinions]
        return texts.agreement_prompt(comparison, opinions) if opinions else comparison

    def shorten(self) -> "ShownTexts | None":
        """The same with half the bytes for each text; None below the minimum."""
        half = self.bytes_max // 2
        return msgspec.structs.replace(self, bytes_max=half) if half >= SHOWN_BYTES_MIN else None


NONE = "None"
WORDS_MAX = 400  # words of a restated question that are compared
STEPS_MAX = 250_000  # of comparing, some 0.03 s; an honest question of this length takes a tenth
TAIL_COST = 0.001  # penalty for each character after the last closing tag, up to 0.25 in all

_NONE_WORDS = {word.casefold() for word in texts.NONE_WORDS}


class ScoringFacts(msgspec.Struct, frozen=True):
    truth: str
    question: str = ""
    right: Mapping[str, bool] = {}  # for each student shown, by id: whether the answer is correct
    leaders: Sequence[str] = ()  # ids with the most votes, or NONE


def read_choice(text: str | None, ids: Mapping[str, object]) -> str | None:
    """The id or NONE that a completion names, ignoring case and white space; None if it names neither."""
    named = " ".join((text or "").casefold().split()).rstrip(".")
    if named in _NONE_WORDS:
        return NONE
    return next((known for known in ids if known.casefold() == named), None)


def is_right_choice(choice: str | None, right: Mapping[str, bool]) -> bool:
    """Whether it names a student who is right, or NONE when nobody is."""
    return not any(right.values()) if choice == NONE else right.get(choice or "", False)


def score_answer(facts: ScoringFacts, text: str) -> Parts:
    """Stage 0: reward parts of a completion, at most 3.5 together."""
    answer = texts.read_last_tag(text, "answer") or ""
    return {
        "xmlcount": tag_reward(text, 0),
        **_form_parts(text, 0),
        "int": 0.5 * (read_number(answer) is not None),
        "correctness": 2.0 * texts.is_same_answer(answer, facts.truth),
    }


def score_choice(facts: ScoringFacts, text: str) -> Parts:
    """Stage 1: reward parts of a completion, at most 3.75 together."""
    choice = read_choice(texts.read_last_tag(text, "identify"), facts.right)
    return {
        "proper_id": 0.5 * (choice is not None),
        "correctness": 2.0 * is_right_choice(choice, facts.right),
        **_form_parts(text, 1),
        "xmlcount": tag_reward(text, 1),
    }


def score_agreement(facts: ScoringFacts, text: str) -> Parts:
    """Stage 2: reward parts of a completion, at most 6.75 together."""
    choice = read_choice(texts.read_last_tag(text, "majority"), facts.right)
    return {
        "consensus": 1.0 * (choice in facts.leaders),
        "concensus_correctness": 1.0 * is_right_choice(choice, facts.right),
        "question_recreation": text_similarity(texts.read_last_tag(text, "question") or "", facts.question),
        "final_correctness": 2.0 * texts.is_same_answer(texts.read_last_tag(text, "answer") or "", facts.truth),
        **_form_parts(text, 2),
        "xmlcount": tag_reward(text, 2),
    }


SCORERS: tuple[Callable[[ScoringFacts, str], Parts], ...] = (score_answer, score_choice, score_agreement)


def tag_reward(text: str, stage: int) -> float:
    """1/8 for each opening and closing tag that occurs once, minus a little for text after the last."""
    tags = texts.TAGS[stage]
    count = 0.125 * sum(text.count(mark) == 1 for tag in tags for mark in (f"<{tag}>", f"</{tag}>"))
    _, closing, tail = text.rpartition(f"</{tags[-1]}>")
    return max(0.0, count - min(0.25, TAIL_COST * len(tail.strip()))) if closing else count


def text_similarity(restated: str, question: str) -> float:
    """The share of words that both have in the same order, in [0, 1]."""
    ours, theirs = question.split()[:WORDS_MAX], restated.split()[: WORDS_MAX + 1]
    return texts.bounded_similarity(STEPS_MAX, theirs, ours, autojunk=False) if theirs else 0.0


def _form_parts(text: str, stage: int) -> Parts:
    """0.5 for the template with its line breaks, else 0.25 for its tags in order."""
    sections = texts.read_sections(text, texts.TAGS[stage])
    strict = sections is not None and texts.has_template_line_breaks(text, sections)
    return {"strict_format": 0.5 * strict, "soft_format": 0.25 * (sections is not None and not strict)}


class FixedMode(MathMode):
    """The default mode. A student has the same number in every prompt; a vote counts for the peer the critic was
    shown."""

    def choose_answers(
        self, item: QuestionItem, answers: Sequence[Outcome], absent: Sequence[str]
    ) -> tuple[Source, ...]:
        best = {outcome.place.peer: outcome.best for outcome in answers}
        return make_sources(
            0, {peer: best[peer] for peer in select_best_peers(_best_rewards_by_peer(answers), 0, self._students)}
        )

    def choose_opinions(
        self, item: QuestionItem, answers: Sequence[Outcome], opinions: Sequence[Outcome], absent: Sequence[str]
    ) -> tuple[Source, ...]:
        """Choose at most `students` students: first those with votes, then the best of those that critics compared."""
        critics = select_best_peers(_best_rewards_by_peer(opinions), 1, self._students)
        shown = [outcome for outcome in opinions if outcome.place.peer in critics]
        compared = {peer for outcome in shown for peer in _shown_peers(outcome)}
        known = {outcome.place.peer: outcome for outcome in answers if outcome.place.peer in compared}
        voted = {
            peer for outcome in shown if (peer := _read_voted_peer(outcome, outcome.completions[outcome.best])) in known
        }
        others = select_best_peers(
            {peer: r for peer, r in _best_rewards_by_peer(list(known.values())).items() if peer not in voted}, 0, 99
        )
        wanted = [*sorted(voted), *reversed(others)][: self._students]
        if not wanted:
            return ()
        best = {outcome.place.peer: outcome.best for outcome in shown}
        return (*make_sources(0, {peer: known[peer].best for peer in wanted}), *make_sources(1, best))

    def pose_comparison(self, item: QuestionItem, answers: Sequence[PeerCompletion]) -> PosedQuestion:
        numbers = number_peers(voice.source.peer for voice in answers)
        names = {voice.source.peer: f"Student #{numbers[voice.source.peer]}" for voice in answers}
        said = tuple((names[voice.source.peer], voice.text) for voice in answers)
        students = {
            names[voice.source.peer]: {
                "peer": voice.source.peer,
                "right": texts.is_same_answer(texts.read_last_tag(voice.text, "answer") or "", item.answer),
            }
            for voice in answers
        }
        return _make_posed_question(ShownTexts(item.text, self._shown_bytes, said), make_entry(item, students=students))

    def pose_agreement(
        self, item: QuestionItem, answers: Sequence[PeerCompletion], opinions: Sequence[PeerCompletion]
    ) -> PosedQuestion:
        comparison = self.pose_comparison(item, answers)
        students = comparison.entry["students"]
        names = {student["peer"]: name for name, student in students.items()}
        compared = {peer for voice in opinions if voice.outcome is not None for peer in _shown_peers(voice.outcome)}
        if not names.keys() <= compared:
            raise RecordRejected("source", "a question shows the answer of a student whom no critic was shown")
        numbers = number_peers(voice.source.peer for voice in opinions)
        votes, shown = [], []
        for voice in opinions:
            choice = self._read_vote(voice, names)
            votes += [choice] if choice is not None else []
            shown.append((f"Criticism #{numbers[voice.source.peer]}", voice.text, choice))
        both = msgspec.structs.replace(comparison.entry["shown"], opinions=tuple(shown))
        return _make_posed_question(both, make_entry(item, students=students, votes=votes))

    def shorten(self, entry: Mapping[str, Any]) -> PosedQuestion | None:
        shown: ShownTexts | None = entry.get("shown")
        shorter = shown.shorten() if shown is not None else None
        return _make_posed_question(shorter, entry) if shorter is not None else None

    def _read_vote(self, voice: PeerCompletion, names: Mapping[str, str]) -> str | None:
        """The id that a critic voted for, as numbered in this prompt. Raises RecordRejected if that student is not
        shown."""
        peer = _read_voted_peer(voice.outcome, voice.text) if voice.outcome is not None else None
        if peer is None or peer == NONE:
            return peer
        if peer not in names:
            raise RecordRejected("source", f"a question leaves out {peer}, whom {voice.source.peer} names")
        return names[peer]

    def score(
        self, stage: int, entry: Mapping[str, Any], prompt: str, completions: Sequence[str]
    ) -> Sequence[tuple[Parts, float, float]]:
        right = {name: bool(student["right"]) for name, student in entry.get("students", {}).items()}
        leaders = texts.most_voted(list(entry.get("votes", ())))
        facts = ScoringFacts(str(entry["answer"]), str(entry["question"]), right, leaders)
        correct = "final_correctness" if stage == 2 else "correctness"
        scored = [SCORERS[stage](facts, text) for text in completions]
        return [(parts, parts[correct] / 2, 2 * (parts["strict_format"] + parts["soft_format"])) for parts in scored]


def _make_posed_question(shown: ShownTexts, entry: Mapping[str, Any]) -> PosedQuestion:
    return PosedQuestion(shown.prompt, {**entry, "shown": shown})


def _best_rewards_by_peer(outcomes: Sequence[Outcome]) -> dict[str, float]:
    return {outcome.place.peer: outcome.scores[outcome.best].reward for outcome in outcomes}


def _shown_peers(opinion: Outcome) -> set[str]:
    """The students whose answers a critic was shown."""
    return {str(student["peer"]) for student in opinion.question.entry["students"].values() if student["peer"]}


def _read_voted_peer(opinion: Outcome, text: str) -> str | None:
    """The peer a critic voted for, resolved by the prompt it was shown; NONE for nobody, None for no vote."""
    students = opinion.question.entry["students"]
    choice = read_choice(texts.read_last_tag(text, "identify"), students)
    return choice if choice is None or choice == NONE else str(students[choice]["peer"]) or None

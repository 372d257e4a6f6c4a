"""What stands between tags, as RL Swarm v0.4 reads it from completions and prompts."""

from __future__ import annotations

from swarmd.swarms.math.prompts import ANSWERS_ARE, FEEDBACK_IS, QUESTION_IS

NONE_WORDS = (
    "None",
    "No one",
    "All answers are wrong",
    "All answers were wrong",
    "All are wrong",
    "All were wrong",
    "None are correct",
    "None were correct",
    "No one is correct",
)


def extract_tag(text: str, tag: str) -> str:
    """What follows the last opening tag, up to the closing one, stripped; all of the text where there is no tag."""
    return text.split(f"<{tag}>")[-1].split(f"</{tag}>")[0].strip()


def extract_students(prompt: str) -> list[str]:
    """Ids of the students whose answers a prompt shows."""
    return [part.split("</student>")[0].strip() for part in prompt.split("<student>")[1:]]


def extract_answers(prompt: str, stage: int) -> dict[str, str]:
    """Answers by student's id, stripped; the last of an id. At stage 2 from the part before the feedback.

    At stage 1 there is no feedback: who writes the sentence that leads to it into an answer cuts nothing off.
    """
    answers = {}
    shown = prompt.split(f"  \n{FEEDBACK_IS} \n")[0] if stage == 2 else prompt
    for part in shown.split("<student>")[1:]:
        answers[part.split("</student>")[0].strip()] = part.split("</student> said \n")[-1].strip()
    return answers


def extract_votes(prompt: str) -> list[str]:
    """What the feedback in a prompt identifies, one entry for each opening tag."""
    return [part.split("</identify>")[0].strip() for part in prompt.split("<identify>")[1:]]


def extract_question(prompt: str) -> str:
    """The question that a prompt of a later stage is about, not stripped."""
    return prompt.split(f"  \n\n{ANSWERS_ARE}")[0].split(QUESTION_IS)[-1]


def most_voted(votes: list[str]) -> list[str]:
    """Those with the most votes, all of them where several have as many; none where there are no votes."""
    counts: dict[str, int] = {}
    for vote in votes:
        counts[vote] = counts.get(vote, 0) + 1
    most = max(counts.values(), default=0)
    return [vote for vote, count in counts.items() if count == most]

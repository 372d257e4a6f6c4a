"""What the model is told and asked at each stage.

The delimiters of the user's messages are those of RL Swarm v0.4, character by character: its nodes parse them back. A
place in a stage's template is a tag on a line of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

QUESTION_IS = "The question we were given is: "
ANSWERS_ARE = "The following answers to this question were suggested:"
FEEDBACK_IS = "After comparing these answers, the following feedback was given about which answer is best:"
SENTENCES = (QUESTION_IS.strip(), ANSWERS_ARE, FEEDBACK_IS)

NO_ANSWER = "No answer received..."

TAGS = (
    ("think", "answer"),
    ("compare", "explain", "identify"),
    ("summarize_feedback", "majority", "question", "think", "answer"),
)

_PLACES = {
    "think": "your reasoning",
    "answer": "the final answer and nothing else",
    "compare": "what the answers have in common and where they part",
    "explain": "why one of them is best, or why none is right",
    "identify": "the id of the best student, or None",
    "summarize_feedback": "what the feedback comes to",
    "majority": "the id that most of the feedback settles on, or None",
    "question": "the question, word for word",
}

_CRITERIA = """An ideal answer meets four criteria:
1) its reasoning stands between <think> and </think>;
2) its final answer stands between <answer> and </answer>;
3) the reasoning is correct, and no longer than it has to be;
4) the final answer is correct."""

_FULL = (
    "You are one of several students who work on mathematical problems together. You are given a question and solve it "
    f"by yourself, step by step.\n\n{_CRITERIA}",
    "You are one of several students who work on mathematical problems together. Each has answered the same question "
    f"without seeing the others' answers, and now all of them lie before you.\n\n{_CRITERIA}\n\n"
    "Compare the answers by these criteria, explain which is best, and name the student who gave it. Students are "
    "marked as <student>Student #id</student>. Where every answer is wrong, say None.",
    "You are one of several students who work on mathematical problems together. Each has answered the same question, "
    "and several have said which of the answers they hold to be best.\n\n"
    f"{_CRITERIA}\n\n"
    "Students are marked as <student>Student #id</student>, feedback as <criticism>Criticism #id</criticism>. "
    "Summarise the feedback, name the student whom most of it settles on or None, repeat the question, and then answer "
    "it as well as you can with all that was said.",
)

_BRIEF = (
    "Solve the question.",
    "Which student is right? Say the id, or None.",
    "Which id has most votes? Then solve the question.",
)


def system_prompt(stage: int, brief: bool = False, persona: str = "") -> str:
    """The system message of a stage; the persona stands in front without anything between."""
    if brief:
        shape = "".join(f"<{tag}></{tag}>" for tag in TAGS[stage])
        return f"{persona}\n{_BRIEF[stage]} {shape}\n"
    shape = "\n".join(f"<{tag}>\n[{_PLACES[tag]}]\n</{tag}>" for tag in TAGS[stage])
    return f"{persona}\n{_FULL[stage]}\n\nRespond in this form and in no other:\n{shape}\n"


def comparison_prompt(question: str, answers: Sequence[tuple[str, str]]) -> str:
    """The user's message of stage 1, of (id, text) in the order shown."""
    shown = "".join(f"<student>{name}</student> said \n{text}\n\n\n" for name, text in answers)
    return f"{QUESTION_IS}{question}  \n\n{ANSWERS_ARE} \n{shown}"


def agreement_prompt(comparison: str, opinions: Sequence[tuple[str, str]]) -> str:
    """The user's message of stage 2: that of stage 1, and the feedback of (id, text) in the order shown."""
    shown = "".join(f"<criticism>{name}</criticism> was \n{text}\n\n\n" for name, text in opinions)
    return f"{comparison}  \n{FEEDBACK_IS} \n{shown}"

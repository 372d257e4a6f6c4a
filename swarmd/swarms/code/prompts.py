"""System prompts of the code swarm."""

from __future__ import annotations

from typing import Literal

from swarmd.plugin import Message

Prompt = Literal["zero-shot", "one-shot", "alternate", "none"]

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


def make_system(prompt: Prompt, number: int, boxed: bool) -> tuple[Message, ...]:
    """What precedes a question.

    Args:
        number: of the question, the same on every node: `alternate` gives even ones the example.
        boxed: ask for the form that `rewards = "compat"` pays for.
    """
    if prompt == "none":
        return ()
    example = prompt == "one-shot" or (prompt == "alternate" and number % 2 == 0)
    text = RULES + (BOXED if boxed else "") + (f"\n\n{EXAMPLE}" if example else "")
    return (Message("system", text, trusted=True),)

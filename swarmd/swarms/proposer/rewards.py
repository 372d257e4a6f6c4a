"""What proposals and programs are worth.

`compat` gives the numbers of CodeZero (RL Swarm v0.7) for programs, with tests that ran in the place of a model that
guesses, and those of its proposer's own reward for proposals.
"""

from __future__ import annotations

from swarmd.plugin import Score
from swarmd.swarms.proposer.cases import FUNCTION, SHOWN
from swarmd.swarms.proposer.proposals import fits
from swarmd.swarms.proposer.running import TestResults
from swarmd.swarms.proposer.settings import ProposerOptions

SECTIONS_FORM = 0.5  # of the form, for a proposal with its three sections and a fault in one of them
COMPAT_LENGTH = 0.2


class Rewards:
    """Scores by the options of the kind.

    Args:
        format_reward: weight of the form, by `rewards = "fixed"`.
    """

    def __init__(self, options: ProposerOptions, format_reward: float) -> None:
        self._options = options
        self._compat = options.rewards == "compat"
        self._format_reward = format_reward

    def score_proposal(self, form: float, valid: bool, worth: float, failed: bool) -> Score:
        """
        Args:
            form: 1 where it can be read, `SECTIONS_FORM` where its sections stand there, 0 else.
            valid: it passed its checks here.
            worth: of its difficulty, in [0, 1].
            failed: the sandbox did not work.
        """
        difficulty = worth * valid
        if self._compat:
            parts = {"difficulty": difficulty}
        else:
            parts = {
                "valid": self._options.valid_reward * valid,
                "difficulty": self._options.difficulty_reward * difficulty,
                "format": self._format_reward * form,
            }
        return Score(sum(parts.values()), float(valid), form, parts, failed)

    def score_program(
        self, completion: str, blocks: list[str], marks: TestResults | None, judged: bool | None
    ) -> Score:
        """
        Args:
            blocks: fenced blocks of Python in the completion.
            marks: of the last of them; None where there is none that could be run.
            judged: what the judge said of it; None where it was not asked.
        """
        brief = fits(completion, self._options.solution_bytes)
        well_formed = float(len(blocks) == 1 and f"def {FUNCTION}" in blocks[0] and brief)
        failed = marks is not None and marks.state == "broken"
        if self._compat:
            correct = float(marks is not None and marks.all_passed)
            parts = compat_parts(completion, bool(blocks), correct, brief)
        else:
            correct = share_of(marks)
            parts = {"tests": correct, "format": self._format_reward * well_formed}
        if judged is not None:
            parts["judge"] = self._options.judge_reward * judged
        return Score(sum(parts.values()), correct, well_formed, parts, failed)


def share_of(marks: TestResults | None) -> float:
    """The share of the hidden tests that were passed."""
    hidden = marks.passed[SHOWN:] if marks is not None else ()
    return sum(hidden) / len(hidden) if hidden else 0.0


def compat_parts(completion: str, fenced: bool, correct: float, brief: bool) -> dict[str, float]:
    """-1 without a block, else 1 or 0; +-0.2 for the length. An empty completion, upstream's non-string, has -1.2."""
    if not completion.strip():
        return {"correct": -1.0, "length": -COMPAT_LENGTH}
    return {"correct": correct if fenced else -1.0, "length": COMPAT_LENGTH if brief else -COMPAT_LENGTH}

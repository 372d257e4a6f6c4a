"""Whether the stages trained last had anything to learn from; where they had not, why, and what to do. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from swarmd.core.state import State
from swarmd.core.values import FlatCause, FlatStage
from swarmd.observe.layers import Layer

NOTHING = "nothing to learn"
CAUSES: dict[FlatCause, str] = {
    "form": "have no answer in the form that is asked for",
    "cut": "were cut off at training.completion_tokens before there was an answer",
    "wrong": "are wrong",
    "right": "are right",
    "constant": "got one and the same reward, whatever they say",
    "failed": "could not be scored",
}
ADVICE: dict[FlatCause, str] = {
    "form": 'begin a new node with training.warm_up = "form", take a model that follows instructions, or say the form '
    "more plainly, with an example, in the prompt",
    "cut": "raise training.completion_tokens, or ask for shorter answers",
    "wrong": "give easier questions (the tasks' settings, or a curriculum), raise training.generations, or take a "
    "larger model",
    "right": "give harder questions (the tasks' settings, or a curriculum): this model knows these",
    "constant": "look at the reward function: it does not tell a good completion from a bad one",
    "failed": "mend the reward function or the swarm's scorer: the node's log says what it raised",
}


class LearningStatus(Layer, frozen=True, kw_only=True):
    """Whether there is anything to learn. Not being well, it costs no round: the node is just not getting better."""

    stages: int  # trained last, of which all this is so
    round: int  # the last of them
    stage: int
    reward: float  # mean of the completions of that one
    cause: FlatCause | None = None  # why there was nothing to learn; None: there was something
    groups: int = 0  # of the node's own, in the last of them; this and the next where there was nothing to learn
    flat: int = 0  # of these, with every completion paid alike
    example: str = ""  # a completion
    advice: str = ""  # what to do


def learning_status(state: State, now: float, absent: str) -> LearningStatus | None:
    """What the log says of it; None until a stage is trained. `absent` says why no daemon answers, if none does."""
    known = state.learning
    if known is None:
        return None
    status = LearningStatus(
        state="learning",
        healthy=not absent,
        reason=absent,
        age_s=now - known.since,
        stages=known.stages,
        round=known.round,
        stage=known.stage,
        reward=known.reward,
    )
    flat = known.flat
    if flat is None:
        return status
    last = "" if known.stages == 1 else f"for {known.stages} stages; in the last "
    return replace(
        status,
        state=NOTHING,
        healthy=flat.cause == "right" and not absent,  # a model that knows its questions is not in trouble
        reason=absent or f"{last}{flat_words(flat, known.reward)}. {advice_on(flat.cause)}. {example_words(flat)}",
        cause=flat.cause,
        groups=flat.groups,
        flat=flat.flat,
        example=flat.example,
        advice=ADVICE[flat.cause],
    )


def advice_on(cause: FlatCause) -> str:
    """What to do, as a sentence without its full stop."""
    return ADVICE[cause][0].upper() + ADVICE[cause][1:]


def flat_words(flat: FlatStage, reward: float) -> str:
    """How many groups taught nothing, what was paid, and why."""
    words = f"{flat.flat} of {flat.groups} own groups had every completion paid alike, mean reward {reward:.3f}: "
    return words + f"{flat.alike} of {flat.completions} completions {CAUSES[flat.cause]}"


def example_words(flat: FlatStage) -> str:
    """One of the completions."""
    return f'An example: "{flat.example}"'

"""The recipes of the embedded models, and the kind of swarm that each is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from swarmd.config import Config, load_config
from swarmd.errors import ModelError
from swarmd.paths import configs_directory
from swarmd.swarms.plan import Plan
from swarmd.swarms.registry import make_plan
from swarmd.training.embedded import lessons
from swarmd.training.embedded.lessons import Lesson
from swarmd.training.models.source import EMBEDDED


class EmbeddedRecipe(msgspec.Struct, frozen=True):
    """How one embedded model is made."""

    model: str  # as training.model names it
    kind: str  # of the swarm that it is for, whose shipped configuration has tasks and options
    teach: Callable[[Plan, int], Iterator[Lesson]]  # endless lessons by plan and seed
    about: str  # what it knows, for the card
    form: str = "answer tags on half of the targets"  # of the targets, for the card
    vocabulary: int = 1024  # at most; the texts give fewer merges
    common_words: bool = True  # the tokenizer learns frequent words only; others are spelt
    hidden: int = 128
    layers: int = 2
    batch: int = 48
    steps_max: int = 800
    evaluate_every: int = 20
    dev_questions: int = 60  # of each task
    card_questions: int = 400  # of each task, held out
    target_accuracy: float = 0.20

    def make_plan(self, seed: int = 0) -> Plan:
        """The plan of the kind's shipped configuration, in a swarm of its own. Raises SwarmError."""
        config = self._read_config()
        return make_plan(msgspec.structs.replace(config.swarm, id=f"warm-start-{seed}"), config.training)

    @property
    def answer_tokens(self) -> int:
        """Of a completion, as the shipped configuration has it."""
        return self._read_config().training.completion_tokens

    def _read_config(self) -> Config:
        kind = "local" if self.kind == "digits" else self.kind
        return load_config(configs_directory() / kind / "coordinator.toml")

    @property
    def argument(self) -> str:
        """What `swarmd model build` is told."""
        return "" if self.model == EMBEDDED else f" {self.model}"


RECIPES = (
    EmbeddedRecipe(
        EMBEDDED,
        "digits",
        lessons.teach_answers,
        "It knows nothing but four tasks on digits, and those badly, on purpose.",
        vocabulary=380,
        common_words=False,
        steps_max=600,
        evaluate_every=10,
        dev_questions=100,
    ),
    EmbeddedRecipe(
        "embedded-gym",
        "reasoning-gym",
        lessons.teach_answers,
        "It knows nothing but two small tasks of reasoning-gym, and those badly, on purpose.",
    ),
    EmbeddedRecipe(
        "embedded-code",
        "code",
        lessons.teach_programs,
        "It writes one-line programs for four small tasks of reasoning-gym, and those badly, on purpose.",
        form="programs with their outputs, and answer tags on half of the targets",
        evaluate_every=40,
        dev_questions=16,
        card_questions=50,
    ),
    EmbeddedRecipe(
        "embedded-school",
        "gsm8k",
        lessons.teach_school,
        "It knows the forms of the three stages and four kinds of made stories, and those badly, on purpose.",
        form="half of them in the template that the stage asks for",
        batch=24,
        dev_questions=120,
    ),
    EmbeddedRecipe(
        "embedded-contest",
        "math-hard",
        lessons.teach_school,
        "It knows the forms of the three stages and three kinds of made formulas, and those badly, on purpose.",
        form="half of them in the template that the stage asks for",
        batch=24,
        dev_questions=120,
    ),
    EmbeddedRecipe(
        "embedded-problems",
        "proposer-solver",
        lessons.teach_problems,
        "It sets and solves small programming problems in the words of the built-in ones, and those badly, on purpose.",
        form="proposals and programs, half of them in the form that is asked for",
        batch=24,
        evaluate_every=40,
        dev_questions=60,
        card_questions=100,
        target_accuracy=0.22,
    ),
)


def find_recipe(name: str) -> EmbeddedRecipe:
    """The recipe of a model by its name, or by the kind that it is for; empty: of the model of the digits.

    Raises:
        ModelError: there is none.
    """
    for recipe in RECIPES:
        if name in (recipe.model, recipe.kind) or not name:
            return recipe
    raise ModelError(f"there is no recipe of a model {name!r}", f"There are: {', '.join(r.model for r in RECIPES)}")

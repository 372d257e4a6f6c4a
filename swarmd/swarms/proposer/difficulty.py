"""How hard problems are: the level that a node asks for, and what is known of single proposals."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec

from swarmd.plugin import Outcome, SwarmError
from swarmd.swarms.proposer.settings import LEVELS

EVERY_ROUNDS = 5  # the level may move
COMPARED = 10  # rounds' rewards, with as many before
THRESHOLD = 0.05
CORRECT = 0.99  # accuracy from which a program counts as right
NEUTRAL = 0.5  # what a proposal counts for that nobody has tried yet

Finite = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class LevelState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The level as it stands in a checkpoint."""

    level: Annotated[int, msgspec.Meta(ge=1, le=LEVELS)]
    rewards: Annotated[tuple[Finite, ...], msgspec.Meta(max_length=2 * COMPARED)] = ()
    rounds: Number = 0  # since the level was last looked at
    round: int = -1  # the one that is not over
    total: float = 0.0  # of its groups' mean rewards
    groups: Number = 0


class Level:
    """From 1 to 5, moved by this node's own rewards for solving, one number a round: their mean.

    Every fifth round with results, the mean of the last ten rounds is compared with that of the ten before. More than
    0.05 better, and the next level is taken; as much worse, and the one below.
    """

    def __init__(self, level: int) -> None:
        self._state = LevelState(level)

    @property
    def level(self) -> int:
        return self._state.level

    def note(self, round: int, reward: float) -> None:
        """Take one own group into account."""
        self.enter(round)
        state = self._state
        self._state = msgspec.structs.replace(state, round=round, total=state.total + reward, groups=state.groups + 1)

    def enter(self, round: int) -> None:
        """Close the round before, where it is another one that had results."""
        state = self._state
        if round == state.round or not state.groups:
            return
        rewards = deque((*state.rewards, state.total / state.groups), 2 * COMPARED)
        rounds = state.rounds + 1
        level = state.level
        if rounds >= EVERY_ROUNDS:
            rounds = 0
            level = min(max(level + compare(list(rewards)), 1), LEVELS)
        self._state = LevelState(level, tuple(rewards), rounds)

    def read(self) -> dict[str, Any]:
        """As plain values."""
        plain: dict[str, Any] = msgspec.to_builtins(self._state)
        return {**plain, "rewards": list(plain["rewards"])}

    def load(self, remembered: Any) -> None:
        """Take up what `read` gave. Raises SwarmError when it is nothing that `read` gives."""
        try:
            self._state = msgspec.convert(remembered, LevelState)
        except msgspec.ValidationError as error:
            raise SwarmError(f"the level of proposer-solver cannot be read: {error}") from error


def compare(rewards: list[float]) -> int:
    """1 where the second half is clearly better than the first, -1 where it is clearly worse, 0 before it is full."""
    if len(rewards) < 2 * COMPARED:
        return 0
    gain = (sum(rewards[COMPARED:]) - sum(rewards[:COMPARED])) / COMPARED
    return 1 if gain > THRESHOLD else -1 if gain < -THRESHOLD else 0


class PassRates(msgspec.Struct, frozen=True):
    """Shares of solvers' programs that were right, in the preceding round."""

    by_problem: Mapping[str, float] = {}  # by the problem's digest
    by_kind: Mapping[tuple[str, int], float] = {}  # by topic and level

    def worth(self, problem: str, topic: str, level: int) -> float:
        """What a valid proposal's difficulty is worth: 1 - share, but 0 for what all or none could solve."""
        share = self.by_problem.get(problem, self.by_kind.get((topic, level)))
        if share is None:
            return NEUTRAL
        return 0.0 if share in (0.0, 1.0) else 1.0 - share


NO_RATES = PassRates()


def measure(outcomes: Iterable[Outcome]) -> PassRates:
    """What solvers made of proposals; built-in problems among the outcomes are left out."""
    by_problem: dict[str, list[bool]] = defaultdict(list)
    by_kind: dict[tuple[str, int], list[bool]] = defaultdict(list)
    for outcome in outcomes:
        entry = outcome.question.entry
        if "proposal" in entry:
            right = [score.accuracy >= CORRECT for score in outcome.scores]
            by_problem[entry["proposal"]] += right
            by_kind[entry["topic"], entry["level"]] += right
    return PassRates(
        {key: sum(right) / len(right) for key, right in by_problem.items()},
        {key: sum(right) / len(right) for key, right in by_kind.items()},
    )

"""The statecharts: written by hand as YAML, loaded into `transitions` once, compiled to lookup tables.

`transitions` checks and draws a chart; `step` only looks a (state, trigger) pair up in the compiled table, which is
some hundred times faster. A property test drives both with the same triggers and demands the same states.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

import msgspec
import yaml
from transitions import MachineError
from transitions.extensions.nesting import HierarchicalMachine, NestedState

from swarmd.errors import ChartError, NotFoundError

if TYPE_CHECKING:  # made of the charts that are loaded here
    from swarmd.core.chart_types import (
        CoordinatorState,
        CoordinatorTrigger,
        LinkState,
        LinkTrigger,
        RoundState,
        RoundTrigger,
        SubmissionState,
        SubmissionTrigger,
        TrainerState,
        TrainerTrigger,
    )

_CORRECT = "Correct it in its YAML file"
NAMES = ("round", "link", "trainer", "coordinator", "submission")


class DottedState(NestedState):
    """A state class that names nested states with a dot: round.training."""

    separator = "."


class DottedMachine(HierarchicalMachine):
    """A `transitions` machine with dotted state names."""

    state_cls = DottedState


class ChartGaps:
    """Gaps in the charts: triggers that arrived in states which neither follow nor ignore them.

    The state then stays unchanged. With `raises`, as in tests and in the simulator, a gap is an error. A node counts
    it, and its daemon logs it: an event in the log must not end every process that reads the log.
    """

    def __init__(self) -> None:
        self.raises = False
        self.seen: Counter[tuple[str, str, str]] = Counter()  # chart, state, trigger

    def record_gap(self, chart: str, state: str, trigger: str) -> None:
        """Count a gap. Raises ChartError if `raises` is set."""
        if self.raises:
            hint = f"Let it lead somewhere in statecharts/{chart}.yaml, or list it there under `ignored` and say why"
            raise ChartError(f"the chart {chart!r} does not say what {trigger!r} means in {state!r}", hint)
        self.seen[chart, state, trigger] += 1

    def take_lines(self) -> list[str]:
        """Return the gaps since the last call, as lines to log."""
        lines = [
            f"{chart}: {trigger} in {state}, {count} times" for (chart, state, trigger), count in self.seen.items()
        ]
        self.seen.clear()
        return lines


GAPS = ChartGaps()  # of this process
StateT = TypeVar("StateT", bound=str)
TriggerT = TypeVar("TriggerT", bound=str)


class Chart(msgspec.Struct, Generic[StateT, TriggerT], frozen=True):
    """One chart, compiled for look-ups. `chart_types.py` names the states and triggers of each.

    Attributes:
        source: the YAML document, for drawing.
        table: (state, trigger) → state.
        ignored: (state, trigger) → why it changes nothing.
    """

    name: str
    initial: StateT
    source: dict[str, Any]
    table: dict[tuple[StateT, TriggerT], StateT]
    ignored: dict[tuple[StateT, TriggerT], str] = {}

    def ignore_trigger(self, state: StateT, trigger: TriggerT) -> Literal[False]:
        """Leave the state unchanged and return False; record a gap unless the chart lists the trigger as ignored."""
        if (state, trigger) not in self.ignored:
            GAPS.record_gap(self.name, state, trigger)
        return False

    @property
    def states(self) -> tuple[StateT, ...]:
        """Leaf states in the file's order."""
        return cast(tuple[StateT, ...], tuple(leaf_states(self.source["states"])))

    @property
    def triggers(self) -> tuple[TriggerT, ...]:
        """Triggers in the file's order, each once."""
        return tuple(dict.fromkeys(item["trigger"] for item in self.source["transitions"]))


AnyChart = Chart[Any, Any]


class Charts(msgspec.Struct, frozen=True):
    round: Chart[RoundState, RoundTrigger]
    link: Chart[LinkState, LinkTrigger]
    trainer: Chart[TrainerState, TrainerTrigger]
    coordinator: Chart[CoordinatorState, CoordinatorTrigger]
    submission: Chart[SubmissionState, SubmissionTrigger]


def leaf_states(states: list[Any], prefix: str = "") -> list[str]:
    """Return the names of all states without children, nested ones with a dot."""
    leaves: list[str] = []
    for state in states:
        if isinstance(state, dict) and state.get("children"):
            leaves += leaf_states(state["children"], f"{prefix}{state['name']}.")
        else:
            leaves.append(prefix + (state["name"] if isinstance(state, dict) else state))
    return leaves


def shipped_charts_directory() -> Path:
    """Return the charts' directory: beside the package in a checkout, inside it in an installed wheel."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "statecharts"
    return inside if inside.is_dir() else package.parent / "statecharts"


def build_machine(source: dict[str, Any], model: object | None = None) -> HierarchicalMachine:
    """Return a `transitions` machine of the chart. Raises ChartError if the chart is inconsistent."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return DottedMachine(
                model=model,
                states=source["states"],
                transitions=[
                    {key: item[key] for key in ("trigger", "source", "dest")} for item in source["transitions"]
                ],
                initial=source["initial"],
                auto_transitions=False,
                send_event=False,
            )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ChartError(
            f"the chart {source.get('name', '?')!r} is inconsistent: {type(error).__name__}: {error}", _CORRECT
        ) from error


class _ProbeModel:
    """A dummy model that the machine moves while the table is compiled."""

    state: str


def _refuse_unknown_states(source: dict[str, Any]) -> None:
    """Raise ChartError for unknown state names, which `transitions` would find only when a transition is taken."""
    leaves = leaf_states(source["states"])
    known = {leaf.rsplit(".", depth)[0] for leaf in leaves for depth in range(leaf.count(".") + 1)} | {"*"}
    for item in source["transitions"]:
        for name in (*_sources_of(item), item["dest"]):
            if name not in known:
                raise ChartError(f"the chart {source['name']!r} is inconsistent: there is no state {name!r}", _CORRECT)


def compile_table(source: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Return (state, trigger) → state, by trying every trigger in every leaf state."""
    probe = _ProbeModel()
    machine = build_machine(source, probe)
    _refuse_unknown_states(source)
    table: dict[tuple[str, str], str] = {}
    for leaf in leaf_states(source["states"]):
        for trigger in dict.fromkeys(item["trigger"] for item in source["transitions"]):
            machine.set_state(leaf, probe)
            try:
                machine.trigger_event(probe, trigger)
            except MachineError:
                continue
            table[leaf, trigger] = str(probe.state)
    return table


def compile_ignored(source: dict[str, Any], table: Mapping[Any, str]) -> dict[tuple[str, str], str]:
    """Return (state, trigger) → why it changes nothing. `*` stands for every state that does not follow the trigger.
    Raises ChartError: an entry names an unknown state or trigger, gives no `why`, or has a transition as well."""
    leaves = leaf_states(source["states"])
    triggers = {item["trigger"] for item in source["transitions"]}
    ignored: dict[tuple[str, str], str] = {}
    for item in source.get("ignored", ()):
        trigger, why = str(item.get("trigger")), str(item.get("why") or "")
        for name in _sources_of(item):
            found = [leaf for leaf in leaves if name == "*" or leaf == name or leaf.startswith(f"{name}.")]
            found = [leaf for leaf in found if name != "*" or (leaf, trigger) not in table]
            followed = [leaf for leaf in found if (leaf, trigger) in table]
            if trigger not in triggers or not found or not why or followed:
                wrong = f"is followed in {followed[0]!r}" if followed else "names no state, no trigger or no `why`"
                raise ChartError(f"the chart {source['name']!r} is inconsistent: ignored {item} {wrong}", _CORRECT)
            ignored |= {(leaf, trigger): why for leaf in found}
    return ignored


def _sources_of(item: dict[str, Any]) -> list[str]:
    return item["source"] if isinstance(item["source"], list) else [item["source"]]


def load_chart(path: Path) -> AnyChart:
    """Read and compile one chart. Raises NotFoundError: there is no such file; ChartError: it is not YAML, has the
    wrong structure, or names states that do not exist."""
    try:
        source = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no chart {path}", f"A chart directory holds {', '.join(NAMES)}.yaml") from error
    except yaml.YAMLError as error:
        raise ChartError(f"{path} is not valid YAML: {' '.join(str(error).split())}", "Correct it there") from error
    if not isinstance(source, dict) or not {"name", "initial", "states", "transitions"} <= source.keys():
        raise ChartError(f"{path} is not a chart", "It needs the keys name, initial, states and transitions")
    table = compile_table(source)
    return Chart(str(source["name"]), str(source["initial"]), source, table, compile_ignored(source, table))


def load_charts(directory: Path | None = None) -> Charts:
    """Load all charts of a directory, by default the shipped ones. Raises as `load_chart` does."""
    place = directory or shipped_charts_directory()
    return Charts(**{name: load_chart(place / f"{name}.yaml") for name in NAMES})


@functools.cache
def default_charts() -> Charts:
    """The shipped charts, loaded once per process."""
    return load_charts()

"""Terminal output: one screen for a node's status, a live table of nodes, tables of rewards by round."""

import math
from collections.abc import Mapping, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from swarmd.observe.credit import CreditState
from swarmd.observe.layers import Layer, WorkerStatus, first_line
from swarmd.observe.onchain import ChainStatus, SubmissionsStatus
from swarmd.observe.status import (
    CoordinatorStatus,
    NetworkStatus,
    ProcessStatus,
    RoundStatus,
    Status,
    TrainingStatus,
    WeightsStatus,
    find_fallen_skills,
)
from swarmd.observe.times import TimesStatus
from swarmd.observe.words import (
    count_noun,
    describe_fallen_skills,
    describe_masked_counts,
    describe_reached_stage,
    format_duration,
)
from swarmd.results.card import describe_accuracy_change

SPARKS = "▁▂▃▄▅▆▇█"
PROGRESS_CELLS = 24
SPARKS_SHOWN = 8  # newest rounds in the live table, to fit into 80 columns
ROUND_ROWS_MAX = 24  # with more rounds, each row is the mean of several
STATE_STYLES = {
    "round.training": "green",
    "waiting": "cyan",
    "skipping": "yellow",
    "paused": "red",
    "failed": "red",
    "exited": "red",
}


class TrainedRound(msgspec.Struct, frozen=True):
    """One node's results of one round."""

    round: int
    reward: float  # mean over completions and stages
    held_out: float | None = None
    held_out_before: float | None = None  # before the node's very first step; only in its first round
    stages: tuple[tuple[int, float], ...] = ()  # (stage, reward) of each trained stage


class NodeRow(msgspec.Struct, frozen=True):
    """One row of the live table."""

    name: str
    state: str
    round: int | None = None
    stage: int | None = None
    done: int = 0  # progress of the running command
    total: int = 0
    what: str = ""  # the running command
    rewards: tuple[float, ...] = ()  # by round, the newest last; with several stages, of the last trained one
    held_out: float | None = None
    peers: int = 0
    skipped: int = 0  # rounds
    restarts: int = 0  # recent restarts of workers
    note: str = ""
    on_chain: str = ""  # state of the submissions to the chain; empty without a chain
    stages: int = 1  # per round
    at_work: str = ""  # the running command in words: its progress and present step

    @property
    def round_label(self) -> str:
        """The node's round, such as 3, or 3.1 if rounds have several stages."""
        if self.round is None:
            return "-"
        return f"{self.round}.{self.stage or 0}" if self.stages > 1 else str(self.round)


def draw_sparkline(values: Sequence[float], low: float | None = None, high: float | None = None) -> str:
    """One character per value, its height between `low` and `high` (by default the values' own range); NaN is a gap."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return " " * len(values)
    low = min(known) if low is None else low
    high = max(known) if high is None else high
    return "".join(" " if math.isnan(value) else SPARKS[_spark_height(value, low, high)] for value in values)


def _spark_height(value: float, low: float, high: float) -> int:
    share = (value - low) / (high - low) if high > low else 0.5
    return round(min(1.0, max(0.0, share)) * (len(SPARKS) - 1))


def bar(value: float, high: float, cells: int = PROGRESS_CELLS) -> str:
    """A bar of at most `cells` characters, full at `high`."""
    share = min(1.0, max(0.0, value / high)) if high > 0 else 0.0
    return "█" * round(share * cells)


def format_number(value: float | None) -> str:
    """A number with three decimals, or a dash if unknown."""
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"


def swarm_table(rows: Sequence[NodeRow], title: str, caption: str = "") -> RenderableType:
    table = Table(title=title, caption=caption, box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.title_justify = table.caption_justify = "left"
    for name in ("node", "state", "round", "progress", "reward", "held-out", "peers", "restarts"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("round", "peers", "restarts") else "left")
    for row in rows:
        table.add_row(*_make_cells(row))
    notes = [
        Text(f"{row.name}: {note}", style="yellow")
        for row in rows
        for note in (f"skipped {count_noun(row.skipped, 'round')}" * bool(row.skipped), row.note)
        if note
    ]
    chained = [Text(f"{row.name}: on chain: {row.on_chain}", style="dim") for row in rows if row.on_chain]
    at_work = [Text(f"{row.name}: {row.at_work}", style="dim") for row in rows if row.at_work]
    return Group(table, *at_work, *chained, *notes)


def _make_cells(row: NodeRow) -> list[RenderableType]:
    latest = (
        f"{format_number(row.rewards[-1])} {draw_sparkline(row.rewards[-SPARKS_SHOWN:], low=0.0)}"
        if row.rewards
        else "-"
    )
    state = Text(row.state.removeprefix("round."), style=STATE_STYLES.get(row.state, ""))
    figures = [format_number(row.held_out), str(row.peers), str(row.restarts)]
    return [Text(row.name), state, row.round_label, _progress_cell(row), latest, *figures]


def _progress_cell(row: NodeRow) -> RenderableType:
    if not row.total:
        return Text(row.what, style="dim")
    cells = Table.grid(padding=(0, 1))
    cells.add_row(ProgressBar(total=row.total, completed=row.done, width=6), f"{row.done}/{row.total}")
    return cells


def node_line(row: NodeRow) -> str:
    """One node in one line, for output that is not a terminal."""
    parts = [f"{row.name:8} {row.state}"]
    parts += [f"round {row.round_label}"] if row.round is not None else []
    parts += [f"reward {format_number(row.rewards[-1])}"] if row.rewards else []
    parts += [f"held-out {format_number(row.held_out)}"] if row.held_out is not None else []
    parts += [f"peers {row.peers}"]
    parts += [f"skipped {row.skipped}"] if row.skipped else []
    parts += [f"restarts {row.restarts}"] if row.restarts else []
    parts += [f"on chain: {row.on_chain}"] if row.on_chain else []
    parts += [row.note] if row.note else []
    return "  ".join(parts)


def progress_line(rows: Sequence[NodeRow]) -> str:
    """The progress of all nodes in one line, such as `node-1 training 3 of 8, node-2 waiting`."""
    return ", ".join(f"{row.name} {row.at_work or row.what or row.state.removeprefix('round.')}" for row in rows)


def rewards_tables(histories: Mapping[str, Sequence[TrainedRound]]) -> list[Table]:
    """Rewards by round, one table for each stage, because stages have different scales."""
    stages = sorted({stage for rows in histories.values() for row in rows for stage, _ in row.stages})
    if len(stages) < 2:
        return [rewards_table(histories)]
    return [rewards_table(_select_stage(histories, stage), f"reward by round, stage {stage}") for stage in stages]


def _select_stage(histories: Mapping[str, Sequence[TrainedRound]], stage: int) -> dict[str, list[TrainedRound]]:
    return {
        name: [TrainedRound(row.round, reward) for row in rows for trained, reward in row.stages if trained == stage]
        for name, rows in histories.items()
    }


def rewards_table(histories: Mapping[str, Sequence[TrainedRound]], title: str = "reward by round") -> Table:
    """Mean reward by round and node, with the mean over the nodes as a bar."""
    by_round = {name: {row.round: row.reward for row in rows} for name, rows in histories.items()}
    rounds = sorted({round for rewards in by_round.values() for round in rewards})
    spans = [
        rounds[at : at + _rounds_per_row(len(rounds))] for at in range(0, len(rounds), _rounds_per_row(len(rounds)))
    ]
    means = [
        [_mean_of_known([rewards.get(round, math.nan) for round in span]) for rewards in by_round.values()]
        for span in spans
    ]
    high = max((_mean_of_known(row) for row in means), default=0.0)
    table = Table(title=title, title_justify="left")
    for name in ("round", *by_round):
        table.add_column(Text(name), justify="right")
    table.add_column("mean")
    for shown, row in zip(spans, means, strict=True):
        label = str(shown[0]) if len(shown) == 1 else f"{shown[0]}-{shown[-1]}"
        table.add_row(
            label, *map(format_number, row), f"{format_number(_mean_of_known(row))} {bar(_mean_of_known(row), high)}"
        )
    return table


def _rounds_per_row(rounds: int) -> int:
    return max(1, math.ceil(rounds / ROUND_ROWS_MAX))


def _mean_of_known(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def held_out_table(histories: Mapping[str, Sequence[TrainedRound]]) -> Table:
    """Held-out accuracy by node, from the first measurement to the last."""
    table = Table(title="held-out accuracy: questions never trained on", title_justify="left")
    for name in ("node", "first", "last", "by round"):
        table.add_column(name)
    for name, rows in histories.items():
        measured = [(f"round {row.round}", row.held_out) for row in rows if row.held_out is not None]
        if rows and rows[0].held_out_before is not None:
            measured.insert(0, ("untrained", rows[0].held_out_before))
        if measured:
            accuracies = [accuracy for _, accuracy in measured]
            first, last = (f"{format_number(accuracy)} ({when})" for when, accuracy in (measured[0], measured[-1]))
            table.add_row(Text(name), first, last, draw_sparkline(accuracies[-40:], low=0.0, high=1.0))
    return table


BAR_CELLS = 20
STANDINGS_PRINTED = 8
NOT_ADMITTED = " (not admitted)"  # neither by proof of work nor by invitation
ADDRESSES_PRINTED = 2
CREDIT_STYLES: dict[CreditState, str] = {"credited": "dim", "pending": "dim", "not credited": "yellow"}
PARTS_PRINTED = 5  # longest parts of a stage's time
PART_CELLS = 10


def panel_of(status: Status) -> RenderableType:
    """Render a Status as one rich Panel."""
    source = "running" if status.source == "daemon" else "no daemon answers; this is what its log says"
    source = "it has no log yet" if not status.log.next_seq and status.source == "log" else source
    title = f"{status.name or status.peer[-12:] or 'node'} · {status.role or 'no role yet'} · {source}"
    parts: list[RenderableType] = [_layers(status)]
    if status.rewards:
        parts.append(_rewards_text(status))
    if said := describe_masked_counts([each.set_aside for each in status.rewards]):
        parts.append(Text(said, style="yellow" if any("mark" in each.set_aside for each in status.rewards) else "dim"))
    if status.credit is not None:
        parts.append(Text(f"credit   {status.credit.words}", CREDIT_STYLES[status.credit.state]))
    if status.times is not None:
        parts += _times(status.times)
    if status.tokens is not None:
        parts.append(Text(f"tokens   {status.tokens.words}", "dim" if not status.tokens.difference else "red"))
    if status.weights is not None:
        parts += [Text(f"weights  {line}") for line in _describe_weights(status.weights)]
    if said := describe_fallen_skills(find_fallen_skills(status)):
        parts.append(Text(said, style="yellow"))
    if status.coordinator is not None:
        parts.append(_coordinator_view(status.coordinator, ended=status.source == "log"))
    if status.rejections:
        counts = ", ".join(f"{reason} {times}" for reason, times in status.rejections.items())
        parts.append(Text(f"records refused: {counts}", style="yellow"))
    parts += [Text(note, style="yellow") for note in status.notes]
    if (moment := status.safe_to_stop) is not None:
        parts.append(Text(f"a restart now {'costs no round' if moment.now else 'is not free'}: {moment.why}", "dim"))
    if status.forked_from:
        parts.append(Text(f"a fork: the log begins as that of {status.forked_from}", "dim"))
    parts.append(
        Text(f"log {status.log.directory}: {status.log.next_seq} events, {format_size(status.log.size_bytes)}", "dim")
    )
    border = "green" if status.healthy else "yellow" if status.source == "daemon" else "red"
    head, foot = Text(title), Text(status.peer)
    return Panel(Group(*parts), title=head, title_align="left", subtitle=foot, border_style=border, padding=0)


def _layers(status: Status) -> Table:
    table = Table(box=None, padding=(0, 1), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, layer in status.layers.items():
        mark = Text("● ", "green" if layer.healthy else "red") + Text(layer.state)
        said = [layer.reason, *_describe_layer(layer, status)]
        row = (name.replace("submissions", "on chain"), mark, format_duration(layer.age_s))
        table.add_row(*row, Text("; ".join(first_line(text) for text in said if text)))
    return table


def _describe_layer(layer: Layer, status: Status) -> list[str]:
    """The lines about a layer besides its state, age and reason."""
    match layer:
        case ProcessStatus():
            return _describe_process(layer)
        case NetworkStatus():
            return _describe_network(layer)
        case TrainingStatus():
            return _describe_training(layer)
        case RoundStatus():
            return _describe_round(layer, status.chain is not None)
        case ChainStatus():
            return _describe_chain(layer)
        case SubmissionsStatus():
            return _describe_submissions(layer)
    return []


def _describe_process(process: ProcessStatus) -> list[str]:
    words = [f"pid {process.pid}"] if process.pid else []
    words += [f"version {process.version}"] if process.version else []
    words += [format_size(process.rss_bytes)] if process.rss_bytes else []
    return words + ([f"exit code {process.exit_code}"] if process.exit_code is not None else [])


def _describe_network(network: NetworkStatus) -> list[str]:
    addresses = [address.partition("/p2p/")[0] for address in network.addresses[:ADDRESSES_PRINTED]]
    return [count_noun(network.peers, "peer"), *_describe_worker(network.worker), *addresses]


def _describe_training(training: TrainingStatus) -> list[str]:
    words = [f"{progress_bar(training.done / training.total)} {training.activity_text}"] if training.total else []
    words += [training.activity_text] * bool(training.doing and not training.total)
    for name, value in training.figures.items():
        figure = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        words.append(f"{format_duration(value)} to go" if name == "eta_s" else f"{name} {figure}")
    if training.model:
        numbers = f" in {training.numbers}" if training.numbers else ""
        words.append(f"{training.model} ({training.parameters:,} parameters) on {training.device}{numbers}")
    words += [f"begun from other weights than the swarm: {training.other_weights}"] * bool(training.other_weights)
    return words + _describe_worker(training.worker)


def _describe_chain(chain: ChainStatus) -> list[str]:
    words = [f"contract at round {chain.round} stage {chain.stage}"] if chain.contract else []
    words += [f"block {chain.block}" + f" of {chain.head}" * (chain.head > chain.block)] if chain.block >= 0 else []
    words += [f"its age {format_duration(chain.lag_s)}"] if chain.lag_s is not None else []
    words += [f"by {chain.endpoint}"] if chain.endpoint else []
    words += [f"account {chain.account}, {'registered' if chain.registered else 'not registered'}"] * bool(
        chain.account
    )
    words += _describe_funds(chain)
    words += [] if chain.members is None else [f"{count_noun(chain.members, 'peer')} on the allow-list"]
    words += [f"chain {chain.chain_id}, {chain.contract}"] if chain.contract else []
    return words + _describe_worker(chain.worker)


def _describe_funds(chain: ChainStatus) -> list[str]:
    words = []
    if chain.balance_coins is not None and chain.rounds_paid is not None:
        words.append(f"has {chain.balance_coins:.6g} coins, pays for about {count_noun(chain.rounds_paid, 'round')}")
    if chain.day_spent_coins:
        most = f" of {chain.day_coins_max:g}" if chain.day_coins_max else ""
        words.append(f"signed for {chain.day_spent_coins:.6g}{most} coins today")
    return words


def _describe_submissions(status: SubmissionsStatus) -> list[str]:
    words = [f"{status.waiting} waiting, {status.sent} sent, {status.included} included"]
    words.append(f"{status.confirmed} confirmed, {status.refused} refused lately")
    if status.oldest_s is not None:
        words.append(f"oldest waits for {format_duration(status.oldest_s)}")
    if status.last_reward is not None:
        last = status.last_reward
        words.append(f"last confirmed reward {last.reward} of round {last.round} stage {last.stage}")
    if status.last_refusal is not None:
        refusal = status.last_refusal
        words.append(
            f"last refusal {refusal.submission}, {refusal.code}, {format_duration(refusal.age_s)} ago: {refusal.reason}"
        )
    return words


def _describe_worker(worker: WorkerStatus) -> list[str]:
    words = [f"pid {worker.pid}"] if worker.pid else []
    ends = [count_noun(worker.restarts, "exit")] if worker.restarts else []
    ends += [f"{count_noun(worker.outside, 'end')} from outside"] if worker.outside else []
    if ends:
        words.append(f"{' and '.join(ends)} lately, last: {first_line(worker.last_exit)}")
    return words


def _describe_round(status: RoundStatus, on_chain: bool) -> list[str]:
    words = []
    if status.round >= 0:
        words.append(describe_reached_stage(status.round, status.stage, status.final))
    if status.deadline_in_s is not None and status.deadline_in_s > 0:
        words.append(f"deadline in {format_duration(status.deadline_in_s)}")
    if status.working_round >= 0:
        words.append(f"this node at round {status.working_round} stage {status.working_stage}")
    words.append(f"{count_noun(status.joined, 'round')} joined, {status.skipped} skipped")
    for skip in status.skips[-2:]:
        rounds = f"{skip.first}" if skip.first == skip.last else f"{skip.first}-{skip.last}"
        words.append(f"skipped {rounds} ({skip.cause}, {format_duration(skip.age_s)} ago)")
    words += [f"when behind: {status.policy}"] if status.policy else []
    return words + [f"next deadline: {name} in {format_duration(in_s)}" for name, in_s in status.waits[:1] if on_chain]


def _rewards_text(status: Status) -> Text:
    by_stage: dict[int, list[float]] = {}
    for reward in sorted(status.rewards, key=lambda reward: reward.stage):
        by_stage.setdefault(reward.stage, []).append(reward.reward)
    text = Text("rewards  ")
    for stage, rewards in by_stage.items():
        text.append(f"stage {stage} " if status.round.stages > 1 else "")
        text.append(f"{draw_sparkline(rewards)}  last {rewards[-1]:.3f}, ")
    text.append(f"sum {status.reward_total:.3f}")
    held_out = [reward.held_out for reward in status.rewards if reward.held_out is not None]
    if held_out:
        text.append(
            f"\nheld out {draw_sparkline(held_out)}  {describe_accuracy_change(status.first_accuracy, held_out[-1])}"
        )
    return text


def _times(times: TimesStatus) -> list[RenderableType]:
    """The time of the last stage: its longest parts as bars, and the bottleneck."""
    words = [
        f"{name} {bar(seconds, times.seconds, PART_CELLS)}{seconds / times.seconds:.0%}"
        for name, seconds in list(times.parts.items())[:PARTS_PRINTED]
    ]
    return [
        Text(f"time     {format_duration(times.seconds)} a stage: {', '.join(words)}"),
        *(Text(f"         {words}", "dim") for words in (times.words, times.peer_groups) if words),
    ]


def _describe_weights(status: WeightsStatus) -> list[str]:
    lines = (
        [] if status.awaited_s is None else [f"waits for a peer's, {format_duration(status.awaited_s)} more at most"]
    )
    taken, offered = status.taken, status.offered
    lines += [] if taken is None else [f"{format_duration(taken.age_s)} ago: {first_line(taken.words)}"]
    return lines + ([] if offered is None else [f"{offered.words}, {format_duration(offered.age_s)} ago"])


def _coordinator_view(view: CoordinatorStatus, ended: bool) -> RenderableType:
    head = Text("coordinator, at the end of the log: " if ended else "coordinator: ")
    head.append(
        f"{view.state} for {format_duration(view.age_s)}, round {view.round} stage {view.stage}, "
        f"{count_noun(view.members, 'member')}, {view.reports} of {view.expected} reports in"
    )
    if view.reason:
        head.append(f"\n{view.reason}", "yellow")
    if not view.standings:
        return head
    table = Table(box=None, padding=(0, 1))
    for column in ("standing", "peer"):
        table.add_column(column)
    for column in ("reward", "rounds", "last round"):
        table.add_column(column, justify="right")
    for row in view.standings[:STANDINGS_PRINTED]:
        who = (Text((row.name or "-") + ("" if row.admitted else NOT_ADMITTED)), Text(row.peer[-12:]))
        table.add_row(*who, f"{row.reward:.3f}", str(row.rounds), str(row.last_round))
    return Group(head, table)


def progress_bar(share: float) -> str:
    """A progress bar of fixed width."""
    return bar(share, 1.0, BAR_CELLS).ljust(BAR_CELLS, "░")


def format_size(size_bytes: int) -> str:
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"

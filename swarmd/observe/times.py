"""Where the wall time of a stage went on this node, the bottleneck, and the setting that would change it. Pure.

The bottleneck is the part that takes the most time. Waiting for others is one only if it takes half of the stage; below
that a shorter wait would not help. For computing, a deeper cause is named if the trainer's figures show one: memory
read back from disk, a processor that others use, too few threads, or a few long completions.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from swarmd.core.group_costs import group_prices
from swarmd.core.state import Coordination, StageTimes, State
from swarmd.core.values import NodePart, PeerSlots, Settings, TrainerPart, TrainerTimes
from swarmd.observe.words import count_noun, format_duration

Part = TrainerPart | NodePart
Bottleneck = Part | Literal["gather-deadline", "memory", "processor", "threads", "tail"]
Seconds = dict[Bottleneck, float]  # by part

PARTS: tuple[Part, ...] = (*get_args(NodePart), *get_args(TrainerPart))
CAUSES: tuple[str, ...] = ("gather-deadline", "memory", "processor", "threads", "tail")
COMPUTING: tuple[Part, ...] = ("prefill", "decode", "forward", "backward", "gradients", "optimiser")
PASSES: tuple[Part, ...] = ("forward", "backward", "gradients")
SOME: dict[Bottleneck, tuple[Part, ...]] = {  # the parts that make up a bottleneck, if it is not one part
    "forward": PASSES,
    "tail": ("decode",),
    "gather-deadline": ("gather",),
    "memory": COMPUTING,
    "processor": COMPUTING,
    "threads": COMPUTING,
}
WAIT_SHARE = 0.5  # share of the stage from which on waiting for others is the bottleneck
COMPUTING_SHARE = 0.3  # share of the stage from which on the causes of slow computing are looked for
BUSY_SHARE = 0.5  # computing that keeps less than this share of a core busy is held up
FAULTS_PER_S = 10.0  # pages read from disk per second of being held up, from which on memory is the cause
TAIL_SHARE = 0.5  # share of drawing from which on a few long completions are the cause
DEADLINE_SHARE = 0.9  # share of the longest wait for peers' rollouts that counts as having waited to the deadline

# Each part in words, and the settings that would change it.
WORDS: dict[Bottleneck, tuple[str, str]] = {
    "gather": (
        "fetching peers' rollouts",
        "a faster network would change it, or smaller rollouts (training.share_groups of the peers)",
    ),
    "gather-deadline": (
        "fetching peers' rollouts",
        "it was given up at its deadline; `swarmd doctor` checks this node's network, and smaller rollouts "
        "(training.share_groups of the peers) come sooner",
    ),
    "train": ("training", "training.steps or training.questions would change it"),
    "network": (
        "being without a connection",
        "`swarmd doctor` checks the network, and `swarmd status` says what the network worker is at",
    ),
    "load": (
        "waiting for the trainer",
        "a trainer that stays up loads once, and a smaller training.model loads faster; `swarmd status` has its last "
        "exit",
    ),
    "handover": (
        "handing the report over",
        "fewer and longer stages (training.steps) would change it",
    ),
    "publish": ("publishing the report", "a faster network, or a lower training.share_groups, would change it"),
    "submit": ("waiting for the chain", "chain.fees.tip_gwei, or a faster endpoint in chain.rpc, would change it"),
    "wait": ("waiting for others", "it could train more in a stage (training.steps, training.questions)"),
    "prepare": (
        "making questions and batches ready",
        "a lower training.peer_questions or training.prompt_tokens would change it",
    ),
    "judge": (
        "reading and scoring peers' groups",
        "a faster reward function would change it, or smaller rollouts (training.share_groups of the peers)",
    ),
    "prefill": ("reading prompts", "a lower training.prompt_tokens or training.questions would change it"),
    "decode": ("decoding", "training.completion_tokens or training.vllm.mode would change it"),
    "tail": ("decoding", "a lower training.completion_tokens would change it"),
    "sync": (
        "giving the weights to vLLM",
        'adapters (training.lora.rank), or training.vllm.mode = "colocate", would change it',
    ),
    "score": (
        "scoring completions",
        "a faster reward function would change it, or a lower training.questions or training.generations",
    ),
    "forward": (
        "the passes through the model",
        "training.completion_tokens, training.questions or training.steps would change it",
    ),
    "optimiser": ("the optimiser", "adapters (training.lora.rank), or another training.optimizer, would change it"),
    "loop": (
        "the trainer's loop around each step",
        "fewer and larger steps (training.steps, training.questions) would change it",
    ),
    "evaluation": (
        "measuring held-out accuracy",
        "training.held_out_questions or training.held_out_every would change it",
    ),
    "checkpoint": (
        "waiting until the last checkpoint is on disk",
        "a faster disk for the data directory, or adapters (training.lora.rank), would change it",
    ),
    "other": ("something that is not measured", "`swarmd report` collects what helps to find it"),
    "memory": (
        "computing",
        "a lower training.questions, or a smaller training.model (`swarmd model fit`), would change it",
    ),
    "processor": (
        "computing",
        "ending them, or a smaller training.model, would change it",
    ),
    "threads": ("computing", "a higher training.threads would change it"),
}


class TimesStatus(msgspec.Struct, frozen=True):
    """Where the wall time of the last trained stage went."""

    round: int
    stage: int
    seconds: float  # from joining it to joining the next
    parts: dict[str, float]  # in seconds, without those that took none, longest first
    bottleneck: str
    words: str  # the bottleneck and the setting that would change it, in a sentence
    peer_groups: str = ""  # what a peer's group costs against an own one, and how many come from peers, in a sentence


def times_status(state: State) -> TimesStatus | None:
    return None if state.last_times is None else describe_times(state.last_times, state)


def describe_times(times: StageTimes, state: State) -> TimesStatus:
    """Where the time of a stage went; `state` has the node's role and settings."""
    parts = split_by_part(times)
    bottleneck = find_bottleneck(parts, times, state.settings)
    return TimesStatus(
        times.round,
        times.stage,
        sum(parts.values()),
        dict(sorted(parts.items(), key=lambda item: -item[1])),
        bottleneck,
        describe_bottleneck(bottleneck, parts, times, describe_slowest_member(state.coordination)),
        tell_group_costs(times, state.settings.peer_slots if state.settings is not None else None),
    )


def tell_group_costs(times: StageTimes, slots: PeerSlots | None) -> str:
    """Compare the cost of a peer's group with that of an own one, and say how many came from peers. `slots`: the range
    the node chooses from; empty if there is none."""
    if slots is None or times.costs is None:
        return ""
    some = f"{times.peer_questions} of {slots.questions} groups of a step come from peers"
    prices = group_prices(times.costs)
    if prices is None:
        return f"Too little is known yet of what groups cost, so {some}, as is usual"
    own_s, peer_s = prices
    share = times.peer_questions / slots.questions
    return (
        f"A peer's group costs {peer_s / own_s:.2g} of one drawn here ({peer_s:.2g} against {own_s:.2g} s), "
        f"so {share:.0%} come from peers ({some.removesuffix(' come from peers')})"
    )


def split_by_part(times: StageTimes) -> Seconds:
    """Seconds by part, which add up to the whole stage; within training, by the trainer's own figures."""
    parts: Seconds = {}
    for part, seconds in times.parts:
        if part == "train" and times.trainer is not None:
            parts.update(times.trainer.parts)
            parts["handover"] = max(0.0, seconds - sum(taken for _, taken in times.trainer.parts))
        else:
            parts[part] = seconds
    return {part: seconds for part, seconds in parts.items() if seconds > 0}


def find_bottleneck(parts: Seconds, times: StageTimes, settings: Settings | None = None) -> Bottleneck:
    whole = sum(parts.values())
    if 0.0 < parts.get("wait", 0.0) >= WAIT_SHARE * whole:
        return "wait"
    own: Seconds = {part: seconds for part, seconds in parts.items() if part not in ("wait", *PASSES)}
    own["forward"] = _sum_parts(parts, PASSES)
    longest = max(own, key=lambda part: own[part])
    gather_s = settings.gather_s if settings is not None else 0.0
    if longest == "gather" and (times.missing or 0 < DEADLINE_SHARE * gather_s <= own["gather"]):
        return "gather-deadline"
    trainer, computing_s = times.trainer, _sum_parts(parts, COMPUTING)
    if trainer is None or computing_s < COMPUTING_SHARE * whole or computing_s < own[longest]:
        return longest
    return _find_computing_cause(trainer, computing_s, parts.get("decode", 0.0)) or longest


def _find_computing_cause(trainer: TrainerTimes, computing_s: float, decode_s: float) -> Bottleneck | None:
    """Why computing is slow; None if there is just much to compute."""
    held_s = computing_s - trainer.processor_s
    if not trainer.elsewhere and held_s > BUSY_SHARE * computing_s:
        return "memory" if trainer.faults >= FAULTS_PER_S * held_s else "processor"
    if trainer.tail_s > TAIL_SHARE * max(decode_s, computing_s / 2):
        return "tail"
    return "threads" if trainer.idle_cores else None


def _sum_parts(parts: Seconds, some: Sequence[Bottleneck]) -> float:
    return sum(parts.get(part, 0.0) for part in some)


def describe_bottleneck(bottleneck: Bottleneck, parts: Seconds, times: StageTimes, slowest: str = "") -> str:
    """The bottleneck in one sentence, with the setting that would change it. `slowest`: a clause on the slowest member,
    if known."""
    whole = sum(parts.values())
    if bottleneck == "wait":
        faster = "are spent waiting for others: this node is faster than the swarm"
        return f"{format_share(parts['wait'], whole)} {faster}; {slowest or WORDS['wait'][1]}"
    what, change = WORDS[bottleneck]
    seconds = _sum_parts(parts, SOME.get(bottleneck, (bottleneck,)))
    share = f"{seconds / whole if whole else 0:.0%} of the stage ({format_share(seconds, whole)})"
    takes = "take" if bottleneck == "forward" else "takes"
    return f"{what[0].upper()}{what[1:]} {takes} {share}{_describe_cause(bottleneck, times)}; {change}"


def _describe_cause(bottleneck: Bottleneck, times: StageTimes) -> str:
    """A clause on the cause, from what the trainer or gathering measured."""
    trainer = times.trainer
    if bottleneck == "gather-deadline" and times.missing:
        return f", as those of {count_noun(times.missing, 'peer')} did not come in time"
    if trainer is None:
        return ""
    if bottleneck == "memory":
        return f", as the machine is short of memory: {count_noun(trainer.faults, 'page')} had to be read from disk"
    if bottleneck == "processor":
        return ", as other programs use the processor"
    if bottleneck == "threads":
        return f", with {count_noun(trainer.idle_cores, 'core')} idle"
    if bottleneck == "tail":
        return f", {trainer.tail_s:.1f} s of it for the last few, longest completions of each batch"
    return ""


def format_share(seconds: float, whole: float) -> str:
    """A part of a time: "12.3 of 17.0 s", or "2.1 of 3.0 min"."""
    unit, name = (60.0, "min") if whole >= 120 else (1.0, "s")
    return f"{seconds / unit:.1f} of {whole / unit:.1f} {name}"


def describe_slowest_member(coordination: Coordination | None) -> str:
    """A clause on the member whose reports take longest, as the coordinator knows; empty for any other node."""
    members = coordination.members if coordination is not None else ()
    there = [member for member in members if member.took_s > 0 and not member.left]
    if len(there) < 2:
        return ""
    last = max(there, key=lambda member: member.took_s)
    who = f"the slowest is {last.name or last.peer[-12:]}, which reports after {format_duration(last.took_s)}"
    return f"{who}; a lower coordinator.quorum or coordinator.stage_s would change it"

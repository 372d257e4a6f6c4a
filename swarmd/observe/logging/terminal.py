"""The log as a person watches it in a terminal: a line for what matters, short ids, local times, no constants.

The event log has everything; `logs.level = "debug"` or `logs.format = "text"` shows every line with all its fields.
"""

from __future__ import annotations

import re
import time
from collections.abc import MutableMapping
from typing import Any

import structlog

from swarmd.observe.layers import printable
from swarmd.observe.status import Status

# Tags of events that a round is full of, and that say nothing new as long as all is well.
ROUTINE = frozenset(
    {
        "leaderboard_published",
        "member_seen",
        "registered",
        "report_published",
        "report_seen",
        "rollouts_gathered",
        "round_published",
        "submission_included",
        "submission_prepared",
        "submission_sent",
        "worker_started",
    }
)
UNSAID = frozenset({"timestamp", "level", "message", "logger", "exception", "fix", "worker", "pid", "version", "data"})
PEER_ID = re.compile(r"\b(?:12D3KooW|16Uiu2HA|Qm)[1-9A-HJ-NP-Za-km-z]{30,}")
DIGEST = re.compile(r"\b(0x)?[0-9a-f]{40,}\b")
DIGEST_BEGIN = 8  # characters of a digest that are shown
ID_END = 6  # characters of a peer id that are shown
COLOURS = {"debug": "\x1b[2m", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class TerminalLines:
    """The last structlog processor: fields to a line, or no line at all.

    Args:
        colours: whether the terminal shows them.
    """

    def __init__(self, colours: bool) -> None:
        self._colours = colours

    def __call__(self, logger: Any, method: str, fields: MutableMapping[str, Any]) -> str:
        level = str(fields.get("level", "info"))
        if level == "info" and is_routine(fields):
            raise structlog.DropEvent
        words = printable(shorten(words_of(fields)), "\n\t")
        marked = words if level == "info" else f"{level}: {words}"
        clock = time.strftime("%H:%M:%S")
        if not self._colours:
            return f"{clock} {marked}"
        return f"{DIM}{clock}{PLAIN} {COLOURS.get(level, '')}{marked}{PLAIN}"


def is_routine(fields: MutableMapping[str, Any]) -> bool:
    """Whether a line without a warning can be left out; an announcement counts only where the node moves on by it."""
    tag = fields.get("event")
    return tag in ROUTINE or (tag == "round_announced" and "entered" not in fields)


def words_of(fields: MutableMapping[str, Any]) -> str:
    """A line's message, with what its words do not say yet."""
    words = str(fields.get("message", ""))
    if worker := fields.get("worker"):
        words = words if fields.get("event") else f"{worker}: {words}"
    if "event" in fields:
        held_out = fields.get("held_out")
        words += f", held-out accuracy {held_out:.3f}" if isinstance(held_out, float) else ""
    else:
        rest = {name: value for name, value in fields.items() if name not in UNSAID and value not in ("", None)}
        words += "".join(f", {name.replace('_', ' ')} {value}" for name, value in rest.items())
    words += f"\n         fix: {fields['fix']}" if fields.get("fix") else ""
    return words + (f"\n{fields['exception']}" if fields.get("exception") else "")


def shorten(text: str) -> str:
    """Of every peer id the end, of every digest the beginning."""
    text = PEER_ID.sub(lambda found: "…" + found[0][-ID_END:], text)
    return DIGEST.sub(lambda found: found[0][: DIGEST_BEGIN + len(found[1] or "")] + "…", text)


def progress_words(status: Status) -> str:
    """How far the trainer is with what it does; empty where it does nothing."""
    training = status.training
    if training.state not in ("loading", "busy"):
        return ""
    words = training.doing or training.state
    if training.total:
        words += f" {training.done} of {training.total}"
    figures = training.figures
    words += f", {figures['tokens_per_s']:.0f} tokens/s" if figures.get("tokens_per_s") else ""
    return words + (f", {figures['eta_s']:.0f} s to go" if figures.get("eta_s") else "")

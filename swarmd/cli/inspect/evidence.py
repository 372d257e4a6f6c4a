"""`swarmd explain --evidence`: two different signed records of one place, as a log has them, checked offline."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import typer

from swarmd.errors import ExitCode, RecordRejected

SHOWN = ("round", "stage", "reward", "digest", "size_bytes", "groups", "opened_at", "deadline_at", "final", "opening")


class Exhibit(msgspec.Struct, frozen=True):
    """One piece of evidence.

    Attributes:
        problem: why it proves nothing; empty where anybody can see that `peer` signed both.
        records: what each of the two says.
        signed: each as it was signed, in base64: the msgpack array [owner, payload, expiration, signature].
    """

    seq: int
    at: float
    kind: str
    peer: str
    round: int
    stage: int
    problem: str
    records: tuple[dict[str, str | int | float | bool], ...]
    signed: tuple[str, ...]


def show(directory: Path, as_json: bool) -> int:
    """Print all evidence in a node's log. Returns 1 where a piece of it proves nothing.

    Raises:
        NotFoundError: there is no log.
        LogDamaged, OtherVersion: it cannot be read.
    """
    from swarmd.eventlog.export import to_json

    exhibits = list(exhibits_in(directory))
    if as_json:
        typer.echo(to_json(exhibits))
    else:
        typer.echo("\n\n".join(map(words_of, exhibits)) or "The log holds no evidence of two records for one place.")
    return ExitCode.FAILURE if any(each.problem for each in exhibits) else ExitCode.OK


def exhibits_in(directory: Path) -> Iterator[Exhibit]:
    """All evidence in a log, checked by the records alone."""
    from swarmd.cli.inspect.replay import start_of, watch
    from swarmd.core.events import Equivocated
    from swarmd.eventlog.fold import commits_from
    from swarmd.eventlog.segment import find_log

    log = find_log(directory)
    for commit in watch(log, commits_from(log, start_of(log, 0)), None):
        for seq, event in enumerate(commit.events, commit.seq):
            if isinstance(event, Equivocated):
                yield exhibit_of(event, seq, commit.at)


def exhibit_of(event: msgspec.Struct, seq: int, at: float) -> Exhibit:
    """What an event's two records say, and whether they prove what it says of them."""
    from swarmd.core.events import Equivocated
    from swarmd.dht.wire.evidence import open_evidence

    assert isinstance(event, Equivocated)
    said = (event.kind, event.peer, event.round, event.stage)
    signed = tuple(base64.b64encode(each).decode() for each in (event.first, event.second))
    try:
        evidence, charge = open_evidence(event.first, event.second)
    except RecordRejected as error:
        return Exhibit(seq, at, *said, f"{error.reason}: {error.message}", (), signed)
    problem = "" if charge == said else f"the records show something else: {charge}"
    records = tuple(
        {"expires": each.expiration, **{name: value for name, value in _fields(each.content) if name in SHOWN}}
        for each in (evidence.first, evidence.second)
    )
    return Exhibit(seq, at, *said, problem, records, signed)


def _fields(content: msgspec.Struct) -> Iterator[tuple[str, str | int | float | bool]]:
    return ((name, getattr(content, name)) for name in content.__struct_fields__)


def words_of(exhibit: Exhibit) -> str:
    """A piece of evidence for a person."""
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(exhibit.at))
    proved = f"it proves nothing: {exhibit.problem}" if exhibit.problem else "both signatures are genuine"
    head = f"{exhibit.peer}: two records of kind {exhibit.kind}, round {exhibit.round} stage {exhibit.stage}"
    lines = [f"{head} (event {exhibit.seq}, {when}); {proved}"]
    for number, record in enumerate(exhibit.records, 1):
        lines.append(f"  {number}: " + ", ".join(f"{name} {value}" for name, value in record.items()))
    return "\n".join(lines)

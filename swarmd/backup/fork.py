"""Forks: a node with a new identity that starts from another node's log up to an event, and its checkpoint at that
event.

- The parent's directory is only read, and the parent may be running. Nothing that signs, opens or admits is copied:
  keys, accounts, passphrases, tokens, invitations.
- The parent's segments are copied byte for byte, the last of them up to the commit with the event. Then comes a segment
  of the new node, which names the parent (`forked_from`) and holds one event, `NodeForked`. From there on only the new
  identity may append to the log. Snapshots are caches, and are written again under the new name.
- The stage in progress is dropped: its rollouts and report belong to the parent. So no rollouts are copied, and the
  fork starts from the checkpoint of the last stage trained up to the event; without that checkpoint it is refused.
"""

import os
import secrets
import shutil
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import msgspec
import tomlkit

from swarmd import __version__
from swarmd.backup.archive import unpack_atomically
from swarmd.backup.backup import find_questions
from swarmd.config import Config, parse_config, read_config_text
from swarmd.core.events import NodeForked, StageTrained
from swarmd.core.step import RULES
from swarmd.daemon.directory import write_layout_if_absent
from swarmd.dht.identity.identity import create_identity, write_private_file
from swarmd.errors import ConfigError, LogDamaged, NotFoundError, PathUnusable
from swarmd.eventlog.fold import base_upto, bases_where, peer_id_of_log
from swarmd.eventlog.frame import NO_COMMANDS, Commit, digest_file, encode_commit
from swarmd.eventlog.reader import LogReader, end_seq_of_log, read_commits
from swarmd.eventlog.segment import LogPosition, SegmentHeader, SegmentWriter, first_seq_of, list_segments
from swarmd.eventlog.snapshot import Snapshot, list_snapshots, read_snapshot, snapshot_seq, write_snapshot
from swarmd.files import open_regular
from swarmd.paths import CONFIG, NodeDirectory
from swarmd.training.checkpoint_files import list_checkpoints

# Settings that belong to the parent: keys and accounts, addresses, and where it reports. A fork gets none of them.
OWN = (
    "chain",
    "web",
    "notify",
    "results.hub",
    "training.reference.token",
    "dht.identity",
    "dht.peer",
    "dht.invitation",
    "dht.listen",
    "dht.announce",
)
ALONE = ("swarm.coordinator", "dht.bootstrap")  # also dropped if a contract keeps the rounds: the fork opens its own


class Forked(msgspec.Struct, frozen=True):
    peer: str
    parent: str
    event: int  # the last one taken from the parent
    checkpoint: str  # name of the one it starts from; empty if nothing was trained
    left_out: tuple[str, ...]  # keys and tables of the parent's configuration that were dropped
    role: str


def fork_node(data: NodeDirectory, config: Path, root: Path, at: int | None = None, round: int | None = None) -> Forked:
    """Make the directory `root` of a new node from the log of another.

    Args:
        data: the parent's directory.
        config: a configuration file; the fork gets a copy without the settings in `OWN`.
        at: the last event to keep, with the rest of its commit; by default the newest.
        round: instead of `at`: keep the log up to the event with which the parent had trained this round.

    Raises NotFoundError if that event or its checkpoint is gone, ConfigError, PathUnusable, LogDamaged, and whatever
    `unpack_atomically` raises for a directory that is not empty or cannot be written.
    """
    if root.resolve().is_relative_to(data.root.resolve()):
        raise PathUnusable(f"{root} lies in {data.root}, which is only read", "Name a new directory elsewhere")
    at = find_round(data.events, round) if round is not None else at
    place, done = find_cut(data.events, at)
    checkpoint = find_checkpoint(data, done, place)
    text, settings, left_out = adapt_config(config)
    parent = peer_id_of_log(data.events)
    with unpack_atomically(root) as making:
        new = NodeDirectory(making)
        write_layout_if_absent(new)
        peer = create_identity(new.identity).peer_id
        copy_log(data.events, new.events, place, parent, peer)
        try:
            if checkpoint is not None:
                shutil.copytree(checkpoint, new.checkpoints / checkpoint.name)
        except (FileNotFoundError, shutil.Error) as error:
            raise NotFoundError(f"{checkpoint} was removed while it was copied", "Fork at a later event") from error
        write_private_file(new.config, text.encode())
        for name, path in find_questions(data.root, [config]).items():
            (new.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, new.root / name)
    name = checkpoint.name if checkpoint is not None else ""
    return Forked(peer, parent, place.seq - 1, name, left_out, settings.role)


def find_round(events: Path, round: int) -> int:
    """The event at which the node finished training a round. Raises NotFoundError."""
    base = next(bases_where(events, lambda state: state.done < (round, 0)))
    found = None
    for commit in read_commits(events, base.seq):
        for seq, event in enumerate(commit.events, commit.seq):
            if isinstance(event, StageTrained) and event.round > round:
                break
            if isinstance(event, StageTrained) and event.round == round:
                found = seq
        else:
            continue
        break
    if found is None:
        fix = "`swarmd explain DIR` lists the rounds that it knows of, and what became of them"
        raise NotFoundError(f"the node did not train round {round}, as far as its log goes back", fix)
    return found


def find_cut(events: Path, at: int | None) -> tuple[LogPosition, tuple[int, int]]:
    """Where the commit with event `at` ends, and the last (round, stage) trained by then. Only `State.done` is needed,
    so it reads events without folding them. Raises NotFoundError, LogDamaged."""
    end = end_seq_of_log(events)
    at = end - 1 if at is None else at
    if not 0 <= at < end:
        raise NotFoundError(f"there is no event {at}: the log in {events} has {end}", f"Name one up to {end - 1}")
    base = base_upto(events, at + 1)
    done = base.state.done
    with LogReader(events, min(base.seq, at)) as reader:
        for commit in reader.read():
            if commit.seq > at or base.seq > at + 1:
                break  # the log begins after the event
            trained = [(event.round, event.stage) for event in commit.events if isinstance(event, StageTrained)]
            done = max([done, *trained])
            if commit.end_seq > at and reader.position is not None:
                return reader.position, done
    gone = f"event {at} was removed from the log in {events}, or the state after it"
    raise NotFoundError(gone, f"Name an event from {base.seq} on, or a later one")


def find_checkpoint(data: NodeDirectory, done: tuple[int, int], place: LogPosition) -> Path | None:
    """The checkpoint of the last stage that was trained; None if none was. Raises NotFoundError if it was removed."""
    round, stage = done
    if round < 0:
        return None
    kept = list_checkpoints(data.checkpoints)
    name = f"r{round:09d}-s{stage:04d}"
    found = next((path for path in kept if path.name == name), None)
    if found is None:
        rounds = [int(path.name[1:10]) for path in kept]
        fix = f"The newest point that has one: `--round {rounds[0]}`" if rounds else "Restore a backup, and fork that"
        gone = f"the checkpoint of round {round}, which the node had after event {place.seq - 1}, is not there"
        raise NotFoundError(f"{gone}; kept of rounds: {', '.join(map(str, rounds)) or 'none'}", fix)
    return found


def copy_log(source: Path, target: Path, place: LogPosition, parent: str, peer: str) -> None:
    """Copy the log up to `place`, and begin the new node's part of it. Raises LogDamaged, NoSpaceLeft."""
    target.mkdir(mode=0o700)
    copied = [path for path in list_segments(source) if first_seq_of(path) <= place.segment]
    try:
        for path in copied:
            shutil.copyfile(path, target / path.name)
        os.truncate(last := target / copied[-1].name, place.offset)
    except FileNotFoundError as error:
        raise LogDamaged(f"{error.filename} was removed while the log was copied", "Fork it again") from error
    with open_regular(last) as file:
        header = SegmentHeader(peer, secrets.token_hex(8), place.seq, digest_file(file), parent)
    for path in list_snapshots(source):
        if first_seq_of(copied[0]) <= snapshot_seq(path) <= place.seq:
            snapshot = read_snapshot(path, parent)
            write_snapshot(target, Snapshot(peer, snapshot.run, snapshot.seq, snapshot.rules, snapshot.state))
    segment = SegmentWriter.create(target, header)
    forked = NodeForked(parent, __version__)  # this event causes no command
    segment.append(encode_commit(Commit(place.seq, time.time(), RULES, (forked,), NO_COMMANDS)))
    segment.seal()


def adapt_config(path: Path) -> tuple[str, Config, tuple[str, ...]]:
    """Derive the fork's configuration. Returns it as TOML and parsed, and the keys that were dropped. Raises
    ConfigError."""
    tables = tomlkit.parse(read_config_text(path)).unwrap()
    left_out = [key for key in OWN if _drop(tables, key)]
    if "chain" in left_out:
        left_out += [key for key in ALONE if _drop(tables, key)]
        tables["role"] = "coordinator"
    if tables.get("role") == "coordinator":
        _drop(tables, ALONE[0])  # the coordinator is the new node itself
    tables["data"] = "."
    text = tomlkit.dumps(tables)
    try:
        return text, parse_config(text, CONFIG), tuple(left_out)
    except ConfigError as error:
        fix = f"{error.fix}. Give other settings with --config FILE" if error.fix else "Give others with --config FILE"
        raise ConfigError(f"{path}, without {', '.join(left_out)}: {error.message}", fix) from error


def _drop(tables: MutableMapping[str, Any], key: str) -> bool:
    """Remove a key or table by its dotted name. Returns whether it was there."""
    *around, name = key.split(".")
    for each in around:
        tables = tables.get(each, {})
    return tables.pop(name, None) is not None

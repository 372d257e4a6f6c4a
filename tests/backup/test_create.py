"""Backups: whole, sealed, checked to the last byte, and never the way to sign something twice."""

import fcntl
import os
import resource
import tarfile
import time
import tracemalloc
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import msgspec
import pytest

from swarmd.backup import backup
from swarmd.backup.backup import BackupManifest, BackupPlan, check_backup, make_backup, open_sealed, restore_backup
from swarmd.cli import run_command
from swarmd.core.events import MemberSeen
from swarmd.daemon.directory import MoveNote, read_restore_note, refuse_moved, write_note
from swarmd.dht.identity.identity import generate_identity, read_identity
from swarmd.errors import ArchiveError, IdentityError, IdentityInUse, LogInUse, NoSpaceLeft, NotFoundError, PathUnusable
from swarmd.eventlog.fold import load_state
from swarmd.eventlog.frame import NO_COMMANDS
from swarmd.eventlog.store import EventLog
from swarmd.paths import NodeDirectory
from swarmd.secret_files import seal
from tests.backup.crash import dying
from tests.backup.making import BODY, PASSPHRASE, SECRET, make_checkpoint, make_node
from tests.core.story import announced, gathered, trained
from tests.eventlog.making import flip, write_story

SEALED = BackupPlan(PASSPHRASE)
OPEN = BackupPlan(None)


@pytest.fixture
def node(tmp_path: Path) -> NodeDirectory:
    return make_node(tmp_path / "node")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "node.tar.gz"


def names(archive: Path) -> set[str]:
    with tarfile.open(archive) as tar:
        return set(tar.getnames())


def test_a_restored_directory_has_the_state_the_key_and_the_newest_checkpoint(
    node: NodeDirectory, out: Path, tmp_path: Path
) -> None:
    manifest = make_backup(node, out, SEALED)
    restored = NodeDirectory(tmp_path / "new")
    _, verified = restore_backup(out, restored.root, PASSPHRASE)
    assert load_state(restored.events) == load_state(node.events)
    assert verified.events == manifest.next_seq
    assert read_identity(restored.root / "identity.key").peer_id == manifest.peer
    assert (restored.root / "account.json").read_bytes() == SECRET
    assert (restored.root / "account.json").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in restored.checkpoints.iterdir()] == ["r000000003-s0000"]
    bodies = [path.read_bytes() for path in restored.blobs.glob("??/*")]
    assert bodies == [BODY], "rollouts in use come along, others do not"
    assert restored.peers.exists()
    assert restored.invitations.exists()
    assert not restored.records.exists(), "old records would be published again"


def test_the_manifest_says_how_far_the_node_had_come(node: NodeDirectory, out: Path) -> None:
    manifest = make_backup(node, out, SEALED)
    assert manifest.marks.done == (3, 0)
    assert (manifest.from_seq, manifest.checkpoint, manifest.sealed) == (0, "r000000003-s0000", True)
    assert manifest.missing == ("d" * 64,), "its own rollouts of the last stage are named, but were never there"
    assert check_backup(out) == manifest


def test_no_secret_stands_in_the_open(node: NodeDirectory, out: Path) -> None:
    make_backup(node, out, SEALED)
    with tarfile.open(out) as tar:
        content = b"".join(tar.extractfile(info).read() for info in tar)  # type: ignore[union-attr]
    assert SECRET not in content
    assert (node.root / "identity.key").read_bytes() not in content
    assert out.stat().st_mode & 0o077 == 0


def test_without_keys_nothing_secret_goes_along(node: NodeDirectory, out: Path, tmp_path: Path) -> None:
    make_backup(node, out, OPEN)
    assert {name for name in names(out) if "/" not in name} == {"config.toml", BackupManifest.FILE}
    restore_backup(out, tmp_path / "new", None)
    assert not (tmp_path / "new" / "identity.key").exists()


def test_a_configuration_with_a_secret_in_it_is_no_open_file(node: NodeDirectory, out: Path) -> None:
    (node.root / "config.toml").write_text('[chain]\nrpc = ["https://user:hunter2hunter2@rpc.example/v2/k3y"]\n')
    make_backup(node, out, OPEN)
    assert "config.toml" not in names(out)


def test_checkpoints_can_be_left_out_and_a_damaged_one_is_passed_over(node: NodeDirectory, tmp_path: Path) -> None:
    (make_checkpoint(node, 9) / "model.safetensors").write_bytes(b"damaged")
    assert make_backup(node, tmp_path / "a.tar", OPEN).checkpoint == "r000000003-s0000"
    assert make_backup(node, tmp_path / "b.tar", BackupPlan(None, checkpoint=False)).checkpoint == ""
    assert not [name for name in names(tmp_path / "b.tar") if name.startswith("checkpoints/")]


def test_a_running_node_is_copied_up_to_a_commit(node: NodeDirectory, out: Path, tmp_path: Path) -> None:
    peer = read_identity(node.root / "identity.key").peer_id
    with EventLog.open(node.events, peer, "run2") as log:
        log.append(1.0, [MemberSeen("somebody")], b"\0" * 16)
        end = log.next_seq
        segment = log._segment
        assert segment is not None
        os.pwrite(segment._descriptor, b"\x07\0\0\0half a frame", segment.size_bytes)  # an append in progress
        with pytest.raises(LogInUse):
            make_backup(node, tmp_path / "moved.tar.gz", BackupPlan(None, for_move=True))
        assert not (tmp_path / "moved.tar.gz").exists()
        assert make_backup(node, out, OPEN).next_seq == end
    assert check_backup(out).next_seq == end


def test_rollouts_in_use_go_along_though_the_node_makes_a_snapshot_meanwhile(
    node: NodeDirectory, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = read_identity(node.root / "identity.key").peer_id
    opened = backup._open_log_files

    def open_and_go_on(events: Path, stack: ExitStack) -> tuple[list[backup.OpenPart], int]:
        found = opened(events, stack)
        with EventLog.open(events, peer, "run2") as log:
            state = write_story(log, [trained(4), announced(5, deadline_at=1e6), gathered(5)], load_state(events)[0])
            log.write_snapshot(state)
        return found

    monkeypatch.setattr(backup, "_open_log_files", open_and_go_on)
    assert make_backup(node, out, OPEN).marks.done == (3, 0)
    restore_backup(out, tmp_path / "new", None)
    assert [path.read_bytes() for path in NodeDirectory(tmp_path / "new").blobs.glob("??/*")] == [BODY]


def test_what_a_killed_backup_left_is_overwritten_but_not_one_in_progress(node: NodeDirectory, out: Path) -> None:
    left = out.with_name(".node.tar.gz.tmp")
    left.write_bytes(b"half a backup" * 10_000)
    other = os.open(left, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(PathUnusable, match="another command is at work") as refused:
            make_backup(node, out, OPEN)
        assert refused.value.exit_code == 75 and left.exists()
    finally:
        os.close(other)
    make_backup(node, out, OPEN)
    assert check_backup(out) and not left.exists()


def test_a_byte_that_changed_is_found(node: NodeDirectory, tmp_path: Path) -> None:
    out = tmp_path / "node.tar"
    make_backup(node, out, SEALED)
    flip(out, out.read_bytes().index(BODY))
    with pytest.raises(ArchiveError, match="is damaged: blobs/"):
        check_backup(out)
    with pytest.raises(ArchiveError, match="is damaged"):
        restore_backup(out, tmp_path / "new", PASSPHRASE)
    assert not (tmp_path / "new").exists()
    assert not [path for path in tmp_path.iterdir() if "restoring" in path.name], "nothing is left behind"


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_an_archive_that_was_cut_off_is_refused(node: NodeDirectory, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"node{suffix}"
    make_backup(node, out, OPEN)
    raw = out.read_bytes()
    out.write_bytes(raw[: len(raw) // 3])
    with pytest.raises(ArchiveError):
        check_backup(out)


def test_a_wrong_passphrase_restores_nothing(node: NodeDirectory, out: Path, tmp_path: Path) -> None:
    make_backup(node, out, SEALED)
    with pytest.raises(IdentityError, match="does not open"):
        restore_backup(out, tmp_path / "new", "wrong horse battery")
    assert not (tmp_path / "new").exists()


def test_nothing_is_overwritten(node: NodeDirectory, out: Path, tmp_path: Path) -> None:
    make_backup(node, out, OPEN)
    with pytest.raises(ArchiveError, match="exists already"):
        make_backup(node, out, OPEN)
    with pytest.raises(ArchiveError, match="lies in"):
        make_backup(node, node.root / "inside.tar.gz", OPEN)
    with pytest.raises(ArchiveError, match="is not empty"):
        restore_backup(out, node.root, None)
    with pytest.raises(ArchiveError, match=r"ends in \.tar"):
        make_backup(node, tmp_path / "node.zip", OPEN)
    with pytest.raises(ArchiveError, match="there is no directory") as refused:
        make_backup(node, tmp_path / "none" / "x.tar.gz", OPEN)
    assert "Make it first" in refused.value.fix
    with pytest.raises(NotFoundError):
        make_backup(NodeDirectory(tmp_path / "none"), tmp_path / "x.tar", OPEN)
    with pytest.raises(NotFoundError):
        check_backup(tmp_path / "none.tar")


def test_what_is_sealed_is_the_nodes_own_key_and_plain_names(node: NodeDirectory, out: Path) -> None:
    manifest = make_backup(node, out, OPEN)

    def opened(files: dict[str, bytes]) -> dict[str, bytes]:
        return open_sealed(seal(msgspec.msgpack.encode(files), PASSPHRASE), manifest, PASSPHRASE)

    own = {"identity.key": (node.root / "identity.key").read_bytes()}
    assert opened(own) == own
    with pytest.raises(ArchiveError, match=f"not that of {manifest.peer}"):
        opened({"identity.key": generate_identity().encode()})
    for name in ("../identity.key", "", ".."):
        with pytest.raises(ArchiveError, match="a path for a name"):
            opened({name: b""})
    with pytest.raises(IdentityError, match="is not a backup that swarmd sealed"):
        open_sealed(b"", manifest, PASSPHRASE)


def test_a_disk_that_fills_up_while_it_is_written_is_one_clear_error(
    node: NodeDirectory, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    make_backup(node, out, OPEN)
    monkeypatch.setattr("swarmd.files.os.fsync", full)
    for place in (tmp_path / "new", tmp_path / "there"):
        (tmp_path / "there").mkdir(exist_ok=True)
        with pytest.raises(NoSpaceLeft, match=f"unpack to {place}"):
            restore_backup(out, place, None)
    assert not (tmp_path / "new").exists() and not list((tmp_path / "there").glob("events"))


# --- old signing state ---


def test_a_move_closes_the_old_directory_and_goes_on_in_the_new(node: NodeDirectory, out: Path, tmp_path: Path) -> None:
    make_backup(node, out, BackupPlan(PASSPHRASE, for_move=True))
    with pytest.raises(IdentityInUse) as refused:
        refuse_moved(node)
    assert refused.value.exit_code == 79 and str(node.moved) in refused.value.fix
    new = NodeDirectory(tmp_path / "new")
    restore_backup(out, new.root, PASSPHRASE, moved=True)
    assert read_restore_note(new) is None, "nothing was signed since: it takes up the round where it was"
    refuse_moved(new)


def test_only_a_fresh_backup_of_a_move_goes_on_where_it_was(
    node: NodeDirectory, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_backup(node, out, OPEN)
    with pytest.raises(ArchiveError, match="may have kept running"):
        restore_backup(out, tmp_path / "new", None, moved=True)
    make_backup(node, tmp_path / "move.tar.gz", BackupPlan(None, for_move=True))
    later = time.time() + 2 * 86400
    monkeypatch.setattr("swarmd.backup.backup.time.time", lambda: later)
    with pytest.raises(ArchiveError, match="older than a day"):
        restore_backup(tmp_path / "move.tar.gz", tmp_path / "new", None, moved=True)
    restore_backup(tmp_path / "move.tar.gz", tmp_path / "new", None)
    assert read_restore_note(NodeDirectory(tmp_path / "new")) is not None


def test_a_node_that_moved_does_not_move_again(node: NodeDirectory, out: Path, tmp_path: Path) -> None:
    make_backup(node, out, BackupPlan(PASSPHRASE, for_move=True))
    with pytest.raises(IdentityInUse, match="was moved away"):
        make_backup(node, tmp_path / "again.tar.gz", BackupPlan(PASSPHRASE, for_move=True))
    assert not (tmp_path / "again.tar.gz").exists()
    assert not make_backup(node, tmp_path / "plain.tar.gz", OPEN).for_move, "but what lies there can be kept"


def test_at_no_step_of_a_move_is_there_an_archive_and_an_open_directory(node: NodeDirectory, tmp_path: Path) -> None:
    for step in count():
        out = tmp_path / f"{step}.tar"
        with dying(step) as died:
            make_backup(node, out, BackupPlan(None, for_move=True))
        assert node.moved.exists() or not out.exists()
        node.moved.unlink(missing_ok=True)
        if not died():
            break
    assert step > 3 and out.exists()


def test_a_node_of_more_lives_than_files_may_be_open_is_copied(node: NodeDirectory, out: Path, tmp_path: Path) -> None:
    peer = read_identity(node.root / "identity.key").peer_id
    for life in range(80):
        with EventLog.open(node.events, peer, f"life{life}") as log:
            log.append(1e6 + life, [MemberSeen(f"peer{life}")], NO_COMMANDS)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
    try:
        manifest = make_backup(node, out, OPEN)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (64, limits[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert sum(member.name.endswith(".seg") for member in manifest.members) > 80
    assert load_state(node.events)[1] == manifest.next_seq


def test_an_archive_that_cannot_be_put_in_place_closes_nothing(
    node: NodeDirectory, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def come_meanwhile(path: Path, note: MoveNote) -> None:
        write_note(path, note)
        out.write_text("somebody else's")

    monkeypatch.setattr("swarmd.daemon.directory.write_note", come_meanwhile)
    with pytest.raises(ArchiveError, match="File exists"):
        make_backup(node, out, BackupPlan(None, for_move=True))
    refuse_moved(node)
    assert out.read_text() == "somebody else's"


def test_the_note_of_a_restore_moves_along_until_a_start_has_read_it(
    node: NodeDirectory, out: Path, tmp_path: Path
) -> None:
    made_at = make_backup(node, out, OPEN).made_at
    first, moved, second = (NodeDirectory(tmp_path / name) for name in ("first", "moved", "second"))
    restore_backup(out, first.root, None, from_round=40)
    make_backup(first, tmp_path / "move.tar.gz", BackupPlan(None, for_move=True))
    restore_backup(tmp_path / "move.tar.gz", moved.root, None, moved=True)
    assert read_restore_note(moved) == read_restore_note(first), "its log is as old as it was"
    restore_backup(tmp_path / "move.tar.gz", second.root, None, from_round=30)
    note = read_restore_note(second)
    assert note is not None and (note.made_at, note.from_round) == (made_at, 40)


# --- files that the configuration names ---

QUESTIONS = b'{"prompt": "1+1", "answer": "2"}\n' * 100_000


@pytest.mark.parametrize("name", ["questions.jsonl", "mine/of the school.jsonl"])
@pytest.mark.parametrize("plan", [SEALED, OPEN])
def test_the_file_of_questions_goes_along_whatever_its_size(
    name: str, plan: BackupPlan, node: NodeDirectory, out: Path, tmp_path: Path
) -> None:
    path = node.root / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(QUESTIONS)
    (node.root / "config.toml").write_text(f'[swarm]\nid = "test"\nkind = "file"\noptions = {{ data = "{name}" }}\n')
    make_backup(node, out, plan)
    assert name in names(out)
    restore_backup(out, tmp_path / "new", plan.passphrase)
    assert (tmp_path / "new" / name).read_bytes() == QUESTIONS


@pytest.mark.parametrize(
    "name", ["../outside.jsonl", "/etc/outside.jsonl", "account.json", "none.jsonl", "\\u0000.jsonl"]
)
def test_nothing_else_goes_along_by_that_way(name: str, node: NodeDirectory, out: Path) -> None:
    (node.root.parent / "outside.jsonl").write_bytes(SECRET)
    (node.root / "config.toml").write_text(f'[swarm]\nid = "test"\noptions = {{ data = "{name}" }}\n')
    make_backup(node, out, OPEN)
    assert not {each for each in names(out) if each.endswith(("account.json", "outside.jsonl", "none.jsonl"))}


def test_a_stray_file_is_not_read(node: NodeDirectory, out: Path, tmp_path: Path) -> None:
    with (node.root / "stray.bin").open("wb") as file:
        file.truncate(64 * 2**20)
    tracemalloc.start()
    try:
        make_backup(node, out, OPEN)
        with pytest.raises(ArchiveError, match=r"stray\.bin is too large for a key") as refused:
            make_backup(node, tmp_path / "sealed.tar.gz", SEALED)
        assert "--config FILE" in refused.value.fix
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    finally:
        tracemalloc.stop()
    assert "stray.bin" not in names(out)


# --- the verbs ---


@pytest.fixture
def passphrase(tmp_path: Path) -> str:
    file = tmp_path / "pass"
    file.write_text(PASSPHRASE + "\n")
    file.chmod(0o600)
    return str(file)


def test_the_verbs(
    node: NodeDirectory, out: Path, tmp_path: Path, passphrase: str, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = ["--passphrase-file", passphrase]
    assert run_command(["backup", str(node.root), str(out), *secret]) == 0
    assert "trained up to round 3" in capsys.readouterr().out
    assert run_command(["backup", "check", str(out), *secret]) == 0
    assert "its keys open" in capsys.readouterr().out
    assert run_command(["restore", str(out), str(tmp_path / "new"), *secret]) == 0
    told = capsys.readouterr()
    assert "all commands as they were" in told.out and "round after the first one" in told.err
    assert run_command(["restore", str(out), str(tmp_path / "new"), *secret]) == 73
    assert run_command(["backup", "--without-keys", str(node.root), str(tmp_path / "b.tar.gz")]) == 0
    assert "the identity is not in it" in capsys.readouterr().err
    assert (node.root / "identity.key.saved").exists(), "the doctor knows of the backup"

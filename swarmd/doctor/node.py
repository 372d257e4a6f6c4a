"""Checks of the node: configuration, data directory, identity, event log, daemon and unit."""

import contextlib
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from swarmd import __version__
from swarmd.config import Config, SenderKind, SwarmConfig, check_notify
from swarmd.daemon.directory import (
    check_may_start,
    refuse_moved,
    refuse_other_logged_swarm,
    swarm_of_config,
    swarm_of_manifest,
    swarm_of_state,
)
from swarmd.daemon.process import find_leftovers, node_tag, read_process_tag
from swarmd.dht.identity.backup import note_path_of, read_backup_note
from swarmd.dht.identity.identity import FILE_BYTES_MAX, Identity, parse_identity
from swarmd.dht.wire.addresses import check_addresses
from swarmd.doctor.examination import Finding, Subject, error, note, ok_finding, warning
from swarmd.errors import LogDamaged, NotFoundError, OtherVersion, SwarmdError, UnitError
from swarmd.eventlog.fold import peer_id_of_log
from swarmd.eventlog.replay import check_log as read_log
from swarmd.eventlog.store import log_disk_bytes
from swarmd.files import read_start
from swarmd.http_server import PAGE_PORT, check_listen, parse_listen
from swarmd.manifest import Manifest, ManifestRecipe, read_manifest, recipe_of
from swarmd.observe.layers import LearningStatus, advise_on_flat_cause
from swarmd.observe.redaction import list_secret_urls, secret_locations
from swarmd.observe.status import Status
from swarmd.paths import NodeDirectory, quote_for_shell
from swarmd.results.hub import check_hub, check_repo
from swarmd.secret_files import CREDENTIAL
from swarmd.swarms.registry import check_kind
from swarmd.swarms.truths import check_questions
from swarmd.training.models.known import PACKAGED
from swarmd.training.models.source import AUTO, locate_configured
from swarmd.units import list_services_running, outdated_files

SWARM_KEYS = frozenset(SwarmConfig.__struct_fields__)
KEY_NAMES = ("identity.key", "swarm.pem")
NEIGHBOURS_MAX = 256  # directories near the data directory searched for copies of the key
SERVICE_DIRECTORY = Path("/var/lib")
MIB = 2**20
WHOLE_BYTES_MAX = 256 * MIB  # of a larger log only the last segment is read

# --- the configuration, and the secrets that it names ---


def check_config(subject: Subject) -> Iterator[Finding]:
    """Check what a start refuses, who may change the file, and whether its secrets exist and are private."""
    if subject.path is None:
        fix = "Name a node: `swarmd doctor DIR`, or `--config FILE`. `swarmd init` makes one"
        yield note("config.absent", "No configuration was examined", "there is no config.toml here", fix)
        return
    try:
        if subject.fault is not None:
            raise subject.fault
        config, data = subject.config_and_data
        check_usable_config(config, data.root)
    except SwarmdError as failure:
        fix = failure.fix or "Correct the key that the evidence names; configs/reference.toml explains each"
        yield error("config.wrong", "The configuration cannot be used", failure.message, fix)
        if subject.fault is not None:
            return
    mode = stat.S_IMODE(subject.path.stat().st_mode)
    if mode & 0o022:
        evidence, fix = f"{subject.path} has mode {mode:04o}", f"Run `chmod go-w {quote_for_shell(subject.path)}`"
        yield warning("config.writable", "Others may change the configuration", evidence, fix)
    for key, shown in list_secret_urls(config) if mode & 0o077 else ():
        # A service's file belongs to root, and the unit's user has to read it.
        own = subject.path.stat().st_uid == subject.user_id
        close = f"Run `chmod 600 {quote_for_shell(subject.path)}`, or put" if own else "Put"
        yield warning(
            "config.secret",
            "A secret stands in a file that others may read",
            f"{key} in {subject.path} has more than {shown}, and the file has mode {mode:04o}",
            f"{close} the value into a private file and name it as file:PATH",
        )
    for key, named in named_secrets(config):
        if not named.startswith(CREDENTIAL):
            yield from _examine_secret(key, data.root / named, subject)
    yield ok_finding(f"{subject.path}: valid, {config.role} of {config.swarm.id}, kind {config.swarm.kind}")


def check_usable_config(config: Config, root: Path, elsewhere: bool = False) -> str:
    """Raise the errors that a start would, as far as this machine can tell.

    `elsewhere`: the configuration is for another machine, which has the questions. Returns why their answers were not
    checked, as `check_questions` does.
    """
    check_addresses(config)
    check_kind(config.swarm)
    if config.web.listen:
        address = parse_listen(config.web.listen, PAGE_PORT, "web.listen")
        check_listen(address, config.web.token, "the page of [web]", "web.token, a private file's name")
    check_notify(config.notify)
    if not elsewhere:
        check_hub(config.results.hub)
    elif config.results.hub.repo:
        check_repo(config.results.hub.repo)
    if config.training.model != AUTO and not (elsewhere and config.training.model in PACKAGED):
        locate_configured(config.training)
    return "" if elsewhere else check_questions(config.swarm, config.training, root)


def named_secrets(config: Config) -> list[tuple[str, str]]:
    """(key, file or credential) of every secret of this node, except the identity, which has its own check."""
    of_account = ("chain.passphrase", "chain.keystore")
    spare: dict[SenderKind, tuple[str, ...]] = {
        "wallet": ("chain.proxy.token",),
        "proxy": of_account,
        "none": ("chain.proxy.token", *of_account),
    }
    unused = ("dht.identity", *spare[config.chain.sender if config.chain is not None else "none"])
    return [(place.key, place.named) for place in secret_locations(config) if place.key not in unused]


def _examine_secret(key: str, path: Path, subject: Subject) -> Iterator[Finding]:
    try:
        status = path.lstat()
    except OSError:
        fix = f"Make {path} with mode 0600, or correct {key}"
        yield error("secrets.missing", "A file with a secret is missing", f"{key} names {path}", fix)
        return
    if not stat.S_ISREG(status.st_mode):
        evidence = f"{key} names {path}, which is not a regular file"
        yield error("secrets.missing", "A file with a secret is missing", evidence, "Name the file itself")
        return
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        fix = f"Run `chmod 600 {quote_for_shell(path)}`, and change the secret if others can have read it"
        yield error("secrets.mode", "Others may read a secret", f"{path}, which {key} names, has mode {mode:04o}", fix)
    elif status.st_uid != subject.user_id:
        evidence = f"{path}, which {key} names, belongs to user {status.st_uid}, the node runs as {subject.user_id}"
        fix = f"Run `chown {subject.user_id} {quote_for_shell(path)}`"
        yield error("secrets.owner", "A file with a secret belongs to another user", evidence, fix)


# --- the data directory ---


def check_directory(subject: Subject) -> Iterator[Finding]:
    """Check mode and owner, whether a start succeeds, and that log, configuration and manifest are of one swarm."""
    config, data = subject.config_and_data
    root = data.root
    if not root.is_dir():
        fix = "If the node ran before, correct `data` or mount the disk before the start; else the first start makes it"
        yield note("directory.new", "The data directory is not there yet", f"{root} is not there", fix)
        return
    logged, own = swarm_of_state(subject.state) if subject.state else None, swarm_of_config(config)
    refusals: tuple[tuple[str, str, Callable[[], object]], ...] = (
        (
            "directory.swarm",
            "The data directory is another swarm's",
            lambda: refuse_other_logged_swarm(data, logged, own),
        ),
        ("directory.closed", "The node was moved away from here", lambda: refuse_moved(data)),
        ("directory.unfit", "The node would refuse to start in this data directory", lambda: check_may_start(data)),
    )
    for id, title, refuse in refusals:
        try:
            refuse()
        except SwarmdError as failure:
            yield error(id, title, failure.message, failure.fix)
    # `swarmd swarm new` and `swarmd join` put it beside the configuration.
    yield from _compare_manifest(config, NodeDirectory(subject.path.parent).manifest if subject.path else data.manifest)
    status = root.stat()
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        fix = f"Run `chmod 700 {quote_for_shell(root)}`"
        yield warning("directory.mode", "Others may look into the data directory", f"{root} has mode {mode:04o}", fix)
    if status.st_uid != subject.user_id:
        evidence = f"{root} belongs to user {status.st_uid}, this is {subject.user_id}"
        fix = "Run swarmd as that user, or give the directory away with `chown -R`"
        yield error("directory.owner", "The data directory belongs to another user", evidence, fix)
    yield ok_finding(f"{root}, user {status.st_uid}, mode {mode:04o}")


def _compare_manifest(config: Config, path: Path) -> Iterator[Finding]:
    title = "The configuration is not the manifest's: other nodes train something else, or refuse this one's rollouts"
    try:
        manifest = read_manifest(path) if path.is_file() else None
        others = find_differing_keys(config, manifest) if manifest else ()
    except SwarmdError as failure:
        yield warning("directory.recipe", title, f"{path} cannot be compared: {failure.message}", failure.fix)
        return
    if others:
        fix = "Set the keys to what the manifest says; if the creator has handed out a newer one, put it in its place"
        yield warning("directory.recipe", title, f"{path} has other {', '.join(others)}", fix)
    if manifest is None or config.role != "coordinator" or manifest.chain is not None:
        return  # a contract lists its own bootnodes
    announced = [f"{address.partition('/p2p/')[0]}/p2p/{manifest.creator}" for address in config.dht.announce]
    if announced and not set(announced) & set(manifest.bootnodes):
        yield warning(
            "directory.bootnodes",
            "The manifest does not have the address that this node announces",
            f"dht.announce has {config.dht.announce[0]}, {path} other addresses",
            f"`swarmd swarm add-bootnode {quote_for_shell(path)} {announced[0]}`, and hand the manifest out again",
        )


def find_differing_keys(config: Config, manifest: Manifest) -> tuple[str, ...]:
    """Keys in which a configuration deviates from its swarm's manifest. Raises ManifestError."""
    own, shared = recipe_of(config), manifest.recipe
    fields = [name for name in ManifestRecipe.__struct_fields__ if name not in ("digest", "options")]
    apart = [name for name in fields if getattr(own, name) != getattr(shared, name)]
    named = tuple(f"swarm.{name}" if name in SWARM_KEYS else f"training.{name}" for name in apart)
    keys = sorted(own.options.keys() | shared.options.keys())
    named += tuple(f"swarm.options.{key}" for key in keys if own.options.get(key) != shared.options.get(key))
    if config.swarm.id != manifest.id:
        return ("swarm.id", *named)
    return ("chain", *named) if swarm_of_config(config).contract != swarm_of_manifest(manifest).contract else named


# --- the identity ---


def check_identity(subject: Subject) -> Iterator[Finding]:
    """Check that the key exists, is intact, private, the right one, backed up, and only this node's."""
    config, data = subject.config_and_data
    path = data.root / config.dht.identity
    if not (path.exists() or path.is_symlink()):
        yield _missing_key_finding(subject, path)
        return
    yield from _examine_key_file(path, subject.user_id)
    try:
        identity = _read_identity(path)
    except (OSError, SwarmdError) as failure:
        reason = failure.message if isinstance(failure, SwarmdError) else f"{path}: {failure.strerror}"
        fix = f"Bring it back with `swarmd identity restore BACKUP {quote_for_shell(path)}`"
        yield error("identity.damaged", "The identity is damaged or not a key", reason, fix)
        return
    peer = identity.peer_id
    logged = ""
    with contextlib.suppress(SwarmdError):  # `check_log` reports it
        logged = peer_id_of_log(data.events) if subject.has_log else ""
    for other, whose in ((config.dht.peer, "dht.peer pins"), (logged, f"{data.events} is the log of")):
        if other and other != peer:
            fix = "Put the right key there (`swarmd identity restore`), or correct dht.peer if the other one is meant"
            evidence = f"{path} is the key of {peer}, {whose} {other}"
            yield error("identity.other", "The identity is another peer's", evidence, fix)
            return
    yield from _examine_key_copies(data, path, peer)
    yield ok_finding(f"{path}: {peer} ({identity.kind}), intact and private")
    if not config.dht.peer:
        fix = f'Write peer = "{peer}" under [dht]: with a wrong path or an unmounted disk it keeps a node from making '
        yield note("identity.unpinned", "The identity is not pinned", "dht.peer is empty", f"{fix}itself a new one")
    if read_backup_note(path, peer) is None:
        fix = f"`swarmd identity backup {quote_for_shell(path)} OUT`, and keep OUT elsewhere"
        evidence = f"no backup of {path} was made on this machine"
        yield note("identity.backup", "No backup of the identity is known", evidence, fix)


def _missing_key_finding(subject: Subject, path: Path) -> Finding:
    """The finding for a missing key; first advises restoring a backup."""
    config, data = subject.config_and_data
    saved = read_backup_note(path)
    restore = f"`swarmd identity restore {quote_for_shell(saved.file) if saved else 'BACKUP'} {quote_for_shell(path)}`"
    title = "The identity is missing"
    if config.dht.peer:
        return error("identity.missing", title, f"{path} is not there, and dht.peer pins {config.dht.peer}", restore)
    if subject.has_log:
        evidence = f"{path} is not there, but {data.events} holds a node's log"
        return error("identity.missing", title, evidence, restore)
    if not path.resolve().is_relative_to(data.root.resolve()):
        fix = f"{restore}; only for a node that never had one: `swarmd identity new {quote_for_shell(path)}`"
        return error("identity.missing", title, f"{path}, which dht.identity names, is not there", fix)
    traces = [
        place.name for place in (note_path_of(path), data.checkpoints, data.network, data.blobs) if place.exists()
    ]
    if traces:
        evidence = f"{path} is not there, but in {data.root} are {', '.join(traces)}: the next start makes another node"
        return warning("identity.lost", "The identity seems to be lost", evidence, restore)
    fix = f"After the first start, which makes it: `swarmd identity backup {quote_for_shell(path)} OUT`"
    return note("identity.new", "There is no identity yet", f"{path} is not there", fix)


def _examine_key_file(path: Path, user: int) -> Iterator[Finding]:
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        fix = "Put the key file itself there, not a link to it"
        yield error("identity.damaged", "The identity is damaged or not a key", f"{path} is not a regular file", fix)
    elif mode & 0o077:
        fix = f"Run `chmod 600 {quote_for_shell(path)}`"
        yield error("identity.mode", "Others may read the identity", f"{path} has mode {mode:04o}", fix)
    if status.st_uid != user:
        fix = f"Run `chown {user} {quote_for_shell(path)}`"
        evidence = f"{path} belongs to user {status.st_uid}, the node runs as {user}"
        yield error("identity.owner", "The identity belongs to another user", evidence, fix)


def _read_identity(path: Path) -> Identity:
    """Read a key, possibly another node's. Raises IdentityError, OSError."""
    identity = parse_identity(read_start(path, FILE_BYTES_MAX), str(path))
    if not identity.has_valid_key_pair():
        raise SwarmdError(f"{path} is damaged: its public key does not belong to its secret")
    return identity


def _read_peer_id_of(path: Path) -> str:
    try:
        return _read_identity(path).peer_id
    except (OSError, SwarmdError):
        return ""


def read_peer_id(subject: Subject) -> str:
    """The peer id of the node's key; empty if it cannot be read."""
    config, data = subject.config_and_data
    return _read_peer_id_of(data.root / config.dht.identity)


def _examine_key_copies(data: NodeDirectory, path: Path, peer: str) -> Iterator[Finding]:
    """Find other nodes on this machine with the same key."""
    if data.moved.exists():
        return  # the node was moved away with this key, which `check_directory` reports
    evidence = [
        f"{place} is the same key" for place in _list_neighbour_keys(data, path) if _read_peer_id_of(place) == peer
    ]
    for owner, _, place in (read_process_tag(process).partition("@") for process in psutil.process_iter()):
        if owner == peer and place != str(data.root.resolve()):
            evidence.append(f"a node runs with it in {place}")
    if evidence:
        fix = "Keep one of them; make the other a new identity in a data directory of its own"
        shown = f"{path}: {'; '.join(dict.fromkeys(evidence))}"
        yield error("identity.reused", "Another node on this machine has the same identity", shown, fix)


def _list_neighbour_keys(data: NodeDirectory, path: Path) -> Iterator[Path]:
    """Key files in directories near this node's, one and two levels up, and in services' directories."""
    root = data.root.resolve()
    for home in sorted({root.parent, root.parent.parent, SERVICE_DIRECTORY} - {Path("/")}):
        with contextlib.suppress(OSError):  # another user's
            for place in sorted(home.iterdir())[:NEIGHBOURS_MAX]:
                with contextlib.suppress(OSError):
                    # In a directory marked as moved, no node starts.
                    if place.is_dir() and not place.is_symlink() and not NodeDirectory(place).moved.exists():
                        keys = (place / name for name in KEY_NAMES)
                        yield from (key for key in keys if key.is_file() and key.resolve() != path.resolve())


# --- the event log ---


def check_log(subject: Subject) -> Iterator[Finding]:
    """Read the log: all of it if it is not too large."""
    if not subject.has_log:
        yield ok_finding("there is none yet")
        return
    config, data = subject.config_and_data
    size = log_disk_bytes(data.events)
    try:
        sound = read_log(data.events, last_segment=size > WHOLE_BYTES_MAX)
    except OtherVersion as failure:
        yield error(
            "log.version", "The event log was written by a swarmd of another version", failure.message, failure.fix
        )
        return
    except (LogDamaged, NotFoundError) as failure:
        fix = failure.fix or "Restore it from a copy, or begin with an empty data directory and the same identity"
        yield error("log.damaged", "The node refuses to start with this event log", failure.message, fix)
        return
    if sound.torn_bytes:
        evidence = f"its last {sound.torn_bytes} bytes"
        yield note("log.torn", "The log ends in an unfinished write", evidence, "Nothing: the next start cuts it off")
    if size > 1.25 * config.storage.log_bytes_max:  # may be exceeded by what was written since the newest snapshot
        evidence = f"it has {size / MIB:.1f} MiB, storage.log_bytes_max is {config.storage.log_bytes_max / MIB:.1f} MiB"
        fix = "Restart the node, which makes a snapshot; `swarmd log verify` names one that is bad"
        yield warning("log.large", "The log is over its budget", evidence, fix)
    extent = "all of it was" if size <= WHOLE_BYTES_MAX else "the last segment of it was"
    yield ok_finding(f"{sound.next_seq} events, {size / MIB:.1f} MiB, {extent} read and is sound")


# --- the daemon, and its unit ---


def check_daemon(subject: Subject) -> Iterator[Finding]:
    """Check the daemon's layers; if no daemon runs, look for processes that an earlier one left behind."""
    daemon, data = subject.daemon, subject.config_and_data[1]
    if daemon.mute:
        fix = "Restart the node; nothing is lost"
        yield error("daemon.mute", "The daemon does not answer", daemon.mute, fix)
    elif daemon.status is None:
        fix = "Start it: `swarmd run --config FILE`, or `systemctl start` and its unit"
        yield note("daemon.down", "The node does not run", f"nobody listens on {data.control}", fix)
        peer = read_peer_id(subject)
        if pids := find_leftovers(node_tag(peer, data.root)) if peer else []:
            listed = " ".join(map(str, pids))
            fix = f"The next start ends them; or `kill -9 {listed}`"
            title = "Processes of an earlier run are still there"
            yield warning("leftovers.alive", title, f"processes {listed}", fix)
    else:
        yield from _examine_status(daemon.status)


def _examine_status(status: Status) -> Iterator[Finding]:
    for name, layer in status.layers.items():
        if not layer.healthy:
            evidence = f"{name}: {layer.state}: {layer.reason or 'no reason given'}"
            fix = "`swarmd status` shows all layers; a layer that only starts is well in a minute"
            fix = advise_on_flat_cause(layer.cause) if isinstance(layer, LearningStatus) and layer.cause else fix
            yield warning("daemon.unwell", "A layer of the node is not well", evidence, fix)
    if status.process.version not in ("", __version__):
        evidence = f"it runs {status.process.version}, {__version__} is installed"
        title = "The daemon runs another version than is installed"
        yield warning("daemon.version", title, evidence, "Restart the node")
    place = f"round {status.round.round}" if status.round.round >= 0 else status.round.state
    yield ok_finding(f"process {status.process.pid}, all layers are well, {place}")


def check_unit(subject: Subject) -> Iterator[Finding]:
    """Whether the systemd units that run this configuration are as this version of swarmd would install them."""
    assert subject.path is not None
    names = []
    for place in list_services_running(subject.path):
        names.append(place.unit)
        try:
            files = outdated_files(place, subject.config)
        except UnitError as failure:
            fix = "Try again as root"
            yield note("unit.unread", "The service could not be compared", f"{place.unit}: {failure.message}", fix)
            continue
        if files:
            evidence = f"{place.unit}: {', '.join(map(str, files))}"
            fix = "`swarmd service install --dry-run` prints the difference; changes of your own belong into a drop-in"
            yield warning("unit.drift", "The service is not what this swarmd would install", evidence, fix)
    yield ok_finding(f"{', '.join(names) or 'no unit of systemd'} runs this configuration")

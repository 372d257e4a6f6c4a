"""The configuration file: is it valid, who may change it, and are the secrets that it names in safe places?"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from swarmd.config import Config, SenderKind, SwarmConfig
from swarmd.config_checks import check_notify
from swarmd.core.state import State
from swarmd.daemon.notes import refuse_moved
from swarmd.daemon.swarm_check import compare, swarm_of_config, swarm_of_manifest, swarm_of_state
from swarmd.daemon.upgrade import refuse_start
from swarmd.dht.addresses import check_addresses
from swarmd.doctor.finding import Finding, FindingKind, well
from swarmd.doctor.subject import Subject
from swarmd.doctor.waiting import in_thread
from swarmd.errors import OtherSwarm, SwarmdError
from swarmd.http_server import PAGE_PORT, is_loopback, parse_listen
from swarmd.manifest import Manifest, ManifestRecipe, read_manifest, recipe_of
from swarmd.observe.logging.secret_locations import secret_locations, secret_values
from swarmd.paths import NodeDirectory, quoted
from swarmd.results.hub import check_repo
from swarmd.secret_files import CREDENTIAL
from swarmd.settings import settings_of
from swarmd.swarms.questions_file import check_questions
from swarmd.swarms.registry import check_kind
from swarmd.training.models.source import AUTO, locate_configured

SWARM_KEYS = frozenset(SwarmConfig.__struct_fields__)

CONFIG_ABSENT = FindingKind(
    "config.absent",
    "note",
    "No configuration was examined",
    "Only the machine was looked at.",
    "Name a node: `swarmd doctor DIR`, or `--config FILE`. `swarmd init` makes one",
)
CONFIG_WRONG = FindingKind(
    "config.wrong",
    "error",
    "The configuration cannot be used",
    "The node ends with code 66 or 78 at its start: an unknown key, a wrong value, an address that is none, a kind of "
    "swarm or a model that is not there.",
    "Correct the key that the evidence names; configs/reference.toml explains each",
)
CONFIG_WRITABLE = FindingKind(
    "config.writable",
    "warning",
    "Others may change the configuration",
    "Whoever can write to it decides what the node runs, and with whose account.",
    "Run `chmod go-w` on the file",
)
CONFIG_SECRET = FindingKind(
    "config.secret",
    "warning",
    "A secret stands in a file that others may read",
    "A key in a URL can be used by everybody who sees it.",
    "Run `chmod 600` on the file, or put the URLs into a private file and name it as file:PATH",
)
CONFIG_SECRET_PLAIN = FindingKind(
    "config.plain",
    "note",
    "A secret stands in the configuration itself",
    "It goes wherever the file is copied to.",
    "Put it into a private file of its own and name that as file:PATH",
)
WEB_OPEN = FindingKind(
    "config.web",
    "error",
    "The node's page would be open to other machines",
    "It listens on an address that others reach, and has no token.",
    "Set web.listen to 127.0.0.1 and use a tunnel (`ssh -L 8800:127.0.0.1:8800 HOST`), or set web.token",
)
SECRET_MISSING = FindingKind(
    "secrets.missing",
    "error",
    "A file with a secret is missing",
    "What needs it fails: a push, a signer, the account's key.",
    "Make the file, mode 0600, or take the key out of the configuration",
)
SECRET_MODE = FindingKind(
    "secrets.mode",
    "error",
    "Others may read a secret",
    "swarmd refuses to use it.",
    "Run `chmod 600` on the file, and change the secret if others can have read it",
)
SECRET_OWNER = FindingKind(
    "secrets.owner",
    "error",
    "A file with a secret belongs to another user",
    "The node cannot read it.",
    "Run the node as that user, or give the file away with `chown`",
)
SECRET_CREDENTIAL = FindingKind(
    "secrets.credential",
    "note",
    "A secret comes from the service manager",
    "Only a start by systemd has it; it cannot be examined here.",
    "See that the unit has `LoadCredential=` for it",
)
DATA_MODE = FindingKind(
    "directory.mode",
    "warning",
    "Others may look into the data directory",
    "They can read the log and what the node trained. Keys in it have a mode of their own.",
    "Run `chmod 700` on it",
)
DATA_OWNER = FindingKind(
    "directory.owner",
    "error",
    "The data directory belongs to another user",
    "This user cannot run the node there.",
    "Run swarmd as that user, or give the directory away with `chown -R`",
)
DATA_CLOSED = FindingKind(
    "directory.closed",
    "error",
    "The node was moved away from here",
    "A move or `swarmd service install` closed the directory: a start here ends with code 79, for the node would run "
    "twice.",
    "Run it where it went; the finding says when and where to",
)
DATA_UNFIT = FindingKind(
    "directory.unfit",
    "error",
    "The node would refuse to start in this data directory",
    "A newer swarmd wrote it, a restore into it was cut off, its log is gone, or layout.json cannot be read: a start "
    "ends with code 65.",
)
DATA_OTHER = FindingKind(
    "directory.swarm",
    "error",
    "The data directory is another swarm's",
    "The node refuses to start (code 78): in one log, rounds of two swarms would be taken for each other's.",
    "Use another directory: `swarmd join MANIFEST --dir NEW --identity OLD/identity.key` keeps the identity",
)
DATA_RECIPE = FindingKind(
    "directory.recipe",
    "warning",
    "The configuration is not the manifest's",
    "Nodes that go by the manifest train something else, or refuse this node's rollouts.",
    "Set the keys to what the manifest says, or make a swarm of its own for another recipe; where the creator has "
    "handed out a newer manifest, put it in the place of the old one",
)
DATA_AVERAGING = FindingKind(
    "directory.averaging",
    "note",
    "The swarm's nodes average their weights, this one does not",
    "It learns from others' rollouts alone, and others learn from its weights only where it offers them.",
    "Set training.average_weights_every as the manifest has it, and training.weights_from to whom you trust with the "
    "model; or leave it so",
)
DATA_BOOTNODES = FindingKind(
    "directory.bootnodes",
    "warning",
    "The manifest does not have the address that this node announces",
    "Who joins dials the addresses of the manifest, and hears of others only from whom it reaches there.",
    "Run `swarmd swarm add-bootnode` with the address, and hand the manifest out anew",
)
DATA_NEW = FindingKind(
    "directory.new",
    "note",
    "The data directory is not there yet",
    "The first start makes it. If the node ran before, the path is wrong or a disk is not mounted.",
    "If it ran before, correct `data` or mount the disk before the start",
)


async def check_config(subject: Subject) -> list[Finding]:
    """As `swarmd config check`, and who may read and change the file."""
    if subject.path is None:
        return [CONFIG_ABSENT.found("no configuration was named, and there is no config.toml here")]
    if subject.fault is not None:
        return [CONFIG_WRONG.found(subject.fault.message, subject.fault.fix)]
    return await in_thread(lambda: list(_examine_config(subject)))


def _examine_config(subject: Subject) -> Iterator[Finding]:
    (config, data), path = subject.whole, subject.path
    assert path is not None
    try:
        check_addresses(config)
        kind = check_kind(config.swarm)
        check_notify(config.notify)
        if config.results.hub.repo:
            check_repo(config.results.hub.repo)
        if config.training.model != AUTO:
            locate_configured(config.training)
        check_questions(config.swarm, config.training, data.root)
    except SwarmdError as error:
        yield CONFIG_WRONG.found(error.message, error.fix)
        return
    found = [*_examine_mode(subject, path, config), *_examine_web(config)]
    yield from found
    if not any(finding.severity != "note" for finding in found):
        yield well("config", "Configuration", f"{path}: valid, {config.role} of {config.swarm.id}, kind {kind.name}")


def _examine_mode(subject: Subject, path: Path, config: Config) -> Iterator[Finding]:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o022:
        yield CONFIG_WRITABLE.found(f"{path} has mode {mode:04o}", f"Run `chmod go-w {quoted(path)}`")
    for key, shown in secret_values(config):
        evidence = f"{key} in {path} has more than {shown}"
        if mode & 0o077:
            close = f"Run `chmod 600 {quoted(path)}`, or put" if path.stat().st_uid == subject.user else "Put"
            fix = f"{close} the value into a private file and name it as file:PATH"
            yield CONFIG_SECRET.found(f"{evidence}, and the file has mode {mode:04o}", fix)
        else:
            yield CONFIG_SECRET_PLAIN.found(evidence)


def _examine_web(config: Config) -> Iterator[Finding]:
    if not config.web.listen:
        return
    try:
        host = parse_listen(config.web.listen, PAGE_PORT, "web.listen").host
    except SwarmdError as error:
        yield CONFIG_WRONG.found(error.message, error.fix)
        return
    if not is_loopback(host) and not config.web.token:
        yield WEB_OPEN.found(f'web.listen is "{config.web.listen}", and web.token is empty')


def named_secrets(config: Config) -> list[tuple[str, str]]:
    """(key, file or credential) of every secret that the configuration names and this node uses.

    Of the identity, which the first start may make, another check tells.
    """
    of_account = ("chain.passphrase", "chain.keystore")
    spare: dict[SenderKind, tuple[str, ...]] = {
        "wallet": ("chain.proxy.token",),
        "proxy": of_account,
        "none": ("chain.proxy.token", *of_account),
    }
    unused = ("dht.identity", *spare[config.chain.sender if config.chain is not None else "none"])
    return [(place.key, place.named) for place in secret_locations(config) if place.key not in unused]


async def check_secrets(subject: Subject) -> list[Finding]:
    """Is every file with a secret there, and private?"""
    config, data = subject.whole
    named = named_secrets(config)
    credentials = [key for key, place in named if place.startswith(CREDENTIAL)]
    found = [SECRET_CREDENTIAL.found(f"{', '.join(credentials)}")] if credentials else []
    for key, place in named:
        if not place.startswith(CREDENTIAL):
            found += await in_thread(lambda: list(_examine_secret(key, data.root / place, subject)))  # noqa: B023
    files = ", ".join(key for key, place in named if not place.startswith(CREDENTIAL)) or "none"
    return found or [well("secrets", "Files with secrets", f"named by the configuration: {files}")]


def _examine_secret(key: str, path: Path, subject: Subject) -> Iterator[Finding]:
    try:
        status = path.lstat()
    except OSError:
        fix = f"Make {path} with mode 0600, or correct {key}"
        yield SECRET_MISSING.found(f"{key} names {path}, which is not there", fix)
        return
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        yield SECRET_MISSING.found(f"{key} names {path}, which is no regular file", "Name the file itself")
    elif mode & 0o077:
        yield SECRET_MODE.found(f"{path}, which {key} names, has mode {mode:04o}", f"Run `chmod 600 {quoted(path)}`")
    elif status.st_uid != subject.user:
        yield SECRET_OWNER.found(
            f"{path}, which {key} names, belongs to user {status.st_uid}, the node runs as {subject.user}",
            f"Run `chown {subject.user} {quoted(path)}`",
        )


async def check_data(subject: Subject) -> list[Finding]:
    """The data directory itself, and whose it is."""
    try:
        state = await subject.state()
    except SwarmdError:
        state = None  # the check of the log says so
    return await in_thread(lambda: list(_examine_data(subject, state)))


def _examine_swarm(subject: Subject, state: State | None) -> Iterator[Finding]:
    """Log, configuration and manifest must be of one swarm."""
    config, data = subject.whole
    try:
        compare(data, swarm_of_state(state) if state else None, swarm_of_config(config))
    except OtherSwarm as error:
        yield DATA_OTHER.found(error.message, error.fix)
    # `swarmd swarm new` and `swarmd join` leave it beside the configuration
    path = NodeDirectory(subject.path.parent).manifest if subject.path else data.manifest
    try:
        manifest = read_manifest(path) if path.is_file() else None
        others = keys_apart(config, manifest) if manifest else ()
    except SwarmdError as error:
        yield DATA_RECIPE.found(f"{path} cannot be compared: {error.message}", error.fix)
        return
    if others:
        yield DATA_RECIPE.found(f"{subject.path} and {path} differ in {', '.join(others)}")
    if manifest is not None:
        yield from _examine_bootnodes(config, manifest, path)
    if manifest is not None and manifest.average_weights_every:
        yield from _examine_averaging(config, manifest.average_weights_every)


def _examine_bootnodes(config: Config, manifest: Manifest, path: Path) -> Iterator[Finding]:
    """Where the first node is announced under an address that it did not have when the manifest was made."""
    if config.role != "coordinator" or manifest.chain is not None:  # a contract has bootnodes of its own
        return
    announced = [f"{address.partition('/p2p/')[0]}/p2p/{manifest.creator}" for address in config.dht.announce]
    if announced and not set(announced) & set(manifest.bootnodes):
        fix = f"`swarmd swarm add-bootnode {quoted(path)} {announced[0]}`, and hand the manifest out anew"
        yield DATA_BOOTNODES.found(f"dht.announce has {config.dht.announce[0]}, {path} other addresses", fix)


def _examine_averaging(config: Config, every: int) -> Iterator[Finding]:
    own = config.training.average_weights_every
    if not own:
        yield DATA_AVERAGING.found(f"every {every} rounds by the manifest, never by training.average_weights_every")
    elif not settings_of(config, config.dht.peer).average_rounds:
        yield DATA_AVERAGING.found(
            f"training.average_weights_every is {own}, but a node in several processes, with vLLM or without held-out "
            "questions takes no weights"
        )


def keys_apart(config: Config, manifest: Manifest) -> tuple[str, ...]:
    """Keys in which a node's configuration is not as its swarm's manifest says. Raises ManifestError."""
    own, shared = recipe_of(config), manifest.recipe
    apart = [
        name
        for name in ManifestRecipe.__struct_fields__
        if name != "digest" and getattr(own, name) != getattr(shared, name)
    ]
    named = tuple(f"swarm.{name}" if name in SWARM_KEYS else f"training.{name}" for name in apart if name != "options")
    keys = sorted(own.options.keys() | shared.options.keys())
    named += tuple(f"swarm.options.{key}" for key in keys if own.options.get(key) != shared.options.get(key))
    if config.swarm.id != manifest.id:
        return ("swarm.id", *named)
    return ("chain", *named) if swarm_of_config(config).contract != swarm_of_manifest(manifest).contract else named


def _examine_data(subject: Subject, state: State | None) -> Iterator[Finding]:
    root = subject.whole[1].root
    if not root.is_dir():
        yield DATA_NEW.found(f"{root} is not there")
        return
    status = root.stat()
    mode = stat.S_IMODE(status.st_mode)
    others = list(_examine_swarm(subject, state))
    yield from others
    bad = any(finding.severity != "note" for finding in others)
    try:
        refuse_moved(subject.whole[1])
    except SwarmdError as error:
        bad = True
        yield DATA_CLOSED.found(error.message, error.fix)
    try:
        refuse_start(subject.whole[1])
    except SwarmdError as error:
        bad = True
        yield DATA_UNFIT.found(error.message, error.fix)
    if mode & 0o077:
        bad = True
        yield DATA_MODE.found(f"{root} has mode {mode:04o}", f"Run `chmod 700 {quoted(root)}`")
    if status.st_uid != subject.user:
        bad = True
        yield DATA_OWNER.found(f"{root} belongs to user {status.st_uid}, this is {subject.user}")
    if not bad:
        yield well("directory", "Data directory", f"{root}, user {status.st_uid}, mode {mode:04o}")

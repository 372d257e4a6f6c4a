"""Shared by several commands: options, finding a node, passphrases, and JSON output.

- All commands find a node by one rule: in DIR, else in `.` if it has a config.toml, else in ./data.
- A passphrase comes from a terminal, without echo, or from a file, never from the command line.
"""

import difflib
import getpass
import inspect
import json
import locale
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from swarmd.config import NUMBER_MAX, FeesConfig, load_config
from swarmd.daemon.directory import check_layout
from swarmd.dht.identity.backup import write_backup_note
from swarmd.dht.wire.addresses import check_dialable, is_multiaddr, suggest_address
from swarmd.errors import ConfigError, IdentityDamaged, IdentityError, NeverStarted, NotFoundError, PathUnusable
from swarmd.eventlog.segment import find_segment_directory
from swarmd.file_kind import describe_file
from swarmd.paths import CONFIG, NodeDirectory, quote_for_shell
from swarmd.secret_files import Secret, SecretKind, read_secret


def print_json(value: Any) -> None:
    typer.echo(encode_json(value))


def encode_json(value: Any) -> bytes:
    """A value made of Structs as indented JSON. Bytes of a path that are not UTF-8 are replaced by U+FFFD."""
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:  # Python represents such bytes as lone surrogates
        text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False)
        encoded = msgspec.json.encode(json.loads(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")))
    return msgspec.json.format(encoded, indent=2)


PASSPHRASE = SecretKind("passphrase file", IdentityError, 4096, "Write the passphrase into it, one line, mode 0600")


def read_passphrase(file: Path | None, prompt: str, twice: bool = False) -> str:
    """Read the passphrase from `file`, or ask for it; `twice` if a typo would lock something up. Raises IdentityError
    if the file is missing, not private or not one line of text, without a terminal, or if the two answers differ."""
    if file is not None:
        return _read_passphrase_file(file)
    if not sys.stdin.isatty():
        raise IdentityError("there is no terminal to ask for the passphrase at", "Give --passphrase-file FILE")
    passphrase = ask_hidden(prompt)
    if twice and ask_hidden("Once more") != passphrase:
        raise IdentityError("the two passphrases differ", "Try again")
    return passphrase


def ask_hidden(prompt: str) -> str:
    """Ask at the terminal without echo. Raises IdentityDamaged if the input is not valid text."""
    try:
        answer = getpass.getpass(f"{prompt}: ")
        answer.encode("utf-8")  # Python accepts undecodable bytes as surrogates
    except UnicodeError:
        encoding = locale.getencoding()
        fix = f"Set the terminal to {encoding}, as LC_ALL or LANG says, or give it in a file"
        raise IdentityDamaged(f"what was typed is not text in {encoding}", fix) from None
    return answer


def _read_passphrase_file(path: Path) -> str:
    """Read the one line of a private file, without its line end. A pipe as in `<(...)` is fine."""
    if path.is_fifo():
        with path.open("rb") as pipe:
            return _parse_single_line(pipe.read(PASSPHRASE.bytes_max), path)
    # Mounted secrets, and /dev/stdin, are links.
    return _parse_single_line(read_secret(Secret(path.resolve()), PASSPHRASE), path)


_ONE_LINE = "Write the passphrase into it, and nothing else"


def _parse_single_line(raw: bytes, path: Path) -> str:
    try:
        line = raw.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise IdentityDamaged(f"the passphrase file {path} is not UTF-8 text", _ONE_LINE) from error
    if not line or "\n" in line:
        held = "is empty, not one line of text" if not raw.strip() else "does not hold one line of text"
        raise IdentityDamaged(f"the passphrase file {path} {held}", _ONE_LINE)
    return line


DEFAULT = Path("data")
RULE = "The node's directory; default: ., if it has a config.toml, or ./data."


class LocatedNode(NamedTuple):
    """A node's configuration file, if known, and its data directory."""

    config: Path | None
    data: Path

    @property
    def exists(self) -> bool:
        """Whether there is a node, or any file of one."""
        return self.config is not None or holds_log(self.data) or NodeDirectory(self.data).identity.exists()

    @property
    def start_command(self) -> str:
        if self.config is None:
            return f"swarmd run --config FILE --data {quote_for_shell(self.data)}"
        if self.config.name != CONFIG:
            return f"swarmd run --config {quote_for_shell(self.config)}"
        return f"swarmd run {quote_for_shell(self.config.parent)}"


def locate_node(directory: Path | None, config: Path | None = None) -> LocatedNode:
    """Find a node, which need not exist.

    A directory may be a node's, with its config.toml, or only its data directory. If both a directory and a
    configuration are given, the directory overrides the data directory named there: a service has them in different
    places.

    Raises:
        NotFoundError, ConfigError: the configuration is missing or invalid.
    """
    if config is not None:
        named = config.parent / load_config(config).data
        return LocatedNode(config, directory or named)
    place = resolve_directory(directory)
    own = place / CONFIG
    if not own.is_file():
        return LocatedNode(None, place)
    return LocatedNode(own, place if holds_log(place) else place / load_config(own).data)


def resolve_directory(directory: Path | None) -> Path:
    """The given directory, or the default one by the rule above."""
    return directory or (Path() if (Path() / CONFIG).is_file() else DEFAULT)


def check_event_range(first: int, last: int | None) -> int:
    """Check a range of events, and return the first. Raises ConfigError if `last` comes before it."""
    if last is not None and last < first:
        raise ConfigError(f"--to {last} comes before --from {first}", f"Write --from {last} --to {first}")
    return first


def holds_log(place: Path) -> bool:
    """Whether it is itself a data directory, as a restored one is, whatever its configuration says."""
    return NodeDirectory(place).events.is_dir()


def find_log_directory(directory: Path | None, config: Path | None = None) -> Path:
    """The directory of a node's log segments.

    Raises NeverStarted, NotFoundError, OtherVersion, LogDamaged, and ConfigError as `locate_node`.
    """
    return find_log_of_node(locate_node(directory, config), directory is None and config is None)


def find_log_of_node(node: LocatedNode, unnamed: bool = False) -> Path:
    """Like `find_log_directory`, for a located node; `unnamed`: no directory was given."""
    try:
        segments = find_segment_directory(node.data)
    except NotFoundError:
        require_node(node, unnamed)
        if NodeDirectory(node.data).checkpoints.is_dir():
            raise NotFoundError(
                f"the log of the node in {node.data} is gone: it has trained, and has no segments in events/",
                f"Put them back from a copy or a backup; without them `{node.start_command}` begins a new log",
            ) from None
        raise NeverStarted(
            f"the node in {node.data} has no log: it was made and never started, or is just starting",
            f"Start it: `{node.start_command}`; if you have, try again in a few seconds",
        ) from None
    check_layout(NodeDirectory(node.data))
    return segments


def node_directories(directory: Path) -> list[Path]:
    """The directory itself, or the node directories in it, as made by `swarmd local`. Raises NotFoundError."""
    if directory.is_dir() and not holds_log(directory) and not (directory / CONFIG).is_file():
        inner = sorted(place for place in directory.iterdir() if holds_log(place))
        if inner:
            return inner
    log = find_log_directory(directory)
    return [directory if log == directory else log.parent]


def require_node(node: LocatedNode, unnamed: bool = False) -> None:
    """Raise NotFoundError if there is no node."""
    if not node.exists:
        here, there = (
            f"here: neither a {CONFIG} nor ./{DEFAULT} with a log",
            f"in {node.data}: neither a log nor a {CONFIG}",
        )
        raise no_node_error(Path() if unnamed else node.data, f"there is no node {here if unnamed else there}")


def no_node_error(place: Path, lack: str) -> NotFoundError:
    """The error for a path without a node; `lack` says what is missing if it is a directory."""
    fix = f"Name the directory of a node, which has a {CONFIG} or a log; `swarmd init` makes a node"
    if str(place).startswith(("http:/", "https:/")):
        return NotFoundError(f"{place} is a URL, and a node is a directory", "Name a directory of this machine")
    if place.is_file():
        what, use = describe_file(place)
        return NotFoundError(f"{place} is {what}, not a node's directory", use or fix)
    if not place.exists():
        lack = f"there is no node in {place}: it does not exist"
    # the first node in a directory of several, as made by `swarmd local`
    inner = next((path.parent for path in sorted(place.glob(f"*/{CONFIG}"))), None)
    near = inner or find_similar_node(place)
    return NotFoundError(lack, f"Did you mean {near}?" if near else fix)


def find_similar_node(place: Path) -> Path | None:
    names = [path.parent.name for path in place.parent.glob(f"*/{CONFIG}")]
    near = difflib.get_close_matches(place.name, names, n=1)
    return place.parent / near[0] if near else None


def config_of_node(directory: Path | None, config: Path | None = None) -> Path:
    """The configuration file of a node. Raises NotFoundError if there is none."""
    place = resolve_directory(directory)
    if config is None and not (place / CONFIG).is_file():
        where = f"{place}" if directory is not None else f"the present directory, nor in ./{DEFAULT}"
        raise no_node_error(Path() if directory is None else place, f"there is no {CONFIG} in {where}")
    return config or place / CONFIG


NodeDir = Annotated[Path | None, typer.Argument(metavar="[DIR]", help=RULE)]
LogDir = Annotated[Path | None, typer.Argument(metavar="[DIR]", help=f"{RULE} Or a copy, or its events.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="The node's configuration file.")
]
DataDir = Annotated[Path | None, typer.Option(metavar="DIR", help="Data directory, instead of the configuration's.")]
PrintJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
KeyPassphraseFile = Annotated[
    Path | None,
    typer.Option("--passphrase-file", metavar="FILE", help="Private file with the passphrase; else asked for."),
]
BackupPassphraseFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Private file with the passphrase; else asked for.")
]
ListenAt = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 for any.")]
RequestToken = Annotated[
    str, typer.Option(metavar="FILE", help="File with the required bearer token, or credential:NAME.")
]


MAX_GWEI = FeesConfig().max_gwei

ManifestFile = Annotated[Path, typer.Argument(metavar="MANIFEST", help="The swarm's manifest.")]
Announce = Annotated[list[str] | None, typer.Option(metavar="ADDRESS", help="This node's public address.")]
Endpoints = Annotated[
    list[str] | None,
    typer.Option(metavar="URL", help="Chain endpoint, best first, or file:PATH."),
]
Account = Annotated[Path | None, typer.Option(metavar="KEYSTORE", help="The paying account; default: the node's.")]
PassphraseFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Its passphrase; default: *.pass beside it.")]
MaxGwei = Annotated[float, typer.Option(help="Highest gas price; required without a base fee.")]


class PayerOptions(NamedTuple):
    """How to reach the chain, and the account that pays."""

    rpc: tuple[str, ...]  # URLs
    account: Path | None
    passphrase: Path | None
    fees: FeesConfig


def read_payer_options(
    rpc: list[str] | None, account: Path | None, passphrase: Path | None, max_gwei: float
) -> PayerOptions:
    """Collect a payer's options, reading URLs from files. Raises ConfigError for a wrong URL or price."""
    from swarmd.chain.endpoints import read_endpoint_urls

    if not 0 < max_gwei <= NUMBER_MAX:
        raise ConfigError(f"--max-gwei {max_gwei:g} is not a price", f"Give a number above 0, such as {MAX_GWEI:g}")
    # On a chain without a base fee an endpoint may demand the whole bound, so it must have been given explicitly.
    fees = FeesConfig(max_gwei=max_gwei, legacy=max_gwei != MAX_GWEI)
    return PayerOptions(tuple(read_endpoint_urls(rpc, Path())) if rpc else (), account, passphrase, fees)


def add_payer_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a payer to a command, which gets them as `paid_by`."""

    def command(
        rpc: Endpoints = None,
        account: Account = None,
        passphrase_file: PassphraseFile = None,
        max_gwei: MaxGwei = MAX_GWEI,
        **given: Any,
    ) -> None:
        verb(**given, paid_by=read_payer_options(rpc, account, passphrase_file, max_gwei))

    shown = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for function in (verb, command)
        for parameter in inspect.signature(function, eval_str=True).parameters.values()
        if parameter.name not in ("paid_by", "given")
    ]
    command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    command.__annotations__ = {}
    command.__doc__ = verb.__doc__
    return command


# --- checks and messages ---


def refuse_existing(path: Path, what: str) -> None:
    """Raise PathUnusable early if the path exists; writing would refuse it, too."""
    if path.exists() or path.is_symlink():
        raise PathUnusable(f"{path} exists already", f"Move it away first: {what} is never overwritten")


def record_backup(key: Path, peer: str, made_at: float, out: Path) -> None:
    """Record a backup of a key for `swarmd doctor`; warn if that fails."""
    try:
        write_backup_note(key, peer, made_at, out)
    except OSError as error:
        warn(f"`swarmd doctor` will not know of this backup: {error.filename}: {error.strerror}")


def warn(line: str) -> None:
    typer.echo(f"warning: {line}", err=True)


def utc(at: float, clock: str = "%H:%M") -> str:
    """Format POSIX seconds as UTC date and time."""
    return time.strftime(f"%Y-%m-%d {clock} UTC", time.gmtime(at))


def check_multiaddrs(listen: Sequence[str], announce: Sequence[str]) -> None:
    """Raise ConfigError for an address that is not a multiaddr, or that cannot be dialled."""
    for address in (*listen, *announce):
        if not is_multiaddr(address):
            raise ConfigError(f"{address!r} is not an address", suggest_address(address))
    check_dialable("--announce", announce)


def check_address(contract: str) -> None:
    """Raise ConfigError for an invalid contract address."""
    if not re.fullmatch(r"0x[0-9a-fA-F]{40}", contract):
        raise ConfigError(f"--contract: {contract!r} is not an address", "Write it as 0x and 40 hex digits")

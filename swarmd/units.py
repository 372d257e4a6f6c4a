"""A node as a systemd service: installs the shipped units, and moves the node's data to where the service expects them.

- The units are files of this repository: `swarmd.service`, `swarmd@.service`, and those in `configs/systemd`. An
  installed copy differs only in the path of swarmd; for a user's service manager it lacks settings that need root.
- Settings of a single node are in one drop-in, `10-swarmd.conf`, made from the configuration.
- A replaced file is kept beside the new one as `NAME.DATE.kept`.
- Data are copied completely or not at all, and the old directory is closed: a node cannot be started in two places.
"""

import contextlib
import grp
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

import swarmd
from swarmd.config import Config, iterate_values
from swarmd.daemon.directory import MoveNote, refuse_moved, refuse_other_swarm, swarm_of_config, write_note
from swarmd.errors import SwarmdError, SwarmMismatch, UnitError
from swarmd.eventlog.store import acquire_writer_lock
from swarmd.files import advise_on_path_error, describe_copy_error, write_durably
from swarmd.installed import detect_install_tool
from swarmd.observe.redaction import list_secret_urls
from swarmd.paths import NodeDirectory, configs_directory
from swarmd.secret_files import CREDENTIAL
from swarmd.swarms.registry import needs_sandbox

INSTANCE = re.compile(r"[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?")  # with "swarmd-" before it, the name of a user
SHIPPED_COMMAND = "/opt/swarmd/bin/swarmd"
DROP_IN = "10-swarmd.conf"
HEAD = "# Written by `swarmd service install`; put changes of your own into another drop-in (`systemctl edit`).\n"
DEVICES = ("nvidiactl", "nvidia[0-9]*", "nvidia-uvm", "kfd", "dri/renderD*")  # accelerators, below /dev
HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # empty under ProtectHome=yes, PrivateTmp=yes
PLAIN_PATH = re.compile(r"[A-Za-z0-9._/@+-]+")  # other characters have a meaning in units
INSTALL_FIX = (
    "Install swarmd outside home directories, with the system's Python: `sudo sh install.sh --wheel swarmd-*.whl` "
    "(docs/OPERATING.md, Install), then `sudo /opt/swarmd/bin/swarmd service install`; or have a service of your own: "
    "`swarmd service install --user`"
)
# Comments, and settings that a user's service manager cannot apply.
ROOT_ONLY = re.compile(
    r"^(#|Environment=HOME|(Wants|After|DynamicUser|User|\w+Directory|\w+DirectoryMode|OOMScoreAdjust|LogRateLimit\w+|"
    r"CapabilityBoundingSet|AmbientCapabilities|ProtectSystem|ProtectHome|ProtectControlGroups|ProtectHostname|"
    r"ProtectKernel\w+|ProtectProc|PrivateTmp|PrivateIPC|RemoveIPC)=).*\n",
    re.M,
)
USER_PATHS = {
    "/etc/": "%E/",
    "/var/lib/": "%h/.local/share/",
    "/var/cache/": "%C/",
    "multi-user.target": "default.target",
}


class ServicePaths(msgspec.Struct, frozen=True):
    """The files of a service. `instance` is empty for the single node of `swarmd.service`."""

    instance: str = ""
    user: bool = False
    units: Path = Path("/etc/systemd/system")
    etc: Path = Path("/etc/swarmd")
    dev: Path = Path("/dev")
    state: Path = Path("/var/lib")

    @property
    def unit(self) -> str:
        return f"swarmd@{self.instance}.service" if self.instance else "swarmd.service"

    @property
    def templates(self) -> tuple[str, str]:
        """Names of the node's unit and of the unit that reports its failure."""
        at = "@" if self.instance else ""
        return f"swarmd{at}.service", f"swarmd-failure{at}.service"

    @property
    def drop_ins(self) -> tuple[Path, Path]:
        """Paths of this node's drop-ins for both units."""
        names = (name.replace("@", f"@{self.instance}") for name in self.templates)
        node, failure = (self.units / f"{name}.d" / DROP_IN for name in names)
        return node, failure

    @property
    def config(self) -> Path:
        return self.etc / f"{self.instance or 'node'}.toml"

    @property
    def data(self) -> Path:
        """The data directory. With DynamicUser= systemd keeps it below `private`."""
        named = self.state / f"swarmd{'-' * bool(self.instance)}{self.instance}"
        return named.resolve() if self.user or named.exists() else self.state / "private" / named.name

    @property
    def credentials(self) -> Path:
        """The directory of secrets, one file each, which only root may read."""
        return self.etc / "credentials"


def find_service_paths(instance: str = "", user: bool = False, home: Path | None = None) -> ServicePaths:
    """The standard paths. Raises UnitError for an invalid instance name, or a user without a home."""
    if instance and not INSTANCE.fullmatch(instance):
        raise UnitError(
            f"{instance!r} cannot name an instance", "Use 1 to 24 small letters, digits and hyphens between them"
        )
    if not user:
        return ServicePaths(instance)
    try:
        own = home or Path.home()
    except RuntimeError as error:
        raise UnitError("a user's service lies in the home directory, and this user has none", "Set HOME") from error
    return ServicePaths(
        instance, True, own / ".config/systemd/user", own / ".config/swarmd", state=own / ".local/share"
    )


def find_service_of_data(data: Path) -> ServicePaths | None:
    """The configured service that has its data in `data`, if any."""
    named = re.fullmatch(rf"swarmd(?:-({INSTANCE.pattern}))?", data.resolve().name)
    for user in (False, True) if named else ():
        with contextlib.suppress(OSError, UnitError):  # not readable by this user, or a user without a home
            place = find_service_paths((named and named[1]) or "", user)
            if place.data.resolve() == data.resolve() and place.config.is_file():
                return place
    return None


def list_services_running(config: Path) -> Iterator[ServicePaths]:
    """Installed services that run this configuration."""
    for user in (False, True):
        for name in ("", config.stem) if INSTANCE.fullmatch(config.stem) else ("",):
            with contextlib.suppress(UnitError):  # this user has no home
                place = find_service_paths(name, user)
                if place.config.absolute() == config.absolute() and (place.units / place.templates[0]).exists():
                    yield place


# --- the files of a service ---


def plan_service_files(
    place: ServicePaths, command: str, config: Config | None, gpu: bool | None = None, programs: bool | None = None
) -> dict[Path, str]:
    """The text of each file of a node's service.

    Args:
        gpu: whether it needs an accelerator's devices; None: decided from configuration and machine.
        programs: whether it runs programs that models wrote; None: decided from the kind of swarm.

    Raises UnitError if a user's service would need credentials.
    """
    names = credential_names(config) if config else ()
    if names and place.user:
        raise UnitError(
            f"a user's service is passed no credentials, and the configuration asks for {', '.join(names)}",
            "Name files of mode 0600 in the data directory instead",
        )
    if gpu is None:
        device = config.training.device if config else "auto"
        gpu = device != "cpu" and (device != "auto" or bool(_accelerators(place.dev)))
    if programs is None:
        programs = config is not None and needs_sandbox(config.swarm)
    files = {
        place.units / name: _adapt_to_manager(place, _read_shipped(name))
        for name in (*place.templates, "swarmd.target")
    }
    files = {path: text.replace(SHIPPED_COMMAND, command) for path, text in files.items()}
    secrets = "".join(f"LoadCredential={name}:{place.credentials}/{name}\n" for name in names)
    secrets = f"{HEAD}[Service]\n{secrets}"
    groups = () if place.user or not gpu else device_groups(place.dev)
    parts = [secrets, f"SupplementaryGroups={' '.join(groups)}\n" if groups else ""]
    parts += [_read_shipped("cpu.conf")] if not gpu and not place.user else []
    parts += [_adapt_to_manager(place, _read_shipped("programs.conf"))] if programs else []
    return files | dict(zip(place.drop_ins, ("".join(parts), secrets), strict=True))


def outdated_files(place: ServicePaths, config: Config | None, command: str = "") -> list[Path]:
    """Files of an installed service that are missing, or that `install` would now write differently."""
    text = _read_or_empty(place.drop_ins[0])
    gpu, programs = "PrivateDevices=yes" not in text, "RestrictNamespaces=no" in text
    files = plan_service_files(place, command or find_command(user=True), config, gpu, programs)
    return [path for path, wanted in files.items() if _read_or_empty(path) != wanted]


def write_file(path: Path, text: str, mode: int = 0o644) -> str:
    """Write a file with mode 0644 or 0600; a replaced one is kept. Returns a description for the user. Raises
    UnitError."""
    there = _read_or_empty(path)
    done = "written"
    umask = os.umask(0o022 if mode == 0o644 else 0o077)
    try:
        if there == text:
            path.chmod(mode)
            return "as it should be"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        if there:
            kept = path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}.kept")
            os.link(path, kept)
            done = f"replaced; the former one is kept as {kept.name}"
        write_durably(path, text.encode())
    except OSError as error:
        raise UnitError(f"{path}: {error.strerror}", "Run as root, or install for yourself with --user") from error
    finally:
        os.umask(umask)
    return done


def config_text(place: ServicePaths, source: Path, config: Config) -> str:
    """The text of the configuration to install. Raises UnitError if it contains a secret that all users could read.

    It must be world-readable, since the unit's user exists only while the unit runs.
    """
    held = list_secret_urls(config)
    if held and not place.user:
        keys = ", ".join(f"{key} has more than {shown}" for key, shown in held)
        raise UnitError(
            f"{source} holds a secret, and {place.config} can be read by all: {keys}",
            f"chain.rpc and notify.urls take file:NAME, a file of mode 0600 in {source.parent / config.data}, or "
            "credential:NAME; another address has a token of its own beside it. See docs/SYSTEMD.md, Secrets",
        )
    return source.read_text(encoding="utf-8")


def _read_shipped(name: str) -> str:
    """Read a shipped unit or drop-in. In a checkout two of them are at the top; in a wheel all lie together."""
    configs = configs_directory()
    inside = configs / "systemd" / name
    return (inside if inside.is_file() else configs.parent / name).read_text(encoding="utf-8")


def _adapt_to_manager(place: ServicePaths, text: str) -> str:
    if not place.user:
        return text
    text = ROOT_ONLY.sub("", text)
    for system, own in USER_PATHS.items():
        text = text.replace(system, own)
    return text


def _read_or_empty(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        fix = advise_on_path_error(error, path) if isinstance(error, OSError) else "Write it in UTF-8"
        raise UnitError(f"{path} cannot be read: {error}", fix) from error


def credential_names(config: Config) -> tuple[str, ...]:
    """Names of the systemd credentials that a configuration refers to."""
    texts = (value for _, value in iterate_values(config) if isinstance(value, str) and value.startswith(CREDENTIAL))
    return tuple(dict.fromkeys(text.removeprefix(CREDENTIAL) for text in texts))


def device_groups(dev: Path) -> tuple[str, ...]:
    """Groups that may open the accelerator's devices, by name, or by number if unnamed here."""
    closed = [path.stat() for path in _accelerators(dev)]
    numbers = {status.st_gid for status in closed if not status.st_mode & stat.S_IWOTH and status.st_gid}
    names = {group.gr_gid: group.gr_name for group in grp.getgrall()}  # a container may lack the host's groups
    return tuple(sorted(names.get(number, str(number)) for number in numbers))


def _accelerators(dev: Path) -> list[Path]:
    return [path for pattern in DEVICES for path in sorted(dev.glob(pattern))]


def find_command(executable: str = sys.executable, user: bool = False) -> str:
    """The command line with which a unit starts this swarmd. Raises UnitError if a service cannot execute it."""
    interpreter = Path(executable)
    script = interpreter.with_name("swarmd")
    if not PLAIN_PATH.fullmatch(str(script)):
        raise UnitError(f"the path {script} has characters that mean something in a unit", INSTALL_FIX)
    # What a start reads: the interpreter, the target of its links, its library, swarmd itself.
    library = Path(sys.base_prefix if executable == sys.executable else interpreter.resolve())
    for path in () if user else (interpreter, interpreter.resolve(), library, Path(swarmd.__file__).resolve()):
        if hidden := explain_hidden(path):
            tool = detect_install_tool(interpreter.parent.parent)
            fix = f"{tool} installs for you alone. {INSTALL_FIX}" if tool else INSTALL_FIX
            raise UnitError(f"a service cannot run {interpreter}: {hidden}", fix)
    return str(script) if script.is_file() else f"{interpreter} -m swarmd"


def explain_hidden(path: Path) -> str:
    """Why the unit's user cannot see a file; empty if it can."""
    for hidden in HIDDEN:
        if path.is_relative_to(hidden):
            return f"{path} lies below {hidden}, which is empty for the service"
    for place in (path, *path.parents):
        try:
            mode = os.stat(place).st_mode  # noqa: PTH116
        except OSError as error:
            return f"{place}: {error.strerror}"
        if stat.S_ISDIR(mode) and not mode & stat.S_IXOTH:
            return f"{place} is closed to other users"
    return ""


# --- the node's data ---


class Transfer(msgspec.Struct, frozen=True):
    """Data of a node to move into a service."""

    config: Path
    source: NodeDirectory
    target: NodeDirectory
    there: bool  # the service has these data already


def refuse_other_log(config: Path, loaded: Config, place: ServicePaths) -> None:
    """Raise SwarmMismatch if the service's data, or the node's, belong to another swarm than the configuration."""
    for root in (place.data, config.parent / loaded.data):
        try:
            refuse_other_swarm(NodeDirectory(root), swarm_of_config(loaded))
        except SwarmMismatch:
            raise
        except (SwarmdError, OSError):
            continue  # an unreadable log is reported by the start


def find_transfer(config: Path, loaded: Config, place: ServicePaths) -> Transfer | None:
    """Plan the move of a node's data to the service's directory; None if the node has no data.

    Raises UnitError if the service has another node's data, and IdentityInUse if the node was moved away from there.
    """
    source, target = NodeDirectory((config.parent / loaded.data).resolve()), NodeDirectory(place.data)
    key = Path(loaded.dht.identity)
    try:
        if source.root == target.root or not ((source.root / key).exists() or source.events.is_dir()):
            return None
        filled = target.root.exists() and any(target.root.iterdir())
        there = filled and _read_key(source.root / key) == _read_key(target.root / key) != b""
    except OSError as error:
        raise UnitError(f"{error.filename}: {error.strerror}", "Run as root, or with --user") from error
    if filled and not there:
        raise UnitError(
            f"{target.root} is not empty, and does not have the identity of {source.root}",
            "See what lies there; another node needs another place: --instance NAME",
        )
    if not there:
        refuse_moved(source)
    return Transfer(config.resolve(), source, target, there)


def _read_key(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def copy_data(transfer: Transfer) -> None:
    """Copy the data and close the old directory. systemd later hands the copy from root to the unit's user.

    Raises UnitError if they cannot be copied, with nothing changed, and LogInUse while the node is running.
    """
    source, target = transfer.source, transfer.target.root
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    stays = {transfer.config, source.sockets, source.moved}

    def list_left_out(directory: str, names: list[str]) -> set[str]:
        """For `shutil.copytree`: skip sockets and the configuration, which is installed elsewhere."""
        paths = [Path(directory, name) for name in names]
        return {
            path.name for path in paths if path in stays or not (path.is_file() or path.is_dir() or path.is_symlink())
        }

    with contextlib.ExitStack() as stack:
        if source.events.is_dir():  # lock the log against a daemon
            stack.callback(os.close, acquire_writer_lock(source.events))
        try:
            target.parent.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            target.parent.mkdir(mode=0o700, exist_ok=True)  # systemd requires that only root may enter /var/lib/private
            shutil.copytree(source.root, unfinished, symlinks=True, ignore=list_left_out)
            unfinished.chmod(0o700)
            os.sync()
            # The note precedes the copy: at no instant can the node be started in both places.
            write_note(source.moved, MoveNote(time.time(), to=str(target)))
            try:
                unfinished.rename(target)
            except OSError:
                source.moved.unlink()
                raise
        except OSError as error:
            raise UnitError(
                f"{source.root} cannot be copied to {target}: {describe_copy_error(error)}",
                "See that there is room, and that all files there are this user's; or run as root",
            ) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

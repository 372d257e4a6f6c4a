"""`swarmd notify`: send a test message or, from a systemd unit's OnFailure=, say how the unit ended."""

import asyncio
import os
from collections.abc import Coroutine, Mapping
from typing import Annotated

import typer

from swarmd.cli.options import ConfigFile, DataDir, NodeDir, config_of_node, locate_node
from swarmd.config import load_config
from swarmd.errors import ConfigError, ExitCode, NotifyFailed

WORDS_CHARACTERS_MAX = 200  # of each value from the service manager

_RESULTS = {
    "exit-code": "it ended by itself",
    "signal": "a signal ended it",
    "core-dump": "it crashed",
    "watchdog": "it gave no sign of life",
    "timeout": "it did not start or stop in time",
    "oom-kill": "memory ran out",
    "start-limit-hit": "it failed too often to be started again",
    "resources": "the service manager could not start it",
}
_CODES = {
    ExitCode.BAD_DATA: "what it read is damaged, another node's or newer",
    ExitCode.NO_INPUT: "a named file, or the model, is missing",
    ExitCode.UNAVAILABLE: "a worker ended too often",
    ExitCode.CANNOT_CREATE: "no space is left, or something cannot be written",
    ExitCode.IO_ERROR: "a write to the event log failed",
    ExitCode.IN_USE: "another daemon holds the data directory",
    ExitCode.NO_PERMISSION: "others may read a secret, or it does not open",
    ExitCode.BAD_CONFIG: "the configuration is wrong, or asks for what this machine has not",
    ExitCode.IDENTITY_CONFLICT: "the same identity runs elsewhere",
    ExitCode.CHAIN_CONFLICT: "the chain is another one, was reset, or knows this peer under another account",
}


def notify(
    directory: NodeDir = None,
    config: ConfigFile = None,
    data: DataDir = None,
    unit: Annotated[
        str, typer.Option(help="A unit that has ended, from its OnFailure=: say how, by systemd's MONITOR_* variables.")
    ] = "",
) -> int:
    """Send a test message to everyone in the section notify; with --unit, say how the unit ended.

    Exits with 1 when a message did not get out. Where it names nobody, a test fails; with --unit all is well.
    """
    from swarmd.observe.metrics import Metrics
    from swarmd.paths import NodeDirectory
    from swarmd.web.notifications import HealthMessage, heartbeat_of, make_senders

    file = config_of_node(directory, config)
    loaded = load_config(file)
    root = data or locate_node(directory, config).data
    senders = make_senders(loaded.notify, root)
    heartbeat = heartbeat_of(loaded.notify, root, Metrics(NodeDirectory(root), loaded))
    if unit and not senders and heartbeat is None:
        typer.echo(f"{file} names no way to notify anybody, so nobody is told of {unit[:WORDS_CHARACTERS_MAX]}")
        return ExitCode.OK
    if not senders and heartbeat is None:
        fix = 'Write below [notify] for example urls = ["https://ntfy.sh/my-topic"], a command, or a heartbeat_url'
        raise ConfigError(f"{file} names no way to notify anybody", fix)
    words = f"{unit[:WORDS_CHARACTERS_MAX]} ended: {describe_unit_exit(os.environ)}" if unit else "this is a test"
    node = loaded.name or "node"
    note = HealthMessage(node, layer="process", well=not unit, text=f"{node}: {words}")
    ways = [(sender.shown, sender.send(note)) for sender in senders]
    if heartbeat is not None:
        ways.append((heartbeat.shown, heartbeat.ping(note.text if unit else "")))
    sent = asyncio.run(_send_to_all(ways))
    return ExitCode.OK if sent else ExitCode.FAILURE


async def _send_to_all(ways: list[tuple[str, Coroutine[None, None, None]]]) -> bool:
    """Send by every service, given with its display name. Returns whether all succeeded."""
    outcomes = await asyncio.gather(*(way for _, way in ways), return_exceptions=True)
    for (shown, _), outcome in zip(ways, outcomes, strict=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, NotifyFailed):
            raise outcome
        typer.echo(outcome or f"{shown}: sent", err=outcome is not None)
    if any(outcomes):
        typer.echo("fix: Correct what is named above in [notify], or see that it can be reached from here", err=True)
    return not any(outcomes)


def describe_unit_exit(environ: Mapping[str, str]) -> str:
    """Describe how a unit ended, from systemd's variables (systemd.exec(5))."""
    result = environ.get("MONITOR_SERVICE_RESULT", "")[:WORDS_CHARACTERS_MAX]
    code = environ.get("MONITOR_EXIT_CODE", "")[:WORDS_CHARACTERS_MAX]
    status = environ.get("MONITOR_EXIT_STATUS", "")[:WORDS_CHARACTERS_MAX]
    if not result:
        return "the service manager does not say how it ended"
    words = _RESULTS.get(result, result)
    if code == "exited" and status.isdigit():
        meaning = _CODES.get(int(status), "")
        return f"{words}, exit code {status}" + (f": {meaning}" if meaning else "")
    return f"{words}, by SIG{status.removeprefix('SIG')}" if code in ("killed", "dumped") and status else words

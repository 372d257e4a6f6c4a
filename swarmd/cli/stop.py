"""`swarmd stop`: stop a running node in order, at once or as soon as that costs no round."""

import math
import threading
import time
from typing import Annotated

import msgspec
import psutil
import typer

from swarmd.bounds import DECODE_ERRORS
from swarmd.cli.options import ConfigFile, NodeDir, locate_node, require_node
from swarmd.errors import ConfigError, ControlError, NoSafeMoment
from swarmd.observe.control import DaemonNotRunning, StopReply, ask_status, send_request
from swarmd.observe.words import format_duration
from swarmd.paths import NodeDirectory, quote_for_shell

ASK_EVERY_S = 0.5
WISH_S = 2.0  # how long the daemon keeps a request for a safe stop, even after Ctrl-C
SAY_EVERY_S = 15.0  # repeat the reason for waiting this often
POLL_S = 0.1
ENDED_S = 300.0  # longest wait for a stopping daemon to end
PAUSE = threading.Event()  # never set: used for waits that Ctrl-C interrupts


def stop(
    directory: NodeDir = None,
    config: ConfigFile = None,
    when_safe: Annotated[bool, typer.Option("--when-safe", help="Wait until a restart costs no round.")] = False,
    within: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="With --when-safe: if there is no such moment, leave it running."),
    ] = None,
) -> None:
    """Stop a running node in order, and wait until it has ended.

    A node that does not run is left alone. With --when-safe it stops between its own report and the next stage, with
    its checkpoint on disk and nothing on its way to a chain; Ctrl-C leaves it running. Exits with 1 if no such moment
    came within --within. `swarmd status --json` has the same judgement, as safe_to_stop.
    """
    if within is not None and not when_safe:
        raise ConfigError("--within belongs to --when-safe", "Give both, or neither: without them it stops at once")
    node = locate_node(directory, config)
    data = NodeDirectory(node.data)
    reply = ask_status(data.control)
    if not reply.is_running:
        require_node(node, directory is None and config is None)
        typer.echo(f"the node in {data.root} does not run")
        return
    if reply.status is None:
        raise ControlError(
            f"the node in {data.root} cannot be asked: {reply.mute}",
            f"Send SIGTERM to its process, which `cat {quote_for_shell(data.events)}/writer.lock` names",
        )
    if when_safe:
        wait_for_safe_moment(data, within)
    else:
        send_request(data.control, "stop")
        typer.echo("stopping in order")
    wait_until_ended(reply.status.process.pid)
    typer.echo("stopped")


def wait_until_ended(pid: int) -> None:
    """Wait until a stopping daemon has ended, at most twice `workers.stop_s`. Raises ControlError if it still runs."""
    ends = time.monotonic() + ENDED_S
    while is_running(pid):
        if time.monotonic() >= ends:
            raise ControlError(
                f"the daemon was asked to stop, and its process {pid} still runs after {ENDED_S:g} s",
                f"See why in its log, or end it with `kill -9 {pid}`: the event log survives that",
            )
        PAUSE.wait(POLL_S)


def wait_for_safe_moment(data: NodeDirectory, within_s: float | None) -> None:
    """Ask the daemon to stop as soon as that costs no round. Returns when it is stopping.

    Raises NoSafeMoment, ControlError.
    """
    begun, said_at, said = time.monotonic(), 0.0, ""
    ends = math.inf if within_s is None else begun + within_s
    while True:
        now = time.monotonic()
        try:
            reply = ask_to_stop(data, max(0.0, min(WISH_S, ends - now)))
        except DaemonNotRunning:
            return  # it has stopped since the last request
        moment = reply.safe_to_stop
        if reply.error or moment is None:
            raise ControlError(
                f"the daemon does not know of safe moments: {reply.error}",
                f"It is of an earlier version. `swarmd stop {quote_for_shell(data.root)}` stops it at once",
            )
        if reply.stopping:
            typer.echo("stopping in order, as that costs no round now")
            return
        if now >= ends:
            raise NoSafeMoment(
                f"no safe moment came within {ends - begun:g} s, and the node runs on: {moment.why}",
                f"Wait longer, or stop it at this price: `swarmd stop {quote_for_shell(data.root)}`",
            )
        if moment.why != said or now - said_at >= SAY_EVERY_S:
            left = f", about {format_duration(moment.in_s)} more" if moment.in_s is not None else ""
            typer.echo(f"waits, {format_duration(now - begun)} so far: {moment.why}{left}")
            said_at, said = now, moment.why
        PAUSE.wait(max(0.0, min(ASK_EVERY_S, ends - time.monotonic())))


def ask_to_stop(data: NodeDirectory, for_s: float) -> StopReply:
    """Ask the node to stop if that becomes safe within `for_s`. Raises ControlError."""
    try:
        return msgspec.json.decode(send_request(data.control, "stop_when_safe", for_s=for_s), type=StopReply)
    except DECODE_ERRORS as error:
        raise ControlError(f"the daemon's answer is not understood: {error}") from error


def is_running(pid: int) -> bool:
    """Whether the process still runs; a zombie does not count."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False

"""A scripted worker for tests: speaks the real frames, does nothing real, and misbehaves on demand.

Usage: fake_worker.py network|trainer MODE [once]. With "once" only the first process of a data directory misbehaves.
In the modes "clock" and "gated" a test decides what the swarm's round is and when a stage is trained: by the files
`round` and `trained-ROUND` of the data directory.
"""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import anyio

from swarmd.core import commands, events
from swarmd.core.values import RolloutsRef
from swarmd.errors import ModelError, WorkerLimitExceeded
from swarmd.worker.child import Inbox, Outbox, run_worker
from swarmd.worker.messages import PerformMessage, StartMessage, StopMessage

WORKER, MODE = (*sys.argv[1:3], "", "")[:2]  # nothing, where a test only imports this
ONCE = "once" in sys.argv[3:]
DIGEST = "0" * 64
CANARY = "hf_" + "CANARY" * 5


def misbehaves(start: StartMessage) -> bool:
    marker = Path(start.data_dir) / f"misbehaved-{WORKER}"
    if ONCE and marker.exists():
        return False
    marker.touch()
    return True


async def main(start: StartMessage, outbox: Outbox, inbox: Inbox) -> None:
    mode = MODE if misbehaves(start) else "ok"
    print(f"[INFO] fake {WORKER} worker for {start.peer[-6:]}, mode {mode}", file=sys.stderr)
    if mode == "fault":
        raise ModelError("there is no model in /nowhere", "Name another")
    if mode == "full":
        raise WorkerLimitExceeded("the worker takes 900 MiB, and may take 600")
    if mode == "crash":
        raise ValueError("a plain bug")
    ready(outbox)
    if mode == "deaf":
        threading.Event().wait()
    if mode == "garbage":
        os.write(outbox._descriptor, b"\xff" * 64)
    if mode == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "chatty":
        chatter()
    if mode == "spawn":
        child = await anyio.open_process(["sleep", "600"])
        (Path(start.data_dir) / "grandchild").write_text(str(child.pid))
    async with anyio.create_task_group() as tasks:
        if mode == "clock":
            tasks.start_soon(follow_clock, start, outbox)
        await obey(start, outbox, inbox, mode)
        tasks.cancel_scope.cancel()


async def follow_clock(start: StartMessage, outbox: Outbox) -> None:
    """Announce each round that a test writes down."""
    known = round_of(start)
    while True:
        if (round := round_of(start)) != known:
            announce(round, outbox)
            known = round
        await anyio.sleep(0.02)


def round_of(start: StartMessage) -> int:
    return int((Path(start.data_dir) / "round").read_text())


def announce(round: int, outbox: Outbox) -> None:
    outbox.report_event(events.RoundAnnounced(round, 0, time.time(), time.time() + 60, False))


async def obey(start: StartMessage, outbox: Outbox, inbox: Inbox, mode: str) -> None:
    async for message in inbox:
        if isinstance(message, StopMessage):
            if mode == "hang":
                continue
            return
        assert isinstance(message, PerformMessage)
        if mode == "gated" and isinstance(message.command, commands.Train):
            while not is_trained(start, message.command.round):
                if any(isinstance(waiting, StopMessage) for waiting in drain(inbox)):
                    return
                await anyio.sleep(0.02)
        if mode == "clock" and isinstance(message.command, commands.ReadClock):
            announce(round_of(start), outbox)
        else:
            await perform(message.command, start.peer, outbox)
        if mode == "retire" and isinstance(message.command, commands.Train):
            outbox.report_retirement("recycled")
            return


def is_trained(start: StartMessage, round: int) -> bool:
    return (Path(start.data_dir) / f"trained-{round}").exists()


def drain(inbox: Inbox) -> list[PerformMessage | StopMessage]:
    """What has come meanwhile."""
    with suppress(anyio.WouldBlock):
        return [inbox.receive_nowait()]
    return []


def ready(outbox: Outbox) -> None:
    if WORKER == "network":
        outbox.report_event(events.LinkUp(1, ("/ip4/127.0.0.1/tcp/1",)))
    else:
        outbox.report_event(events.TrainerReady("cpu", "fake", 1))


def chatter() -> None:
    print(f"token={CANARY}", file=sys.stderr)
    for _ in range(100):
        print("WARNING the same again", file=sys.stderr)
    print("x" * 10_000, file=sys.stderr)


async def perform(command: commands.Command, peer: str, outbox: Outbox) -> None:
    reference = RolloutsRef(peer, 0, 0, DIGEST, 1, 1)
    match command:
        case commands.Register():
            outbox.report_event(events.Registered(command.id))
        case commands.ReadClock():
            outbox.report_event(events.NoRoundYet())
        case commands.Announce():
            outbox.report_event(events.RoundPublished(command.id, command.round, command.stage))
            announced = events.RoundAnnounced(
                command.round, command.stage, command.opened_at, command.deadline_at, command.final
            )
            outbox.report_event(announced)
        case commands.Gather():
            outbox.report_event(events.RolloutsGathered(command.id, command.round, command.stage))
        case commands.PublishReport():
            outbox.report_event(events.ReportPublished(command.id, command.round, command.stage))
            outbox.report_event(events.ReportSeen(peer, command.round, command.stage, command.reward, DIGEST, b"r"))
        case commands.PublishLeaderboard():
            outbox.report_event(events.LeaderboardPublished(command.id, command.round))
        case commands.Train() if MODE == "busy":  # and never done
            outbox.report_progress("training", 1, 20, figures={"tokens_per_s": 100.0})
        case commands.Train():
            for done in range(5):
                outbox.report_progress("training", done, 5, figures={"tokens_per_s": 100.0})
                await anyio.sleep(0.02)
            outbox.report_event(
                events.StageTrained(command.id, command.round, command.stage, 0.25 + command.round / 100, reference)
            )
        case commands.CancelTraining():
            outbox.report_event(events.TrainingCancelled(command.train, 0, 0))


if __name__ == "__main__":
    anyio.run(run_worker, main)

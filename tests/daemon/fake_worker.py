"""A scripted worker for tests: speaks the real frames, does nothing real, and misbehaves on demand.

Usage: fake_worker.py network|trainer MODE [once]. With "once" only the first process of a data directory misbehaves.
"""

import os
import signal
import sys
import threading
from pathlib import Path

import anyio

from swarmd.core import commands, events
from swarmd.errors import ModelError, OutOfRoom
from swarmd.worker.child import Inbox, Outbox, serve
from swarmd.worker.messages import Perform, Start, Stop

WORKER, MODE = (*sys.argv[1:3], "", "")[:2]  # nothing, where a test only imports this
ONCE = "once" in sys.argv[3:]
DIGEST = "0" * 64
CANARY = "hf_" + "CANARY" * 5


def misbehaves(start: Start) -> bool:
    marker = Path(start.data_dir) / f"misbehaved-{WORKER}"
    if ONCE and marker.exists():
        return False
    marker.touch()
    return True


async def main(start: Start, outbox: Outbox, inbox: Inbox) -> None:
    mode = MODE if misbehaves(start) else "ok"
    print(f"[INFO] fake {WORKER} worker for {start.peer[-6:]}, mode {mode}", file=sys.stderr)
    if mode == "fault":
        raise ModelError("there is no model in /nowhere", "Name another")
    if mode == "full":
        raise OutOfRoom("the worker takes 900 MiB, and may take 600")
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
    async for message in inbox:
        if isinstance(message, Stop):
            if mode == "hang":
                continue
            return
        assert isinstance(message, Perform)
        await perform(message.command, start.peer, outbox)
        if mode == "retire" and isinstance(message.command, commands.Train):
            outbox.retire("recycled")
            return


def ready(outbox: Outbox) -> None:
    if WORKER == "network":
        outbox.observe(events.LinkUp(1, ("/ip4/127.0.0.1/tcp/1",)))
    else:
        outbox.observe(events.TrainerReady("cpu", "fake", 1))


def chatter() -> None:
    print(f"token={CANARY}", file=sys.stderr)
    for _ in range(100):
        print("WARNING the same again", file=sys.stderr)
    print("x" * 10_000, file=sys.stderr)


async def perform(command: commands.Command, peer: str, outbox: Outbox) -> None:
    reference = events.RolloutsRef(peer, 0, 0, DIGEST, 1, 1)
    match command:
        case commands.Register():
            outbox.observe(events.Registered(command.id))
        case commands.ReadClock():
            outbox.observe(events.NoRoundYet())
        case commands.Announce():
            outbox.observe(events.RoundPublished(command.id, command.round, command.stage))
            announced = events.RoundAnnounced(
                command.round, command.stage, command.opened_at, command.deadline_at, command.final
            )
            outbox.observe(announced)
        case commands.Gather():
            outbox.observe(events.RolloutsGathered(command.id, command.round, command.stage))
        case commands.PublishReport():
            outbox.observe(events.ReportPublished(command.id, command.round, command.stage))
            outbox.observe(events.ReportSeen(peer, command.round, command.stage, command.reward, DIGEST, b"r"))
        case commands.PublishLeaderboard():
            outbox.observe(events.LeaderboardPublished(command.id, command.round))
        case commands.Train() if MODE == "busy":  # and never done
            outbox.progress("training", 1, 20, figures={"tokens_per_s": 100.0})
        case commands.Train():
            for done in range(5):
                outbox.progress("training", done, 5, figures={"tokens_per_s": 100.0})
                await anyio.sleep(0.02)
            outbox.observe(
                events.StageTrained(command.id, command.round, command.stage, 0.25 + command.round / 100, reference)
            )
        case commands.CancelTraining():
            outbox.observe(events.TrainingCancelled(command.train, 0, 0))


if __name__ == "__main__":
    anyio.run(serve, main)

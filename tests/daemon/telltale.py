"""A scripted worker that tells every secret it can read, in every way a worker can tell anything, and then dies.

Usage: telltale.py network|trainer|chain. Only the first process of a data directory does so; later ones only run.
"""

import base64
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import anyio
import msgspec

from swarmd.config import decode
from swarmd.core import events
from swarmd.core.values import BlockRef
from swarmd.worker.child import Inbox, Outbox, run_worker
from swarmd.worker.messages import PerformMessage, StartMessage, StopMessage

WORKER = sys.argv[1] if __name__ == "__main__" else ""  # nothing, where a test only imports this
FILES = "SWARMD_TEST_FILES"  # the directory of the secrets' files
LINE = 4096


def secrets(start: StartMessage) -> Iterator[str]:
    """What lies in files, in the environment and in the configuration; keys as people write them."""
    for path in sorted(Path(os.environ[FILES]).iterdir()):
        yield from path.read_text().split("\n")
    yield from (value for name, value in os.environ.items() if name.lower().endswith(("token", "key", "proxy")))
    yield from urls_in(msgspec.to_builtins(decode(start.config)))
    key = (Path(start.data_dir) / "identity.key").read_bytes()
    for secret in (key, key[4:36]):
        yield from (secret.hex(), base64.b64encode(secret).decode())


def urls_in(value: object) -> Iterator[str]:
    """Every text of the configuration that is a URL."""
    if isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from urls_in(inner)
    elif isinstance(value, str) and "://" in value:
        yield value


def tell(text: str, outbox: Outbox) -> None:
    """One secret, in all the ways."""
    print(text, file=sys.stderr)
    print(f"the config has {{'password': '{text}', 'plain': {text}}}", file=sys.stderr)
    print(f"GET https://hub.example/{quote(text, safe='')}/x?page={quote(text)} failed", file=sys.stderr)
    print(f"WARNING {'=' * (LINE - 20)}{text}", file=sys.stderr)  # the bound on lines cuts through it
    try:
        raise ValueError(f"401 for {text!r}")
    except ValueError:
        traceback.print_exc()
    reason = f"no access with {text}"
    outbox.report_progress(f"fetching with {text}", 1, 2, note=reason)
    if WORKER == "network":
        outbox.report_event(events.LinkUp(1, (f"/dns4/{text}/tcp/1",)))
        outbox.report_event(events.LinkDegraded(reason))
        outbox.report_event(events.LinkUp(1, ("/ip4/127.0.0.1/tcp/1",)))
    elif WORKER == "trainer":
        outbox.report_event(events.ModelPushed(0, f"https://{text}@hub.example/a/b", error=reason))
        outbox.report_event(events.TrainerReady("cpu", f"/models/{text}", 1, numbers=text))
    else:
        outbox.report_event(events.ChainDegraded(reason))


def ready(outbox: Outbox) -> None:
    if WORKER == "network":
        outbox.report_event(events.LinkUp(1, ("/ip4/127.0.0.1/tcp/1",)))
    elif WORKER == "trainer":
        outbox.report_event(events.TrainerReady("cpu", "fake", 1))


def chain_up() -> events.ChainUp:
    return events.ChainUp(1, "0x" + "1" * 40, "0x" + "2" * 64, BlockRef(1, "0x" + "3" * 64), 1, 0, 0, 0.0)


def die(told: list[str], outbox: Outbox) -> None:
    """Each worker in another way: with a fault, with last words alone, with a signal."""
    if WORKER == "network":
        raise ValueError(f"cannot start with {told}")
    print("\n".join(told), file=sys.stderr)
    if WORKER == "trainer":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


async def main(start: StartMessage, outbox: Outbox, inbox: Inbox) -> None:
    marker = Path(start.data_dir) / f"told-{WORKER}"
    ready(outbox)
    if not marker.exists():
        marker.touch()
        told = [text for text in secrets(start) if text.strip()]
        for text in told:
            tell(text, outbox)
        with anyio.move_on_after(0.5):
            message = await inbox.receive()
            if isinstance(message, PerformMessage):
                outbox.report_event(events.CommandFailed(message.command.id, f"refused: {told}"))
        die(told, outbox)
    if WORKER == "chain":
        outbox.report_event(chain_up())
    async for later in inbox:
        if isinstance(later, StopMessage):
            return


if __name__ == "__main__":
    anyio.run(run_worker, main)

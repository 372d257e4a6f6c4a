"""Runs programs that models wrote within a stage's seconds, and remembers what came of them.

- This node's own programs have seconds of their own; so has each peer, so that nobody's slow programs cost another.
- Programs of one batch run side by side. A peer's end with its seconds: what ended so proves nothing.
- Either all programs of a batch have a verdict or none: no completion of a group is better off than another.
"""

import hashlib
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable

import msgspec
from cachetools import FIFOCache

from swarmd.bounds import RateLimiter
from swarmd.errors import SandboxUnavailable
from swarmd.logger import get_logger
from swarmd.sandbox import Sandbox, Verdict

OWN = ""  # the author of this node's own programs
REMEMBERED_CHARACTERS = 32 * 1024 * 1024  # of verdicts; beyond it the oldest is forgotten, and its program is run again
BATCH_MAX = 64  # programs that are run at once; a larger batch is not run at all
VERDICT_CHARACTERS = 8192  # that a verdict counts for beside its output
AUTHORS_MAX = 4096  # whose seconds are counted in one stage; more peers than a stage has

log = get_logger(__name__)


class ProgramRunner:
    """Safe to use from several threads.

    Args:
        own_s: seconds of a stage that this node's own programs may take.
        peer_s: seconds of a stage that each peer's programs may take, unless `share` says otherwise.
        keep: the part of a standard output that is remembered.
    """

    def __init__(self, sandbox: Sandbox, own_s: float, peer_s: float, keep: Callable[[str], str]) -> None:
        self._sandbox, self._keep = sandbox, keep
        self._own_s, self._peer_s = own_s, peer_s
        self._lock = threading.Lock()
        self._verdicts: FIFOCache[bytes, Verdict] = FIFOCache(REMEMBERED_CHARACTERS, getsizeof=_verdict_size)
        self.runs = 0  # programs run, in all
        self.begin_stage(lambda: False)

    def begin_stage(self, is_cancelled: Callable[[], bool]) -> None:
        """Give everybody's seconds again, and run programs until the stage is cancelled."""
        self._sandbox.stop_when(is_cancelled)
        with self._lock:
            self._own = RateLimiter(self._own_s, 0.0)
            self._by_peer = RateLimiter(self._peer_s, 0.0, keys_max=AUTHORS_MAX)
            self._peers: frozenset[str] | None = None
            self._warned = False

    def share_seconds(self, seconds: float, peers: Collection[str]) -> None:
        """Divide seconds among the peers of this stage; all other authors together have one share."""
        with self._lock:
            self._by_peer = RateLimiter(seconds / max(1, len(peers)), 0.0, keys_max=len(peers) + 1)
            self._peers = frozenset(peers)

    def run_all(self, programs: Iterable[str], author: str = OWN) -> dict[str, Verdict | None]:
        """Verdicts by program; those that are not known yet are run.

        None for a program that could not be run: the sandbox did not work, or the stage was cancelled. Empty if there
        are more than BATCH_MAX, or the author's seconds are spent or do not suffice.
        """
        payer = author if self._peers is None or author in self._peers else ""
        seconds = self._own if author == OWN else self._by_peer
        with self._lock:
            known = {program: self._verdicts.get(_program_key(program)) for program in programs}
            left_s = seconds.tokens_left(payer)
        unknown = [program for program, verdict in known.items() if verdict is None]
        if not unknown:
            return known
        if left_s <= 0 and author == OWN and not self._warned:
            self._warned = True
            log.warning("own programs have had their %g s of this stage: no more are run", self._own_s)
        if left_s <= 0 or len(unknown) > BATCH_MAX:
            return {}
        begun = time.monotonic()
        try:
            verdicts = self._sandbox.run_all(unknown, math.inf if author == OWN else left_s)
        except SandboxUnavailable as error:
            log.warning("programs could not be run: %s", error)
            verdicts = []
        with self._lock:
            seconds.charge(payer, time.monotonic() - begun)
            self.runs += len(verdicts)
            for program, verdict in zip(unknown, verdicts, strict=False):
                if verdict.status != "stopped":
                    kept = msgspec.structs.replace(verdict, stdout=self._keep(verdict.stdout))
                    self._verdicts[_program_key(program)] = known[program] = kept
            return {} if None in known.values() and seconds.tokens_left(payer) <= 0 else known


def _verdict_size(verdict: Verdict) -> int:
    return VERDICT_CHARACTERS + len(verdict.stdout)


def _program_key(program: str) -> bytes:
    return hashlib.sha256(program.encode(errors="surrogatepass")).digest()

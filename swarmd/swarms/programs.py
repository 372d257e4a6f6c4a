"""Runs programs that models wrote, within time budgets for a stage, and caches their verdicts.

- This node's programs have their own budget, and so does each peer, so that slow programs cost only their author.
- Programs of a batch run in parallel. A peer's programs are stopped when its budget is spent, which proves nothing
  about them.
- A batch gets verdicts for all programs or for none, so that completions of a group are treated alike.
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
REMEMBERED_CHARACTERS = 32 * 1024 * 1024  # of cached verdicts; beyond it the oldest is dropped
BATCH_MAX = 64  # programs in a batch; a larger one is not run at all
VERDICT_CHARACTERS = 8192  # charged for each cached verdict besides its output
AUTHORS_MAX = 4096  # authors with a budget in one stage; more than a stage has peers

log = get_logger(__name__)


class ProgramRunner:
    """Thread-safe.

    Args:
        own_s: budget for this node's programs in a stage.
        peer_s: budget for each peer's programs in a stage, unless `share_seconds` changes it.
        keep: selects the part of standard output to cache.
    """

    def __init__(self, sandbox: Sandbox, own_s: float, peer_s: float, keep: Callable[[str], str]) -> None:
        self._sandbox, self._keep = sandbox, keep
        self._own_s, self._peer_s = own_s, peer_s
        self._lock = threading.Lock()
        self._verdicts: FIFOCache[bytes, Verdict] = FIFOCache(REMEMBERED_CHARACTERS, getsizeof=_verdict_size)
        self.runs = 0  # programs run so far
        self.begin_stage(lambda: False)

    def begin_stage(self, is_cancelled: Callable[[], bool]) -> None:
        """Reset all budgets, and run programs until the stage is cancelled."""
        self._sandbox.stop_when(is_cancelled)
        with self._lock:
            self._own = RateLimiter(self._own_s, 0.0)
            self._by_peer = RateLimiter(self._peer_s, 0.0, keys_max=AUTHORS_MAX)
            self._peers: frozenset[str] | None = None
            self._warned = False

    def share_seconds(self, seconds: float, peers: Collection[str]) -> None:
        """Divide seconds among this stage's peers; all other authors together get one share."""
        with self._lock:
            self._by_peer = RateLimiter(seconds / max(1, len(peers)), 0.0, keys_max=len(peers) + 1)
            self._peers = frozenset(peers)

    def run_all(self, programs: Iterable[str], author: str = OWN) -> dict[str, Verdict | None]:
        """Verdicts by program; those not cached are run.

        None for a program that could not be run because the sandbox failed or the stage was cancelled. Empty if there
        are more than BATCH_MAX programs, or the author's budget is insufficient.
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

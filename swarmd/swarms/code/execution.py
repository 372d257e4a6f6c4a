"""Programs run for this swarm: each once, remembered, and within a stage's bounds for own ones and each peer's."""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable

import msgspec

from swarmd.plugin import Sandbox, SandboxUnavailable, Verdict
from swarmd.swarms.code.form import OUTPUT_CHARACTERS_MAX

REMEMBERED_MAX = 2048  # verdicts; beyond it the oldest is forgotten, and its program would be run again
KEPT_CHARACTERS = OUTPUT_CHARACTERS_MAX + 1  # of an output: enough to see that it is to be cut
RERUNS_MAX = 64  # programs of one group; where more are unknown, none of them is run

log = logging.getLogger(__name__)


class Executions:
    """Runs programs, and remembers what came of them. Safe to use from several threads.

    Args:
        sandbox: where they run.
        own_s: seconds that `run` may spend in one stage, those of programs side by side added up.
        rerun_s: the same of `verify` for all peers together, an even share for each; own groups have as much as a peer.

    After these seconds no program is begun. In `run` those under way go on within the sandbox's limits, in `verify`
    they end: what ended so proves nothing.
    """

    def __init__(self, sandbox: Sandbox, own_s: float, rerun_s: float) -> None:
        self._sandbox = sandbox
        self._own_s, self._rerun_s = own_s, rerun_s
        self._own_spent_s = 0.0
        self._peers: frozenset[str] = frozenset()
        self._spent_s: defaultdict[str, float] = defaultdict(float)  # by peer
        self._told = False
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()

    def begin_stage(self, is_cancelled: Callable[[], bool]) -> None:
        """Give the seconds anew, and run programs until this says otherwise."""
        self._sandbox.heed(is_cancelled)
        with self._lock:
            self._own_spent_s = 0.0
            self._peers = frozenset()
            self._spent_s.clear()
            self._told = False

    def share(self, peers: Collection[str]) -> None:
        """Whose programs may come to `verify` in this stage; all others together have what one of these has."""
        self._peers = frozenset(peers)

    def run(self, program: str) -> Verdict | None:
        """Run a program unless it was run before; None where the sandbox did not work, the stage's seconds are spent,
        or it was cancelled."""
        verdict = self._recall(program)
        if verdict is not None or not self._check_budget():
            return verdict
        begun = time.monotonic()
        try:
            return self._perform(program)
        finally:
            with self._lock:
                self._own_spent_s += time.monotonic() - begun

    def _check_budget(self) -> bool:
        """Log, once a stage, that its time for programs is spent. Returns whether some is left."""
        with self._lock:
            affordable = self._own_spent_s < self._own_s
            tell, self._told = not affordable and not self._told, self._told or not affordable
        if tell:
            log.warning("programs have run for %g s in this stage (own_limits.stage_s): no more are run", self._own_s)
        return affordable

    def _perform(self, program: str, wall_s: float = math.inf) -> Verdict | None:
        """Run a program and remember what came of it, unless `wall_s` or the stage's cancellation ended it."""
        try:
            verdict = self._sandbox.run(program, wall_s=wall_s)
        except SandboxUnavailable as error:
            log.warning("a program could not be run: %s", error)
            return None
        cut_short = verdict.status == "timeout" and verdict.wall_s >= wall_s
        if verdict.status == "stopped" or cut_short:
            return None
        self._remember(program, verdict)
        return verdict

    def verify(self, programs: Iterable[str], peer: str) -> dict[str, Verdict | None]:
        """Verdicts on all programs of one group, those that were not run here yet run now; None where the sandbox did
        not work or the stage was cancelled. Empty when that would go beyond the bounds, so that no completion is better
        off than another.

        Args:
            peer: who wrote them; empty for this node.
        """
        known = {program: self._recall(program) for program in programs}
        unknown = [program for program, verdict in known.items() if verdict is None]
        if len(unknown) > RERUNS_MAX:
            return {}
        for program in unknown:
            left_s = self._left_s(peer)
            if left_s <= 0:
                return {}
            begun = time.monotonic()
            known[program] = self._perform(program, left_s)
            self._spent_s[self._payer(peer)] += time.monotonic() - begun
        return {} if None in known.values() and self._left_s(peer) <= 0 else known

    def _left_s(self, peer: str) -> float:
        return self._rerun_s / max(1, len(self._peers)) - self._spent_s[self._payer(peer)]

    def _payer(self, peer: str) -> str:
        return peer if peer in self._peers else ""

    def _recall(self, program: str) -> Verdict | None:
        with self._lock:
            return self._verdicts.get(_key(program))

    def _remember(self, program: str, verdict: Verdict) -> None:
        with self._lock:
            self._verdicts[_key(program)] = msgspec.structs.replace(verdict, stdout=verdict.stdout[:KEPT_CHARACTERS])
            if len(self._verdicts) > REMEMBERED_MAX:
                self._verdicts.popitem(last=False)


def _key(program: str) -> bytes:
    return hashlib.sha256(program.encode(errors="surrogatepass")).digest()

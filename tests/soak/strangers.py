"""`python -m tests.soak.strangers --seconds N`: whole nodes under all attacks at once; exit code 1 on findings.

Quiet times begin and interrupt the attack, and rounds under attack are held against them. In the end every log
verifies, no worker has ended but for what others caused, and all honest reports were credited.
"""

import argparse
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from swarmd.cli.local_swarm import get_or_make_peer_id
from tests.e2e.audit import verify
from tests.hostile.actors import ACTORS
from tests.hostile.assail import Assault, assault
from tests.hostile.watch import Closed, ScriptedSwarm, Watch, closed_rounds, lives_of, rounds_in, watched

QUIET_SHARE = 0.25  # of the time; the rest is attack
TURNS = 6  # quiet times and attacks
ROUNDS_SHARE_MIN = 0.95
WORKER_GROWTH_MIB_MAX = 64.0
AFTER_S = 60.0
TELL_S = 0.1
TRAINING_S = 2.0
STEP_S = 0.1  # of the scripted trainer
STAGE_S, STAGE_TIMES = 15.0, 1.5  # longest stage, at least, and in times of its training

Span = tuple[float, float]


class Spell:
    """What came of one soak; `findings` says what should not have been, and is empty where all held."""

    def __init__(self, swarm: ScriptedSwarm, watch: Watch, quiet: list[Span], attacked: list[Span]) -> None:
        closed = closed_rounds(swarm.places[0])
        self.share = share_of_quiet(closed, quiet, attacked)
        honest = {get_or_make_peer_id(place) for place in swarm.places}
        under = [each for each in closed if any(begin <= each.at < end for begin, end in attacked)]
        self.rounds = len(under)
        self.uncredited = sum(len(honest - each.credited) for each in under)
        self.growth_mib = max(_growth(watch, place.number, quiet) for place in swarm.places)
        self.exits = [event for place in swarm.places for event in lives_of(place).exits]

    def __str__(self) -> str:
        return (
            f"{self.rounds} rounds under attack, {self.share:.2f} of the quiet rate, {self.uncredited} honest reports "
            f"not credited, network workers {self.growth_mib:.0f} MiB larger in the end, {len(self.exits)} exits"
        )

    @property
    def findings(self) -> list[str]:
        """What did not hold."""
        inside = [event for event in self.exits if not event.outside]
        checks = (
            (self.share < ROUNDS_SHARE_MIN, f"{self.share:.2f} of the quiet rounds were closed under attack"),
            (self.uncredited > 0, f"{self.uncredited} honest reports were not credited"),
            (self.growth_mib > WORKER_GROWTH_MIB_MAX, f"a network worker has grown by {self.growth_mib:.0f} MiB"),
            (bool(inside), f"workers ended at the cost of the restart budget: {inside}"),
        )
        return [finding for wrong, finding in checks if wrong]


def share_of_quiet(closed: list[Closed], quiet: list[Span], attacked: list[Span]) -> float:
    """The rate of rounds under attack, of the quiet one. Raises AssertionError where that is none."""
    calm = _rate(closed, quiet)
    assert calm > 0, "no round was closed in quiet times: --seconds is too little for stages of --training-s"
    return _rate(closed, attacked) / calm


def _rate(closed: list[Closed], spans: list[Span]) -> float:
    return rounds_in(closed, spans) / sum(end - begin for begin, end in spans)


def _growth(watch: Watch, node: int, quiet: list[Span]) -> float:
    """Of a network worker's median size, from the first quiet time to the last."""
    first, last = (
        [each.worker_mib for each in watch.seen if each.node == node and begin <= each.at < end]
        for begin, end in (quiet[0], quiet[-1])
    )
    return statistics.median(last) - statistics.median(first)


def endure(
    directory: Path,
    seconds: float,
    tell: Callable[[str], object],
    after_s: float = AFTER_S,
    training_s: float = TRAINING_S,
) -> Spell:
    """Run the swarm for so long, and `after_s` more without attackers.

    Raises:
        AssertionError: a log is damaged, a node ended with another code than 0, or no round was closed in quiet times.
    """
    swarm, quiet, attacked = ScriptedSwarm(directory), list[Span](), list[Span]()
    turn_s = seconds / TURNS
    try:
        stage_s = max(STAGE_S, STAGE_TIMES * training_s)
        swarm.run(**{"training.steps": round(training_s / STEP_S), "coordinator.stage_s": stage_s})
        with watched(swarm) as watch:
            with assault(sorted(ACTORS), swarm.addresses()) as attackers:
                for turn in range(TURNS):
                    quiet.append(_pass(watch, turn_s * QUIET_SHARE, attackers))
                    attackers.act()
                    attacked.append(_pass(watch, turn_s * (1 - QUIET_SHARE), attackers))
                    attackers.rest()
                    tell(f"{turn + 1} of {TURNS}: round {watch.round}, {watch.pids()}")
            quiet.append(_pass(watch, after_s))
        codes = swarm.stop()
    finally:
        swarm.stop()
    assert not any(codes.values()), f"exit codes {codes}"
    for place in swarm.places:
        verify(place.root)
    return Spell(swarm, watch, quiet, attacked)


def _pass(watch: Watch, seconds: float, attackers: Assault | None = None) -> Span:
    began, never = time.time(), threading.Event()
    while time.time() < began + seconds:
        if attackers is not None:
            attackers.tell(watch.round)
        never.wait(TELL_S)
    return began, time.time()


def main() -> int:
    """Run as the command line says. Returns the exit code; the nodes stay where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.strangers", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="of quiet and attack (default: %(default)s)")
    parser.add_argument("--training-s", type=float, default=TRAINING_S, help="of a stage (default: %(default)s)")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in a shell's background it is ignored
    directory = Path(tempfile.mkdtemp(prefix="strangers-", dir="/tmp"))
    print(f"the nodes are in {directory}", flush=True)
    try:
        spell = endure(directory, given.seconds, lambda line: print(line, flush=True), training_s=given.training_s)
    except AssertionError as error:
        print(f"error: {error}, in {directory}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(spell)
    if spell.findings:
        print("\n".join(f"error: {finding}" for finding in spell.findings), f"in {directory}", file=sys.stderr)
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())

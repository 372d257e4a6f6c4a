"""Programs in completions: read out of them, run in the sandbox, and paid."""

from __future__ import annotations

import hashlib
import math
import re
import threading
import time
import unicodedata
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable

import msgspec

from swarmd.logger import get_logger
from swarmd.plugin import Sandbox, SandboxUnavailable, Verdict, escape_markers
from swarmd.sandbox.sandbox import Status
from swarmd.swarms.text import TAGS

PROGRAM_OPENING, PROGRAM_CLOSING = "<program>", "</program>"
OUTPUT_OPENING, OUTPUT_CLOSING = "<output>", "</output>"
MARKERS = (*TAGS, PROGRAM_OPENING, PROGRAM_CLOSING, OUTPUT_OPENING, OUTPUT_CLOSING)
STOPS = tuple(PROGRAM_CLOSING + behind for behind in ("", "\n", "\n\n", " "))  # many tokenizers have tokens like ">\n"
EXECUTIONS_MAX = 6  # of one completion
OUTPUT_CHARACTERS_MAX = 8192  # of any output, whatever a node is set to
MARKS_MAX = 30  # combining marks in a row, as in UAX #15's stream-safe text: composing them takes their square
CUT = " ... (cut)"
ERROR = "Error: "
ERROR_COMPAT = "Error! "

_TAG = "|".join(re.escape(marker) for marker in MARKERS)
_BLOCK = re.compile(
    rf"{PROGRAM_CLOSING}(?:\n\n|\n| |)"
    rf"(?P<block>\n{OUTPUT_OPENING}\n(?P<output>(?:(?!{_TAG}).){{0,{OUTPUT_CHARACTERS_MAX}}})\n{OUTPUT_CLOSING}\n)",
    re.DOTALL,
)
_FENCE = re.compile(r"```(?:python3?|py)?[ \t]*\r?\n(.*?)```", re.DOTALL)


class Execution(msgspec.Struct, frozen=True):
    """A program in a completion, with the output that stands behind it."""

    program: str | None  # None where there was none between the tags
    output: str
    span: tuple[int, int]  # of the block of output, in characters


def find_executions(text: str) -> list[Execution]:
    """Programs followed by a block of output, in order; those beyond what a completion may have are left out."""
    found: list[Execution] = []
    for match in _BLOCK.finditer(text):
        if len(found) > EXECUTIONS_MAX:  # one more may stand there: the refusal
            break
        before = text[found[-1].span[1] if found else 0 : match.start()]
        found.append(Execution(extract_program(before), match["output"], match.span("block")))
    return found


def extract_program(text: str) -> str | None:
    """The last fenced block behind the last opening in a text that ends where its closing begins."""
    _, opening, inside = text.rpartition(PROGRAM_OPENING)
    blocks = _FENCE.findall(inside) if opening else []
    return str(blocks[-1]) if blocks else None


def latest_program(text: str) -> str | None:
    """The program of a completion that has just closed one."""
    executions = find_executions(text)
    start = executions[-1].span[1] if executions else 0
    return extract_program(text[start : text.rindex(PROGRAM_CLOSING)]) if PROGRAM_CLOSING in text[start:] else None


def leave_out_outputs(text: str) -> str:
    """What the model wrote itself."""
    parts, start = [], 0
    for execution in find_executions(text):
        parts.append(text[start : execution.span[0]])
        start = execution.span[1]
    return "\n".join([*parts, text[start:]])


def frame_output(output: str, characters_max: int) -> str:
    """The block that is put behind a program."""
    return f"\n{OUTPUT_OPENING}\n{clean_output(output, characters_max)}\n{OUTPUT_CLOSING}\n"


def clean_output(output: str, characters_max: int) -> str:
    """What stands between the tags: cut, without tags or control characters, in Unicode's composed form."""
    clean = "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in output.rstrip())
    clean = _part_marks(clean)
    clean = escape_markers(unicodedata.normalize("NFC", clean), MARKERS)
    if len(clean) > characters_max:
        clean = clean[: characters_max - len(CUT)] + CUT
    return clean


def _part_marks(text: str) -> str:
    """Text in which no more than `MARKS_MAX` combining marks follow each other."""
    if text.isascii():
        return text
    parted, marks = [], 0
    for letter in text:
        joins = unicodedata.combining(letter) > 0
        parted.append("\ufffd" if joins and marks == MARKS_MAX else letter)
        marks = marks + 1 if joins and marks < MARKS_MAX else 0
    return "".join(parted)


def tell_verdict(verdict: Verdict | None, error: str = ERROR) -> str:
    """What a model is told of a run: what was printed, or one line behind `error`."""
    if verdict is None:
        return f"{error}the program could not be run"
    if verdict.status == "ok":
        return verdict.stdout if verdict.stdout.strip() else f"{error}the program printed nothing"
    lines = verdict.stderr.strip().splitlines()
    failed = lines[-1] if lines else f"the program ended with code {verdict.exit_code}"
    reasons: dict[Status, str] = {
        "timeout": "the program took too long",
        "memory": "the program used too much memory",
        "output-limit": "the program printed too much",
        "processes": "a program cannot start processes or threads",
        "refused": "the program is too long",
    }
    return f"{error}{reasons.get(verdict.status, failed)}"


def same_output(one: str, other: str) -> bool:
    """Whether two outputs are the same but for spaces, as far as both go where one was cut."""
    texts = [" ".join(text.split()) for text in (one, other)]
    if texts[0] == texts[1]:
        return True
    cut = CUT.strip()
    stems = [(text.removesuffix(cut).rstrip(), text.endswith(cut)) for text in texts]
    return any(
        cut_here and stem != "" and other_stem.startswith(stem)
        for (stem, cut_here), (other_stem, _) in (stems, stems[::-1])
    )


REMEMBERED_MAX = 2048  # verdicts; beyond it the oldest is forgotten, and its program would be run again
KEPT_CHARACTERS = OUTPUT_CHARACTERS_MAX + 1  # of an output: enough to see that it is to be cut
RERUNS_MAX = 64  # programs of one group; where more are unknown, none of them is run

log = get_logger(__name__)


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

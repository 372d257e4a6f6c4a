"""The form of a completion with programs in it, and what of it the swarm wrote.

    ... <program>
    ```python
    print(6 * 7)
    ```
    </program>              generation pauses here
    <output>
    42
    </output>               the swarm's, from the line break before the opening to the one behind the closing
    ... <answer>42</answer>

A block of output is recognised by its place and its exact form: directly behind a program's closing, with no tag in it,
of bounded length. Anywhere else `<output>` is the model's own text, which is trained on and proves nothing.
"""

from __future__ import annotations

import re
import unicodedata

import msgspec

from swarmd.plugin import Verdict, escape_markers
from swarmd.sandbox.limits import Status
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

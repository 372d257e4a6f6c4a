"""Small mistakes as text, file by file: what each is called, what goes (-) and comes (+), and what else is to be known.

    swarmd/eventlog/store.py
      an append is not synced
        - os.fdatasync(file)
        + pass
        tests/eventlog/test_damage.py::test_what_is_synced_stays

What goes is exact, from the second column behind the sign on, in one line or several; nothing need come in its place.
"""

from collections.abc import Iterator
from typing import NamedTuple


class Patch(NamedTuple):
    """One mistake; `more` has the lines below it that have no sign."""

    name: str
    file: str
    text: str
    instead: str
    more: tuple[str, ...]


def read_patches(listed: str) -> Iterator[Patch]:
    """All that are listed, in their order."""
    file, name, texts, more = "", "", {"-": list[str](), "+": list[str]()}, list[str]()
    for line in [*listed.strip().splitlines(), ""]:
        depth = len(line) - len(line.lstrip())
        if depth < 4 and name:
            yield Patch(name, file, "\n".join(texts["-"]), "\n".join(texts["+"]), tuple(more))
            name, texts, more = "", {"-": [], "+": []}, []
        if depth == 0:
            file = line
        elif depth == 2:
            name = line[2:]
        elif line[4] in texts:
            texts[line[4]].append(line[6:])
        else:
            more.append(line[4:])

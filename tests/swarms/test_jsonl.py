"""Files of questions and settings of a kind: what is accepted, and what an error names."""

import json
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.config import Section
from swarmd.errors import SwarmError
from swarmd.swarms import jsonl
from swarmd.swarms.jsonl import digest_rows, read_rows
from swarmd.swarms.options import decode_options

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
ROWS = st.lists(st.dictionaries(st.text(st.characters(codec="utf-8")), PLAIN, max_size=4), min_size=1, max_size=6)


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@given(ROWS, st.booleans())
def test_rows_come_back_as_they_were_written_and_spaces_change_no_digest(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]], spaced: bool
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    separators = (" , ", " : ") if spaced else (",", ":")
    path.write_text("\n\n".join(json.dumps(row, separators=separators) for row in rows) + "\r\n", encoding="utf-8")
    read = read_rows(path)
    assert list(read) == rows
    assert digest_rows(read) == digest_rows([dict(reversed(list(row.items()))) for row in rows])


def test_another_answer_or_another_order_has_another_digest() -> None:
    rows = [{"prompt": "1 + 1", "answer": "2"}, {"prompt": "2 + 2", "answer": "4"}]
    others = [rows[::-1], [rows[0], {**rows[1], "answer": "5"}], rows[:1], [*rows, rows[0]]]
    assert digest_rows(rows) not in {digest_rows(other) for other in others}
    assert len(digest_rows(rows)) == 64


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "has no rows"),
        ("\n \n", "has no rows"),
        ('{"prompt": "a"}\n{"prompt": \n', "line 2: not JSON"),
        (b'{"prompt": "\xff"}', "line 1: not JSON"),
        (b'{"prompt": "\\ud800"}', "line 1: not JSON"),
        ("[1]", "line 1: list, not an object"),
        ('\n\n{"other": "a"}', "line 3: 'prompt' is missing"),
        ('{"prompt": 3}', "line 1: 'prompt' is not a text"),
        ('{"prompt": " "}', "line 1: 'prompt' is blank"),
        ('{"prompt": NaN}', "line 1: not JSON"),
        ('{"prompt": "a"}\n' * 4, "more than 3 rows"),
        ('{"prompt": "' + "a" * 100 + '"}', "line 1: longer than 64 bytes"),
        ("[" * 40 + "\n" + '{"prompt": "a"}\n' * 40, "it has 681 bytes, no more than 200 are read"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(
    tmp_path: Path, content: str | bytes, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, content)
    for bound, limit in (("ROWS_MAX", 3), ("LINE_BYTES_MAX", 64), ("FILE_BYTES_MAX", 200)):
        monkeypatch.setattr(jsonl, bound, limit)
    with pytest.raises(SwarmError) as caught:
        read_rows(path, ("prompt",))
    assert complaint in caught.value.message
    assert str(path) in caught.value.message
    assert caught.value.fix


def test_a_row_without_an_end_is_refused_and_a_mark_of_the_byte_order_is_not(tmp_path: Path) -> None:
    with pytest.raises(SwarmError, match="line 1: not JSON"):
        read_rows(write(tmp_path, '{"a": ' + "[" * 100_000))
    assert read_rows(write(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}')) == ({"prompt": "a"},)


def test_a_file_that_is_not_there_and_a_directory_are_told(tmp_path: Path) -> None:
    with pytest.raises(SwarmError) as caught:
        read_rows(tmp_path / "none.jsonl")
    assert "No such file" in caught.value.message and "data directory" in caught.value.fix
    with pytest.raises(SwarmError, match="not a regular file"):
        read_rows(tmp_path)


class Reward(Section, frozen=True):
    weight: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.0


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    mode: Literal["fixed", "compat"] = "fixed"
    rows: Annotated[int, msgspec.Meta(ge=1, le=9)] = 5
    rewards: tuple[Reward, ...] = ()
    named: dict[str, Reward] = {}

    def __post_init__(self) -> None:
        if self.source == "nowhere":
            raise ValueError("nowhere is no source")


def test_options_become_the_struct() -> None:
    options = {"source": "a", "rows": 3, "rewards": [{"weight": 2}], "named": {"any": {}}}
    assert decode_options(options, Example) == Example("a", "fixed", 3, (Reward(2.0),), {"any": Reward()})


@pytest.mark.parametrize(
    ("options", "complaint", "fix"),
    [
        ({"source": "a", "mod": "fixed"}, "unknown key 'swarm.options.mod'", "Did you mean swarm.options.mode?"),
        ({}, "swarm.options.source is missing", "Write source = ... below [swarm.options]"),
        ({"source": 1}, "swarm.options.source: Expected `str`", "Write it in quotes"),
        ({"source": "a", "rows": 0}, "swarm.options.rows: Expected `int` >= 1", "rows = 5"),
        (
            {"source": "a", "rewards": [{"wait": 1}]},
            "'swarm.options.rewards[0].wait'",
            "swarm.options.rewards[0].weight?",
        ),
        ({"source": "a", "named": {"x": {"wait": 1}}}, "swarm.options.named", "It takes"),
        ({"source": "nowhere"}, "swarm.options: nowhere is no source", "It takes"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], complaint: str, fix: str) -> None:
    with pytest.raises(SwarmError) as caught:
        decode_options(options, Example)
    assert complaint in caught.value.message
    assert fix in caught.value.fix

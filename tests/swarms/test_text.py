import re
import time

from hypothesis import given
from hypothesis import strategies as st

from swarmd.swarms.text import TAGS, escape_markers, extract_answer, is_well_formed, span_answer


@given(st.lists(st.sampled_from(["<answer>", "</answer>", "<", "a", "a", " ", "\n"]), max_size=12))
def test_the_span_of_an_answer_is_the_pair_that_is_scored_and_nothing_else(parts: list[str]) -> None:
    text = "".join(parts)
    spans = span_answer(text, "a")
    assert [text[slice(*span)] for span in spans] == ["<answer>a</answer>"] * len(spans)
    assert not spans or extract_answer(text) == "a"
    if text.endswith("<answer>a</answer>") and text.count("<answer>") == 1:
        assert spans == ((len(text) - len("<answer>a</answer>"), len(text)),)


@given(st.lists(st.sampled_from(["<answer>", "</answer>", "<", ">", "/answer>", "a", " ", "\n"]), max_size=12))
def test_the_last_answer_is_that_of_a_search_from_the_left(parts: list[str]) -> None:
    text = "".join(parts)
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    assert extract_answer(text) == (found[-1].strip() if found else None)
    pair = re.search(r"<answer>.*?</answer>", text, re.DOTALL)
    once = text.count("<answer>") == text.count("</answer>") == 1
    assert is_well_formed(text) == (once and pair is not None and text.rstrip().endswith("</answer>"))


def test_tags_that_are_never_closed_cost_no_time() -> None:
    """A search from the left looks through the rest of the text for each of them: minutes."""
    begun = time.process_time()
    for text in (
        "<answer>" * 20_000,
        "<answer>" * 20_000 + "</answer>",
        "<answer></answer>" * 10_000 + "<answer>" * 9_000,
    ):
        extract_answer(text)
    assert time.process_time() - begun < 10.0


@given(st.text(alphabet="<>/|answerthink_im", max_size=80))
def test_no_marker_survives_escaping(text: str) -> None:
    markers = (*TAGS, "<|im_end|>")
    escaped = escape_markers(text, markers)
    assert not any(marker in escaped for marker in markers)
    assert escaped.replace(" ", "") == text

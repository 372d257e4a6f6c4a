"""Frames: what is written can be read, and nothing else can."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.errors import FrameError
from swarmd.training.reference.frame import (
    PREFIX,
    FrameLimits,
    JobHeader,
    ResultHeader,
    ScoringBatch,
    decode_job,
    decode_result,
    encode_job,
    encode_result,
)

LIMITS = FrameLimits(sequences=16, tokens=64)
DIGEST = "0123456789abcdef" * 4


@st.composite
def batches(draw: st.DrawFn) -> ScoringBatch:
    """Padded prompts and completions of all lengths, at least one token of a prompt."""
    rows, prompt, keep = draw(st.integers(1, 6)), draw(st.integers(1, 9)), draw(st.integers(1, 7))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    starts = generator.integers(0, prompt, (rows, 1))
    ends = prompt + generator.integers(0, keep + 1, (rows, 1))
    columns = np.arange(prompt + keep)
    mask = ((columns >= starts) & (columns < ends)).astype(np.uint8)
    ids = generator.integers(0, 2**31 - 1, mask.shape)
    return ScoringBatch(ids, mask, keep, draw(st.floats(0.01, 10)))


def job_of(batch: ScoringBatch, dtype: Any = "int32", **changed: Any) -> bytes:
    rows, width = batch.ids.shape
    fields = {"id": "job-1", "rows": rows, "width": width, "keep": batch.keep, "dtype": dtype} | changed
    return encode_job(JobHeader(**fields, temperature=batch.temperature), batch)


def small() -> ScoringBatch:
    return ScoringBatch(np.arange(8).reshape(2, 4), np.ones((2, 4), np.uint8), 2)


@given(batches(), st.sampled_from(["int32", "int64"]))
def test_a_job_is_read_as_it_was_written(batch: ScoringBatch, dtype: str) -> None:
    header, read = decode_job(job_of(batch, dtype), LIMITS)
    assert (header.id, header.dtype) == ("job-1", dtype)
    assert (read.ids == batch.ids).all() and (read.mask == batch.mask).all()
    assert (read.keep, read.temperature) == (batch.keep, batch.temperature)


@given(batches(), st.data())
def test_a_frame_that_was_cut_lengthened_or_altered_never_does_worse_than_an_error(
    batch: ScoringBatch, data: Any
) -> None:
    whole = job_of(batch)
    for wrong in (whole[: data.draw(st.integers(0, len(whole) - 1))], whole + data.draw(st.binary(min_size=1))):
        with pytest.raises(FrameError):
            decode_job(wrong, LIMITS)
    place = data.draw(st.integers(0, len(whole) - 1))
    altered = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
    try:
        read = decode_job(altered, LIMITS)[1]
    except FrameError:
        return
    assert read.ids.shape == read.mask.shape and int(read.ids.min()) >= 0 and read.keep < read.ids.shape[1]


def with_header(content: bytes) -> bytes:
    return PREFIX.pack(b"SWRF", 1, 1, len(content)) + content


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (PREFIX.pack(b"SWRG", 1, 1, 0), "not a frame of a reference server"),
        (PREFIX.pack(b"SWRF", 2, 1, 0), "version is 2, this end speaks 1"),
        (PREFIX.pack(b"SWRF", 1, 2, 0), "of kind 2"),
        (PREFIX.pack(b"SWRF", 1, 1, 5), "header of 5 bytes"),
        (PREFIX.pack(b"SWRF", 1, 1, 5000) + bytes(5000), "header of 5000 bytes"),
        (with_header(b"\x91" * 3000), "malformed"),
        (with_header(b"\x80"), "malformed"),
        (job_of(small(), id="../etc/passwd"), "malformed"),
        (job_of(small(), rows=2**31 - 1), "2147483647 sequences, at most 16"),
        (job_of(small(), width=65), "65 tokens, at most 64"),
        (job_of(small(), keep=4), "no prompt is left"),
        (job_of(small(), rows=3), "belong there"),
        (job_of(small()._replace(ids=np.full((2, 4), -1))), "negative"),
        (job_of(small()._replace(temperature=0.0)), "malformed"),
        (job_of(small()._replace(temperature=float("nan"))), "malformed"),
    ],
)
def test_what_is_wrong_with_a_job_is_told(body: bytes, told: str) -> None:
    with pytest.raises(FrameError, match=told):
        decode_job(body, LIMITS)


@pytest.mark.parametrize("row", [[0, 0, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 2], [1, 0, 0, 0]])
def test_a_mask_with_holes_is_refused(row: list[int]) -> None:
    mask = np.array([[0, 1, 1, 0], row], np.uint8)
    with pytest.raises(FrameError, match="mask"):
        decode_job(job_of(small()._replace(mask=mask)), LIMITS)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 0.5])
def test_what_is_no_log_probability_is_no_result(value: float) -> None:
    header = ResultHeader("job-1", DIGEST, DIGEST, 1, 2)
    with pytest.raises(FrameError, match="not a number"):
        decode_result(encode_result(header, np.array([[value, -1.0]], np.float32)))

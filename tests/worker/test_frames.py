"""Frames come whole however the bytes come, and what is no frame is refused by name."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmd.core.events import LinkUp, ReportSeen
from swarmd.errors import FrameError
from swarmd.worker.messages import (
    FRAME_BYTES_MAX,
    FaultMessage,
    FrameReader,
    FromWorker,
    ObservedMessage,
    PongMessage,
    ProgressMessage,
    encode_frame,
)

MESSAGES: tuple[FromWorker, ...] = (
    PongMessage(7),
    ObservedMessage(LinkUp(3, ("/ip4/127.0.0.1/tcp/1",))),
    ObservedMessage(ReportSeen("peer", 1, 0, float("inf"), record=b"\0" * 300)),
    ProgressMessage("training", 1, 20, figures={"tokens_per_s": 12.5}),
    FaultMessage("no such model", permanent=True, exit_code=66),
)


def reader() -> FrameReader[Any]:
    return FrameReader(FromWorker)  # type: ignore[arg-type]


@given(st.lists(st.sampled_from(MESSAGES), max_size=8), st.data())
def test_messages_come_whole_whatever_the_chunks(messages: list[FromWorker], data: st.DataObject) -> None:
    stream = b"".join(map(encode_frame, messages))
    source, got = reader(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        got += list(source.read_messages(stream[:size]))
        stream = stream[size:]
    assert got == messages


@given(st.binary(max_size=200))
def test_noise_is_refused_or_waited_for(noise: bytes) -> None:
    source = reader()
    try:
        got = list(source.read_messages(noise))
    except FrameError:
        return
    assert sum(len(encode_frame(message)) for message in got) <= len(noise) + 64 * len(got)


@pytest.mark.parametrize(
    "body",
    [
        encode_frame(FaultMessage("abcd"))[4:].replace(b"abcd", b"\xff\xfe\xfd\xfc"),
        b"\x82\xa4type\xa4pong\xa4more" + 100_000 * b"\x91" + b"\xc0",
    ],
    ids=["no UTF-8", "an endless nesting in a field that nobody knows"],
)
def test_a_body_that_cannot_be_decoded_is_refused(body: bytes) -> None:
    with pytest.raises(FrameError, match="is not a message"):
        list(reader().read_messages(struct.pack("<I", len(body)) + body))


def test_a_length_beyond_the_limit_is_refused_at_once() -> None:
    with pytest.raises(FrameError, match=str(FRAME_BYTES_MAX)):
        list(reader().read_messages(struct.pack("<I", FRAME_BYTES_MAX + 1)))


def test_a_message_beyond_the_limit_is_not_sent() -> None:
    with pytest.raises(FrameError, match="ProgressMessage frame has"):
        encode_frame(ProgressMessage("x" * (FRAME_BYTES_MAX + 1)))

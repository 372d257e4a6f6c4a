"""The number that an identity has worked for: searched for as long as somebody waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmd.dht.identity.kept_work import take_work
from swarmd.dht.identity.proof_of_work import find_work, work_bits


class NotWaiting(Exception):
    pass


def test_the_least_number_that_is_worth_the_bits_is_found() -> None:
    number = find_work("s", "p", 10)
    assert work_bits("s", "p", number) >= 10
    assert all(work_bits("s", "p", less) < 10 for less in range(number))


MORE = 17  # bits, than every node does


def give_up() -> None:
    raise NotWaiting


def test_work_is_found_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "work"
    number = take_work(path, "s", "p", MORE, lambda: None)
    assert work_bits("s", "p", number) >= MORE
    assert take_work(path, "s", "p", MORE, give_up) == number, "it is not searched for again"
    assert [each.name for each in tmp_path.iterdir()] == ["work"]


@pytest.mark.parametrize(
    ("swarm", "peer", "bits"), [("t", "p", MORE), ("s", "q", MORE), ("s", "p", 30)], ids=["swarm", "key", "bits"]
)
def test_what_is_kept_counts_for_what_it_was_found_for_alone(tmp_path: Path, swarm: str, peer: str, bits: int) -> None:
    take_work(tmp_path / "work", "s", "p", MORE, lambda: None)
    with pytest.raises(NotWaiting):
        take_work(tmp_path / "work", swarm, peer, bits, give_up)


@pytest.mark.parametrize(
    "content", [b"", b"12", b"\xff\x00", b"-5\n", b"9" * 400], ids=["empty", "torn", "no", "neg", "long"]
)
def test_a_damaged_number_is_found_anew_and_put_right(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "work"
    path.write_bytes(content)
    number = take_work(path, "s", "p", MORE, lambda: None)
    assert int(path.read_bytes()) == number == find_work("s", "p", MORE)

"""Owners are divided among those who are asked: each is asked for at one, and at others where that one has nothing."""

from __future__ import annotations

from collections import Counter

from swarmd.dht.store.shares import TRIES_MAX, Shares

OWNERS = [f"peer-{number}" for number in range(20)]


def test_every_owner_is_asked_for_once_and_everybody_is_asked_for_as_many() -> None:
    shares = Shares(OWNERS, 4)
    taken = [shares.take(peer) for peer in range(5)]
    assert [len(share) for share in taken] == [5, 5, 5, 5, 0]
    assert Counter(owner for share in taken for owner in share) == Counter(OWNERS)


def test_what_a_peer_does_not_show_is_asked_of_others_and_of_a_few_only() -> None:
    shares = Shares(OWNERS[:1], 1)
    for peer in range(TRIES_MAX):
        share = shares.take(peer)
        shares.give_back(share, [])
        assert share == ("peer-0",) and shares.take(peer) == ()
    assert shares.take("another") == ()


def test_who_is_wanted_is_asked_for_first_and_again_before_all_others() -> None:
    crowd = [f"crowd {number}" for number in range(60)]
    shares = Shares([*crowd, "a", "b"], 8, first=["a", "b"])
    first = shares.take("one")
    assert set(first[:2]) == {"a", "b"} and len(first) == 8
    assert not {"a", "b"} & set(shares.take("two"))
    shares.give_back(first, shown=["b"])
    assert shares.take("three")[0] == "a"

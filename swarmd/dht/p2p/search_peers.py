"""Peers that are asked in each search, whoever is nearest to the key. No hivemind in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

GUIDES = 3  # peers asked in each search besides those nearest to the key

Sample = Callable[[Sequence[str], int], list[str]]


def choose_guides(
    own: str, coordinator: str, bootstrap: Sequence[str], elders: Sequence[str], sample: Sample
) -> list[str]:
    """The coordinator, and by chance some of the bootstrap peers and of those that were credited longest.

    Args:
        own: this node's peer id; it asks nobody in place of itself.
        coordinator: empty where there is none.
        elders: peers that were credited for long, see `swarmd.dht.store.seniority.Seniority.elders`.
        sample: as `random.sample`.
    """
    others = [peer for peer in (*bootstrap, *elders) if peer not in (own, coordinator)]
    chosen = sample(others, min(len(others), GUIDES - 1))
    return chosen if coordinator in ("", own) else [coordinator, *chosen]

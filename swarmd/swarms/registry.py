"""Swarms by the name that `swarm.kind` in the configuration gives them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import import_module

from swarmd.config import SwarmConfig
from swarmd.errors import SwarmError
from swarmd.swarms.plan import Plan

KINDS: dict[str, tuple[str, str]] = {"reasoning-gym": ("swarmd.swarms.reasoning_gym", "ReasoningGymPlan")}


def make_plan(swarm: SwarmConfig) -> Plan:
    """The plan that a configuration asks for; imports only that swarm's module.

    Raises:
        SwarmError: the kind is unknown (names the nearest), or its settings are wrong.
    """
    if swarm.kind not in KINDS:
        near = difflib.get_close_matches(swarm.kind, KINDS, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known kinds: {', '.join(sorted(KINDS))}"
        raise SwarmError(f"swarm.kind {swarm.kind!r} is unknown", hint)
    module, name = KINDS[swarm.kind]
    plan: Callable[[SwarmConfig], Plan] = getattr(import_module(module), name)
    return plan(swarm)

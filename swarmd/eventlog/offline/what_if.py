"""A log as if the node had had other settings: those that every start writes down, changed before they are folded."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, get_type_hints

import msgspec

from swarmd.config import ChainConfig, CoordinatorConfig, RoundConfig, WorkersConfig
from swarmd.core.events import Event, NodeStarted
from swarmd.core.state import State
from swarmd.core.values import ChainSettings, CoordinatorSettings, Settings
from swarmd.errors import ConfigError

SECTIONS = {"round": RoundConfig, "workers": WorkersConfig, "coordinator": CoordinatorConfig, "chain": ChainConfig}
NESTED = {"coordinator": ("coordination", CoordinatorSettings), "chain": ("chain", ChainSettings)}  # in `Settings`


def _keys() -> tuple[str, ...]:
    """Keys of a configuration that decide what the core does, so that they stand in a log."""
    found = []
    for section, kind in SECTIONS.items():
        logged = NESTED[section][1] if section in NESTED else Settings
        found += [f"{section}.{name}" for name in kind.__struct_fields__ if name in logged.__struct_fields__]
    return tuple(found)


KEYS = _keys()


class SettingsOverride:
    """Settings by their keys in a configuration, in place of those of a log.

    Raises ConfigError for a key that no log has, or a value that a configuration would not take.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {key: _checked(key, value) for key, value in values.items()}

    def event(self, event: Event) -> Event:
        """The event; of a start, with the other settings. Raises ConfigError where this node has none of the kind."""
        if not isinstance(event, NodeStarted):
            return event
        return msgspec.structs.replace(event, settings=self._change(event.settings))

    def state(self, state: State) -> State:
        """A state to start from; the settings in it are changed as well."""
        if state.settings is None:
            return state
        return msgspec.structs.replace(state, settings=self._change(state.settings))

    def _change(self, settings: Settings) -> Settings:
        for key, value in self._values.items():
            section, _, name = key.partition(".")
            if section not in NESTED:
                settings = msgspec.structs.replace(settings, **{name: value})
                continue
            place = NESTED[section][0]
            inner = getattr(settings, place)
            if inner is None:
                raise ConfigError(f"{key} means nothing in this log: the node had no [{section}] to go by")
            settings = msgspec.structs.replace(settings, **{place: msgspec.structs.replace(inner, **{name: value})})
        return settings


def _checked(key: str, value: Any) -> Any:
    if key not in KEYS:
        near = difflib.get_close_matches(key, KEYS, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Those are: {', '.join(KEYS)}"
        raise ConfigError(f"{key} is no setting that a log holds", hint)
    section, _, name = key.partition(".")
    try:
        return msgspec.convert(value, get_type_hints(SECTIONS[section], include_extras=True)[name])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{key}: {error}") from error

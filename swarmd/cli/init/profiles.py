"""Which of the shipped configurations a new swarm begins with: a kind, a model, and whether it fits here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import tomlkit

from swarmd.cli.fit import device_named
from swarmd.config import Config, TrainingConfig, load_config, read_config_text
from swarmd.errors import ConfigError
from swarmd.paths import configs_directory

if TYPE_CHECKING:
    from swarmd.doctor.children import ModelFit, ProbeAnswer

SMALL = "embedded"  # the profile of a model that is shipped, which every kind has
SIZE = re.compile(r"-(\d+(?:\.\d+)?)b$")  # of a profile's name: cuda-1.5b
GIB = 2**30
STAGE_S = 300  # shortest stage of a new swarm
OTHERS = ("coordinator", "follower")


class InitProfile(NamedTuple):
    """A shipped configuration to start from. `path` is None where the kind's defaults are meant."""

    name: str
    path: Path | None
    training: TrainingConfig

    @property
    def model(self) -> str:
        return self.training.model

    @property
    def device(self) -> str:
        return self.name.partition("-")[0] if self.name != SMALL else "any"

    @property
    def size(self) -> str:
        """Billions of parameters as the name has them; empty where it has none."""
        found = SIZE.search(self.name)
        return found[1] if found else ""


class ProfileFit(NamedTuple):
    """A profile, and what its model takes here."""

    profile: InitProfile
    chosen: ModelFit | None  # the model that fits, of a pool the largest; None where none does
    need: int  # bytes, of that or of the least of the pool
    why: str = ""


def list_profiles(kind: str) -> list[InitProfile]:
    """The one of a shipped model first, then the shipped configurations of a kind."""
    home = configs_directory() / kind
    base = home / "coordinator.toml"
    shipped = base if base.is_file() else None
    small = InitProfile(SMALL, shipped, load_config(shipped).training if shipped else TrainingConfig())
    files = sorted(path for path in home.glob("*.toml") if path.stem not in OTHERS and SMALL not in path.stem)
    profiles = [InitProfile(path.stem, path, load_config(path).training) for path in files]
    return [small, *sorted(profiles, key=lambda each: (each.device, float(each.size or 0)))]


def weigh_profiles(profiles: Sequence[InitProfile], answers: Sequence[ProbeAnswer]) -> list[ProfileFit]:
    """What torch said about each profile's training."""
    return [_weigh(profile, answer) for profile, answer in zip(profiles, answers, strict=True)]


def _weigh(profile: InitProfile, answer: ProbeAnswer) -> ProfileFit:
    if answer.fault or not answer.weighed:
        return ProfileFit(profile, None, 0, answer.fault or answer.unknown or "its size is not known")
    fitting = [each for each in answer.weighed if each.fits]
    if fitting:
        chosen = max(fitting, key=lambda each: each.need)
        return ProfileFit(profile, chosen, chosen.need)
    least = min(answer.weighed, key=lambda each: each.need)
    return ProfileFit(profile, None, least.need, least.why or "it does not fit")


def pick(wanted: str, weighed: Sequence[ProfileFit]) -> ProfileFit:
    """The profile that is meant: by name, by size in billions, or `auto` for the largest that fits.

    Raises:
        ConfigError: there is none, or it does not fit here.
    """
    if wanted == "auto":
        return max((each for each in weighed if each.chosen), key=lambda each: each.need, default=weighed[0])
    meant = [each for each in weighed if wanted in (each.profile.name, each.profile.size, each.profile.model)]
    if not meant:
        names = ", ".join(each.profile.name for each in weighed)
        raise ConfigError(f"there is no model {wanted!r} for this kind of swarm", f"There are auto, {names}")
    fitting = [each for each in meant if each.chosen]
    if not fitting:
        raise ConfigError(
            f"{meant[0].profile.model} cannot be trained here: {meant[0].why}",
            'Choose a smaller one or "auto"; `swarmd model fit` shows what fits',
        )
    return fitting[0]


def line_of(weighing: ProfileFit) -> str:
    """One line for people."""
    profile = weighing.profile
    model = weighing.chosen.model if weighing.chosen else profile.model
    fits = "fits" if weighing.chosen else f"does not fit: {weighing.why}"
    return f"{profile.name:14} {model:40} {weighing.need / GIB:6.1f} GiB  {fits}"


def base_text(kind: str, weighing: ProfileFit, **changes: Any) -> str:
    """A coordinator's configuration to make a swarm of: the profile's, with one model in place of a pool.

    Args:
        changes: further keys of [training].
    """
    path = weighing.profile.path
    document = tomlkit.parse(read_config_text(path)) if path else tomlkit.document()
    document["role"] = "coordinator"
    document.pop("name", None)  # of the node that the profile was written for
    swarm: Any = document.setdefault("swarm", tomlkit.table())
    swarm.pop("coordinator", None)
    swarm.update({"id": "swarm", "kind": kind})
    for table, key in (("dht", "bootstrap"), ("dht", "listen"), ("dht", "announce")):
        part: Any = document.get(table)
        if part is not None:
            part.pop(key, None)
    training: Any = document.setdefault("training", tomlkit.table())
    training.pop("pool", None)
    model = weighing.chosen.model if weighing.chosen else weighing.profile.model
    training.update({"model": model, **changes})
    return tomlkit.dumps(document)


def stage_seconds(base: Config) -> int:
    """A stage's length for a swarm like this: half of what a slow node may train."""
    return max(STAGE_S, int(base.round.train_s / 2), int(base.coordinator.stage_s))


def with_device(training: TrainingConfig, device: str) -> TrainingConfig:
    """The training on another device than the profile's. Raises ConfigError for one that there is not."""
    return training if device == "auto" else msgspec.structs.replace(training, device=device_named(device))

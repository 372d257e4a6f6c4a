"""Settings of a configuration that must go together, beyond what the type of each says."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from swarmd.bounds import WORD_MAX, WORD_MIN
from swarmd.errors import ConfigError

if TYPE_CHECKING:
    from apprise import Apprise

    from swarmd.config import ChainConfig, Config, NotifyConfig, TrainingConfig

RECORD_MIN_S, RECORD_MAX_S = 5.0, 3600.0  # as swarmd.dht has them, which loads more than a check may


def check_together(config: Config, origin: str) -> None:
    """Raise ConfigError where settings do not go together; `origin` names the configuration in it."""
    _check_texts(config, "", origin)
    if config.role == "follower" and not config.swarm.coordinator and config.chain is None:
        raise ConfigError(
            f"{origin}: a follower needs swarm.coordinator, the peer id of the swarm's coordinator",
            "The coordinator prints it at start, and `swarmd status` shows it",
        )
    if config.role == "follower" and not config.dht.bootstrap:
        raise ConfigError(f"{origin}: a follower needs dht.bootstrap, the address of at least one node of the swarm")
    if config.chain is not None:
        _check_chain(config.chain, origin)
        _check_chain_shards(config.chain, origin)
    check_name(config.name, f"{origin}: name")
    _check_lives(config.dht.record_s, origin)
    _check_training(config.training, origin)
    _check_staleness(config.training, config.swarm.stages, origin)
    _check_numbers(config.swarm.options, "swarm.options", origin)
    for index, task in enumerate(config.swarm.tasks):
        _check_numbers(task.config, f"swarm.tasks[{index}].config", origin)


def _check_staleness(training: TrainingConfig, stages: int, origin: str) -> None:
    """What peers publish at a stage is trained on at the next one, which may be of the next round."""
    if stages == 1 and not training.staleness_rounds and training.peer_questions:
        raise ConfigError(
            f"{origin}: training.staleness_rounds is 0, and swarm.stages 1: peers' rollouts are a round old when they "
            "are there, so none would ever be taken",
            "Set training.staleness_rounds to 1 or more; to train on none of peers', set training.peer_questions to 0",
        )


def _check_texts(value: Any, key: str, origin: str) -> None:
    """Raise ConfigError for a text with the one character that no path or address has, wherever it stands."""
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{origin}: {key} has a NUL in it", "Write it without")
    for index, inner in enumerate(value if isinstance(value, tuple | list) else ()):
        _check_texts(inner, f"{key}[{index}]", origin)
    fields = {name: getattr(value, name) for name in getattr(value, "__struct_fields__", ())}
    for name, inner in (value if isinstance(value, dict) else fields).items():
        _check_texts(inner, f"{key}.{name}".lstrip("."), origin)


def _check_lives(record_s: float, origin: str) -> None:
    if not RECORD_MIN_S <= record_s <= RECORD_MAX_S:
        raise ConfigError(
            f"{origin}: dht.record_s is {record_s:g}, it must lie between {RECORD_MIN_S:g} and {RECORD_MAX_S:g}",
            "Peers take no record that lives longer, and a shorter life is over before it is renewed",
        )


def check_name(name: str, key: str) -> None:
    """Raise ConfigError for a name with which no peer takes a membership; `key` is where it was given, for people."""
    if not name.isprintable():
        raise ConfigError(
            f"{key}: {name!r} has characters that cannot be printed, and peers refuse it",
            "Leave out line breaks, control characters and what joins emoji",
        )


def check_notify(notify: NotifyConfig) -> None:
    """Raise ConfigError if somebody would not be told. A node runs all the same, so loading does not check it."""
    for number, url in enumerate(notify.urls, 1):
        if not url.startswith(("file:", "credential:")):
            open_service(url, f"notify.urls, entry {number}")


def open_service(url: str, key: str) -> Apprise:
    """The service behind an Apprise URL. Raises ConfigError, without the URL, if Apprise does not know it.

    Loading Apprise takes half a second and 45 MiB, so only those do who have a URL.
    """
    import apprise

    # its records may hold the URL
    log = logging.getLogger("apprise")
    log.addHandler(logging.NullHandler())
    log.propagate = False
    asset = apprise.AppriseAsset(
        app_id="swarmd", async_mode=False, storage_mode="memory", default_service_retry=2, default_service_wait=2.0
    )
    plugin = apprise.Apprise.instantiate(url, asset=asset)
    if not isinstance(plugin, apprise.NotifyBase):
        raise ConfigError(
            f"{key} is not a URL that Apprise knows",
            "See https://appriseit.com/services; a webhook is jsons://host/path, a file of URLs file:PATH",
        )
    return apprise.Apprise(plugin, asset=asset)


def _check_numbers(value: Any, key: str, origin: str) -> None:
    """Raise ConfigError for an integer that no worker can be told, in settings whose types only a kind knows."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_numbers(inner, f"{key}.{name}", origin)
    elif isinstance(value, list):
        for inner in value:
            _check_numbers(inner, key, origin)
    elif isinstance(value, int) and not WORD_MIN <= value <= WORD_MAX:
        raise ConfigError(f"{origin}: {key}: an integer of more than 64 bits", "Write a smaller one")


def _check_training(training: TrainingConfig, origin: str) -> None:
    if training.peer_questions + training.replay_questions >= training.questions:
        raise ConfigError(
            f"{origin}: training.peer_questions ({training.peer_questions}) and training.replay_questions "
            f"({training.replay_questions}) together must be below training.questions ({training.questions})",
            "At least one question of every step is this node's own",
        )
    if training.questions % training.processes:
        raise ConfigError(
            f"{origin}: training.questions ({training.questions}) must be a multiple of training.processes "
            f"({training.processes})"
        )
    own = training.questions // training.processes
    others = sum(-(-each // training.processes) for each in (training.peer_questions, training.replay_questions))
    if others >= own:  # each rank rounds its shares up
        raise ConfigError(
            f"{origin}: training.processes ({training.processes}) leaves each process {own} of training.questions "
            f"({training.questions}), and its shares of training.peer_questions ({training.peer_questions}) and "
            f"training.replay_questions ({training.replay_questions}), rounded up, take {others}",
            f"Set training.questions to {(others + 1) * training.processes} or more, or fewer processes",
        )
    if training.quantization != "none" and not training.lora.rank:
        raise ConfigError(
            f"{origin}: training.quantization = {training.quantization!r} needs adapters to train",
            "Set training.lora.rank, for example to 16",
        )
    if training.revision and training.model in ("embedded", "auto"):
        raise ConfigError(
            f"{origin}: training.revision means nothing to training.model = {training.model!r}",
            "Name a model of the Hub, or leave the revision out",
        )
    if training.schedule != "constant" and not training.schedule_steps:
        raise ConfigError(f"{origin}: training.schedule = {training.schedule!r} needs training.schedule_steps")
    if not training.weights_from and (training.catch_up != "none" or training.average_weights_every):
        raise ConfigError(
            f"{origin}: training.weights_from is empty, so there is nobody whose weights may be taken",
            'Name "coordinator", "credited" or peer ids, or set training.catch_up to "none" and '
            "training.average_weights_every to 0",
        )


def _check_chain(chain: ChainConfig, origin: str) -> None:
    if not chain.rpc:
        raise ConfigError(f"{origin}: chain.rpc names no endpoint", "Give the URL of at least one node of the chain")
    for url in chain.rpc:
        if not url.startswith(("http://", "https://", "ws://", "wss://", "file:", "credential:")):
            raise ConfigError(
                f"{origin}: chain.rpc: {url.split(':')[0]!r} is no scheme that a chain's node is reached by"
            )
    if chain.sender == "proxy" and not chain.proxy.org:
        raise ConfigError(f'{origin}: chain.sender is "proxy", but chain.proxy.org is missing')


def _check_chain_shards(chain: ChainConfig, origin: str) -> None:
    if chain.shards and chain.votes != "judged":
        raise ConfigError(
            f'{origin}: chain.votes is "{chain.votes}", but with chain.shards nobody reads the reports of all',
            'Set chain.votes to "judged"',
        )

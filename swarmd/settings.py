"""The part of a configuration that decides what the core does, as every start writes it into the log."""

from __future__ import annotations

import msgspec

from swarmd.config import ChainConfig, Config
from swarmd.core.values import ChainSettings, CoordinatorSettings, Settings

CATCH_UP_ROUNDS = 3  # missed, that make an absence
SHARD_MEMBERS = 64  # so many members' records of a stage share a key, about


def settings_of(config: Config, peer: str) -> Settings:
    """The part that decides the core's behaviour, for `NodeStarted`."""
    coordinating = config.role == "coordinator"
    return Settings(
        peer=peer,
        swarm=config.swarm.id,
        role=config.role,
        coordinator=peer if coordinating else config.swarm.coordinator,
        name=config.name,
        stages=config.swarm.stages,
        behind=config.round.behind,
        train_s=config.round.train_s,
        restarts_max=config.workers.restarts_max,
        coordination=_coordination_of(config) if coordinating and config.chain is None else None,
        chain=None if config.chain is None else _chain_settings_of(config.chain),
        kind=config.swarm.kind,
        contract="" if config.chain is None else contract_name(config.chain.chain_id, config.chain.contract),
        catch_up_rounds=CATCH_UP_ROUNDS if _catches_up(config) else 0,
        average_rounds=config.training.average_weights_every if _can_change_weights(config) else 0,
    )


def takes_weights(config: Config) -> bool:
    """Whether this node fetches peers' weights, to begin from after an absence or to average its own with."""
    return _catches_up(config) or (config.training.average_weights_every > 0 and _can_change_weights(config))


def _catches_up(config: Config) -> bool:
    """Whether it begins from a peer's weights after an absence. Who opens the rounds misses none."""
    follows = config.role != "coordinator" or config.chain is not None
    return config.training.catch_up == "weights" and follows and _can_change_weights(config)


def _can_change_weights(config: Config) -> bool:
    """Only a trainer that is one process, and samples from its own weights, can change them between two steps."""
    training = config.training
    return training.processes == 1 and training.vllm.mode == "off" and training.held_out_questions > 0


def contract_name(chain_id: int, address: str) -> str:
    """A contract as `Settings.contract` has it: "CHAIN_ID:address", the address in lower case."""
    return f"{chain_id}:{address.lower()}"


def _coordination_of(config: Config) -> CoordinatorSettings:
    return CoordinatorSettings(**msgspec.structs.asdict(config.coordinator), shard_members=SHARD_MEMBERS)


def _chain_settings_of(chain: ChainConfig) -> ChainSettings:
    sends = chain.sender != "none"
    return ChainSettings(
        sends=sends,
        drive=chain.drive if chain.sender == "wallet" else "never",  # a signer proxy does not offer to
        stage_s=chain.stage_s,
        reward_scale=chain.reward_scale,
        winners=chain.winners if sends else 0,
        votes=chain.votes,
    )

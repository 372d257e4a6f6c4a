"""swarmd: an event-sourced node for swarms that train language models with reinforcement learning."""

__version__ = "0.1.0"

"""What is trained: swarms draw questions, score completions and say how groups are named on the wire."""

from swarmd.swarms.gym.lazy import defer_heavy_modules

defer_heavy_modules()  # before anything imports reasoning_gym

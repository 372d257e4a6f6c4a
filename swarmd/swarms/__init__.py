"""What is trained: each kind of swarm draws questions and scores completions; rollouts name questions on the wire.

Authors of swarms import from `swarmd.plugin`. What else is here is private, though `plan`, `options`, `rollouts`,
`text`, `jsonl` and `registry` keep the names that plug-ins imported before there was that facade.
"""

from swarmd.swarms.gym.lazy import defer_heavy_modules

defer_heavy_modules()  # before anything imports reasoning_gym

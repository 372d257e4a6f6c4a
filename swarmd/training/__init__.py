"""The trainer worker: TRL's GRPO on a swarm's questions, checkpoints, evaluation, the embedded model."""

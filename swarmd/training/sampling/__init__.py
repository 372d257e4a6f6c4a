"""Completions: sampled here or by vLLM, in turns with the swarm, and measured on held-out questions."""

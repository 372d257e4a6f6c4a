"""Weights as they travel: safetensors in chunks under digests, deltas between two of them, and whole again or not."""

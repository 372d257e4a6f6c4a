"""Weights exchanged between nodes: safetensors files in chunks with digests, and deltas between two files."""

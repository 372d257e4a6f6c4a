"""Weights that are offered to peers, and peers' weights made a model again."""

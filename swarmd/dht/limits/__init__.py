"""Bounds on what a peer may ask of this node and have it keep count of."""

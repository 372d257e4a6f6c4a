"""Hostile actors in simulated swarms, and the shipped rules that hold against them."""

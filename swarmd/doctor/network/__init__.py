"""Checks of the way to others: what is announced, bootstrap nodes, ports."""

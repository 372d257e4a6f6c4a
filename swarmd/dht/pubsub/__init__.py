"""Gossip topics: hints, the coordinator's clock, and evidence."""

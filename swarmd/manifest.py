"""A swarm's manifest."""

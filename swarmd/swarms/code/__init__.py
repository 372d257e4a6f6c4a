"""The code swarm: models that write programs while they reason, run in a sandbox, and answer."""

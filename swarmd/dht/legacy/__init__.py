"""Networks of RL Swarm v0.4 as they are: its keys, values and habits in place of signed records (docs/INTEROP.md)."""
